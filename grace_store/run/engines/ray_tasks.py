"""Work on a store's blocks as tasks of a Ray cluster, in order; each opens the store, known by its location, there."""

import importlib
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from grace_store import __version__
from grace_store.base.errors import GraceStoreError, SettingError, WorkerDied
from grace_store.base.events import Listener, Note

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
        return _Shared(self._ray.put(value))

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


@dataclass(frozen=True, slots=True)
class _Shared:
    """Something in the cluster's memory."""

    ref: Any

    def __call__(self) -> Any:
        return importlib.import_module("ray").get(self.ref)


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
