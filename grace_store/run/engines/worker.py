"""One worker: gets unit numbers, runs them, says what it committed. As a process, on stdin and stdout, line by line:

    parent -> worker   first the WorkerJob, then a unit number a line; end of file: finish the unit under way
    worker -> parent   {"event": "Rated", ...} once it is ready, {"event": "UnitCommitted", ...} for each unit,
                       {"event": "Failed", "text": ...} before it gives up

Run as ``python -m grace_store.run.engines.worker`` by the process engine, never by people.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from grace_store.base.errors import DeviceLost, GraceStoreError, NotAStore
from grace_store.base.events import Listener, Rated
from grace_store.base.watch import Watch, die_with_parent
from grace_store.data.dataset import Dataset
from grace_store.pool.records import UnitLoader
from grace_store.run.engines.engine import WorkerJob
from grace_store.run.extractor_protocol import Extractor, model_door
from grace_store.run.open_signal import begin_sharing
from grace_store.run.pipeline import Feed, QueueFeed, run_pipeline
from grace_store.store.backend import LocalBackend
from grace_store.store.lock import Lease
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import UnitWriter

PROBE_SAMPLES = 8
VISIBLE_SECONDS = 60.0
"""By when a network file system shows on one machine what was written on another."""


def run_on_pipes() -> int:
    """Be a worker process; return its exit code."""
    # Whatever a library prints must not end up in the protocol.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = WorkerJob.model_validate_json(sys.stdin.readline())
    die_with_parent(job.parent)
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


def run_worker(job: WorkerJob, feed: Feed, say: Callable[[dict[str, Any]], None]) -> bool:
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


def _open_view(job: WorkerJob) -> SignalView:
    store = Store.open(job.store)
    if isinstance(store.backend, LocalBackend):
        store.backend.tmp_label = job.tmp_label
    _check_same_store(store, *job.lock)
    return store.signal(job.signal)


def run_units(job: WorkerJob, view: SignalView, dataset: Dataset, feed: Feed, listener: Listener) -> None:
    """Load the model, time it on a few samples, and run the units of a feed. Several threads call the listener."""
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


if __name__ == "__main__":
    sys.exit(run_on_pipes())
