"""Run units on one device: read and tokenise ahead of it, compress and write behind it. Knows no model library."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from grace_store.base.events import Listener, UnitCommitted
from grace_store.base.metadata import Commit
from grace_store.base.settings import RunOptions
from grace_store.base.watch import Watch
from grace_store.pool.records import LoadedUnit, UnitLoader
from grace_store.run.extractor_protocol import Extractor, UnitUnderWay
from grace_store.store.opened import SignalView, is_committed
from grace_store.store.unit_writer import UnitWriter

QUEUE_UNITS = 2
"""Units that may wait before the device, and behind it."""


class Feed(Protocol):
    """Where the numbers of the units to run come from."""

    @property
    def is_stopped(self) -> bool:
        """Whether to end after the unit under way, whatever else was taken."""

    def take(self, *, wait: bool) -> int | None:
        """Return the next unit, or None if there is none (with wait: none will ever come)."""


class ListFeed:
    """Units known beforehand; stops early when asked to."""

    def __init__(self, units: Iterable[int], stop: threading.Event) -> None:
        self._units = iter(units)
        self._stop = stop

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set()

    def take(self, *, wait: bool) -> int | None:
        return None if self.is_stopped else next(self._units, None)


class QueueFeed:
    """Units that arrive while the pipeline runs, until somebody ends them."""

    def __init__(self) -> None:
        self._units: queue.Queue[int | None] = queue.Queue()
        self.is_stopped = False

    def put(self, unit: int) -> None:
        self._units.put(unit)

    def end(self) -> None:
        """Say that no unit will come, and that those which are not under way are not wanted."""
        self.is_stopped = True
        self._units.put(None)

    def take(self, *, wait: bool) -> int | None:
        try:
            return None if self.is_stopped else self._units.get(block=wait)
        except queue.Empty:
            return None


class _Writer:
    """A thread that turns pending units into committed ones, in order. The first failure ends the pipeline."""

    def __init__(self, writer: UnitWriter, queue_units: int, listener: Listener, watch: Watch) -> None:
        self._watch = watch
        self._queue: queue.Queue[tuple[LoadedUnit, UnitUnderWay] | None] = queue.Queue(queue_units)
        self._writer = writer
        self._listener = listener
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="unit-writer", daemon=True)

    def __enter__(self) -> _Writer:
        self._thread.start()
        return self

    def put(self, loaded: LoadedUnit, pending: UnitUnderWay) -> None:
        self._queue.put((loaded, pending))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._queue.put(None)
        self._thread.join()
        if self.failure is not None and error is None:
            raise self.failure

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            loaded, pending = item
            if self.failure is None:
                try:
                    with self._watch.over(f"unit {loaded.unit}"):
                        signals = pending.result()
                    commit = self._writer.write(loaded.unit, signals, loaded.spans)
                    self._listener(_event_of(commit))
                except BaseException as error:  # noqa: BLE001 - carried to the thread that waits for this one
                    self.failure = error


def find_committed(view: SignalView, unit: int) -> UnitCommitted | None:
    """Return what was told when a unit was committed, or would have been; None if it is not."""
    return _event_of(view.commit(unit)) if is_committed(view, unit) else None


def _event_of(commit: Commit) -> UnitCommitted:
    num_bytes = sum(chunk.num_bytes for chunk in commit.chunks.values())
    return UnitCommitted(commit.unit, commit.num_samples, len(commit.set_aside), commit.num_tokens, num_bytes)


def run_pipeline(
    to: UnitWriter,
    feed: Feed,
    loader: UnitLoader,
    extractor: Extractor,
    options: RunOptions,
    listener: Listener,
    queue_units: int = QUEUE_UNITS,
) -> None:
    """Run every unit of the feed; the listener is called from the writer's thread, after each commit."""

    def load(unit: int) -> tuple[LoadedUnit, Any]:
        loaded = loader.load(unit)
        return loaded, extractor.prepare(loaded.samples)

    waiting: deque[Future[tuple[LoadedUnit, Any]]] = deque()
    pool = ThreadPoolExecutor(options.loader_threads, thread_name_prefix="unit-loader")
    try:
        with Watch(options.patience, listener) as watch, _Writer(to, queue_units, listener, watch) as writer:
            while writer.failure is None:
                while len(waiting) <= queue_units:
                    if (unit := feed.take(wait=not waiting)) is None:
                        break
                    waiting.append(pool.submit(load, unit))
                if not waiting or feed.is_stopped:
                    break
                loaded, prepared = waiting.popleft().result()
                to.confirm()  # a unit that could not be written is not computed
                with watch.over(f"unit {loaded.unit}"):
                    pending = extractor.compute(prepared)
                writer.put(loaded, pending)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
