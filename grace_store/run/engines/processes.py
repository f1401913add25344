"""The engine of one process per device: starts workers, passes units to them, replaces dead ones."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
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
    """Worker processes, each with its own environment (which device it sees), and what they have to say."""

    def __init__(self, work: Work) -> None:
        from grace_store.model.devices import environment_of

        self._job = work.job
        self._units = work.units
        self._devices = work.job.engine.devices
        self._environments = [environment_of(device) for device in work.job.engine.devices]
        found = partial(find_committed, work.view)
        self._dispatch = Dispatch(
            QUEUE_UNITS, found, work.lease.confirm, work.listener, work.stop, is_place_a_device=True
        )
        self._messages: queue.Queue[tuple[_Process, dict[str, Any] | None]] = queue.Queue()
        self._workers: list[_Process] = []

    def finish(self) -> None:
        """Run the units; raise WorkerDied at the end if some could not be done."""
        self._dispatch.waiting.extend(self._units)
        try:
            for number in range(min(len(self._environments), len(self._units))):
                self._start(number, self._job)
            while self._workers:
                self._take_message()
        finally:
            for worker in self._workers:
                worker.process.kill()
            for worker in self._workers:
                self._close(worker)
        self._dispatch.conclude()

    def _start(self, number: int, job: ExtractJob) -> None:
        command = [sys.executable, "-m", "grace_store.run.engines.worker", str(os.getpid())]
        lines: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        environment = {**os.environ, **self._environments[number]}
        # Ctrl-C in the terminal is for the parent alone, which lets workers finish their units.
        process = subprocess.Popen(command, env=environment, start_new_session=True, **lines)
        device = self._devices[number]
        name = f"Worker {number}" if device == "cpu" else f"Worker {number} (device {device})"
        worker = _Process(name, str(number), number=number, process=process)
        self._workers.append(worker)
        self._send(worker, job.to_json())
        worker.reader = threading.Thread(target=self._listen, args=(worker,), daemon=True)
        worker.reader.start()

    def _listen(self, worker: _Process) -> None:
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
            pass
        else:
            if message is None:
                self._bury(worker)
            else:
                self._dispatch.heard(worker, message, self._workers)
        self._dispatch.feed(self._workers, lambda worker, unit: self._send(worker, str(unit)), self._end)

    def _bury(self, worker: _Process) -> None:
        """Let go of a worker that has ended, and replace it if there is work."""
        self._workers.remove(worker)
        self._close(worker)
        code = worker.process.returncode
        words = f"{worker.name} ended with exit code {code}; its log is above."
        if self._dispatch.lost(worker, words=words, in_order=code == 0, num_workers=len(self._environments)):
            # Without a probe: it may have been the probe's samples that killed it.
            self._start(worker.number, replace(self._job, probe_unit=None))

    def _send(self, worker: _Process, line: str) -> None:
        assert worker.process.stdin is not None
        # A pipe that is broken or closed: the worker is dead or ending, and _bury sees to its units.
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
            raise SettingError("The engine of processes needs devices: one process is started for each.")
        work.listener(Note(f"Starting {counted(len(devices), 'worker')} on {', '.join(devices)}."))
        _Run(work).finish()


ENGINE = _Processes()
