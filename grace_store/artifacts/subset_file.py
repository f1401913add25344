"""Subsets as files: one that ``select`` wrote with its note, the best of a scores table, or a list of ids."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grace_store.artifacts.made_from import check_plan_of
from grace_store.artifacts.notes import SubsetNote, SubsetSpec
from grace_store.artifacts.score_table import ScoreTable, read_scores
from grace_store.base.arrays import IntArray
from grace_store.base.documents import read_document
from grace_store.base.errors import DataError
from grace_store.base.files import sidecar_of
from grace_store.base.fingerprint import file_sha256
from grace_store.base.text import counted, first_few
from grace_store.store.opened import Store
from grace_store.values.ranking import Ratio, budget

NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class WrittenSubset:
    """A subset as it lies in a file, with the table it was chosen from."""

    path: Path
    scores: ScoreTable
    chosen: IntArray
    """Rows of the table."""
    spec: SubsetSpec
    """How it was chosen."""
    is_table: bool = False
    """Whether it is no file of its own but the best of a table."""
    contaminated_rows: tuple[int, ...] | None = None
    """Places in the dataset of samples that were left out for items of benchmarks, if that is known."""


def read_subset(path: Path, ratio: Ratio | None = None) -> WrittenSubset:
    """Read a subset that ``select`` wrote, or the best of a scores table."""
    sidecar = sidecar_of(path)
    if not sidecar.is_file():
        if path.is_file() and path.suffix != ".parquet":
            raise DataError(
                f"{path} has no {sidecar.name} beside it, so it is not known what made it; select it again."
            )
        scores, ratio = read_scores(path, steps=False), "0.2" if ratio is None else ratio
        spec = SubsetSpec(ratio=str(ratio), balanced=None if scores.capability is None else "capability")
        return WrittenSubset(path, scores, _best(scores, ratio), spec, is_table=True)
    note = read_document(sidecar, SubsetNote)
    scores = _table_of(path, note)
    chosen = np.flatnonzero(np.isin(scores.row, note.rows))
    if len(chosen) != note.num_samples:
        raise DataError(f"{scores.path} does not hold all samples of {path}: it is another table. Select it again.")
    return WrittenSubset(path, scores, chosen, note.spec, contaminated_rows=note.contaminated_rows)


def _best(scores: ScoreTable, ratio: Ratio) -> IntArray:
    ranked = scores.ranked()
    if not len(ranked):
        raise DataError(f"{scores.path or 'The table'} has no sample with a value, so there is nothing to select.")
    return ranked[: budget(ratio, len(ranked))]


def _table_of(path: Path, note: SubsetNote) -> ScoreTable:
    if note.scores_path is None:
        raise DataError(f"{path} was chosen from a table in memory; write the table, then select from it.")
    where = Path(note.scores_path)
    beside = path.parent / where.name
    where = where if where.is_file() or not beside.is_file() else beside
    if not where.is_file():
        raise DataError(f"{path} was chosen from {where}, which is no longer there: put it back or score again.")
    scores = read_scores(where, steps=False)
    if scores.note != note.scores:
        raise DataError(f"{where} was overwritten by other scores since {path} was chosen from it. Select it again.")
    return scores


def check_unchanged(path: Path, note: SubsetNote) -> None:
    """Raise DataError if a subset is no longer the file that ``select`` wrote; older notes do not say."""
    if note.sha256 is not None and path.is_file() and file_sha256(path) != note.sha256:
        raise DataError(
            f"{path} was changed since `grace-store select` wrote it: {sidecar_of(path).name} beside it, which says "
            "what was chosen, does not fit it any more. Select it again; or give what you want as a list of ids, one "
            "on a line, in a file of its own."
        )


def samples_named(store: Store, path: str | Path) -> IntArray:
    """Return the positions in the plan, ascending, of the samples that a file names; none may be missing."""
    path = Path(path)
    if (rows := selected_rows(store, path)) is not None:
        return np.sort(store.positions_of(rows))
    if path.suffix == ".parquet":
        scores = read_scores(path, steps=False)
        check_plan_of(scores.note, store, scores.what)
        return np.sort(store.positions_of(scores.row))
    return _with_ids(store, path)


def selected_rows(store: Store, path: Path) -> IntArray | None:
    """Return the dataset rows, ascending, of a subset that ``select`` wrote; None if there is no note beside it."""
    sidecar = sidecar_of(path)
    if not sidecar.is_file():
        return None
    note = read_document(sidecar, SubsetNote)
    check_plan_of(note.scores, store, f"subset {path}")
    found = np.unique(np.array(note.rows, dtype=np.int64))
    if not np.isin(found, store.column("sample_row")).all():
        raise DataError(f"{sidecar} names records that {store.location} has no samples of; select it again.")
    return found


def _with_ids(store: Store, path: Path) -> IntArray:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a list of ids ({error}).") from None
    wanted = {line.removesuffix("\r") for line in lines if line.strip()}
    ids = store.column("sample_id").tolist()
    found = [position for position, text in enumerate(ids) if text in wanted]
    if len(found) < len(wanted):
        unknown = sorted(wanted - set(ids))
        shown = first_few([repr(name[:80]) for name in unknown], NAMES_SHOWN)
        raise DataError(
            f"{path} is neither a subset with its {sidecar_of(path).name} beside it nor a list of ids of "
            f"{store.location}: {counted(len(unknown), 'line')} without such an id ({shown})."
        )
    return np.array(found, dtype=np.int64)
