"""Files that name samples: a subset that ``select`` wrote with its note, a scores table, or a list of ids."""

from pathlib import Path

import numpy as np

from grace_store.base.arrays import IntArray, Positions
from grace_store.base.documents import read_document
from grace_store.base.errors import DataError
from grace_store.base.files import file_sha256, sidecar_of
from grace_store.base.text import counted, first_few
from grace_store.choose.selection import SubsetNote
from grace_store.scoring.notes import check_plan_of
from grace_store.scoring.score_table import read_scores
from grace_store.store.opened import Store

NAMES_SHOWN = 3


def check_unchanged(path: Path, note: SubsetNote) -> None:
    """Raise DataError if a subset is no longer the file that ``select`` wrote."""
    if path.is_file() and file_sha256(path) != note.sha256:
        raise DataError(
            f"{path} was changed since `grace-store select` wrote it: {sidecar_of(path).name} beside it, which says "
            "what was chosen, does not fit it any more. Select it again; or give what you want as a list of ids, one "
            "on a line, in a file of its own."
        )


def samples_named(store: Store, path: str | Path) -> Positions:
    """Return the positions in the plan, ascending, of the samples that a file names; none may be missing."""
    path = Path(path)
    if (rows := selected_rows(store, path)) is not None:
        return Positions(np.sort(store.positions_of(rows)))
    if path.suffix == ".parquet":
        scores = read_scores(path, steps=False)
        check_plan_of(scores.note, store, scores.what)
        return Positions(np.sort(store.positions_of(scores.row)))
    return Positions(_with_ids(store, path))


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
