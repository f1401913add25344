"""Two subsets side by side: what they share, what entered, what left, why, and what it means."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from grace_store.artifacts.score_table import ScoreTable
from grace_store.artifacts.subset_file import WrittenSubset, read_subset
from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.files import write_records
from grace_store.base.text import counted, enumerated
from grace_store.curate.movement import Movement, Part, RankedValues, movement, mover
from grace_store.curate.select import RankRequest, rank_samples
from grace_store.values.agreement import jaccard
from grace_store.values.ranking import Ratio


@dataclass(frozen=True, slots=True)
class Change:
    """A sample that is in one of two subsets only; A is the first, B the second."""

    sample_id: str
    row: int
    num_steps: int
    value_a: float | None
    rank_a: int | None
    """From 1; None if the sample has no value there."""
    value_b: float | None
    rank_b: int | None
    why: str
    num_tokens: int
    """In the response."""
    by_rank: bool
    """Whether the reason is that its rank is better on one side."""
    moved_by: Part | None = None
    """The part of its value that moved it in rank; None if others did more than it, or parts are not known."""
    moved: dict[Part, float] | None = None
    """How far each part moved it against the others, in spreads of the values; None if it has no rank in both, or parts
    are not known."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two subsets side by side."""

    num_a: int
    num_b: int
    num_both: int
    both_by_chance: float
    """What random subsets of these sizes would share in the mean."""
    spread_by_chance: float
    """The standard deviation of that."""
    jaccard: float
    entered: list[Change]
    """In B alone, the best of B first."""
    left: list[Change]
    """In A alone, the best of A first."""
    notes: list[str]
    why_unknown: str = ""
    """Why it cannot be said which part of a value moved samples; empty if it can."""

    @property
    def conclusion(self) -> str:
        """What it means, in a sentence or two."""
        return " ".join(each for each in (_shared(self), _movers(self), _lengths(self)) if each)


def mean_tokens(changes: Sequence[Change]) -> float:
    """Return the mean number of tokens in the responses of some samples; NaN without any."""
    return sum(change.num_tokens for change in changes) / len(changes) if changes else math.nan


@dataclass(frozen=True, slots=True)
class _Side:
    """One subset and the table it was chosen from."""

    scores: ScoreTable
    chosen: IntArray
    value: FloatArray
    """What the samples were ranked by: their values, or what a control left of them."""
    order: str | None
    """What else than the value decided, if anything."""
    notes: list[str]
    rank: IntArray
    """Rank from 1 of every row of the table by that value; 0 without one."""
    excluded_flags: tuple[str, ...] = ()

    @property
    def ranked(self) -> RankedValues:
        return RankedValues(self.scores, self.value)


def compare(a: str | Path, b: str | Path, *, ratio: Ratio | None = None) -> Comparison:
    """Compare two subsets that ``select`` wrote, or the best of two score tables.

    Samples are the same if they are the same record of one plan; between plans, if they have the same id.
    """
    first, second = (_side(read_subset(Path(path), ratio)) for path in (a, b))
    by_row = first.scores.note.plan_sha256 == second.scores.note.plan_sha256
    keys = [side.scores.row.tolist() if by_row else side.scores.sample_id for side in (first, second)]
    pair = _Pair(first, second, *({key: place for place, key in enumerate(some)} for some in keys))
    in_a, in_b = ({keys[i][j] for j in side.chosen.tolist()} for i, side in enumerate((first, second)))
    num_both = len(in_a & in_b)
    left = [key for key in (keys[0][j] for j in _by_rank(first)) if key not in in_b]
    entered = [key for key in (keys[1][j] for j in _by_rank(second)) if key not in in_a]
    common = pair.ranked_in_both()
    moved = movement(first.ranked, second.ranked, common)
    notes = [] if by_row else ["the tables are of different plans: samples are matched by their ids"]
    by_chance, spread = _by_chance(first, second, len(common[0]))
    return Comparison(
        num_a=len(in_a),
        num_b=len(in_b),
        num_both=num_both,
        both_by_chance=by_chance,
        spread_by_chance=spread,
        jaccard=jaccard(num_both, len(in_a), len(in_b)),
        entered=[pair.change(key, moved, entered=True) for key in entered],
        left=[pair.change(key, moved, entered=False) for key in left],
        notes=notes + first.notes + second.notes,
        why_unknown=moved.why_unknown,
    )


def write_changes(found: Comparison, out: Path) -> None:
    """Write every sample that entered or left as a JSON object: one a line, or an array if the name says JSON."""
    both = [("entered", found.entered), ("left", found.left)]
    write_records(
        out, (json.dumps({"change": word, **asdict(change)}).encode() for word, some in both for change in some)
    )


def _side(subset: WrittenSubset) -> _Side:
    scores, spec, path = subset.scores, subset.spec, subset.path
    ranking = rank_samples(scores, RankRequest(control=spec.control, exclude_flagged=spec.exclude_flagged))
    ranks = np.zeros(len(scores), dtype=np.int64)
    ranks[ranking.ranked] = np.arange(1, len(ranking.ranked) + 1)
    notes, order = [], None
    if scores.note.method.is_reconstruction:
        notes.append(f"{path.name} was scored by {scores.method}")
    if ranking.is_balanced:
        notes.append(f"{path.name} is ranked in turns over its capabilities; ranks are of that order")
    if ranking.control:
        controlled = ", ".join(ranking.control)
        notes.append(f"{path.name} was chosen with {controlled} taken out of the values, which are shown after that")
    if spec.where:
        order = f"a filter ({spec.where.sql})"
        over = "samples that are not excluded" if spec.exclude_flagged else "samples"
        notes.append(f"{path.name} was chosen with {order}; ranks are those over all {over}")
    if spec.exclude_flagged:
        notes.append(f"{path.name} was chosen without samples flagged {', '.join(spec.exclude_flagged)}")
    if spec.exclude_contaminated:
        order = "benchmark items in samples left out"
        notes.append(f"{path.name} was chosen with {order}; ranks are those over all samples")
    if spec.by:
        order = f"strata of {spec.by}"
        notes.append(f"{path.name} was chosen in {order}; ranks are those over all of them")
    if spec.diversity:
        order = f"diversity by {spec.diversity.method}"
        notes.append(f"{path.name} was chosen with {order}; ranks are those by value alone")
    return _Side(scores, subset.chosen, ranking.value, order, notes, ranks, spec.exclude_flagged)


def _by_rank(side: _Side) -> list[int]:
    ordered: list[int] = side.chosen[np.argsort(side.rank[side.chosen], kind="stable")].tolist()
    return ordered


@dataclass(frozen=True, slots=True)
class _Pair:
    """Both subsets, and where each sample stands in their tables."""

    first: _Side
    second: _Side
    place_a: dict[object, int]
    place_b: dict[object, int]

    def ranked_in_both(self) -> tuple[IntArray, IntArray]:
        """Return the places in both tables of the samples that have a rank in both."""
        both = [(place, self.place_b[key]) for key, place in self.place_a.items() if key in self.place_b]
        a, b = np.array(both, dtype=np.int64).reshape(-1, 2).T
        has_rank = (self.first.rank[a] > 0) & (self.second.rank[b] > 0)
        return a[has_rank], b[has_rank]

    def change(self, key: object, moved: Movement, *, entered: bool) -> Change:
        """Return what became of a sample that is in one of the two only."""
        in_a, in_b = self.place_a.get(key), self.place_b.get(key)
        side, place = (self.second, in_b) if entered else (self.first, in_a)
        other, there = (self.first, in_a) if entered else (self.second, in_b)
        a, b = _value_and_rank(self.first, in_a), _value_and_rank(self.second, in_b)
        assert place is not None
        columns = ("sample_id", "row", "num_steps", "num_tokens")
        sample_id, row, num_steps, num_tokens = (side.scores.table[name][place].as_py() for name in columns)
        ranks = (a[1], b[1]) if a[1] and b[1] else None
        parts = moved.of(in_a) if ranks and in_a is not None else {}
        by_rank = ranks is not None and _is_by_rank(ranks if entered else ranks[::-1], other)
        part = None
        if ranks and by_rank and parts and in_a is not None and _moved_itself(ranks, moved.rank_unmoved(in_a)):
            part = mover(parts, rose=entered)
        why = _moved_in_rank(ranks, parts, part) if ranks and by_rank else _why(other, there)
        return Change(sample_id, row, num_steps, *a, *b, why, num_tokens, by_rank, part, parts or None)


def _is_by_rank(ranks: tuple[int, int], other: _Side) -> bool:
    """Return whether a sample's rank where it is chosen, the second, is better, and would have done in the other."""
    there, here = ranks
    return here < there and (bool(other.order) or here <= len(other.chosen))


def _value_and_rank(side: _Side, place: int | None) -> tuple[float | None, int | None]:
    if place is None or not side.rank[place]:
        return None, None
    return float(side.value[place]), int(side.rank[place])


def _moved_itself(ranks: tuple[int, int], unmoved: int) -> bool:
    """Return whether a sample's own movement made at least half of its way from one rank to the other.

    >>> _moved_itself((42, 24), unmoved=39), _moved_itself((12, 15), unmoved=15)
    (True, False)
    """
    return 2 * abs(unmoved - ranks[1]) >= abs(ranks[0] - ranks[1])


def _moved_in_rank(ranks: tuple[int, int], parts: Mapping[Part, float], part: Part | None) -> str:
    """Say how far a sample rose or fell, and by which part of its value."""
    rose = ranks[1] < ranks[0]
    told = f"{'rose' if rose else 'fell'} from rank {ranks[0]} to {ranks[1]}"
    if not parts:
        return told
    shown = {name: f"{parts[name]:+.2f}" for name in sorted(parts, key=lambda name: parts[name], reverse=rose)}
    if part is None:
        own = ", ".join(f"{name} {each}" for name, each in shown.items())
        return f"{told} as others {'fell or are left out' if rose else 'rose or are new'} ({own})"
    others = ", ".join(f"{name} {each}" for name, each in shown.items() if name != part)
    return f"{told} by {part} ({shown[part]}; {others})"


def _why(other: _Side, place: int | None) -> str:
    """Say why a sample that moved to no better rank is not in the other subset."""
    if place is None:
        return "not among the other table's samples"
    if not other.rank[place]:
        flags = other.scores.table["flags"][place].as_py()
        if excluded := [name for name in flags if name in other.excluded_flags]:
            return f"left out of the other for its flags ({', '.join(excluded)})"
        return f"no value in the other table ({', '.join(flags) or 'not finite'})"
    return other.order or f"the other keeps {len(other.chosen)}"


def _by_chance(first: _Side, second: _Side, num_common: int) -> tuple[float, float]:
    """Return how many samples random subsets of these sizes would share, and the standard deviation of that."""
    share_a, share_b = (len(side.chosen) / max(int((side.rank > 0).sum()), 1) for side in (first, second))
    mean = num_common * share_a * share_b
    # Of a hypergeometric draw, which it is where both tables have the same samples.
    variance = mean * (1 - share_a) * (1 - share_b) * num_common / max(num_common - 1, 1)
    return mean, math.sqrt(max(variance, 0.0))


# ---------------------------------------------------------------- what it means

CLEAR = 2.0
"""Standard deviations beyond what chance gives from which on it is no chance."""
MUCH_LONGER = 1.25
IN_WORDS: dict[Part, str] = {
    "answer": "their alignment with the answer",
    "history": "their alignment with the steps before",
    "length": "length, which was taken out of the values",
}


def _shared(found: Comparison) -> str:
    if not found.entered and not found.left:
        return f"Both subsets hold the same {counted(found.num_a, 'sample')}."
    of = str(found.num_a) if found.num_a == found.num_b else f"{found.num_a} in A and {found.num_b} in B"
    told = f"The subsets share {found.num_both} of {of}; random ones would share {found.both_by_chance:.1f}"
    beyond = found.num_both - found.both_by_chance
    if beyond > CLEAR * found.spread_by_chance:
        return f"{told}."
    if beyond < -CLEAR * found.spread_by_chance:
        return f"{told}, so each avoids what the other prefers."
    return f"{told}, so they agree no better than chance."


def _movers(found: Comparison) -> str:
    """Say which part of their values moved the samples in and out."""
    changes = [*found.entered, *found.left]
    moved = [change for change in changes if change.by_rank]
    told = []
    if moved and found.why_unknown:
        told.append(f"Which part of their values moved {len(moved)} in or out cannot be said: {found.why_unknown}.")
    elif moved:
        ways = [_parts_that_moved(found.entered, "in"), _parts_that_moved(found.left, "out")]
        told.append(f"What moved {'; '.join(way for way in ways if way)}.")
    if rest := Counter(change.why.partition(" (")[0] for change in changes if not change.by_rank):
        several = len(rest) > 1
        reasons = [f"{why} ({num})" if several else why for why, num in rest.most_common()]
        of = f"{rest.total()}{' others' if moved else ''}"
        told.append(f"Reason{'s' * several} for {of}: {enumerated(reasons)}.")
    return " ".join(told)


def _parts_that_moved(changes: Sequence[Change], way: str) -> str:
    counts = Counter(change.moved_by for change in changes if change.by_rank).most_common()
    others = "others that fell or are left out" if way == "in" else "others that rose or are new"
    words = {part: others if part is None else IN_WORDS[part] for part, _ in counts}
    each = [words[part] if len(counts) == 1 else f"for {num} {words[part]}" for part, num in counts]
    return f"{sum(num for _, num in counts)} {way}: {enumerated(each)}" if counts else ""


def _lengths(found: Comparison) -> str:
    entered, left = mean_tokens(found.entered), mean_tokens(found.left)
    if not entered > 0 or not left > 0 or 1 / MUCH_LONGER < entered / left < MUCH_LONGER:
        return ""
    longer = "longer" if entered > left else "shorter"
    return f"Those that entered are {longer}: {entered:.0f} tokens in the mean, and {left:.0f} for those that left."
