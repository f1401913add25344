"""Samples that may not be chosen, whatever their values: those with flags, and those with benchmark items in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace_store.base.arrays import BoolArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.states import HYGIENE_FLAGS, named_flags
from grace_store.base.text import counted, last_name
from grace_store.choose.contamination_table import AgainstLike, AgainstTable, read_against
from grace_store.scoring.notes import AgainstNote
from grace_store.scoring.score_table import ScoreTable


@dataclass(frozen=True, slots=True)
class Excluded:
    """Samples of a table that were left out."""

    is_out: BoolArray
    """Whether each row of the table is left out."""
    flags: tuple[str, ...]
    num_flagged: int
    """Samples with a value that have one of the flags."""
    counts: dict[str, int]
    """How many of them have each of the flags; one may have several."""
    against: AgainstNote | None = None
    """The table of benchmark items that was given."""
    num_contaminated: int = 0
    """Samples with a value that have an item in them."""
    contaminated_rows: tuple[int, ...] | None = None
    """The places in the dataset of all samples that have an item in them, ascending; None if no table was given."""

    def __str__(self) -> str:
        told = []
        if self.flags:
            counts = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)
            what = f"{counted(self.num_flagged, 'sample')} left out for flags ({counts})"
            told.append(what if counts else "no sample has one of the flags to exclude")
        if self.against is not None:
            what = counted(self.num_contaminated, "sample") if self.num_contaminated else "no sample"
            names = ", ".join(last_name(each.name) for each in self.against.benchmarks)
            told.append(f"{what} left out for items of {names}")
        return "; ".join(told)


def exclude(table: ScoreTable, flags: Sequence[str], against: AgainstLike | AgainstNote | None) -> Excluded | None:
    """Return which samples of a table may not be chosen; None if nothing is to be excluded."""
    if not flags and against is None:
        return None
    has_value = np.isfinite(table.value)
    names = _known(table, flags) if flags else ()
    is_flagged = table.is_flagged(names) if names else np.zeros(len(table), dtype=np.bool_)
    counts = {name: int((table.is_flagged([name]) & has_value).sum()) for name in names}
    num_flagged = int((is_flagged & has_value).sum())
    if isinstance(against, AgainstNote):
        raise DataError(
            "The note of the subset does not say which samples were left out as contaminated, so its rules cannot be "
            "followed. Select the subset again."
        )
    if against is None:
        return Excluded(is_flagged, names, num_flagged, counts)
    found = against if isinstance(against, AgainstTable) else read_against(against)
    _check_made_from(table, found)
    is_contaminated = np.isin(table.row, found.contaminated)
    num_contaminated = int((is_contaminated & has_value).sum())
    rows = tuple(found.contaminated.tolist())
    return Excluded(is_flagged | is_contaminated, names, num_flagged, counts, found.note, num_contaminated, rows)


def _check_made_from(table: ScoreTable, found: AgainstTable) -> None:
    if found.note.plan_sha256 != table.note.plan_sha256:
        raise DataError(
            f"The table of benchmark items{f' {found.path}' if found.path else ''} was made from another plan than the "
            f"scores: it belongs to {found.note.store}. Run `grace-store contamination {table.note.store}` to compare "
            "what was scored."
        )


def _known(table: ScoreTable, names: Sequence[str]) -> tuple[str, ...]:
    """Return the flags of that name; raise SettingError if it is not known which samples of the table have them."""
    flags = named_flags(names)
    if missing := [name for name in flags if name not in table.known_flags]:
        known = ", ".join(name for name in HYGIENE_FLAGS if name in table.known_flags)
        raise SettingError(
            f"the {table.what} does not know which samples are flagged {', '.join(missing)}: that is found while "
            f"scoring by the method grace. It does know {known}, which can be named."
        )
    return flags
