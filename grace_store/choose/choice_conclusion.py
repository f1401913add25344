"""What a choice means: how the chosen differ in length from the pool, and how many have flags."""

from collections.abc import Sequence

import numpy as np

from grace_store.base.arrays import IntArray
from grace_store.base.text import about, counted, percent_more
from grace_store.choose.selection import Selection
from grace_store.scoring.conclusions import (
    MORE,
    VAGUE,
    WIDE,
    beyond_chance,
    chance_text,
    known_flags,
    num_flagged_in,
    without_flagged,
)
from grace_store.scoring.score_table import ScoreTable
from grace_store.values.length_bias import difference_interval, kept_by_chance, kept_over_all
from grace_store.values.ranking import Length


def conclude_choice(
    table: ScoreTable, chosen: IntArray, pool: IntArray, spec: Selection, groups: Sequence[str] = ()
) -> str:
    """Return which rows of a table are chosen, how their length differs from the pool, and what of them is flagged.

    pool are the rows that there were to choose from; groups are told last.
    """
    flags = _flags_of_choice(table, chosen, pool)
    if len(chosen) == len(pool):
        told = f"All {counted(len(pool), 'sample')} with a value are chosen"
        return " ".join([f"{told}{_among(spec)}.", *flags])
    told = f"{len(chosen)} of {counted(len(pool), 'sample')}{_among(spec)} are chosen"
    by = _best_by(spec, is_balanced=table.capability is not None)
    return " ".join([f"{told}, {by}{_length_of(table, chosen, pool)}.", *flags, *groups])


def _among(spec: Selection) -> str:
    conditions = ["meet --where"] if spec.where is not None else []
    conditions += ["have none of the excluded flags"] if spec.exclude_flagged else []
    conditions += ["have no item of a benchmark in them"] if spec.exclude_contaminated else []
    return f" that {' and '.join(conditions)}" if conditions else ""


def _best_by(spec: Selection, *, is_balanced: bool) -> str:
    if spec.diversity is not None:
        return f"by value and diversity ({spec.diversity.method})"
    if spec.margin is not None:
        return "the best trace of a question, each with the worst one that has another response"
    by = "the best by value" + (" after length is taken out" if spec.control else "")
    by += "" if spec.per_group is None else " of each question"
    if is_balanced:
        return f"{by} of each capability in turn"
    return by if spec.by is None else f"{by} within each {spec.by}"


def _length_of(table: ScoreTable, chosen: IntArray, pool: IntArray) -> str:
    """Return how the chosen differ in length from the pool, as the rest of a sentence."""
    kept = np.isin(pool, chosen)
    lengths = {name: length[pool] for name, length in table.lengths.items()}
    varying = {name: length for name, length in lengths.items() if kept_by_chance(length, kept) > 0}
    if not varying:
        return "; all are of one length"
    found = {name: (kept_over_all(length, kept), kept_by_chance(length, kept)) for name, length in varying.items()}
    name = max(found, key=lambda each: beyond_chance(*found[each]))
    if beyond_chance(*found[name]) > 1:
        return f"; they have {_than_pool(name, *found[name])}"
    vaguest = max(found, key=lambda each: found[each][1])
    if (chance := found[vaguest][1]) > VAGUE:
        words, wanted = _than_pool(vaguest, *found[vaguest]), about(len(pool) * (chance / WIDE) ** 2)
        return f"; too few to say whether they are longer or shorter: {words}. About {wanted} samples would do"
    return f"; they are neither longer nor shorter than by chance: {_than_pool(name, *found[name])}"


def _than_pool(name: Length, ratio: float, chance: float) -> str:
    return f"{percent_more(ratio, *MORE[name])} than the pool ({chance_text(chance)})"


def _flags_of_choice(table: ScoreTable, chosen: IntArray, pool: IntArray) -> list[str]:
    flagged, of_pool = (num_flagged_in(table, rows) for rows in (chosen, pool))
    if not flagged:
        return []
    counts = {name: int(table.is_flagged([name])[chosen].sum()) for name in known_flags(table)}
    named = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    rest = (of_pool - flagged, len(pool) - len(chosen))
    favours = difference_interval((flagged, len(chosen)), rest)[0] > 0
    often = f"{of_pool} in the pool, so such traces are chosen more often" if favours else f"{of_pool} in the pool"
    are = "is" if flagged == 1 else "are"
    return [f"{flagged} of them {are} flagged ({named}; {often}): `{without_flagged(table)}` leaves such traces out."]
