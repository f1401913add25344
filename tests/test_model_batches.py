"""Batches cover every sample once and hold what they promise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grace_store.model.inputs.batches import form_batches


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 1000))
def test_batches_cover_every_sample_once_within_the_budget(lengths, batch_tokens):
    batches = form_batches(lengths, batch_tokens)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = max(lengths[position] for position in batch) * len(batch)
        assert padded <= batch_tokens or len(batch) == 1
    flat = [lengths[position] for batch in batches for position in batch]
    assert flat == sorted(flat, reverse=True)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60))
def test_a_large_budget_makes_one_batch(lengths):
    assert len(form_batches(lengths, 300 * 60)) == 1
