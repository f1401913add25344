"""One worker on a node of a Ray cluster: units and messages come and go by calls, which may fail and be repeated."""

import importlib
import threading
import traceback
from collections.abc import Sequence
from typing import Any

from grace_store.run.engines.dispatch import ENDED
from grace_store.run.engines.engine import WorkerJob
from grace_store.run.engines.worker import run_worker
from grace_store.run.pipeline import QueueFeed

WAIT_SECONDS = 20.0


class UnitRunner:
    """Runs units on a thread of its own. Every call may be repeated."""

    def __init__(self, job: str) -> None:
        self._job = WorkerJob.model_validate_json(job)
        self._device_names = _assigned_devices()
        self._feed = QueueFeed()
        self._put: set[int] = set()
        self._messages: list[dict[str, Any]] = []
        self._news = threading.Condition()
        threading.Thread(target=self._run, name="unit-runner", daemon=True).start()

    def put(self, units: Sequence[int]) -> None:
        """Have units run in this order, each once."""
        with self._news:
            for unit in units:
                if unit not in self._put:
                    self._put.add(unit)
                    self._feed.put(unit)

    def end(self) -> None:
        """Finish the unit under way, and no other."""
        self._feed.end()

    def messages(self, start: int) -> list[dict[str, Any]]:
        """Return the messages from a number on, as soon as there are some; none if that takes long."""
        with self._news:
            self._news.wait_for(lambda: len(self._messages) > start, WAIT_SECONDS)
            return self._messages[start:]

    def _say(self, message: dict[str, Any]) -> None:
        with self._news:
            self._messages.append(message)
            self._news.notify_all()

    def _on_device(self) -> WorkerJob:
        """Return the job on the device that is this worker's alone."""
        if not self._device_names:
            return self._job
        from grace_store.model import devices

        options = self._job.options.model_copy(update={"device": devices.assigned(self._device_names[0])})
        return self._job.model_copy(update={"options": options})

    def _run(self) -> None:
        in_order = False
        try:
            in_order = run_worker(self._on_device(), self._feed, self._say)
        except BaseException as error:
            # Nobody sees this machine's log who does not look for it.
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})."
            self._say({"event": "Failed", "text": text})
            raise
        finally:
            self._say({"event": ENDED, "in_order": in_order})


def _assigned_devices() -> list[str]:
    """Return the names of the accelerators that Ray gave to this worker; none if it is to use CPUs."""
    context: Any = importlib.import_module("ray").get_runtime_context()
    return [str(name) for name in context.get_accelerator_ids().get("GPU", [])]
