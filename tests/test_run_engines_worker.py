"""The pipeline keeps the device fed: what comes next is ready before it asks."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grace_store.base.metadata import Commit
from grace_store.base.settings import RunOptions
from grace_store.run.engines.worker import ListFeed, run_pipeline


@pytest.mark.parametrize("queue_units", [1, 3])
def test_the_next_units_are_prepared_while_one_is_on_the_device(queue_units: int) -> None:
    prepared = {unit: threading.Event() for unit in range(8)}
    order: list[int] = []

    def prepare(samples: list[int]) -> int:
        prepared[samples[0]].set()
        return samples[0]

    def compute(unit: int) -> Any:
        ahead = [prepared[later] for later in range(unit + 1, min(unit + 1 + queue_units, 8))]
        assert all(event.wait(30) for event in ahead), f"units after {unit} are not being prepared"
        order.append(unit)
        return SimpleNamespace(result=lambda: unit)

    def write(unit: int, signals: int, _spans: object) -> Commit:
        assert unit == signals
        return Commit(unit=unit, signal_sha256="", num_samples=1, num_done=1, num_tokens=1, chunks={})

    loader: Any = SimpleNamespace(load=lambda unit: ([unit], np.zeros((0, 2), dtype=np.int32)))
    writer: Any = SimpleNamespace(write=write, confirm=lambda: None)
    extractor: Any = SimpleNamespace(prepare=prepare, compute=compute)
    told: list[object] = []
    feed = ListFeed(range(8), threading.Event())
    run_pipeline(writer, feed, loader, extractor, RunOptions(), told.append, queue_units)
    assert order == list(range(8))
    assert len(told) == 8
