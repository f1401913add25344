"""Decide which worker gets which unit, and what to do when a worker dies. Knows no process and no cluster."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from grace_store.base.errors import StorageError, WorkerDied
from grace_store.base.events import Listener, Rated, UnitCommitted, Warned
from grace_store.base.text import counted

DEATHS_PER_UNIT = 2
"""A unit is given up after this number of workers died with no other unit: it might kill every worker."""
LOSSES_PER_UNIT = 8
"""A unit is not suspected when its machine is lost, until this number of machines were lost with it."""
STARTS_PER_PLACE = 2
"""A place is left out after this number of its workers did not start, or lost its device."""
ENDED = "Ended"
"""The last message of a worker without an exit code, with in_order as in ``Dispatch.lost``."""


@dataclass(slots=True, eq=False)
class Worker:
    """The state of a worker that decisions depend on. Engines add how to reach the worker."""

    name: str
    """Name of the worker, to begin a sentence with."""
    place: str
    """Device or node of the worker, which is left out if workers do not start there."""
    in_flight: set[int] = field(default_factory=set)
    rate: Rated | None = None
    """Speed of the worker; None until it is ready."""
    failure: str | None = None
    """Error message of the worker before it ended."""
    has_lost_device: bool = False
    is_disk_full: bool = False


WorkerT = TypeVar("WorkerT", bound=Worker)


@dataclass(slots=True)
class Dispatch:
    """The distribution of units to workers that may die at any time."""

    queue_units: int
    """Units that a worker may have beside the one on its device."""
    find_committed: Callable[[int], UnitCommitted | None]
    """Function that returns the event of a unit's commit; None if the unit is not committed."""
    confirm: Callable[[], None]
    """Function that raises if the run may no longer write to the store."""
    listener: Listener
    stop: threading.Event
    waiting: deque[int] = field(default_factory=deque)
    is_place_a_device: bool = False
    """Whether a place is one device, which can be left out when it is lost, and not a node with several devices."""
    left_out: set[str] = field(default_factory=set)
    """Places where workers do not start."""
    _suspects: dict[int, int] = field(default_factory=dict)
    """Units in flight when a worker died, with the number of deaths in which a unit was the only one."""
    _losses: Counter[int] = field(default_factory=Counter)
    """Number of machines that were lost with a unit in flight."""
    _given_up: list[int] = field(default_factory=list)
    _failed_starts: Counter[str] = field(default_factory=Counter)
    _deaths_in_a_row: int = 0
    _last_failure: str = ""
    _has_told_rate: bool = False

    def feed(
        self, workers: Sequence[WorkerT], send: Callable[[WorkerT, int], object], end: Callable[[WorkerT], object]
    ) -> None:
        """Send every worker as many units as it has room for, and end the workers that will get no more units."""
        for worker in workers:
            while worker.rate and self.waiting and not self.stop.is_set():
                # A suspect is the only unit of its worker; others queue behind the unit on the device.
                is_alone = not worker.in_flight.isdisjoint(self._suspects) or self.waiting[0] in self._suspects
                if len(worker.in_flight) > (0 if is_alone else self.queue_units):
                    break
                unit = self.waiting.popleft()
                worker.in_flight.add(unit)
                send(worker, unit)
            # Units in flight on other workers may come back if those workers die.
            elsewhere = any(other.in_flight for other in workers if other is not worker)
            if self.stop.is_set() or not (worker.in_flight or self.waiting or elsewhere):
                end(worker)

    def heard(self, worker: Worker, message: dict[str, Any], workers: Sequence[Worker]) -> None:
        """Handle a message from a worker; the module ``worker`` describes messages."""
        fields = {key: value for key, value in message.items() if key != "event"}
        match message["event"]:
            case "Rated":
                worker.rate = Rated(**fields)
                rates = [each.rate for each in workers if each.rate]
                samples = sum(rate.samples_per_second for rate in rates)
                # Report the total once, when all workers are ready. Workers that replace dead ones report a rate of 0.
                if len(rates) == len(workers) and samples and not self._has_told_rate:
                    self._has_told_rate = True
                    self.listener(Rated(samples, sum(rate.tokens_per_second for rate in rates)))
            case "UnitCommitted":
                worker.in_flight.discard(int(fields["unit"]))
                self._deaths_in_a_row = 0
                self.listener(UnitCommitted(**fields))
            case "Warned":
                self.listener(Warned(f"{worker.name}: {fields['text']}"))
            case "Failed":
                worker.failure = fields["text"]
                worker.has_lost_device = fields.get("has_lost_device", False)
                worker.is_disk_full = fields.get("is_disk_full", False)

    def lost(self, worker: Worker, *, words: str, in_order: bool, num_workers: int) -> bool:
        """Put the units of a worker that ended back into the queue; return whether to replace the worker.

        in_order: the worker ended because it was told to. words: how it ended, used if it sent no error message.
        num_workers: the largest number of workers.
        """
        self.confirm()
        units = self._uncommitted(worker)
        if worker.is_disk_full:  # for all workers
            raise StorageError(
                f"{worker.failure}. Everything committed is kept: make room and run the same command again."
            )
        if in_order and (self.stop.is_set() or not units):
            return False
        self._last_failure = worker.failure or words
        self._suspect(units)
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > 2 * num_workers + 2 * DEATHS_PER_UNIT:
            raise WorkerDied(f"Workers die one after the other, and no unit is finished. {self._last_failure}")
        is_device_bad = worker.has_lost_device and self.is_place_a_device and num_workers - len(self.left_out) > 1
        self._failed_starts[worker.place] += worker.rate is None or is_device_bad
        if self._failed_starts[worker.place] >= STARTS_PER_PLACE:
            self.left_out.add(worker.place)
        is_left_out = worker.place in self.left_out
        what = "died" if worker.rate else "does not start"
        what += " and is not started again" if is_left_out else ""
        redone = f"; units {units} will be redone" if units else ""
        self.listener(Warned(f"{worker.name} {what}{redone}. {self._last_failure}"))
        return bool(self.waiting) and not is_left_out and not self.stop.is_set()

    def lost_with_machine(self, worker: Worker) -> None:
        """Put the units of a worker whose machine was lost at the front of the queue, without suspecting them."""
        units = self._uncommitted(worker)
        self._losses.update(units)
        self._suspect([unit for unit in units if self._losses[unit] >= LOSSES_PER_UNIT])
        self.waiting.extendleft(unit for unit in reversed(units) if self._losses[unit] < LOSSES_PER_UNIT)
        self._last_failure = f"{worker.name} was lost with its machine."
        self.listener(Warned(f"{worker.name} was lost with its machine; units {units} will be redone."))

    def _uncommitted(self, worker: Worker) -> list[int]:
        """Return the uncommitted units of a worker that ended; report the units that it committed without a message."""
        committed = {unit: self.find_committed(unit) for unit in sorted(worker.in_flight)}
        for event in filter(None, committed.values()):
            self.listener(event)
        return [unit for unit, event in committed.items() if event is None]

    def _suspect(self, units: Sequence[int]) -> None:
        """Put the units of a dead worker at the end of the queue, to be run one at a time, or give them up."""
        for unit in units:
            self._suspects[unit] = self._suspects.get(unit, 0) + (len(units) == 1)
            if self._suspects[unit] >= DEATHS_PER_UNIT:
                self._given_up.append(unit)
            else:
                self.waiting.append(unit)

    def conclude(self) -> None:
        """Raise WorkerDied at the end of a run if units could not be done."""
        if self._given_up:
            raise WorkerDied(
                f"Workers died every time they ran units {sorted(self._given_up)}; all other units are committed. "
                f"{self._last_failure} Run the same command to try these units again."
            )
        if self.waiting and not self.stop.is_set():
            raise WorkerDied(
                f"No worker is left, and {counted(len(self.waiting), 'unit')} must still be done. {self._last_failure}"
            )
