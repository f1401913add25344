"""The engine with one process per device: it starts workers, sends them units, and replaces dead workers."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from grace_store.base.errors import SettingError
from grace_store.base.events import Note
from grace_store.base.text import counted
from grace_store.run.engines.dispatch import Dispatch, Worker
from grace_store.run.engines.engine import Engine, ExtractJob, Work
from grace_store.run.engines.worker import QUEUE_UNITS, find_committed


@dataclass(slots=True, eq=False, kw_only=True)
class _Process(Worker):
    number: int
    process: subprocess.Popen[str]
    reader: threading.Thread | None = None


class _Run:
    """Worker processes, each with an environment that shows it one device, and their messages."""

    def __init__(self, work: Work) -> None:
        self._job = work.job
        self._devices = work.job.engine.devices
        found = partial(find_committed, work.view)
        self._dispatch = Dispatch(
            QUEUE_UNITS, found, work.lease.confirm, work.listener, work.stop, deque(work.units), is_place_a_device=True
        )
        self._messages: queue.Queue[tuple[_Process, dict[str, Any] | None]] = queue.Queue()
        self._workers: list[_Process] = []

    def finish(self) -> None:
        """Run the units; raise WorkerDied at the end if units could not be done."""
        try:
            for number in range(min(len(self._devices), len(self._dispatch.waiting))):
                self._start(number, self._job)
            while self._workers:
                try:
                    worker, message = self._messages.get(timeout=0.2)
                except queue.Empty:
                    pass
                else:
                    if message is None:
                        self._bury(worker)
                    else:
                        self._dispatch.heard(worker, message, self._workers)
                self._dispatch.feed(self._workers, lambda worker, unit: self._send(worker, str(unit)), self._end)
        finally:
            for worker in self._workers:
                worker.process.kill()
            for worker in self._workers:
                self._close(worker)
        self._dispatch.conclude()

    def _start(self, number: int, job: ExtractJob) -> None:
        from grace_store.model.devices import environment_of

        command = [sys.executable, "-m", "grace_store.run.engines.worker", str(os.getpid())]
        lines: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        device = self._devices[number]
        # In a new session, as only the parent handles Ctrl-C: it lets the workers finish their units.
        environment = {**os.environ, **environment_of(device)}
        process = subprocess.Popen(command, env=environment, start_new_session=True, **lines)
        name = f"Worker {number}" if device == "cpu" else f"Worker {number} (device {device})"
        worker = _Process(name, str(number), number=number, process=process)
        self._workers.append(worker)
        self._send(worker, job.to_json())
        worker.reader = threading.Thread(target=self._listen, args=(worker,), daemon=True)
        worker.reader.start()

    def _listen(self, worker: _Process) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            with contextlib.suppress(ValueError):  # the last line may be incomplete if the worker was killed
                self._messages.put((worker, json.loads(line)))
        worker.process.wait()
        self._messages.put((worker, None))

    def _bury(self, worker: _Process) -> None:
        """Remove a worker that has ended, and replace it if there is work."""
        self._workers.remove(worker)
        self._close(worker)
        code = worker.process.returncode
        words = f"{worker.name} ended with exit code {code}. Its log is above."
        if self._dispatch.lost(worker, words=words, in_order=code == 0, num_workers=len(self._devices)):
            # Do not time samples again: they may have killed the worker.
            self._start(worker.number, replace(self._job, probe_unit=None))

    def _send(self, worker: _Process, line: str) -> None:
        assert worker.process.stdin is not None
        # If the pipe is broken or closed, the worker is dead or ending, and _bury puts its units back.
        with contextlib.suppress(BrokenPipeError, ValueError):
            worker.process.stdin.write(line + "\n")
            worker.process.stdin.flush()

    def _close(self, worker: _Process) -> None:
        worker.process.wait()
        self._end(worker)
        assert worker.process.stdout is not None
        if worker.reader is not None:
            worker.reader.join()
        worker.process.stdout.close()

    def _end(self, worker: _Process) -> None:
        assert worker.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.close()


class _Processes(Engine):
    def run(self, work: Work) -> None:
        if not (devices := work.job.engine.devices):
            raise SettingError("The engine `processes` needs devices, because it starts one process for each device.")
        work.listener(Note(f"Starting {counted(len(devices), 'worker')} on {', '.join(devices)}."))
        _Run(work).finish()


ENGINE = _Processes()
