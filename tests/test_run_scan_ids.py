"""Ids seen before: as a set of all of them would say, in a sixth of its memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.run.scan import SeenIds


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.text(max_size=3), max_size=40), max_size=8))
def test_it_says_what_a_set_would_say(batches: list[list[str]]) -> None:
    seen, known = SeenIds(), set[str]()
    for batch in batches:
        expected = []
        for name in batch:
            expected.append(name in known)
            known.add(name)
        assert seen.add(batch).tolist() == expected


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_many_ids_are_each_seen_once(batch: int) -> None:
    seen = SeenIds()
    ids = [f"trace-{i}" for i in range(3000)]
    for start in range(0, len(ids), batch):
        assert not seen.add(ids[start : start + batch]).any()
    assert seen.add(ids[::-1]).all()
    assert not seen.add([f"other-{i}" for i in range(100)]).any()


def test_an_id_takes_sixteen_bytes() -> None:
    seen = SeenIds()
    for start in range(0, 20_480, 4096):
        seen.add([f"trace-{i}" for i in range(start, start + 4096)])
    assert sum(part._merged.nbytes + part._pending.nbytes for part in seen._parts) == 16 * 20_480
