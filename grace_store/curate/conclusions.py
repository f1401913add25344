"""What scores, their audit and a choice mean, in a sentence or two, or that the samples are too few to say.

Numbers are those of the tables that stand below the sentences.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grace_store.artifacts.score_table import ScoreTable
from grace_store.base.arrays import IntArray
from grace_store.base.finding import Estimate
from grace_store.base.states import HYGIENE_FLAGS
from grace_store.base.text import about, counted, percent, percent_between, percent_more
from grace_store.curate.selection import Selection
from grace_store.values.length_bias import (
    MIN_AUDITED,
    difference_interval,
    explained_by_lengths,
    kept_by_chance,
    kept_over_all,
    z_for,
)
from grace_store.values.ranking import Length, budget

LENGTH_WORDS: dict[Length, str] = {
    "step_length": "the length of steps",
    "response_length": "the length of responses",
    "num_steps": "the number of steps",
}
_MORE: dict[Length, tuple[str, str]] = {
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
SEEN = 0.01
"""A change by less is not seen in what is printed, or hardly."""
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
    return f"{_explained(explained, pearson, of_all)} {_next(table, ranked, _is_some(explained))}"


def _explained(explained: Estimate, pearson: Mapping[Length, float], of_all: str = "") -> str:
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
    more = _MORE[name][0 if varying[name] > 0 else 1]
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
    num_flagged = _num_flagged(table, best)
    if num_flagged:
        first = _flags_of(table, ranked[0])
        top = f"The highest value belongs to a trace flagged {', '.join(first)}, and " if first else ""
        of_best = f"{num_flagged} of the best {len(best)} {'are' if num_flagged > 1 else 'is'} flagged"
        of_all = f"{_num_flagged(table, ranked)} of all {len(ranked)}"
        return f"{top}{of_best} ({of_all}): `select {_without(table)}` leaves flagged traces out."
    clean = f"None of the best {len(best)} is flagged; "
    if is_some:
        return f"{clean}`audit` shows more of length, and `select --control length` ranks without it."
    return f"{clean}next, `select` keeps the best."


# ---------------------------------------------------------------- flags


def _num_flagged(table: ScoreTable, rows: IntArray) -> int:
    """Return how many of some rows have a flag of the trace."""
    return int(table.is_flagged(_known_flags(table))[rows].sum())


def _known_flags(table: ScoreTable) -> list[str]:
    """Return the flags of traces that were looked for."""
    return [name for name in HYGIENE_FLAGS if name in table.known_flags]


def _flags_of(table: ScoreTable, row: int) -> list[str]:
    return [name for name in table.table["flags"][int(row)].as_py() if name in _known_flags(table)]


def _without(table: ScoreTable) -> str:
    """Return the option that leaves flagged samples out; it takes only flags that were looked for."""
    known = _known_flags(table)
    return "--exclude-flagged" + ("" if len(known) == len(HYGIENE_FLAGS) else f" {','.join(known)}")


# ---------------------------------------------------------------- the audit


Measures = Mapping[Length, Mapping[str, float]]
"""How values go with each length, as length_measures says it."""


def conclude_audit(explained: Estimate, measures: Measures, ratio: str) -> str:
    """Return how far values and the best of them follow length, and why that grew after control, if it did."""
    pearson = {name: each["pearson"] for name, each in measures.items()}
    told = _explained(explained, pearson)
    if explained.num < MIN_AUDITED or all(math.isnan(each) for each in pearson.values()):
        return told
    return " ".join([told, *_kept(measures, ratio), *_grown(measures, ratio, explained.num)])


def _kept(measures: Measures, ratio: str) -> list[str]:
    """Return how the best differ from all in length, before and after control."""
    varying = {
        name: (each["kept_over_all"], each["kept_by_chance"])
        for name, each in measures.items()
        if not math.isnan(each["pearson"]) and each["kept_by_chance"] > 0
    }
    if not varying:
        return []
    name = max(varying, key=lambda each: _beyond(*varying[each]))
    if _beyond(*varying[name]) <= 1:
        is_vague = max(by_chance for _, by_chance in varying.values()) > VAGUE
        return [] if is_vague else [f"The best {ratio} are neither longer nor shorter than random choices are."]
    kept = (measures[name][each] for each in ("kept_over_all", "kept_over_all_after_control"))
    before, after = (percent_more(each, *_MORE[name]) for each in kept)
    chance = _chance(varying[name][1])
    return [f"The best {ratio} have {before} than all ({chance}); after `select --control length`, {after}."]


def _chance(by_chance: float) -> str:
    return f"random choices differ by less than {math.ceil(100 * by_chance)} %"


def _beyond(ratio: float, chance: float) -> float:
    return abs(ratio - 1) / chance


@dataclass(frozen=True, slots=True)
class _Growth:
    """Something that length has to do with values, before and after control, and what it is without any length."""

    name: Length
    before: float
    after: float
    neutral: float
    by_chance: float

    @property
    def size(self) -> float:
        return abs(self.after - self.neutral) - abs(self.before - self.neutral)

    @property
    def is_chance(self) -> bool:
        return abs(self.after - self.neutral) <= self.by_chance

    def told(self, ratio: str) -> str:
        words = LENGTH_WORDS[self.name]
        if self.neutral:
            moved = f"{self.before:.2f} -> {self.after:.2f}"
            return f"In {words}, the best {ratio} differ more from all after control than before ({moved} of all)"
        moved = f"{self.before:.3f} -> {self.after:.3f}"
        return f"Ranks of values follow {words} more after control than before ({moved})"


def _grown(measures: Measures, ratio: str, num_samples: int) -> list[str]:
    """Return why length has more to do with values after control than before; nothing if it has not."""
    by_chance = z_for(len(measures)) / math.sqrt(num_samples)
    growths = []
    for name, each in measures.items():
        kept = each["kept_over_all"], each["kept_over_all_after_control"]
        growths.append(_Growth(name, *kept, 1.0, each["kept_by_chance"]))
        growths.append(_Growth(name, each["spearman"], each["spearman_after_control"], 0.0, by_chance))
    grown = [each for each in growths if each.size > SEEN]
    if not grown:
        return []
    most = max(grown, key=lambda each: (not each.is_chance, each.neutral, each.size))
    if most.is_chance:
        return [f"{most.told(ratio)}, which is no more than chance."]
    straight = "control takes out only what goes in a straight line with the logarithms of lengths"
    return [f"{most.told(ratio)}: {straight}, and {_left(most, measures[most.name], num_samples)}."]


def _left(growth: _Growth, measures: Mapping[str, float], num_samples: int) -> str:
    """Return what of values still goes with a length after control: their spread, a curve, or another thing."""
    noise, curve = z_for() / math.sqrt(num_samples), abs(measures["curve_after_control"])
    is_longer = growth.after > growth.neutral
    spread = measures["spread_after_control"] if is_longer else -measures["spread_after_control"]
    if growth.neutral and spread > max(noise, curve):
        which = _MORE[growth.name][0 if is_longer else 1]
        return f"values of traces with {which} also spread more, so that more of the highest are among them"
    if curve > noise:
        return "values follow this length in a curve"
    return "the highest values follow this length in another way than the rest"


# ---------------------------------------------------------------- a choice


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
    name = max(found, key=lambda each: _beyond(*found[each]))
    if _beyond(*found[name]) > 1:
        return f"; they have {_than_pool(name, *found[name])}"
    vaguest = max(found, key=lambda each: found[each][1])
    if (chance := found[vaguest][1]) > VAGUE:
        words, wanted = _than_pool(vaguest, *found[vaguest]), about(len(pool) * (chance / WIDE) ** 2)
        return f"; too few to say whether they are longer or shorter: {words}. About {wanted} samples would do"
    return f"; they are neither longer nor shorter than by chance: {_than_pool(name, *found[name])}"


def _than_pool(name: Length, ratio: float, chance: float) -> str:
    return f"{percent_more(ratio, *_MORE[name])} than the pool ({_chance(chance)})"


def _flags_of_choice(table: ScoreTable, chosen: IntArray, pool: IntArray) -> list[str]:
    flagged, of_pool = (_num_flagged(table, rows) for rows in (chosen, pool))
    if not flagged:
        return []
    counts = {name: int(table.is_flagged([name])[chosen].sum()) for name in _known_flags(table)}
    named = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    rest = (of_pool - flagged, len(pool) - len(chosen))
    favours = difference_interval((flagged, len(chosen)), rest)[0] > 0
    often = f"{of_pool} in the pool, so such traces are chosen more often" if favours else f"{of_pool} in the pool"
    are = "is" if flagged == 1 else "are"
    return [f"{flagged} of them {are} flagged ({named}; {often}): `{_without(table)}` leaves such traces out."]
