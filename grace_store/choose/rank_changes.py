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
"""Two sets of values are on one scale if the ratio of their spreads is below this."""
QUARTILES_APART = 1.349
"""Standard deviations between the quartiles of a normal distribution."""
TOLERANCE = 1e-6
"""Largest difference between a value and the sum of its parts."""

RankedValues = tuple[ScoreTable, FloatArray]
"""A table, and the values that its samples were ranked by: those of the table, or their residuals after a control."""


@dataclass(frozen=True, slots=True)
class Movement:
    """How far each part moved each sample that both rankings have, in spreads of the values."""

    place: IntArray
    """Places of these samples in the first table, ascending."""
    before: FloatArray
    """Parts of their values in the first ranking, shape (parts, n)."""
    after: FloatArray
    """Parts of their values in the second ranking, shape (parts, n)."""
    ordered: FloatArray
    """Sums of the parts in the second ranking, ascending."""
    shown: tuple[Part, ...]
    """The parts that counted: length only if it was taken out of values."""
    why_unknown: str = ""
    """Why the parts are unknown; empty if they are known."""

    def of(self, place: int) -> dict[Part, float]:
        """Return how far each part moved the sample at a place of the first table; empty if the parts are unknown."""
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
    """Return how far each part moved the samples at common places of the two tables, ascending in the first.

    All these samples must have a rank in both tables. The parts of each table are divided by the spread of its values,
    and the median change of each part is subtracted. So a change that all samples share, or a change of scale alone,
    moves no sample.
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
        spreads[1] = spreads[0]  # else a small change of the spread would seem to move all samples
    before, after = (parts / spread for parts, spread in zip(found, spreads, strict=True))
    after -= np.median(after - before, axis=1, keepdims=True)
    shown = PARTS if before[LENGTH].any() or after[LENGTH].any() else PARTS[:LENGTH]
    return Movement(common[0], before, after, np.sort(after.sum(axis=0)), shown)


def mover(moved: Mapping[Part, float], *, rose: bool) -> Part | None:
    """Return the part that moved a sample furthest in its direction; None if all its parts moved the other way.

    >>> mover({"answer": -0.5, "history": 1.5}, rose=True), mover({"answer": -0.5, "history": 1.5}, rose=False)
    ('history', 'answer')
    """
    sign = 1 if rose else -1
    part = max(moved, key=lambda name: sign * moved[name])
    return part if sign * moved[part] > 0 else None


def _parts_of(side: RankedValues, places: IntArray) -> FloatArray | str:
    """Return the parts, shape (3, n), of the samples at these places, or the reason why they are unknown."""
    table, ranked_by = side
    name = table.path.name if table.path else "a table"
    spec = table.note.spec
    if not (isinstance(spec, ScoreSpec) and spec.is_grace):
        return f"values by {spec.title} in {name} are not made of alignments with answer and history alone"
    table = table.with_steps()
    tokens = None if table.table["step_num_tokens"].null_count else table.flat("step_num_tokens")
    columns = (table.flat(column) for column in ("answer_alignment", "history_alignment"))
    parts = value_parts(spec, table.num_steps, tokens, *columns) if table.has_step_scores else None
    if parts is None:
        return f"with aggregation {spec.step_aggregation}, values of {name} cannot be split into answer and history"
    value = table.value[places]
    if np.abs(parts[:, places].sum(axis=0) - value).max(initial=0) > TOLERANCE:
        return f"the values in {name} are not those of its step scores"
    if not _spread(value) > RESOLUTION:
        return f"the values in {name} do not differ"
    return np.concatenate([parts[:, places], [ranked_by[places] - value]])


def _spread(value: FloatArray) -> float:
    """Return the spread of values: the standard deviation of a normal distribution with the same quartiles."""
    if not len(value):
        return 0.0
    low, high = np.quantile(value, [0.25, 0.75]).tolist()
    return float((high - low) / QUARTILES_APART) or float(value.std())
