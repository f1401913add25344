"""Extract a signal: plan if needed, open the signal, run its missing units, write the totals. The same call resumes."""

import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from grace_store.base.errors import GraceStoreError, Interrupted, SettingError, StorageError
from grace_store.base.events import Event, Failed, Finished, Listener, Note, Started, Warned, ignore
from grace_store.base.text import counted
from grace_store.data.dataset import Dataset
from grace_store.pool.records import image_folder, open_dataset
from grace_store.run.engines import ENGINES
from grace_store.run.engines.engine import EngineOptions, ExtractJob, Work, choose_engine
from grace_store.run.extractor_protocol import model_door
from grace_store.run.open_signal import check_given, choose_signals, open_signal
from grace_store.run.plan import check_images, check_store_path, open_planned, plan
from grace_store.store.backend import open_backend, open_run_log
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.lock import Lease, Shard, clear_dead, hold
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import complete_signal

CHUNKS_SAMPLED = 8
"""Chunks of the plan from which the mean number of segments is estimated."""


def extract(job: ExtractJob, listener: Listener = ignore, stop: threading.Event | None = None) -> SignalView:
    """Run the missing units of a signal and return the signal; raise Interrupted if stopped before the end."""
    stop = stop or threading.Event()
    if not job.store:
        raise SettingError("No store was given. Give the STORE to write the signals to.")
    if job.signal in (store := _planned(job, listener)).signal_names:
        view = store.signal(job.signal)
        check_given(view, job.request)
        if _is_done(view, job):
            # This needs neither the dataset nor the model.
            clear_dead(store.backend)
            listener(_started(view, job.shard, []))
            listener(Note(f"Signal {view.name} is already complete. There is nothing to do."))
            return view
    # Only the first rank digests all data files; every rank compares the records that it uses with the plan.
    with open_dataset(store, job.data or None, by_content=job.shard[0] == 0) as dataset:
        return _extract(job, store, dataset, listener, stop)


def _is_done(view: SignalView, job: ExtractJob) -> bool:
    # A given model, dataset or setting would have to be compared with the signal's.
    is_given = job.model or job.adapter or job.data or job.images or job.request.given()
    return not is_given and view.completion() is not None and not missing_units(view)


def _planned(job: ExtractJob, listener: Listener) -> Store:
    """Return the store; if it has no plan yet, plan it from the given data."""
    if (planned := open_planned(job.store, job.data_request, job.samples_per_unit)) is not None:
        return planned
    check_store_path(job.store)
    if not job.data:
        raise SettingError(f"{job.store} has no plan yet. Give the dataset with --data, or run `grace-store plan`.")
    # A plan is frozen, so mistakes in the other options must be found before.
    try:
        if job.model is None:
            raise SettingError("No model was given. Give the model with --model.")
        check_images(job.images)
        model_door(job.door).resolve_spec(job.model, job.request, job.options, adapter=job.adapter)
    except GraceStoreError as error:
        error.add_note("Nothing was planned.")
        raise
    made = plan(job.data, job.store, job.data_request, samples_per_unit=job.samples_per_unit, listener=listener)
    records = counted(made.plan.num_records, "record")
    text = f"Planned {made.plan.num_samples} of {records}, read as {made.plan.spec.format}"
    for what, counts in (("set aside", made.plan.set_aside), ("flagged", made.plan.flagged)):
        if named := [f"{count} {name}" for name, count in counts.items() if count]:
            text += f"; {what}: {', '.join(named)}"
    listener(Note(f"{text}."))
    return made


def _extract(job: ExtractJob, store: Store, dataset: Dataset, listener: Listener, stop: threading.Event) -> SignalView:
    view, model, adapter = open_signal(
        store, job.signal, job.model, job.request, job.options, model_door(job.door), job.adapter, job.images
    )
    job = replace(job, model=model, adapter=adapter, images=image_folder(job.images, view, dataset))
    if not (units := missing_units(view, job.shard)):
        clear_dead(store.backend)
        listener(_started(view, job.shard, units))
        if view.completion() is not None:
            return view
        # A run was killed between its last unit and the totals. Other shards may hold the signal's lock.
        with hold(store.backend, f"complete-{view.name}", wait_seconds=60.0):
            return _completed(view, listener)
    with (
        hold(store.backend, view.name, job.shard, break_lock=job.break_lock) as held,
        logged(store, listener) as listener,
    ):
        lease = held.of_signal(view.name)
        if (gradient := view.signal.spec.gradient) is not None and gradient.learning_rate == 0:
            text = (
                f"The checkpoint of signal {view.name} was trained at a learning rate of 0, so it equals the base "
                "model. Influence methods weight a checkpoint by its learning rate, which is 0 here. Use a later "
                "checkpoint."
            )
            listener(Warned(text))
        units = missing_units(view, job.shard)  # another run may have committed units before this run got the lock
        listener(_started(view, job.shard, units))
        began = time.monotonic()
        if units:
            worker_job = _worker_job(job, store, dataset, lease, units[len(units) // 2])
            try:
                ENGINES[job.engine.name].run(Work(units, worker_job, view, dataset, listener, stop, lease))
            except (GraceStoreError, OSError) as error:
                if not isinstance(error, StorageError):
                    lease.confirm()  # if the lock or the store is gone, that is the error to report
                raise
            lease.confirm()
        if stop.is_set() and missing_units(view, job.shard):
            done = f"{len(view.committed_units())} of {counted(store.plan.num_units, 'unit')} are committed"
            raise Interrupted(f"Stopped. {done}. Run the same command again to continue.")
        listener(Finished(len(units), time.monotonic() - began))
        return _completed(view, listener)


def missing_units(view: SignalView, shard: Shard = (0, 1)) -> list[int]:
    """Return the units of a shard that have no commit yet."""
    committed = set(view.committed_units())
    return [unit for unit in range(shard[0], view.store.plan.num_units, shard[1]) if unit not in committed]


def _completed(view: SignalView, listener: Listener) -> SignalView:
    """Write the totals if the units of all shards are committed: the last shard to finish does this."""
    if missing_units(view):
        listener(Note("This shard is done. Other shards still have units to do."))
    elif view.completion() is None:
        complete_signal(view)
    return view


def _started(view: SignalView, shard: Shard, units: Sequence[int]) -> Event:
    plan_ = view.store.plan
    mine = range(shard[0], plan_.num_units, shard[1])
    samples = {unit: len(range(*plan_.unit_range(unit))) for unit in mine}
    to_do = sum(samples[unit] for unit in units)
    skipped, samples_skipped = len(mine) - len(units), sum(samples.values()) - to_do
    return Started(view.name, len(units), skipped, to_do, samples_skipped, expected_bytes(view, to_do))


def _worker_job(job: ExtractJob, store: Store, dataset: Dataset, lease: Lease, probe: int) -> ExtractJob:
    """Return the job with absolute paths, for workers that run in another folder or on another machine."""

    def absolute(path: str | Path) -> str:
        return str(Path(path).expanduser().absolute())

    return replace(
        job,
        store=store.location,
        data=tuple(absolute(file.path) for file in dataset.files),
        model=job.model and absolute(job.model),
        adapter=job.adapter and absolute(job.adapter),
        images=job.images and absolute(job.images),
        probe_unit=probe,
        lock=(lease.key, lease.content.decode()),
    )


@contextmanager
def logged(store: Store, listener: Listener) -> Iterator[Listener]:
    """Yield a listener that also writes every event to a log in the store: at once, or at the end for a bucket."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    lock = threading.Lock()
    with open_run_log(store.backend, f"{stamp}-{socket.gethostname()}-{os.getpid()}.jsonl") as log:

        def write(event: Event) -> None:
            line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **event.to_json()}
            with lock:
                log.write(json.dumps(line) + "\n")
                log.flush()

        def tee(event: Event) -> None:
            write(event)
            listener(event)

        try:
            yield tee
        except BaseException as error:
            frames = traceback.extract_tb((error.__cause__ or error).__traceback__)[-12:]
            where = tuple(f"{'/'.join(Path(each.filename).parts[-3:])}:{each.lineno} in {each.name}" for each in frames)
            # The message of an unexpected error may contain text of a trace, which must not be logged.
            words = f": {error}" if isinstance(error, GraceStoreError | OSError) else ""
            with suppress(OSError):  # a full disk must not hide how the run ended
                write(Failed(f"{type(error).__name__}{words}", where))
            raise


def extract_signals(
    job: ExtractJob,
    signals: Sequence[str] = (),
    adapters: Sequence[str] = (),
    listener: Listener = ignore,
    stop: threading.Event | None = None,
    *,
    workers: int | None = None,
    shard: Shard | None = None,
    elsewhere: EngineOptions | None = None,
) -> list[SignalView]:
    """Run the missing units of several signals and return the signals; the job's own signal, adapter and engine are
    ignored.

    The folder of a training stands for all its checkpoints. Without signals, adapters and model, the store's
    unfinished signals are meant. The machine and its environment decide which processes run the units, unless
    workers, a shard, or an engine elsewhere are given.
    """
    chosen = choose_signals(job.store, signals, adapters, job.model, job.request)
    jobs = [replace(job, signal=name, adapter=adapter) for name, adapter in chosen]
    backend = open_backend(job.store)
    store = None if backend.read("zarr.json") is None else Store.open(backend)
    names = () if store is None else store.signal_names
    # If all signals are finished, do not load torch to count GPUs.
    if store and all(each.signal in names and _is_done(store.signal(each.signal), each) for each in jobs):
        options, chosen_shard, engine = job.options, shard or (0, 1), EngineOptions()
    else:
        options, chosen_shard, engine = choose_engine(job.options, workers, shard, elsewhere=elsewhere)
    spread = [replace(each, options=options, shard=chosen_shard, engine=engine) for each in jobs]
    return [extract(each, listener, stop) for each in spread]


def expected_bytes(view: SignalView, num_samples: int) -> int:
    """Estimate the bytes that a number of samples will take before compression."""
    if num_samples == 0:
        return 0
    plan = view.store.plan
    # Rows of tokens are bounded by the bytes of the text; most tokens take about four.
    parts = {"token": 4}
    per_unit = sum(array.chunk_bytes // parts.get(array.dims[0], 1) for array in view.arrays if array.is_per_unit)
    if view.per_sample:
        return int(per_unit * num_samples / plan.samples_per_unit)
    starts = range(0, plan.num_samples, SAMPLES_PER_CHUNK)
    num_steps = [
        view.store.column("sample_num_steps", at, min(at + SAMPLES_PER_CHUNK, plan.num_samples))
        for at in starts[:: max(1, len(starts) // CHUNKS_SAMPLED)]
    ]
    mean_segments = float(np.concatenate(num_steps).mean()) + 1
    return int(per_unit * num_samples * mean_segments / plan.rows_per_unit)
