"""Which samples of a store a file names: a subset that ``select`` wrote, a table of scores, or a list of ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from grace_store.artifacts.made_from import check_plan_of
from grace_store.artifacts.score_table import read_scores
from grace_store.artifacts.table_check import wrong_fields
from grace_store.base.arrays import IntArray
from grace_store.base.errors import DataError
from grace_store.base.files import read_note, sidecar_of
from grace_store.curate.select import positions_of
from grace_store.store import Store

NAMES_SHOWN = 3


def samples_named(store: Store, path: str | Path) -> IntArray:
    """Return the positions in the plan, ascending, of the samples that a file names; none may be missing."""
    path = Path(path)
    if (rows := selected_rows(store, path)) is not None:
        return positions_of(store, rows)
    if path.suffix == ".parquet":
        scores = read_scores(path, steps=False)
        check_plan_of(scores.made_by, store, scores.what)
        return np.sort(positions_of(store, scores.row))
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
