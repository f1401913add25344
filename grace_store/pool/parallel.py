"""Work done on several things at a time, its results in order: on threads, or on the tasks of a cluster."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from grace_store.base.settings import default_threads

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_LARGEST_KEPT = 31 << 20
"""In bytes. glibc adapts to blocks of at most 32 MiB (mallopt(3), M_MMAP_THRESHOLD)."""


@runtime_checkable
class Mapper(Protocol):
    """Something else than threads to do the work on: the tasks of a cluster."""

    def map(self, work: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[ResultT]:
        """Yield work(item) in the order of the items; work and items are sent there."""

    def share(self, value: ItemT) -> Callable[[], ItemT]:
        """Return what gives the value to tasks, and may be sent to them: the value itself goes to each machine once."""


Threads = int | Mapper | None
"""What works on the items: that number of threads, as many as there are cores (None), or something else."""


def map_ordered(work: Callable[[ItemT], ResultT], items: Sequence[ItemT], threads: Threads) -> Iterator[ResultT]:
    """Yield work(item) in the order of the items, computed ahead, not far; flat in memory."""
    if isinstance(threads, Mapper):
        yield from threads.map(work, items)
        return
    _keep_freed_memory()
    num_threads = min(threads or default_threads(), max(1, len(items)))
    if num_threads == 1:
        yield from map(work, items)
        return
    pending: deque[Future[ResultT]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > num_threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _keep_freed_memory() -> None:
    """Have glibc keep what one item frees for the next, up to twice this size; other C libraries are as they were.

    Until a block so large is freed, it gives arrays of some hundred kB back to the system, which clears every page of
    the next ones again: a fifth of the time of scoring. It does not look at the pages, so this takes no memory.
    """
    np.empty(_LARGEST_KEPT, dtype=np.uint8)
