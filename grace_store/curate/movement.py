"""Which part of its value (answer, history, length) moved a sample between two rankings. Knows tables, no subsets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grace_store.artifacts.score_table import ScoreTable
from grace_store.base.arrays import FloatArray, IntArray
from grace_store.values.length_bias import RESOLUTION
from grace_store.values.score_spec import ScoreSpec
from grace_store.values.value_parts import value_parts

Part = Literal["answer", "history", "length"]
PARTS: tuple[Part, ...] = ("answer", "history", "length")
TOLERANCE = 1e-6
"""Parts that miss the values by more are not what the values are made of."""


@dataclass(frozen=True, slots=True)
class RankedValues:
    """A table and what its samples were ranked by: their values, or what a control left of them."""

    scores: ScoreTable
    value: FloatArray


@dataclass(frozen=True, slots=True)
class Movement:
    """How far each part moved each sample that both rankings have, in standard deviations of the values."""

    place: IntArray
    """Of these samples in the first table, ascending."""
    change: FloatArray
    """(parts, n)"""
    why_unknown: str = ""
    """Why nothing can be said of parts; empty if it can."""

    def of(self, place: int) -> dict[Part, float]:
        """Return how far each part moved the sample at a place of the first table; length only if it moved any."""
        if self.why_unknown:
            return {}
        each = self.change[:, np.searchsorted(self.place, place)].tolist()
        shown = PARTS if self.change[PARTS.index("length")].any() else PARTS[:-1]
        return dict(zip(shown, each, strict=False))


def movement(first: RankedValues, second: RankedValues, common: tuple[IntArray, IntArray]) -> Movement:
    """Return what moved the samples that stand at common places of the two tables, ascending in the first.

    All of them must have a rank in both. Each side's parts are taken from their means and divided by the standard
    deviation of its values, so that what moves all samples alike, or only the scale of values, moves none.
    """
    found = []
    for side, places in zip((first, second), common, strict=True):
        parts = _standard_parts(side, places)
        if isinstance(parts, str):
            return Movement(common[0], np.zeros((len(PARTS), 0)), parts)
        found.append(parts)
    return Movement(common[0], found[1] - found[0])


def mover(moved: Mapping[Part, float], *, rose: bool) -> Part | None:
    """Return the part that moved a sample furthest the way it went; None if its own parts all went the other way.

    >>> mover({"answer": -0.5, "history": 1.5}, rose=True), mover({"answer": -0.5, "history": 1.5}, rose=False)
    ('history', 'answer')
    """
    sign = 1 if rose else -1
    part = max(moved, key=lambda name: sign * moved[name])
    return part if sign * moved[part] > 0 else None


def _standard_parts(side: RankedValues, places: IntArray) -> FloatArray | str:
    """Return the parts (3, n) of the samples at some places, or why there are none."""
    table, name = side.scores, side.scores.path.name if side.scores.path else "a table"
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
    if not value.std() > RESOLUTION:
        return f"the values in {name} do not differ"
    found = np.concatenate([parts[:, places], [side.value[places] - value]])
    standard: FloatArray = (found - found.mean(axis=1, keepdims=True)) / value.std()
    return standard
