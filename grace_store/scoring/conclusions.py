"""What scores mean, in a sentence or two, or that the samples are too few to say.

Numbers are those of the tables that stand below the sentences.
"""

import math
from collections.abc import Mapping

from grace_store.base.arrays import IntArray
from grace_store.base.finding import Estimate
from grace_store.base.states import HYGIENE_FLAGS
from grace_store.base.text import about, counted, percent, percent_between
from grace_store.scoring.score_table import ScoreTable
from grace_store.values.length_bias import (
    MIN_AUDITED,
    explained_by_lengths,
    z_for,
)
from grace_store.values.ranking import Length, budget

LENGTH_WORDS: dict[Length, str] = {
    "step_length": "the length of steps",
    "response_length": "the length of responses",
    "num_steps": "the number of steps",
}
MORE: dict[Length, tuple[str, str]] = {
    "step_length": ("longer steps", "shorter steps"),
    "response_length": ("longer responses", "shorter responses"),
    "num_steps": ("more steps", "fewer steps"),
}
MUCH = 0.1
"""From this share on, length explains enough of the values to look at it."""
WIDE = 0.1
"""An interval that reaches further to either side leaves open how much length explains."""
VAGUE = 0.2
"""Where random choices differ by more than this, a preference for length cannot be seen."""
BEST = "0.2"
"""The share of a table that is looked at before anything is selected."""


# ---------------------------------------------------------------- scores


def conclude_scores(table: ScoreTable) -> str:
    """Return how far values follow length, whether the best are flagged, and what to do next."""
    ranked = table.ranked()
    if not len(ranked):
        flags = ", ".join(f"{count} {name}" for name, count in table.flag_counts.items())
        why = f": the flags say why ({flags})" if flags else ""
        return f"None of {counted(len(table), 'sample')} has a value{why}."
    explained, pearson = explained_by_lengths(table.value, table.lengths)
    of_all = "" if len(ranked) == len(table) else f" of {len(table)}"
    return f"{explained_text(explained, pearson, of_all)} {_next(table, ranked, _is_some(explained))}"


def explained_text(explained: Estimate, pearson: Mapping[Length, float], of_all: str = "") -> str:
    """Return how many samples have a value, and how far values follow length."""
    have = "samples have" if explained.num > 1 or of_all else "sample has"
    return f"{explained.num}{of_all} {have} a value{_by_length(explained, pearson)}."


def _by_length(explained: Estimate, pearson: Mapping[Length, float]) -> str:
    varying = {name: each for name, each in pearson.items() if each == each}
    if explained.num < MIN_AUDITED:
        return f", too few to say how far values follow length; about {about(_wanted(explained))} would do"
    if not varying:
        return "; all values or all lengths are the same, so that values cannot follow length"
    share = f"{percent(max(explained.value, 0.0))} of how values differ (95 % interval "
    share += f"{percent_between(explained.low, explained.high)})"
    if _is_vague(explained):
        told = f"length explains {share}, and about {about(_wanted(explained))} samples would do"
        return f", too few to say how far values follow length: {told}"
    if explained.high <= MUCH:
        return f"; length explains little, {share}"
    return f"; length explains {share}, above all {_strongest(varying)}"


def _strongest(varying: dict[Length, float]) -> str:
    name = max(varying, key=lambda each: abs(varying[each]))
    more = MORE[name][0 if varying[name] > 0 else 1]
    return f"{LENGTH_WORDS[name]} (higher values go with {more})"


def _is_some(explained: Estimate) -> bool:
    """Return whether length may explain enough to look at it."""
    return explained.high > MUCH and not _is_vague(explained)


def _is_vague(explained: Estimate) -> bool:
    return explained.num < MIN_AUDITED or (explained.low < MUCH and explained.half_width > WIDE)


def _wanted(explained: Estimate) -> float:
    """Return how many samples tell the share to WIDE, at the share of the interval where that takes most."""
    share = min(max(explained.low, 1 / 3), explained.high)
    return max(float((2 * z_for() / WIDE) ** 2 * share * (1 - share) ** 2), explained.num + 1)


def _next(table: ScoreTable, ranked: IntArray, is_some: bool) -> str:
    """Return what is to be done before or while selecting."""
    best = ranked[: budget(BEST, len(ranked))]
    num_flagged = num_flagged_in(table, best)
    if num_flagged:
        first = _flags_of(table, ranked[0])
        top = f"The highest value belongs to a trace flagged {', '.join(first)}, and " if first else ""
        of_best = f"{num_flagged} of the best {len(best)} {'are' if num_flagged > 1 else 'is'} flagged"
        of_all = f"{num_flagged_in(table, ranked)} of all {len(ranked)}"
        return f"{top}{of_best} ({of_all}): `select {without_flagged(table)}` leaves flagged traces out."
    clean = f"None of the best {len(best)} is flagged; "
    if is_some:
        return f"{clean}`audit` shows more of length, and `select --control length` ranks without it."
    return f"{clean}next, `select` keeps the best."


# ---------------------------------------------------------------- flags


def num_flagged_in(table: ScoreTable, rows: IntArray) -> int:
    """Return how many of some rows have a flag of the trace."""
    return int(table.is_flagged(known_flags(table))[rows].sum())


def known_flags(table: ScoreTable) -> list[str]:
    """Return the flags of traces that were looked for."""
    return [name for name in HYGIENE_FLAGS if name in table.known_flags]


def _flags_of(table: ScoreTable, row: int) -> list[str]:
    return [name for name in table.table["flags"][int(row)].as_py() if name in known_flags(table)]


def without_flagged(table: ScoreTable) -> str:
    """Return the option that leaves flagged samples out; it takes only flags that were looked for."""
    known = known_flags(table)
    return "--exclude-flagged" + ("" if len(known) == len(HYGIENE_FLAGS) else f" {','.join(known)}")


# ---------------------------------------------------------------- lengths beside chance


def chance_text(by_chance: float) -> str:
    return f"random choices differ by less than {math.ceil(100 * by_chance)} %"


def beyond_chance(ratio: float, chance: float) -> float:
    return abs(ratio - 1) / chance
