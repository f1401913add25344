"""What it took to make a table of scores: passes through a model, bytes kept, seconds. From specs and run logs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from grace_store.run.status import SignalStatus
from grace_store.scoring.notes import ScoresNote
from grace_store.store.backend import run_logs
from grace_store.store.opened import Store


@dataclass(frozen=True, slots=True)
class Cost:
    """What a method needs for all samples of a store."""

    num_forward: int
    num_backward: int
    num_bytes: int
    """Bytes of the signals it reads."""
    seconds: float | None
    """Seconds of all runs that wrote them, added up over workers; None if no log says."""


def cost_of(note: ScoresNote, store: Store, signals: dict[str, SignalStatus]) -> Cost:
    """Return what the signals behind a table took; methods that need no model took nothing."""
    if note.method.reads in ("plan", "tokens"):
        return Cost(0, 0, 0, 0.0)
    num_forward = num_backward = num_bytes = 0
    seconds: float | None = 0.0
    spent = seconds_by_signal(store)
    for name in note.signals:
        num_tried = signals[name].num_done + sum(signals[name].set_aside.values())
        num_forward += num_tried
        num_backward += _num_backward(store, name, num_tried)
        num_bytes += signals[name].num_bytes
        seconds = None if seconds is None or name not in spent else seconds + spent[name]
    return Cost(num_forward, num_backward, num_bytes, seconds)


def _num_backward(store: Store, name: str, num_tried: int) -> int:
    """Return how many backward passes a signal took: a proxy none, a gradient one for each vector."""
    spec = store.signal(name).signal.spec
    if spec.kind == "proxy":
        return 0
    if spec.is_per_sample:
        return num_tried
    return num_tried + int(store.column("sample_num_steps").sum(dtype="int64") * num_tried / store.plan.num_samples)


def seconds_by_signal(store: Store) -> dict[str, float]:
    """Return how long runs worked on each signal, from their logs: from the start to the last unit committed."""
    spent: dict[str, float] = {}
    for events in _logs(store):
        signal: str | None = None
        began = 0.0
        for event in events:
            at = datetime.fromisoformat(event["time"]).timestamp()
            if event.get("event") == "Started":
                signal, began = event["signal"], at
            elif event.get("event") in ("UnitCommitted", "Finished") and signal is not None:
                spent[signal] = spent.get(signal, 0.0) + at - began
                began = at
    return spent


def _logs(store: Store) -> Iterator[list[dict[str, Any]]]:
    for log in run_logs(store.backend):
        events = []
        for line in log.splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:  # a killed run's last line may be cut short
                continue
        yield [event for event in events if isinstance(event, dict) and "time" in event]
