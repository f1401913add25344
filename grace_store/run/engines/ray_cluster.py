"""A Ray cluster: join one, or start one of this machine alone, without its chatter, and work on blocks by its tasks."""

import importlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from typing import Any, TextIO, TypeVar, cast

from grace_store import __version__
from grace_store.base.errors import GraceStoreError, SettingError, WorkerDied
from grace_store.base.events import Listener, Note
from grace_store.run.engines.dispatch import ENDED
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.engines.worker import QueueFeed, run_worker

CONNECT_SECONDS = 10.0
OBJECT_STORE_BYTES = 1 << 28
"""Of a cluster of this machine alone: units are written by the workers themselves, so only small things pass."""
_AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_TALKING_THREAD = "ray_listen_error_messages"


@contextmanager
def joined_cluster(address: str | None, num_devices: int | None = None) -> Iterator[Any]:
    """Yield ray, connected to the cluster at an address; without one, to a cluster of this machine for the time.

    num_devices: the accelerators of this machine, for those that Ray does not find by itself.
    """
    _prepare_environment(is_local=address is None)
    ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        yield ray
        return
    with redirect_stdout(cast(TextIO, _WithoutRay(sys.stdout))):
        try:
            with _own_signal_handlers():
                _connect(ray, address, num_devices)
            yield ray
        finally:
            ray.shutdown()


def _prepare_environment(*, is_local: bool) -> None:
    """Set what Ray reads when it is imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not is_local or "ray" in sys.modules:
        return
    # Its name speaks of other systems, but it is what makes Ray listen on the loopback interface and nowhere else.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if not any(name in os.environ for name in _AUTHENTICATION):
        # Else Ray makes a token by itself, and leaves it in the user's home.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def _connect(ray: Any, address: str | None, num_devices: int | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        try:
            own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES, "num_gpus": num_devices}
            ray.init(address="local", **own, **quiet)
        except Exception as error:  # noqa: BLE001 - Ray raises nothing more special, when its processes are too slow
            raise WorkerDied(f"Ray did not start on this machine: {_in_one_line(error)} Try again.") from None
        return
    _check_address(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise SettingError(
            f"No Ray cluster can be joined at --address {address}: {_in_one_line(error)} Start one with "
            "`ray start --head`, and give `auto` on one of its nodes, or the host and port that it names."
        ) from None


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _check_address(address: str) -> None:
    """Raise SettingError unless something listens there: Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise SettingError(f"--address {address} is neither auto nor HOST:PORT, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise SettingError(f"Nothing answers at --address {address} ({error}): is it the cluster's head?") from None


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep this process's answers to signals, which Ray replaces by its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _WithoutRay:
    """Standard output without what Ray says there when workers or nodes die, which engines tell by themselves."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread().name == _TALKING_THREAD else self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


# ---------------------------------------------------------------- work on a store's blocks as tasks


TaskT = TypeVar("TaskT")
AnswerT = TypeVar("AnswerT")

RETRIES = 5
"""How often a task is done again whose worker or node went away."""
NO_CPU_SECONDS = 20.0
"""How long a task may wait for a result before it is looked whether any node has a CPU."""


class RayTasks:
    """Maps functions over items by tasks, a bounded number of them under way."""

    def __init__(self, ray: Any, at_once: int | None, listener: Listener) -> None:
        self._ray = ray
        self._at_once = at_once
        self._listener = listener
        self._task = ray.remote(num_cpus=1, max_retries=RETRIES)(run_task)

    def map(self, work: Callable[[TaskT], AnswerT], items: Iterable[TaskT]) -> Iterator[AnswerT]:
        """Yield work(item) in the order of the items."""
        key, sent = secrets.token_hex(8), self._ray.put(work)
        pending: deque[Any] = deque()
        try:
            for item in items:
                pending.append(self._task.remote(__version__, key, [sent], item))
                if len(pending) >= self._room():
                    yield self._result(pending.popleft())
            while pending:
                yield self._result(pending.popleft())
        finally:
            for ref in pending:
                self._ray.cancel(ref)

    def share(self, value: TaskT) -> Callable[[], TaskT]:
        """Return what gives the value to tasks: it lies in the cluster's memory, or on disk where that is full."""
        return partial(_shared_value, self._ray.put(value))

    def _room(self) -> int:
        """Return how many tasks may be under way: twice what the cluster has CPUs for at the moment, if not said."""
        return self._at_once or max(2, 2 * int(self._ray.cluster_resources().get("CPU", 0)))

    def _result(self, ref: Any) -> Any:
        errors = self._ray.exceptions
        try:
            while not self._ray.wait([ref], timeout=NO_CPU_SECONDS)[0]:
                if not self._ray.cluster_resources().get("CPU"):
                    self._listener(Note("No node of the cluster has a CPU. Waiting for one."))
            return self._ray.get(ref)
        except errors.RayTaskError as error:
            if isinstance(error.cause, (GraceStoreError, OSError)):
                raise error.cause from None
            raise
        except errors.RayError as error:
            raise WorkerDied(f"A task on the cluster could not be done: {' '.join(str(error).split())}") from None


def _shared_value(ref: Any) -> Any:
    """Return something from the cluster's memory."""
    return importlib.import_module("ray").get(ref)


_opened: tuple[str, Any] = ("", None)
"""What this process, one of a node, works by: sent once, with a store opened once, for all its tasks."""


def run_task(version: str, key: str, sent: list[Any], item: Any) -> Any:
    """Do one item on a node, as the driver's version of this code would."""
    global _opened
    if version != __version__:
        raise SettingError(f"The node {socket.gethostname()} has grace-store {__version__}, here it is {version}.")
    if _opened[0] != key:
        _opened = (key, importlib.import_module("ray").get(sent[0]))
    return _opened[1](item)


# ---------------------------------------------------------------- one worker on a node of a Ray cluster
# One worker on a node of a Ray cluster: units and messages come and go by calls, which may fail and be repeated.


WAIT_SECONDS = 20.0


class UnitRunner:
    """Runs units on a thread of its own. Every call may be repeated."""

    def __init__(self, job: str) -> None:
        self._job = ExtractJob.from_json(job)
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

    def _on_device(self) -> ExtractJob:
        """Return the job on the device that is this worker's alone."""
        if not self._device_names:
            return self._job
        from grace_store.model import devices

        options = self._job.options.model_copy(update={"device": devices.assigned(self._device_names[0])})
        return replace(self._job, options=options)

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
