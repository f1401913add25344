"""How far scores from one set of inner products follow those from another. Knows Grams and settings, no model.

Agreements are rank correlations (Spearman's) with an interval from a bootstrap over samples: steps of one sample go
together, so samples are drawn, not steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import ConfigDict

from grace_store.base.arrays import FloatArray, IntArray, Numbers
from grace_store.base.documents import Number
from grace_store.values.draws import middle_of
from grace_store.values.gram import pack
from grace_store.values.length_bias import rank_correlation
from grace_store.values.methods.grace import RaggedScores, score_ragged
from grace_store.values.score_spec import ScoreSpec


@dataclass(frozen=True, slots=True)
class Agreement:
    """A rank correlation, where 95 % of the draws lie, and over how many pairs it is taken."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")  # where a document holds it

    correlation: Number
    low: Number
    high: Number
    num_pairs: int


def scores_of(grams: Sequence[FloatArray], num_tokens: Sequence[Numbers], spec: ScoreSpec) -> RaggedScores:
    """Score samples from their full Grams, each (K + 1, K + 1), and their segments' token counts."""
    num_steps = np.array([len(gram) - 1 for gram in grams], dtype=np.int64)
    packed = np.concatenate([pack(gram[None])[0] for gram in grams])
    return score_ragged(num_steps, packed, np.concatenate(list(num_tokens)), spec)


def agreement(
    one: FloatArray, other: FloatArray, offsets: IntArray, *, draws: int = 200, seed: int = 0
) -> Agreement:  # fmt: skip
    """Compare two flat columns of which sample i owns offsets[i]..offsets[i + 1]; pairs that lack one do not count."""
    both = np.isfinite(one) & np.isfinite(other)
    kept = np.concatenate([[0], np.cumsum(both)])[offsets]
    first, second = one[both], other[both]
    generator = np.random.Generator(np.random.Philox(seed))
    found = []
    for _ in range(draws):
        chosen = generator.integers(0, len(offsets) - 1, len(offsets) - 1)
        index = np.concatenate([np.arange(kept[i], kept[i + 1]) for i in chosen.tolist()])
        found.append(rank_correlation(first[index], second[index]))
    defined = [value for value in found if np.isfinite(value)]
    return Agreement(rank_correlation(first, second), *middle_of(defined), len(first))
