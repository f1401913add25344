"""The engine of one process per device: hands out units, outlives dead workers. Knows no model library."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grace_store.errors import WorkerDied
from grace_store.events import Listener, Rated, UnitCommitted, Warned
from grace_store.job.worker import WorkerJob

DEATHS_PER_UNIT = 2
"""A unit that was alone on a worker in so many deaths is given up: it would kill every worker in turn."""


@dataclass(slots=True, eq=False)
class _Worker:
    number: int
    process: subprocess.Popen[str]
    in_flight: set[int] = field(default_factory=set)
    rate: Rated | None = None
    """How fast it is; None while it is not ready."""
    failure: str | None = None
    """What it said before it gave up."""
    listener: threading.Thread | None = None


@dataclass(slots=True)
class ProcessEngine:
    """Runs units in worker processes, each with its own environment (which device it sees)."""

    job: WorkerJob
    environments: Sequence[Mapping[str, str]]
    is_committed: Callable[[int], bool]
    listener: Listener
    stop: threading.Event
    _messages: queue.Queue[tuple[_Worker, dict[str, Any] | None]] = field(default_factory=queue.Queue)
    _workers: list[_Worker] = field(default_factory=list)
    _waiting: deque[int] = field(default_factory=deque)
    _suspects: dict[int, int] = field(default_factory=dict)
    """Units that were under way when a worker died, and how often they were so alone."""
    _given_up: list[int] = field(default_factory=list)
    _failed_starts: dict[int, int] = field(default_factory=dict)
    _deaths_in_a_row: int = 0
    _last_words: str = ""
    _has_told_rate: bool = False

    def run(self, units: Sequence[int]) -> None:
        """Run the units; raise WorkerDied at the end if some could not be done."""
        self._waiting.extend(units)
        try:
            for number in range(min(len(self.environments), len(units))):
                self._start(number, self.job)
            while self._workers:
                self._take_message()
        finally:
            for worker in self._workers:
                worker.process.kill()
            for worker in self._workers:
                self._close(worker)
        if self._given_up:
            raise WorkerDied(
                f"Workers died whenever they came to units {sorted(self._given_up)}; all other units are committed. "
                f"{self._last_words} Run the same command to try those units again."
            )
        if self._waiting and not self.stop.is_set():
            raise WorkerDied(f"No worker is left, and {len(self._waiting)} units are to do. {self._last_words}")

    def _start(self, number: int, job: WorkerJob) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "grace_store.job.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **self.environments[number]},
            # Ctrl-C in the terminal is for the parent alone, which lets workers finish their units.
            start_new_session=True,
        )
        worker = _Worker(number, process)
        self._workers.append(worker)
        self._send(worker, job.model_dump_json())
        worker.listener = threading.Thread(target=self._listen, args=(worker,), daemon=True)
        worker.listener.start()

    def _listen(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            try:
                self._messages.put((worker, json.loads(line)))
            except ValueError:
                continue  # the last line of a killed worker may be cut short
        worker.process.wait()
        self._messages.put((worker, None))

    def _take_message(self) -> None:
        try:
            worker, message = self._messages.get(timeout=0.2)
        except queue.Empty:
            self._feed_all()
            return
        if message is None:
            self._buried(worker)
        elif message["event"] == "Rated":
            worker.rate = Rated(message["samples_per_second"], message["tokens_per_second"])
            self._tell_rate()
        elif message["event"] == "UnitCommitted":
            fields = {key: value for key, value in message.items() if key != "event"}
            worker.in_flight.discard(int(fields["unit"]))
            self._deaths_in_a_row = 0
            self.listener(UnitCommitted(**fields))
        elif message["event"] == "Failed":
            worker.failure = message["text"]
        self._feed_all()

    def _tell_rate(self) -> None:
        """Once all workers are ready, say how fast they are together; those that replace dead ones do not know."""
        rates = [worker.rate for worker in self._workers if worker.rate]
        is_known = any(rate.samples_per_second for rate in rates)
        if len(rates) == len(self._workers) and is_known and not self._has_told_rate:
            self._has_told_rate = True
            self.listener(
                Rated(sum(rate.samples_per_second for rate in rates), sum(rate.tokens_per_second for rate in rates))
            )

    def _feed_all(self) -> None:
        for worker in self._workers:
            while worker.rate and self._waiting and not self.stop.is_set() and self._has_room(worker, self._waiting[0]):
                unit = self._waiting.popleft()
                worker.in_flight.add(unit)
                self._send(worker, str(unit))
            if self.stop.is_set() or not (worker.in_flight or self._in_flight_elsewhere(worker)):
                self._end(worker)

    def _has_room(self, worker: _Worker, unit: int) -> bool:
        """Return whether a worker may have one more unit: one on the device, some being read ahead, a suspect alone."""
        if unit in self._suspects or not worker.in_flight.isdisjoint(self._suspects):
            return not worker.in_flight
        return len(worker.in_flight) <= self.job.options.queue_units

    def _in_flight_elsewhere(self, worker: _Worker) -> bool:
        """Return whether work may still come to an idle worker: waiting now, or under way where it may fail."""
        return bool(self._waiting) or any(other.in_flight for other in self._workers if other is not worker)

    def _buried(self, worker: _Worker) -> None:
        """Redo what a dead worker had under way, and replace it if there is work."""
        self._workers.remove(worker)
        self._close(worker)
        lost = sorted(unit for unit in worker.in_flight if not self.is_committed(unit))
        code = worker.process.returncode
        if code == 0 and (self.stop.is_set() or not lost):
            return
        self._last_words = worker.failure or f"Worker {worker.number} ended with exit code {code}; its log is above."
        self._suspect(lost)
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > 2 * len(self.environments) + 2 * DEATHS_PER_UNIT:
            raise WorkerDied(f"Workers die one after the other, and no unit gets done. {self._last_words}")
        starting = worker.rate is None
        self._failed_starts[worker.number] = self._failed_starts.get(worker.number, 0) + starting
        retired = self._failed_starts[worker.number] > 1
        what = "does not start and is left out" if retired else f"died; units {lost} will be redone"
        self.listener(Warned(f"Worker {worker.number} {what}. {self._last_words}"))
        if self._waiting and not retired and not self.stop.is_set():
            # Without a trial: it may have been the trial's samples that killed it.
            self._start(worker.number, self.job.model_copy(update={"trial_unit": None}))

    def _suspect(self, lost: Sequence[int]) -> None:
        """Put units that were under way in a death at the end of the queue, to be done alone; or give them up."""
        for unit in lost:
            self._suspects[unit] = self._suspects.get(unit, 0) + (len(lost) == 1)
            if self._suspects[unit] >= DEATHS_PER_UNIT:
                self._given_up.append(unit)
            else:
                self._waiting.append(unit)

    def _send(self, worker: _Worker, line: str) -> None:
        assert worker.process.stdin is not None
        # A pipe that is broken or closed: the worker is dead or ending, and _buried sees to its units.
        with contextlib.suppress(BrokenPipeError, ValueError):
            worker.process.stdin.write(line + "\n")
            worker.process.stdin.flush()

    def _close(self, worker: _Worker) -> None:
        """Wait for a worker that has ended and let go of its pipes."""
        worker.process.wait()
        self._end(worker)
        assert worker.process.stdout is not None
        if worker.listener is not None:
            worker.listener.join()
        worker.process.stdout.close()

    def _end(self, worker: _Worker) -> None:
        assert worker.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.close()
