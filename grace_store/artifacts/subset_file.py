"""Subsets as files: one that ``select`` wrote with its note, the best of a scores table, or a list of ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.artifacts.made_from import check_plan_of
from grace_store.artifacts.score_table import ScoreTable, read_scores
from grace_store.artifacts.table_check import wrong_fields
from grace_store.base.arrays import IntArray
from grace_store.base.errors import DataError
from grace_store.base.files import read_note, sidecar_of
from grace_store.store.opened import Store
from grace_store.values.ranking import Ratio, budget

_NOTE_FIELDS = {"rows": list, "num_samples": int, "spec": dict, "scores": dict}
"""What is asked of the note beside a subset."""
NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class WrittenSubset:
    """A subset as it lies in a file, with the table it was chosen from."""

    path: Path
    scores: ScoreTable
    chosen: IntArray
    """Rows of the table."""
    spec: dict[str, Any]
    """How it was chosen; empty for the best of a table."""


def read_subset(path: Path, ratio: Ratio | None = None) -> WrittenSubset:
    """Read a subset that ``select`` wrote, or the best of a scores table."""
    sidecar = sidecar_of(path)
    if not sidecar.is_file():
        if path.is_file() and path.suffix != ".parquet":
            raise DataError(
                f"{path} has no {sidecar.name} beside it, so it is not known what made it; select it again."
            )
        scores = read_scores(path, steps=False)
        return WrittenSubset(path, scores, _best(scores, ratio), {})
    made_by = read_note(sidecar)
    if wrong := wrong_fields(made_by, _NOTE_FIELDS) or _wrong_choice(made_by["spec"] if made_by else {}):
        raise DataError(f"{sidecar} is not what `grace-store select` wrote (no {wrong}); select {path.name} again.")
    assert made_by is not None
    scores = _table_of(path, made_by)
    rows = {row for row in made_by["rows"] if isinstance(row, int)}
    chosen = np.flatnonzero([row in rows for row in scores.row.tolist()])
    if len(chosen) != made_by["num_samples"]:
        raise DataError(f"{scores.path} does not hold all samples of {path}: it is another table. Select it again.")
    return WrittenSubset(path, scores, chosen, made_by["spec"])


def _wrong_choice(spec: dict[str, Any]) -> str:
    """Return which part of how a subset was chosen is not what `select` writes; empty if none."""
    control, diversity = spec.get("control") or [], spec.get("diversity") or {"method": ""}
    if not isinstance(control, list) or not all(isinstance(name, str) for name in control):
        return "control"
    return "" if isinstance(diversity, dict) and "method" in diversity else "diversity"


def _best(scores: ScoreTable, ratio: Ratio | None) -> IntArray:
    ranked = scores.ranked()
    if not len(ranked):
        raise DataError(f"{scores.path or 'The table'} has no sample with a value, so there is nothing to select.")
    return ranked[: budget("0.2" if ratio is None else ratio, len(ranked))]


def _table_of(path: Path, made_by: dict[str, Any]) -> ScoreTable:
    where = made_by.get("scores_path")
    if not isinstance(where, str):
        raise DataError(f"{path} was chosen from a table in memory; write the table, then select from it.")
    beside = path.parent / Path(where).name
    where = where if Path(where).is_file() or not beside.is_file() else str(beside)
    if not Path(where).is_file():
        raise DataError(f"{path} was chosen from {where}, which is no longer there: put it back or score again.")
    scores = read_scores(where, steps=False)
    if scores.made_by != made_by["scores"]:
        raise DataError(f"{where} was overwritten by other scores since {path} was chosen from it. Select it again.")
    return scores


def samples_named(store: Store, path: str | Path) -> IntArray:
    """Return the positions in the plan, ascending, of the samples that a file names; none may be missing."""
    path = Path(path)
    if (rows := selected_rows(store, path)) is not None:
        return store.positions_of(rows)
    if path.suffix == ".parquet":
        scores = read_scores(path, steps=False)
        check_plan_of(scores.made_by, store, scores.what)
        return np.sort(store.positions_of(scores.row))
    return _with_ids(store, path)


def selected_rows(store: Store, path: Path) -> IntArray | None:
    """Return the dataset rows, ascending, of a subset that ``select`` wrote; None if no note beside it says so."""
    note = read_note(sidecar_of(path))
    if note is None:
        return None
    is_ours = not wrong_fields(note, {"rows": list, "scores": dict})
    rows = np.array(note["rows"] if is_ours else [], dtype=object)
    if not is_ours or not all(type(row) is int for row in rows.tolist()):
        raise DataError(f"{sidecar_of(path)} does not say which records {path.name} holds; select it again.")
    check_plan_of(note["scores"], store, f"subset {path}")
    found = np.unique(rows.astype(np.int64))
    if not np.isin(found, store.column("sample_row")).all():
        raise DataError(f"{sidecar_of(path)} names records that {store.location} has no samples of; select it again.")
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
        shown = ", ".join(repr(name[:80]) for name in unknown[:NAMES_SHOWN]) + (
            " ..." if len(unknown) > NAMES_SHOWN else ""
        )
        raise DataError(
            f"{path} is neither a subset with its {sidecar_of(path).name} beside it nor a list of ids of "
            f"{store.location}: {len(unknown)} lines are no id there ({shown})."
        )
    return np.array(found, dtype=np.int64)
