"""Two subsets side by side: what they share, what entered, what left, and why."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from grace_store.artifacts.score_table import ScoreTable
from grace_store.artifacts.subset_file import WrittenSubset, read_subset
from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.files import write_lines
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two subsets side by side."""

    num_a: int
    num_b: int
    num_both: int
    jaccard: float
    entered: list[Change]
    """In B alone, the best of B first."""
    left: list[Change]
    """In A alone, the best of A first."""
    notes: list[str]


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


def compare(a: str | Path, b: str | Path, *, ratio: Ratio | None = None) -> Comparison:
    """Compare two subsets that ``select`` wrote, or the best of two score tables.

    Samples are the same if they are the same record of one plan; between plans, if they have the same id.
    """
    first, second = (_side(read_subset(Path(path), ratio)) for path in (a, b))
    by_row = first.scores.note.plan_sha256 == second.scores.note.plan_sha256
    keys = [side.scores.row.tolist() if by_row else side.scores.sample_id for side in (first, second)]
    place_a, place_b = ({key: place for place, key in enumerate(some)} for some in keys)
    in_a, in_b = ({keys[i][j] for j in side.chosen.tolist()} for i, side in enumerate((first, second)))
    num_both = len(in_a & in_b)
    left = [key for key in (keys[0][j] for j in _by_rank(first)) if key not in in_b]
    entered = [key for key in (keys[1][j] for j in _by_rank(second)) if key not in in_a]
    notes = [] if by_row else ["the tables are of different plans: samples are matched by their ids"]
    return Comparison(
        num_a=len(in_a),
        num_b=len(in_b),
        num_both=num_both,
        jaccard=jaccard(num_both, len(in_a), len(in_b)),
        entered=[_change(first, place_a.get(key), second, place_b[key], entered=True) for key in entered],
        left=[_change(first, place_a[key], second, place_b.get(key), entered=False) for key in left],
        notes=notes + first.notes + second.notes,
    )


def write_changes(found: Comparison, out: Path) -> None:
    """Write every sample that entered or left, a JSON object a line."""
    both = [("entered", found.entered), ("left", found.left)]
    write_lines(
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
        notes.append(f"{path.name} was chosen with {order}; ranks are those over all samples")
    if spec.exclude_flagged:
        notes.append(f"{path.name} was chosen without samples flagged {', '.join(spec.exclude_flagged)}")
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


def _change(first: _Side, in_a: int | None, second: _Side, in_b: int | None, *, entered: bool) -> Change:
    side, place = (second, in_b) if entered else (first, in_a)
    assert place is not None
    a, b = _value_and_rank(first, in_a), _value_and_rank(second, in_b)
    why = _why(first if entered else second, in_a if entered else in_b, a[1], b[1])
    sample_id, row, num_steps = (side.scores.table[name][place].as_py() for name in ("sample_id", "row", "num_steps"))
    return Change(sample_id, row, num_steps, *a, *b, why)


def _value_and_rank(side: _Side, place: int | None) -> tuple[float | None, int | None]:
    if place is None or not side.rank[place]:
        return None, None
    return float(side.value[place]), int(side.rank[place])


def _why(other: _Side, place: int | None, rank_a: int | None, rank_b: int | None) -> str:
    """Say why a sample is not in the other subset."""
    if place is None:
        return "not among the other table's samples"
    if not other.rank[place]:
        flags = other.scores.table["flags"][place].as_py()
        if excluded := [name for name in flags if name in other.excluded_flags]:
            return f"left out of the other for its flags ({', '.join(excluded)})"
        return f"no value in the other table ({', '.join(flags) or 'not finite'})"
    if rank_a is not None and rank_b is not None and rank_a != rank_b:
        return f"{'rose' if rank_b < rank_a else 'fell'} from rank {rank_a} to {rank_b}"
    return other.order or f"the other keeps {len(other.chosen)}"
