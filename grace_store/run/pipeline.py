"""Run units on one device: read and tokenise ahead of it, compress and write behind it. Knows no model library."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from grace_store.base.events import Listener, UnitCommitted, Warned
from grace_store.base.metadata import Commit
from grace_store.base.settings import RunOptions
from grace_store.read.records import LoadedUnit, UnitLoader
from grace_store.run.model_door import Extractor, UnitUnderWay
from grace_store.store.opened import SignalView, is_committed
from grace_store.store.unit_writer import UnitWriter


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


class _Watch:
    """A thread that says so, once a unit, when a device has been at one for longer than anybody would wait."""

    def __init__(self, patience: int, listener: Listener) -> None:
        self._patience = patience
        self._listener = listener
        self._since: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device-watch", daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @contextmanager
    def on_device(self, unit: int) -> Iterator[None]:
        """Be at the device with a unit, or waiting for it, while inside."""
        self._since[unit] = time.monotonic()
        try:
            yield
        finally:
            self._since.pop(unit, None)

    def _run(self) -> None:
        told: set[int] = set()
        while not self._over.wait(min(self._patience / 4, 10.0)):
            late = [unit for unit, since in list(self._since.items()) if time.monotonic() - since > self._patience]
            if late and late[0] not in told:
                told.add(late[0])
                self._listener(Warned(_HANGS.format(unit=late[0], seconds=self._patience)))


_HANGS = (
    "The device has not finished unit {unit} within {seconds} seconds (--patience): it may hang. If nothing follows, "
    "stop the run (Ctrl-C twice), look at the device's log and at what else runs on it, and run the same command "
    "again, if need be without that device. What is committed is kept."
)


class _Writer:
    """A thread that turns pending units into committed ones, in order. The first failure ends the pipeline."""

    def __init__(self, writer: UnitWriter, options: RunOptions, listener: Listener, watch: _Watch) -> None:
        self._watch = watch
        self._queue: queue.Queue[tuple[LoadedUnit, UnitUnderWay] | None] = queue.Queue(options.queue_units)
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
                    with self._watch.on_device(loaded.unit):
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
    to: UnitWriter, feed: Feed, loader: UnitLoader, extractor: Extractor, options: RunOptions, listener: Listener
) -> None:
    """Run every unit of the feed; the listener is called from the writer's thread, after each commit."""

    def load(unit: int) -> tuple[LoadedUnit, Any]:
        loaded = loader.load(unit)
        return loaded, extractor.prepare(loaded.samples)

    waiting: deque[Future[tuple[LoadedUnit, Any]]] = deque()
    pool = ThreadPoolExecutor(options.loader_threads, thread_name_prefix="unit-loader")
    try:
        with _Watch(options.patience, listener) as watch, _Writer(to, options, listener, watch) as writer:
            while writer.failure is None:
                while len(waiting) <= options.queue_units:
                    if (unit := feed.take(wait=not waiting)) is None:
                        break
                    waiting.append(pool.submit(load, unit))
                if not waiting or feed.is_stopped:
                    break
                loaded, prepared = waiting.popleft().result()
                to.confirm()  # a unit that could not be written is not computed
                with watch.on_device(loaded.unit):
                    pending = extractor.compute(prepared)
                writer.put(loaded, pending)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
