"""One worker: it gets unit numbers, runs the units on one device and reports each commit.

As a process, it speaks on stdin and stdout, line by line:

    parent -> worker   first the ExtractJob, then a unit number a line; end of file: finish the unit under way
    worker -> parent   {"event": "Rated", ...} once it is ready, {"event": "UnitCommitted", ...} for each unit,
                       {"event": "Failed", "text": ...} before it gives up

Run as ``python -m grace_store.run.engines.worker`` by the process engine, never by people.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any, Protocol

from grace_store.base.errors import DeviceLost, GraceStoreError, NotAStore
from grace_store.base.events import Listener, Rated, UnitCommitted
from grace_store.base.metadata import Commit
from grace_store.base.settings import RunOptions
from grace_store.base.watch import Watch, die_with_parent
from grace_store.data.dataset import Dataset
from grace_store.pool.records import LoadedUnit, UnitLoader
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extractor_protocol import Extractor, UnitUnderWay, model_door
from grace_store.run.open_signal import begin_sharing
from grace_store.store.backend import LocalBackend
from grace_store.store.lock import Lease
from grace_store.store.opened import SignalView, Store, is_committed
from grace_store.store.unit_writer import UnitWriter

QUEUE_UNITS = 2
"""Units that may wait before the device, and behind it."""
PROBE_SAMPLES = 8
VISIBLE_SECONDS = 60.0
"""By when a network file system shows on one machine what was written on another."""


def run_on_pipes(parent: int) -> int:
    """Be a worker process of a parent process; return the exit code."""
    # Whatever a library prints must not end up in the protocol.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = ExtractJob.from_json(sys.stdin.readline())
    die_with_parent(parent)
    feed = QueueFeed()

    def read_units() -> None:
        for line in sys.stdin:
            feed.put(int(line))
        feed.end()

    threading.Thread(target=read_units, daemon=True).start()
    lock = threading.Lock()  # of the output, as more than one thread says something

    def say(message: dict[str, Any]) -> None:
        with lock:
            out.write(json.dumps(message) + "\n")
            out.flush()

    return 0 if run_worker(job, feed, say) else 1


def run_worker(job: ExtractJob, feed: Feed, say: Callable[[dict[str, Any]], None]) -> bool:
    """Run a feed's units, saying what is ready and committed, from several threads; False if it failed and said why."""
    try:
        view = _open_view(job)
        with Dataset.open(list(job.data)) as dataset:
            run_units(job, view, dataset, feed, lambda event: say(event.to_json()))
    except GraceStoreError as error:
        say({"event": "Failed", "text": str(error), "has_lost_device": isinstance(error, DeviceLost)})
        return False
    except OSError as error:
        say({"event": "Failed", "text": f"{error.strerror or error} ({error.filename or job.store})"})
        return False
    return True


def _open_view(job: ExtractJob) -> SignalView:
    store = Store.open(job.store)
    if isinstance(store.backend, LocalBackend):
        store.backend.tmp_label = PurePosixPath(job.lock[0]).stem
    _check_same_store(store, *job.lock)
    return store.signal(job.signal)


def run_units(job: ExtractJob, view: SignalView, dataset: Dataset, feed: Feed, listener: Listener) -> None:
    """Load the model, time it on a few samples, and run the units of a feed. Several threads call the listener."""
    assert job.model is not None
    door, spec = model_door(job.door), view.signal.spec
    loader = UnitLoader(view.store, dataset)
    with Watch(job.options.patience, listener) as watch, watch.over("loading the model and its first probes"):
        extractor = door.open_extractor(job.model, spec, job.options, adapter=job.adapter, images=job.images)
        begin_sharing(view, extractor)
        unknown = Rated(samples_per_second=0.0, tokens_per_second=0.0)
        rate = unknown if job.probe_unit is None else probe_rate(view, loader, extractor, job.probe_unit)
    listener(rate)
    key, content = job.lock
    lease = Lease(view.store.backend, key, content.encode())
    run_pipeline(UnitWriter(view, lease), feed, loader, extractor, job.options, listener)


def _check_same_store(store: Store, key: str, content: str) -> None:
    """Raise NotAStore unless this is the store in which a run has its lock."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    while store.backend.read(key) != content.encode():
        if time.monotonic() > deadline:
            raise NotAStore(
                f"{store.location} on {socket.gethostname()} is not the store of this run: its lock ({key}) is "
                "not there. Put the store where every node sees it, on a shared disk or an object store."
            )
        time.sleep(1.0)


def probe_rate(view: SignalView, loader: UnitLoader, extractor: Extractor, unit: int) -> Rated:
    """Time the first few samples of a unit."""
    start, _ = view.store.plan.unit_range(unit)
    samples = loader.read(start, min(start + PROBE_SAMPLES, view.store.plan.num_samples))
    began = time.perf_counter()
    signals = extractor.compute(extractor.prepare(samples)).result()
    seconds = max(time.perf_counter() - began, 1e-9)
    return Rated(samples_per_second=len(samples) / seconds, tokens_per_second=signals.num_tokens / seconds)


# ---------------------------------------------------------------- units on one device
# Read and tokenise units ahead of the device, compress and write them behind it. Knows no model library.


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


if __name__ == "__main__":
    sys.exit(run_on_pipes(int(sys.argv[1])))
