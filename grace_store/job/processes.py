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

DEATHS_PER_UNIT = 3
"""A unit that was under way in so many deaths is given up: it would kill every worker in turn."""


@dataclass(slots=True, eq=False)
class _Worker:
    number: int
    process: subprocess.Popen[str]
    in_flight: set[int] = field(default_factory=set)
    rate: Rated | None = None
    """How fast it is; None while it is not ready."""
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
    _deaths: dict[int, int] = field(default_factory=dict)
    _given_up: list[int] = field(default_factory=list)
    _has_told_rate: bool = False

    def run(self, units: Sequence[int]) -> None:
        """Run the units; raise WorkerDied at the end if some could not be done."""
        self._waiting.extend(units)
        try:
            for number in range(min(len(self.environments), len(units))):
                self._start(number)
            while self._workers:
                self._take_message()
        finally:
            for worker in self._workers:
                worker.process.kill()
            for worker in self._workers:
                self._close(worker)
        if self._given_up:
            raise WorkerDied(
                f"Workers died {DEATHS_PER_UNIT} times while units {self._given_up} were under way; all other units "
                "are committed. The log of the last death is above; run the same command to try those units again."
            )

    def _start(self, number: int) -> None:
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
        self._send(worker, self.job.model_dump_json())
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
            self.listener(UnitCommitted(**fields))
        elif message["event"] == "Failed":
            raise WorkerDied(f"Worker {worker.number} stopped: {message['text']}")
        self._feed_all()

    def _tell_rate(self) -> None:
        """Once all workers are ready, say how fast they are together."""
        rates = [worker.rate for worker in self._workers if worker.rate]
        if len(rates) == len(self._workers) and not self._has_told_rate:
            self._has_told_rate = True
            self.listener(
                Rated(sum(rate.samples_per_second for rate in rates), sum(rate.tokens_per_second for rate in rates))
            )

    def _feed_all(self) -> None:
        for worker in self._workers:
            # One unit on the device, and some being read and tokenised ahead of it.
            while worker.rate and self._waiting and not self.stop.is_set():
                if len(worker.in_flight) > self.job.options.queue_units:
                    break
                unit = self._waiting.popleft()
                worker.in_flight.add(unit)
                self._send(worker, str(unit))
            if self.stop.is_set() or not (worker.in_flight or self._in_flight_elsewhere(worker)):
                self._end(worker)

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
        if worker.rate is None:
            raise WorkerDied(f"Worker {worker.number} died while starting (exit code {code}); its log is above.")
        self.listener(Warned(f"Worker {worker.number} died (exit code {code}); units {lost} will be redone."))
        for unit in reversed(lost):
            self._deaths[unit] = self._deaths.get(unit, 0) + 1
            if self._deaths[unit] >= DEATHS_PER_UNIT:
                self._given_up.append(unit)
            else:
                self._waiting.appendleft(unit)
        if self._waiting and not self.stop.is_set():
            self._start(worker.number)

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
