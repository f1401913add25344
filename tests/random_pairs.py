"""Pairs of points with similarities, many of them equal, for hypothesis to draw."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from grace_store.likeness.forest import Pairs

NUM_POINTS = 12


points = st.integers(0, NUM_POINTS - 1)


some_pairs = st.lists(
    st.tuples(points, points, st.sampled_from([0.5, 0.625, 0.75, 0.875, 1.0])).filter(lambda pair: pair[0] != pair[1]),
    max_size=40,
)


thresholds = st.sampled_from([0.5, 0.6, 0.75, 0.9, 1.0])


def as_pairs(pairs) -> Pairs:
    columns = list(zip(*pairs, strict=True)) or [(), (), ()]
    return Pairs(np.array(columns[0], np.int64), np.array(columns[1], np.int64), np.array(columns[2], np.float32))


def reaching(pairs, threshold):
    return [(one, other) for one, other, similarity in pairs if similarity >= threshold]
