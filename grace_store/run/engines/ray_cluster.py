"""Join a Ray cluster or start one on this machine, run tasks on it, and run units in one of its workers."""

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
"""Size of the object store of a cluster on this machine alone: workers write units themselves, so it can be small."""
_AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@contextmanager
def joined_cluster(address: str | None, num_devices: int | None = None) -> Iterator[Any]:
    """Yield ray, connected to the cluster at an address, or to a temporary cluster of this machine without one.

    num_devices: the number of accelerators of this machine, for accelerators that Ray does not detect.
    """
    _prepare_environment(is_local=address is None)
    ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        yield ray
        return
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if is_main else {}
    with redirect_stdout(cast(TextIO, _WithoutRay(sys.stdout))):
        try:
            try:
                _connect(ray, address, num_devices)
            finally:  # Ray has replaced the signal handlers of this process
                for number, handler in handlers.items():
                    signal.signal(number, handler)
            yield ray
        finally:
            ray.shutdown()


def _prepare_environment(*, is_local: bool) -> None:
    """Set the environment variables that Ray reads when it is imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not is_local or "ray" in sys.modules:
        return
    # In spite of its name, this variable makes Ray listen on the loopback interface only.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if not any(name in os.environ for name in _AUTHENTICATION):
        # Otherwise Ray would create a token and leave it in the user's home folder.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def _connect(ray: Any, address: str | None, num_devices: int | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        try:
            own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES, "num_gpus": num_devices}
            ray.init(address="local", **own, **quiet)
        except Exception as error:  # noqa: BLE001 - Ray raises a bare Exception when its processes start too slowly
            raise WorkerDied(f"Ray did not start on this machine: {_in_one_line(error)} Try again.") from None
        return
    _check_address(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise SettingError(
            f"No Ray cluster can be joined at --address {address}: {_in_one_line(error)} Start a cluster with "
            "`ray start --head`, and give `auto` on one of its nodes, or the host and port that it prints."
        ) from None


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _check_address(address: str) -> None:
    """Raise SettingError unless a server answers at the address: Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise SettingError(f"unknown value {address} of --address: use auto or HOST:PORT, such as 10.0.0.1:6379.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise SettingError(
            f"Nothing answers at --address {address} ({error}). Give the address of the cluster's head."
        ) from None


class _WithoutRay:
    """Standard output without Ray's messages about dead workers and nodes, which engines report themselves."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        is_ray = threading.current_thread().name == "ray_listen_error_messages"
        return len(text) if is_ray else self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


TaskT = TypeVar("TaskT")
AnswerT = TypeVar("AnswerT")

RETRIES = 5
"""How often to repeat a task after its worker or node was lost."""
NO_CPU_SECONDS = 20.0
"""How long to wait for a result before checking that a node has a CPU."""


class RayTasks:
    """A map over items with Ray tasks, with a limit on the number of running tasks."""

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
                # Without a given limit, twice the number of CPUs that the cluster has at the moment.
                if len(pending) >= (self._at_once or max(2, 2 * int(self._ray.cluster_resources().get("CPU", 0)))):
                    yield self._result(pending.popleft())
            while pending:
                yield self._result(pending.popleft())
        finally:
            for ref in pending:
                self._ray.cancel(ref)

    def share(self, value: TaskT) -> Callable[[], TaskT]:
        """Put a value into the cluster's memory; return a function that tasks call to get the value."""
        return partial(_shared_value, self._ray.put(value))

    def _result(self, ref: Any) -> Any:
        errors = self._ray.exceptions
        try:
            while not self._ray.wait([ref], timeout=NO_CPU_SECONDS)[0]:
                if not self._ray.cluster_resources().get("CPU"):
                    self._listener(Note("No node of the cluster has a free CPU. Waiting for a node."))
            return self._ray.get(ref)
        except errors.RayTaskError as error:
            if isinstance(error.cause, (GraceStoreError, OSError)):
                raise error.cause from None
            raise
        except errors.RayError as error:
            raise WorkerDied(f"A task on the cluster failed: {_in_one_line(error)}") from None


def _shared_value(ref: Any) -> Any:
    return importlib.import_module("ray").get(ref)


_opened: tuple[str, Any] = ("", None)
"""Key and function of the last map that this worker process ran tasks for: the function is fetched only once."""


def run_task(version: str, key: str, sent: list[Any], item: Any) -> Any:
    """Apply a map's function to one item on a node; refuse if the node has another version of this package."""
    global _opened
    if version != __version__:
        raise SettingError(
            f"The node {socket.gethostname()} has grace-store {__version__}, but this machine has {version}. Install "
            "the same version on all nodes."
        )
    if _opened[0] != key:
        _opened = (key, _shared_value(sent[0]))
    return _opened[1](item)


# ---------------------------------------------------------------- one worker on a node of a Ray cluster
# The engine sends units and fetches messages by calls. A call may fail and be repeated.


class UnitRunner:
    """A worker that runs units on a thread of its own. Every call may be repeated."""

    def __init__(self, job: str) -> None:
        self._job = ExtractJob.from_json(job)
        # The accelerators that Ray gave to this worker; none if it is to use CPUs.
        context: Any = importlib.import_module("ray").get_runtime_context()
        self._device_names = [str(name) for name in context.get_accelerator_ids().get("GPU", [])]
        self._feed = QueueFeed()
        self._put: set[int] = set()
        self._messages: list[dict[str, Any]] = []
        self._news = threading.Condition()
        threading.Thread(target=self._run, name="unit-runner", daemon=True).start()

    def put(self, units: Sequence[int]) -> None:
        """Queue units to be run in this order, each once."""
        with self._news:
            for unit in units:
                if unit not in self._put:
                    self._put.add(unit)
                    self._feed.put(unit)

    def end(self) -> None:
        """Finish the unit under way, and run no other."""
        self._feed.end()

    def messages(self, start: int) -> list[dict[str, Any]]:
        """Wait up to 20 seconds for messages; return all messages from a number on."""
        with self._news:
            self._news.wait_for(lambda: len(self._messages) > start, 20.0)
            return self._messages[start:]

    def _say(self, message: dict[str, Any]) -> None:
        with self._news:
            self._messages.append(message)
            self._news.notify_all()

    def _run(self) -> None:
        in_order = False
        try:
            job = self._job
            if self._device_names:
                from grace_store.model import devices

                device = devices.assigned(self._device_names[0])
                job = replace(job, options=job.options.model_copy(update={"device": device}))
            in_order = run_worker(job, self._feed, self._say)
        except BaseException as error:
            # Send the place of the error, too, as users do not see this machine's log.
            last = traceback.extract_tb(error.__traceback__)[-1]
            self._say({"event": "Failed", "text": f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})."})
            raise
        finally:
            self._say({"event": ENDED, "in_order": in_order})
