"""Which traces a page shows when there are too many for one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grace_store.pages.shown_traces import choose_traces


@given(st.integers(0, 300), st.integers(1, 80), st.integers(0, 2**31))
def test_shown_traces_have_both_ends_and_prefer_the_chosen(num: int, limit: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    value = np.where(rng.random(num) < 0.1, np.nan, rng.normal(size=num))
    row = np.sort(rng.choice(10 * num + 1, num, replace=False))
    chosen = rng.random(num) < 0.3
    shown = choose_traces(value, row, chosen, limit)
    assert len(shown.place) == min(num, limit)
    assert (np.diff(shown.place) > 0).all()
    if num > limit:
        inside = set(shown.place.tolist())
        ranked = sorted(np.flatnonzero(np.isfinite(value)).tolist(), key=lambda i: (-value[i], row[i]))
        assert inside >= set(ranked[: shown.num_top]) | set(ranked[len(ranked) - shown.num_bottom :])
        assert shown.num_top + shown.num_bottom + shown.num_chosen + shown.num_uniform == limit
        assert shown.num_top >= min(limit // 10, len(ranked) // 2)
        assert f"{limit:,} of {num:,} samples" in shown.words
        again = choose_traces(value, row, chosen, limit)
        assert again.place.tolist() == shown.place.tolist()
