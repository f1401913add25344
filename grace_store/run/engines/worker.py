"""One worker: it gets unit numbers, runs the units on one device and reports each commit.

A worker process uses stdin and stdout, one message per line:

    parent -> worker   first the ExtractJob, then one unit number per line; end of file: finish the unit under way
    worker -> parent   {"event": "Rated", ...} when the worker is ready, {"event": "UnitCommitted", ...} for each unit,
                       {"event": "Failed", "text": ...} before it ends with an error

The engine `processes` runs it as ``python -m grace_store.run.engines.worker``.
"""

from __future__ import annotations

import errno
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
from typing import Any

from grace_store.base.arrays import Int32Array
from grace_store.base.errors import DeviceLost, GraceStoreError, NotAStore
from grace_store.base.events import Listener, Rated, UnitCommitted
from grace_store.base.metadata import Commit
from grace_store.base.settings import RunOptions
from grace_store.base.watch import Watch, die_with_parent
from grace_store.data.dataset import Dataset
from grace_store.data.expand import Expansion
from grace_store.pool.records import UnitLoader
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extractor_protocol import Extractor, UnitUnderWay, model_door
from grace_store.run.open_signal import begin_sharing
from grace_store.store.backend import LocalBackend
from grace_store.store.lock import Lease
from grace_store.store.opened import SignalView, Store, is_committed
from grace_store.store.unit_writer import UnitWriter

QUEUE_UNITS = 2
"""Units that may wait in front of the device, and the same number behind it."""
PROBE_SAMPLES = 8
FULL = (errno.ENOSPC, errno.EDQUOT)
VISIBLE_SECONDS = 60.0
"""How long a network file system may take to show a file that another machine wrote."""


def run_on_pipes(parent: int) -> int:
    """Run as a worker process of a parent process; return the exit code."""
    # Send everything that libraries print to stderr, so that stdout holds messages only.
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
    lock = threading.Lock()  # several threads write messages

    def say(message: dict[str, Any]) -> None:
        with lock:
            out.write(json.dumps(message) + "\n")
            out.flush()

    return 0 if run_worker(job, feed, say) else 1


def run_worker(job: ExtractJob, feed: Feed, say: Callable[[dict[str, Any]], None]) -> bool:
    """Run the units of a feed and send messages, from several threads; return False after a message of failure."""
    try:
        store = Store.open(job.store)
        if isinstance(store.backend, LocalBackend):
            store.backend.tmp_label = PurePosixPath(job.lock[0]).stem
        _check_same_store(store, *job.lock)
        view = store.signal(job.signal)
        with Dataset.open(list(job.data), Expansion.of(store.plan.spec)) as dataset:
            run_units(job, view, dataset, feed, lambda event: say(event.to_json()))
    except GraceStoreError as error:
        say({"event": "Failed", "text": str(error), "has_lost_device": isinstance(error, DeviceLost)})
        return False
    except OSError as error:
        text = f"{error.strerror or error} ({error.filename or job.store})"
        say({"event": "Failed", "text": text, "is_disk_full": error.errno in FULL})
        return False
    return True


def run_units(job: ExtractJob, view: SignalView, dataset: Dataset, feed: Feed, listener: Listener) -> None:
    """Load the model, time a few samples, and run the units of a feed. Several threads call the listener."""
    assert job.model is not None
    door, spec = model_door(job.door), view.signal.spec
    loader = UnitLoader(view.store, dataset)
    with Watch(job.options.patience, listener) as watch, watch.over("loading the model and its first probes"):
        extractor = door.open_extractor(job.model, spec, job.options, adapter=job.adapter, images=job.images)
        begin_sharing(view, extractor)
        rate = Rated(samples_per_second=0.0, tokens_per_second=0.0)
        if job.probe_unit is not None:
            start, _ = view.store.plan.unit_range(job.probe_unit)
            samples = loader.read(start, min(start + PROBE_SAMPLES, view.store.plan.num_samples))
            began = time.perf_counter()
            signals = extractor.compute(extractor.prepare(samples)).result()
            seconds = max(time.perf_counter() - began, 1e-9)
            rate = Rated(len(samples) / seconds, signals.num_tokens / seconds)
    listener(rate)
    key, content = job.lock
    lease = Lease(view.store.backend, key, content.encode()).of_signal(view.name)
    run_pipeline(UnitWriter(view, lease), feed, loader, extractor, job.options, listener)


def _check_same_store(store: Store, key: str, content: str) -> None:
    """Raise NotAStore if the store does not contain the run's lock."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    while store.backend.read(key) != content.encode():
        if time.monotonic() > deadline:
            raise NotAStore(
                f"{store.location} on {socket.gethostname()} is not the store of this run: the lock ({key}) of "
                "this run is missing there. Put the store on a shared disk or an object store that every node sees."
            )
        time.sleep(1.0)


# ---------------------------------------------------------------- units on one device
# The pipeline reads and tokenises units ahead of the device, and compresses and writes them behind it.


class ListFeed:
    """Units that are known beforehand, with an event that stops them early."""

    def __init__(self, units: Iterable[int], stop: threading.Event) -> None:
        self._units = iter(units)
        self._stop = stop

    @property
    def is_stopped(self) -> bool:
        """Whether to end after the unit under way, even if more units were taken."""
        return self._stop.is_set()

    def take(self, *, wait: bool) -> int | None:
        """Return the next unit; None if there is none at the moment or, with wait, none any more."""
        return None if self.is_stopped else next(self._units, None)


class QueueFeed:
    """Units that arrive while the pipeline runs, until end is called."""

    def __init__(self) -> None:
        self._units: queue.Queue[int | None] = queue.Queue()
        self.is_stopped = False

    def put(self, unit: int) -> None:
        self._units.put(unit)

    def end(self) -> None:
        """End the feed; units that are not under way yet are not run."""
        self.is_stopped = True
        self._units.put(None)

    def take(self, *, wait: bool) -> int | None:
        try:
            return None if self.is_stopped else self._units.get(block=wait)
        except queue.Empty:
            return None


Feed = ListFeed | QueueFeed


class _Writer:
    """A thread that writes and commits computed units, in order. The first failure ends the pipeline."""

    def __init__(self, writer: UnitWriter, queue_units: int, listener: Listener, watch: Watch) -> None:
        self._watch = watch
        self.queue: queue.Queue[tuple[int, Int32Array, UnitUnderWay] | None] = queue.Queue(queue_units)
        self._writer = writer
        self._listener = listener
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="unit-writer", daemon=True)

    def __enter__(self) -> _Writer:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.queue.put(None)
        self._thread.join()
        if self.failure is not None and error is None:
            raise self.failure

    def _run(self) -> None:
        while (item := self.queue.get()) is not None:
            unit, spans, pending = item
            if self.failure is None:
                try:
                    with self._watch.over(f"unit {unit}"):
                        signals = pending.result()
                    self._listener(_event_of(self._writer.write(unit, signals, spans)))
                except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for this one
                    self.failure = error


def find_committed(view: SignalView, unit: int) -> UnitCommitted | None:
    """Return the event of a unit's commit; None if the unit is not committed."""
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
    """Run every unit of the feed; the writer's thread calls the listener after each commit."""

    def load(unit: int) -> tuple[int, Int32Array, Any]:
        samples, spans = loader.load(unit)
        return unit, spans, extractor.prepare(samples)

    waiting: deque[Future[tuple[int, Int32Array, Any]]] = deque()
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
                number, spans, prepared = waiting.popleft().result()
                to.confirm()  # do not compute a unit that could not be written
                with watch.over(f"unit {number}"):
                    pending = extractor.compute(prepared)
                writer.queue.put((number, spans, pending))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


if __name__ == "__main__":
    sys.exit(run_on_pipes(int(sys.argv[1])))
