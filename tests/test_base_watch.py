"""Work that takes longer than anybody would wait is told of, once, and nothing else is."""

from __future__ import annotations

import os
import threading

from grace_store.base.events import Event, Warned
from grace_store.base.watch import Watch


def test_work_that_hangs_is_told_once_with_what_to_do() -> None:
    told: list[str] = []
    heard = threading.Event()

    def listen(event: Event) -> None:
        assert isinstance(event, Warned)
        told.append(event.text)
        heard.set()

    with Watch(0.02, listen) as watch:
        with watch.over("unit 3"), watch.over("unit 4"):
            assert heard.wait(60)
        with watch.over("unit 5"):
            pass
    assert len(told) == 1
    assert told[0].startswith(
        "The device has not finished unit 3 within 0.02 seconds (--patience). The device may hang."
    )
    assert f"kill -9 {os.getpid()}" in told[0]


def test_work_that_ends_in_time_is_not_told() -> None:
    told: list[Event] = []
    with Watch(600, told.append) as watch, watch.over("unit 3"):
        pass
    assert told == []
