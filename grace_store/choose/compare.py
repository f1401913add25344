"""Compare two subsets: samples in both, samples that entered or left and the reasons, and a conclusion in words."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.finding import Cell, Column, Finding, PoolNote, Table, make_columns
from grace_store.base.text import counted, enumerated
from grace_store.choose.rank_changes import PARTS, Movement, Part, movement, mover
from grace_store.choose.select import rank_samples, read_subset
from grace_store.choose.selection import SIZES, Selection, Subset
from grace_store.scoring.score_table import ScoreTable
from grace_store.values.agreement import jaccard
from grace_store.values.ranking import Ratio, grid_step

COLUMNS = make_columns(
    sample_id="sample",
    num_steps="K",
    value_a=Column(heading="value in A", digits=4),
    rank_a="rank in A",
    value_b=Column(heading="value in B", digits=4),
    rank_b="rank in B",
    why="why",
)
"""Columns of the tables of samples that entered or left. For programs, rows have more fields: row (in the dataset),
num_tokens (of the response), by_rank (whether a better rank is the reason), moved_by (the part of the value that moved
the sample most; None if other samples moved more), and moved_answer, moved_history and moved_length (how far each part
moved the sample, in spreads of the values)."""
ABOUT_PARTS = (
    "In brackets: how far each part of its value (alignment with the answer, alignment with history, length taken out) "
    "moved a sample against the others, in spreads (robust standard deviations) of the values."
)
Change = dict[str, Cell]
"""A row of the finding's tables: a sample that is in one of the two subsets only."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One subset and the table it was chosen from."""

    subset: Subset
    value: FloatArray
    """The values that samples were ranked by: those of the table, or their residuals after a control."""
    rank: IntArray
    """Rank of every row of the table by that value, from 1; 0 for a row without a value."""
    num_equal: IntArray
    """How many samples have the value of each row, compared as in a ranking."""
    key: Sequence[object]
    """Key of every row. Samples of the two tables with the same key are the same."""

    @property
    def scores(self) -> ScoreTable:
        return self.subset.scores

    @property
    def name(self) -> str:
        return self.subset.path.name if self.subset.path is not None else "The subset"

    @property
    def rules(self) -> list[str]:
        """The rules beside the value that decided, in words."""
        return [words for field, words in self.subset.spec.rules.items() if field not in (*SIZES, *IN_RANKS)]

    @property
    def order(self) -> str:
        """The rules without details; empty if the value alone decided."""
        return enumerated([each.partition(" (")[0] for each in self.rules]) if self.rules else ""

    def places(self) -> dict[object, int]:
        """Return the place of each sample in the table, by key."""
        return {key: place for place, key in enumerate(self.key)}

    def chosen(self) -> list[object]:
        """Return the keys of the chosen samples, the best first."""
        ranked = self.subset.chosen
        return [self.key[place] for place in ranked[np.argsort(self.rank[ranked], kind="stable")].tolist()]

    def notes(self) -> list[str]:
        """Return sentences about rules of the selection that the ranks do not show."""
        spec, notes = self.subset.spec, [f"{self.name} was scored by {self.scores.method}"]
        notes += [f"{self.name} {tell(value)}" for field, tell in IN_RANKS.items() if (value := getattr(spec, field))]
        if self.scores.capability is not None:
            notes.append(f"{self.name} is ranked in turns over its capabilities; ranks are those of this order")
        if self.rules:
            notes.append(f"{self.name} was chosen with {enumerated(self.rules)}; ranks are those without these rules")
        return notes


def compare(a: str | Path, b: str | Path, *, ratio: Ratio | None = None) -> Finding:
    """Compare two subsets that ``select`` wrote, or the best of two score tables: A and B.

    Two samples are the same if they are the same record of one plan; between plans, if they have the same id. The
    tables of the finding have the samples that entered (in B alone, the best first), the samples that left (in A alone,
    the best first), and the rules that differ.
    """
    subsets = [read_subset(Path(path), ratio) for path in (a, b)]
    plans = [subset.scores.note.plan_sha256 for subset in subsets]
    first, second = (_side(subset, by_row=plans[0] == plans[1]) for subset in subsets)
    in_a, in_b = first.chosen(), second.chosen()
    both = {*in_a} & {*in_b}
    num_both = len(both)
    places = first.places(), second.places()
    common = _ranked_in_both((first, second), places)
    moved = movement((first.scores, first.value), (second.scores, second.value), common)
    told = {entered: _teller(first, second, places, moved, entered=entered) for entered in (True, False)}
    entered = [told[True](key) for key in in_b if key not in both]
    left = [told[False](key) for key in in_a if key not in both]
    by_chance, spread = _both_by_chance(first, second, len(common[0]))
    numbers: dict[str, Cell] = {
        "num_a": len(in_a),
        "num_b": len(in_b),
        "num_both": num_both,
        "both_by_chance": by_chance,
        "spread_by_chance": spread,
        "jaccard": jaccard(num_both, len(in_a), len(in_b)),
        "num_entered": len(entered),
        "num_left": len(left),
    }
    of_both = _shared((len(in_a), len(in_b), num_both), by_chance, spread)
    conclusion = [of_both, _movers(entered, left, moved.why_unknown), _lengths(entered, left)]
    sizes = f"A is {first.name} with {counted(len(in_a), 'sample')}, B is {second.name} with {len(in_b)}"
    both_have = f"{sizes}; both have {num_both} of them, a Jaccard index of {numbers['jaccard']:.3f}"
    note = first.scores.note
    matched = [] if plans[0] == plans[1] else ["the tables are of different plans: samples are matched by their ids"]
    return Finding(
        study="compare",
        pool=None
        if matched
        else PoolNote(store=note.store, plan_sha256=note.plan_sha256, num_units=note.num_units, partial=note.partial),
        settings={"a": str(a), "b": str(b), "ratio": None if ratio is None else str(ratio)},
        conclusion=" ".join(each for each in conclusion if each),
        numbers=numbers,
        tables=_tables(first, second, {"entered": entered, "left": left}),
        notes=(both_have, *matched, *first.notes(), *second.notes()),
    )


def _side(subset: Subset, *, by_row: bool) -> _Side:
    spec, scores = subset.spec, subset.scores
    ranking = rank_samples(scores, Selection(control=spec.control, exclude_flagged=spec.exclude_flagged))
    ranks = np.zeros(len(scores), dtype=np.int64)
    ranks[ranking.ranked] = np.arange(1, len(ranking.ranked) + 1)
    _, place, num = np.unique(scores.comparable(ranking.value), return_inverse=True, return_counts=True)
    return _Side(subset, ranking.value, ranks, num[place], scores.row.tolist() if by_row else scores.sample_id)


def _tables(first: _Side, second: _Side, changes: Mapping[str, Sequence[Change]]) -> dict[str, Table]:
    """Return tables of the samples that entered and left, and of the rules in which the subsets differ."""
    tables = {}
    for word, rows in changes.items():
        title = f"{len(rows)} {word}"
        title += f", with {tokens:.0f} tokens in the mean" if (tokens := _mean_tokens(rows)) > 0 else ""
        about = ABOUT_PARTS if any("moved_answer" in row for row in rows) else ""
        tables[word] = Table(title=title, columns=COLUMNS, rows=tuple(rows), about=about, is_shown=bool(rows))
    rules = first.subset.spec.differences(second.subset.spec)
    tables["rules"] = Table(
        title="Rules that differ",
        columns=make_columns(rule="rule", a="in A", b="in B"),
        rows=tuple({"rule": name, "a": mine, "b": theirs} for name, mine, theirs in rules),
        is_shown=bool(rules),
    )
    return tables


def _mean_tokens(changes: Sequence[Change]) -> float:
    """Return the mean number of tokens in the responses of samples; NaN without samples, or if they are not known."""
    tokens = [each for change in changes if isinstance(each := change["num_tokens"], int)]
    return sum(tokens) / len(tokens) if tokens else math.nan


IN_RANKS: dict[str, Callable[[Any], str]] = {
    "control": lambda lengths: (
        f"was chosen with {', '.join(lengths)} taken out of the values, which are shown after that"
    ),
    "exclude_flagged": lambda flags: f"was chosen without samples flagged {', '.join(flags)}",
}
"""Sentences about the fields of a selection that the ranks shown here take into account."""


def _ranked_in_both(sides: Sequence[_Side], places: Sequence[Mapping[object, int]]) -> tuple[IntArray, IntArray]:
    """Return the places in both tables of the samples that have a rank in both."""
    both = [(place, places[1][key]) for key, place in places[0].items() if key in places[1]]
    a, b = np.array(both, dtype=np.int64).reshape(-1, 2).T
    has_rank = (sides[0].rank[a] > 0) & (sides[1].rank[b] > 0)
    return a[has_rank], b[has_rank]


def _teller(
    first: _Side, second: _Side, places: Sequence[Mapping[object, int]], moved: Movement, *, entered: bool
) -> Callable[[object], Change]:
    """Return a function that makes the row of a sample that is in one of the two subsets only."""
    step = max(grid_step(first.value), grid_step(second.value))

    def tell(key: object) -> Change:
        in_a, in_b = (each.get(key) for each in places)
        side, place = (second, in_b) if entered else (first, in_a)
        other, there = (first, in_a) if entered else (second, in_b)
        a, b = _value_and_rank(first, in_a), _value_and_rank(second, in_b)
        assert place is not None
        columns = ("sample_id", "row", "num_steps", "num_tokens")
        found: Change = {name: side.scores.table[name][place].as_py() for name in columns}
        ranks = (a[1], b[1]) if a[1] and b[1] else None
        parts = moved.of(in_a) if ranks and in_a is not None else {}
        by_rank, part, tie = False, None, ""
        if ranks and in_a is not None and in_b is not None:
            was, now = ranks if entered else ranks[::-1]
            by_rank = now < was and (bool(other.order) or now <= len(other.subset))
            nums = first.num_equal[in_a], second.num_equal[in_b]
            if by_rank and max(nums) > 1 and abs(first.value[in_a] - second.value[in_b]) < step:
                tie = f"a tie, in which earlier records come first (of {nums[0]} samples in A and {nums[1]} in B)"
        by_rank = by_rank and not tie
        if ranks and by_rank and parts and in_a is not None and _moved_itself(ranks, moved.rank_unmoved(in_a)):
            part = mover(parts, rose=entered)
        why = _moved_in_rank(ranks, parts, part) if ranks and by_rank else _why(side, place, other, there, tie)
        found |= {"value_a": a[0], "rank_a": a[1], "value_b": b[0], "rank_b": b[1], "why": why}
        found |= {"by_rank": by_rank, "moved_by": part}
        return found | {f"moved_{name}": parts[name] for name in PARTS if name in parts}

    return tell


def _value_and_rank(side: _Side, place: int | None) -> tuple[float | None, int | None]:
    if place is None or not side.rank[place]:
        return None, None
    return float(side.value[place]), int(side.rank[place])


def _moved_itself(ranks: tuple[int, int], unmoved: int) -> bool:
    """Return whether the change of a sample's own value explains at least half of its change in rank.

    >>> _moved_itself((42, 24), unmoved=39), _moved_itself((12, 15), unmoved=15)
    (True, False)
    """
    return 2 * abs(unmoved - ranks[1]) >= abs(ranks[0] - ranks[1])


def _moved_in_rank(ranks: tuple[int, int], parts: Mapping[Part, float], part: Part | None) -> str:
    """Return a text that says how far a sample rose or fell, and by which part of its value."""
    rose = ranks[1] < ranks[0]
    told = f"{'rose' if rose else 'fell'} from rank {ranks[0]} to {ranks[1]}"
    if not parts:
        return told
    moved = {name: round(each, 2) + 0.0 for name, each in parts.items()}  # rounding errors have no sign and no order
    shown = {name: f"{moved[name]:+.2f}" for name in sorted(moved, key=lambda name: moved[name], reverse=rose)}
    if part is None:
        own = ", ".join(f"{name} {each}" for name, each in shown.items())
        return f"{told} as others {'fell or are left out' if rose else 'rose or are new'} ({own})"
    others = ", ".join(f"{name} {each}" for name, each in shown.items() if name != part)
    return f"{told} by {part} ({shown[part]}; {others})"


def _why(side: _Side, here: int, other: _Side, place: int | None, tie: str) -> str:
    """Return the reason why a sample without a better rank is in one subset and not in the other."""
    if place is None:
        return "not in the other table"
    if not other.rank[place]:
        flags = other.scores.table["flags"][place].as_py()
        if excluded := [name for name in flags if name in other.subset.spec.exclude_flagged]:
            return f"left out of the other for its flags ({', '.join(excluded)})"
        return f"no value in the other table ({', '.join(flags) or 'not finite'})"
    if side.order and not other.order and side.rank[here] > len(side.subset):
        return side.order  # by value alone, the sample would be in neither subset
    return other.order or tie or f"the other keeps {len(other.subset)}"


def _both_by_chance(first: _Side, second: _Side, num_common: int) -> tuple[float, float]:
    """Return the number of samples that random subsets of these sizes would share, and its standard deviation."""
    share_a, share_b = (len(side.subset) / max(int((side.rank > 0).sum()), 1) for side in (first, second))
    mean = num_common * share_a * share_b
    # The variance of a hypergeometric draw; exact if both tables have the same samples.
    variance = mean * (1 - share_a) * (1 - share_b) * num_common / max(num_common - 1, 1)
    return mean, math.sqrt(max(variance, 0.0))


CLEAR = 2.0
"""A difference of more standard deviations from the mean of random subsets does not count as chance."""
MUCH_LONGER = 1.25
IN_WORDS = {
    "answer": "their alignment with the answer",
    "history": "their alignment with the steps before",
    "length": "length, which was taken out of the values",
}


def _shared(sizes: tuple[int, int, int], by_chance: float, spread: float) -> str:
    """Return a sentence about the samples that two subsets share; sizes are those of A, of B and of the overlap."""
    num_a, num_b, num_both = sizes
    if num_both == num_a == num_b:
        return f"Both subsets hold the same {counted(num_a, 'sample')}."
    of = str(num_a) if num_a == num_b else f"{num_a} in A and {num_b} in B"
    told = f"The subsets share {num_both} of {of}; random ones would share {by_chance:.1f}"
    if num_both - by_chance > CLEAR * spread:
        return f"{told}."
    if num_both - by_chance < -CLEAR * spread:
        return f"{told}, so each avoids what the other prefers."
    return f"{told}, so they agree no better than chance."


def _movers(entered: Sequence[Change], left: Sequence[Change], why_unknown: str) -> str:
    """Return sentences about the parts of the values that moved samples in and out, and about other reasons."""
    changes = [*entered, *left]
    moved = [change for change in changes if change["by_rank"]]
    told = []
    if moved and why_unknown:
        told.append(f"Which part of their values moved {len(moved)} in or out cannot be said: {why_unknown}.")
    elif moved:
        ways = [_parts_that_moved(entered, "in"), _parts_that_moved(left, "out")]
        told.append(f"What moved {'; '.join(way for way in ways if way)}.")
    if rest := Counter(str(change["why"]).partition(" (")[0] for change in changes if not change["by_rank"]):
        several = len(rest) > 1
        reasons = [f"{why} ({num})" if several else why for why, num in rest.most_common()]
        of = f"{rest.total()}{' others' if moved else ''}"
        told.append(f"Reason{'s' * several} for {of}: {enumerated(reasons)}.")
    return " ".join(told)


def _parts_that_moved(changes: Sequence[Change], way: str) -> str:
    counts = Counter(change["moved_by"] for change in changes if change["by_rank"]).most_common()
    others = "others that fell or are left out" if way == "in" else "others that rose or are new"
    words = {part: others if part is None else IN_WORDS[str(part)] for part, _ in counts}
    each = [words[part] if len(counts) == 1 else f"for {num} {words[part]}" for part, num in counts]
    return f"{sum(num for _, num in counts)} {way}: {enumerated(each)}" if counts else ""


def _lengths(came: Sequence[Change], went: Sequence[Change]) -> str:
    entered, left = _mean_tokens(came), _mean_tokens(went)
    if not entered > 0 or not left > 0 or 1 / MUCH_LONGER < entered / left < MUCH_LONGER:
        return ""
    longer = "longer" if entered > left else "shorter"
    return f"Those that entered are {longer}: {entered:.0f} tokens in the mean, and {left:.0f} for those that left."
