"""Which part of its value (answer, history, length) moved a sample between two rankings. Knows tables, no subsets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.scoring.score_table import ScoreTable
from grace_store.values.length_bias import RESOLUTION
from grace_store.values.methods.grace import value_parts
from grace_store.values.methods.method import ScoreSpec

Part = Literal["answer", "history", "length"]
PARTS: tuple[Part, ...] = ("answer", "history", "length")
LENGTH = PARTS.index("length")
SAME_SPREAD = 1.25
"""Values whose spreads differ by less are on one scale."""
QUARTILES_APART = 1.349
"""Standard deviations between the quartiles of a normal distribution."""
TOLERANCE = 1e-6
"""Parts that miss the values by more are not what the values are made of."""


RankedValues = tuple[ScoreTable, FloatArray]
"""A table, and the values that its samples were ranked by: its own, or their residuals after a control."""


@dataclass(frozen=True, slots=True)
class Movement:
    """How far each part moved each sample that both rankings have, in spreads of the values."""

    place: IntArray
    """Of these samples in the first table, ascending."""
    before: FloatArray
    """Their parts in the first ranking, (parts, n), and in the second."""
    after: FloatArray
    ordered: FloatArray
    """What the parts in the second ranking add up to, ascending."""
    shown: tuple[Part, ...]
    """The parts that counted: length only if it was taken out of values."""
    why_unknown: str = ""
    """Why the parts are unknown; empty if they are known."""

    def of(self, place: int) -> dict[Part, float]:
        """Return how far each part moved the sample at a place of the first table; nothing if that is unknown."""
        if self.why_unknown:
            return {}
        index = np.searchsorted(self.place, place)
        return dict(zip(self.shown, (self.after[:, index] - self.before[:, index]).tolist(), strict=False))

    def rank_unmoved(self, place: int) -> int:
        """Return the rank in the second ranking, from 1, that the sample would have if only the others had moved."""
        index = np.searchsorted(self.place, place)
        was, now = float(self.before[:, index].sum()), float(self.after[:, index].sum())
        num_above = len(self.ordered) - int(np.searchsorted(self.ordered, was, side="right"))
        return 1 + num_above - int(now > was)


def movement(first: RankedValues, second: RankedValues, common: tuple[IntArray, IntArray]) -> Movement:
    """Return what moved the samples that stand at common places of the two tables, ascending in the first.

    All of them must have a rank in both. Each side's parts are divided by the spread of its values, and the median
    movement of each part is taken from every sample's, so that what moves all alike, or only their scale, moves none.
    """
    found = []
    for side, places in zip((first, second), common, strict=True):
        parts = _parts_of(side, places)
        if isinstance(parts, str):
            none = np.zeros((len(PARTS), 0))
            return Movement(common[0], none, none, none[0], (), parts)
        found.append(parts)
    spreads = [_spread(parts[:LENGTH].sum(axis=0)) for parts in found]
    if 1 / SAME_SPREAD < spreads[1] / spreads[0] < SAME_SPREAD:
        spreads[1] = spreads[0]  # the little that a few samples change of it would seem to move all the others
    before, after = (parts / spread for parts, spread in zip(found, spreads, strict=True))
    after -= np.median(after - before, axis=1, keepdims=True)
    shown = PARTS if before[LENGTH].any() or after[LENGTH].any() else PARTS[:LENGTH]
    return Movement(common[0], before, after, np.sort(after.sum(axis=0)), shown)


def mover(moved: Mapping[Part, float], *, rose: bool) -> Part | None:
    """Return the part that moved a sample furthest the way it went; None if its own parts all went the other way.

    >>> mover({"answer": -0.5, "history": 1.5}, rose=True), mover({"answer": -0.5, "history": 1.5}, rose=False)
    ('history', 'answer')
    """
    sign = 1 if rose else -1
    part = max(moved, key=lambda name: sign * moved[name])
    return part if sign * moved[part] > 0 else None


def _parts_of(side: RankedValues, places: IntArray) -> FloatArray | str:
    """Return the parts (3, n) of the samples at some places, or why there are none."""
    table, ranked_by = side
    name = table.path.name if table.path else "a table"
    spec = table.note.spec
    if not isinstance(spec, ScoreSpec):
        return f"values by {spec.method} in {name} are not made of alignments with answer and history"
    table = table.with_steps()
    tokens = None if table.table["step_num_tokens"].null_count else table.flat("step_num_tokens")
    columns = (table.flat(column) for column in ("answer_alignment", "history_alignment"))
    parts = value_parts(spec, table.num_steps, tokens, *columns) if table.has_step_scores else None
    if parts is None:
        return f"values by aggregation {spec.aggregation} in {name} are no sum of what answer and history add"
    value = table.value[places]
    if np.abs(parts[:, places].sum(axis=0) - value).max(initial=0) > TOLERANCE:
        return f"the values in {name} are not those of its step scores"
    if not _spread(value) > RESOLUTION:
        return f"the values in {name} do not differ"
    return np.concatenate([parts[:, places], [ranked_by[places] - value]])


def _spread(value: FloatArray) -> float:
    """Return the spread of values: the standard deviation that a normal distribution of their quartiles has."""
    if not len(value):
        return 0.0
    low, high = np.quantile(value, [0.25, 0.75]).tolist()
    return float((high - low) / QUARTILES_APART) or float(value.std())
