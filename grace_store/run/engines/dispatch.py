"""Which worker gets which unit, and what follows when one dies. Decisions only: knows no process and no cluster."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from grace_store.base.errors import WorkerDied
from grace_store.base.events import Listener, Rated, UnitCommitted, Warned
from grace_store.base.text import counted

DEATHS_PER_UNIT = 2
"""A unit that was alone on a worker in this number of deaths is given up: it would kill every worker in turn."""
LOSSES_PER_UNIT = 8
"""A unit is not blamed for a machine that goes away under it; but for this number of machines it is."""
STARTS_PER_PLACE = 2
"""Workers that may fail to start at one place, or lose its device, before it is left out."""
ENDED = "Ended"
"""The last message of a worker that cannot show its end otherwise, with in_order as in ``Dispatch.lost``."""


@dataclass(slots=True, eq=False)
class Worker:
    """What is decided by. How to reach a worker is for its engine to add."""

    name: str
    """Begins a sentence about it."""
    place: str
    """Where it runs: what is left out when workers do not start there."""
    in_flight: set[int] = field(default_factory=set)
    rate: Rated | None = None
    """How fast it is; None while it is not ready."""
    failure: str | None = None
    """What it said before it gave up."""
    has_lost_device: bool = False


WorkerT = TypeVar("WorkerT", bound=Worker)


@dataclass(slots=True)
class Dispatch:
    """Hands out units to workers that may die at any time."""

    queue_units: int
    """Units that a worker may have beside the one on its device."""
    find_committed: Callable[[int], UnitCommitted | None]
    """What a unit's commit says, if it is there."""
    confirm: Callable[[], None]
    """Raises if the run may no longer write: no other worker could either."""
    listener: Listener
    stop: threading.Event
    waiting: deque[int] = field(default_factory=deque)
    is_place_a_device: bool = False
    """Whether a place is left out where devices are lost; one of several devices is not."""
    left_out: set[str] = field(default_factory=set)
    """Places where workers do not start."""
    _suspects: dict[int, int] = field(default_factory=dict)
    """Units that were under way when a worker died, and how often they were so alone."""
    _losses: Counter[int] = field(default_factory=Counter)
    """How often a unit was under way on a machine that went away."""
    _given_up: list[int] = field(default_factory=list)
    _failed_starts: Counter[str] = field(default_factory=Counter)
    _deaths_in_a_row: int = 0
    _last_words: str = ""
    _has_told_rate: bool = False

    def feed(
        self, workers: Sequence[WorkerT], send: Callable[[WorkerT, int], object], end: Callable[[WorkerT], object]
    ) -> None:
        """Send every worker the units it has room for, and end those that no work can come to any more."""
        for worker in workers:
            while worker.rate and self.waiting and not self.stop.is_set() and self._has_room(worker, self.waiting[0]):
                unit = self.waiting.popleft()
                worker.in_flight.add(unit)
                send(worker, unit)
            # Units under way elsewhere may fail there, and come back.
            elsewhere = any(other.in_flight for other in workers if other is not worker)
            if self.stop.is_set() or not (worker.in_flight or self.waiting or elsewhere):
                end(worker)

    def _has_room(self, worker: Worker, unit: int) -> bool:
        """Return whether a worker may have one more unit: one on the device, some being read ahead, a suspect alone."""
        if unit in self._suspects or not worker.in_flight.isdisjoint(self._suspects):
            return not worker.in_flight
        return len(worker.in_flight) <= self.queue_units

    def heard(self, worker: Worker, message: dict[str, Any], workers: Sequence[Worker]) -> None:
        """Take in what a worker says, as ``worker`` describes it."""
        fields = {key: value for key, value in message.items() if key != "event"}
        match message["event"]:
            case "Rated":
                worker.rate = Rated(**fields)
                self._tell_rate(workers)
            case "UnitCommitted":
                worker.in_flight.discard(int(fields["unit"]))
                self._deaths_in_a_row = 0
                self.listener(UnitCommitted(**fields))
            case "Warned":
                self.listener(Warned(f"{worker.name}: {fields['text']}"))
            case "Failed":
                worker.failure = fields["text"]
                worker.has_lost_device = fields.get("has_lost_device", False)

    def _tell_rate(self, workers: Sequence[Worker]) -> None:
        """Once all workers are ready, say how fast they are together; those that replace dead ones do not know."""
        rates = [worker.rate for worker in workers if worker.rate]
        is_known = any(rate.samples_per_second for rate in rates)
        if len(rates) == len(workers) and is_known and not self._has_told_rate:
            self._has_told_rate = True
            samples = sum(rate.samples_per_second for rate in rates)
            self.listener(Rated(samples, sum(rate.tokens_per_second for rate in rates)))

    def lost(self, worker: Worker, *, words: str, in_order: bool, num_workers: int) -> bool:
        """Put back what a worker that ended had under way; return whether there is use for another in its place.

        in_order: it ended as it was told to. words: how it ended, unless it said so. num_workers: the most there are.
        """
        self.confirm()
        units = self._uncommitted(worker)
        if in_order and (self.stop.is_set() or not units):
            return False
        self._last_words = worker.failure or words
        self._suspect(units)
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > 2 * num_workers + 2 * DEATHS_PER_UNIT:
            raise WorkerDied(f"Workers die one after the other, and no unit gets done. {self._last_words}")
        is_left_out = self._leave_out(worker, num_workers)
        what = "died" if worker.rate else "does not start"
        what += " and is left out" if is_left_out else ""
        redone = f"; units {units} will be redone" if units else ""
        self.listener(Warned(f"{worker.name} {what}{redone}. {self._last_words}"))
        return bool(self.waiting) and not is_left_out and not self.stop.is_set()

    def _leave_out(self, worker: Worker, num_workers: int) -> bool:
        """Return whether a place gets no more workers: they do not start, or its device is lost again and again."""
        has_others = num_workers - len(self.left_out) > 1
        is_device_bad = worker.has_lost_device and self.is_place_a_device and has_others
        self._failed_starts[worker.place] += worker.rate is None or is_device_bad
        if self._failed_starts[worker.place] >= STARTS_PER_PLACE:
            self.left_out.add(worker.place)
        return worker.place in self.left_out

    def lost_with_machine(self, worker: Worker) -> None:
        """Put back what a worker had under way whose machine went away: to be done next, and not suspected."""
        units = self._uncommitted(worker)
        self._losses.update(units)
        self._suspect([unit for unit in units if self._losses[unit] >= LOSSES_PER_UNIT])
        self.waiting.extendleft(unit for unit in reversed(units) if self._losses[unit] < LOSSES_PER_UNIT)
        self._last_words = f"{worker.name} was lost with its machine."
        self.listener(Warned(f"{worker.name} was lost with its machine; units {units} will be redone."))

    def _uncommitted(self, worker: Worker) -> list[int]:
        """Return what a worker that ended had under way, and tell of units that it committed but could not report."""
        committed = {unit: self.find_committed(unit) for unit in sorted(worker.in_flight)}
        for event in filter(None, committed.values()):
            self.listener(event)
        return [unit for unit, event in committed.items() if event is None]

    def _suspect(self, units: Sequence[int]) -> None:
        """Put units that were under way in a death at the end of the queue, to be done alone; or give them up."""
        for unit in units:
            self._suspects[unit] = self._suspects.get(unit, 0) + (len(units) == 1)
            if self._suspects[unit] >= DEATHS_PER_UNIT:
                self._given_up.append(unit)
            else:
                self.waiting.append(unit)

    def conclude(self) -> None:
        """Raise WorkerDied, when no worker is left, if there are units that could not be done."""
        if self._given_up:
            raise WorkerDied(
                f"Workers died whenever they came to units {sorted(self._given_up)}; all other units are committed. "
                f"{self._last_words} Run the same command to try those units again."
            )
        if self.waiting and not self.stop.is_set():
            raise WorkerDied(
                f"No worker is left, with {counted(len(self.waiting), 'unit')} still to do. {self._last_words}"
            )
