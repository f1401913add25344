"""Signals as they are named and weighed, and work done ahead in order."""

from __future__ import annotations

import pytest

from grace_store.read.blocks import map_ordered, resolve_signals
from tests.scored_stores import known_store


def test_a_signal_whose_name_looks_like_a_weight(tmp_path):
    known = known_store(tmp_path, ("lr=2", "base"))
    assert resolve_signals(known.store, ["lr=2", "base=3"]).weights == {"lr=2": 1.0, "base": 3.0}
    assert resolve_signals(known.store, "lr=2=4").weights == {"lr=2": 4.0}
    assert str(resolve_signals(known.store, ["lr=2", "base=3"])) == "lr=2=1,base=3"


def test_work_done_ahead_keeps_its_order_and_its_errors():
    assert list(map_ordered(lambda i: i * i, range(20), 3)) == [i * i for i in range(20)]

    def fail(i):
        if i == 5:
            raise ValueError("five")
        return i

    results = map_ordered(fail, range(100), 2)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="five"):
        next(results)
