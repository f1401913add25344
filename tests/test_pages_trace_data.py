"""Which traces a page shows when there are too many for one."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grace_store.pages.trace_data import choose_traces


@given(st.integers(0, 300), st.integers(1, 80), st.integers(0, 2**31))
def test_shown_traces_have_both_ends_and_prefer_the_chosen(num: int, limit: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    value = np.where(rng.random(num) < 0.1, np.nan, rng.normal(size=num))
    row = np.sort(rng.choice(10 * num + 1, num, replace=False))
    chosen = rng.random(num) < 0.3
    place, words = choose_traces(value, row, chosen, limit)
    assert len(place) == min(num, limit)
    assert (np.diff(place) > 0).all()
    if num > limit:
        inside = set(place.tolist())
        ranked = sorted(np.flatnonzero(np.isfinite(value)).tolist(), key=lambda i: (-value[i], row[i]))
        end = min(limit // 10, len(ranked) // 2)
        assert inside >= set(ranked[:end]) | set(ranked[len(ranked) - end :])
        counts = [int(each) for each in re.findall(r"\d+", words.replace(",", ""))]
        assert counts[:4] == [limit, num, end, end]
        assert sum(counts[2:6]) == limit
        assert choose_traces(value, row, chosen, limit)[0].tolist() == place.tolist()
