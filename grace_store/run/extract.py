"""The extraction job: plan if needed, open the signal, run what is missing, complete. The same call resumes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from grace_store.base.errors import Interrupted, SettingError
from grace_store.base.events import Event, Finished, Listener, Note, Started, Warned, ignore
from grace_store.base.settings import DataRequest, ExtractRequest, RunOptions, said
from grace_store.data.dataset import Dataset
from grace_store.read.records import UnitLoader, image_folder, open_dataset
from grace_store.run.engines.processes import ProcessEngine
from grace_store.run.engines.ray_engine import RayEngine, RayOptions
from grace_store.run.engines.worker import Lock, WorkerJob
from grace_store.run.estimate import expected_bytes, trial_rate
from grace_store.run.model_door import PROXY, model_door
from grace_store.run.open_signal import check_said, open_signal, refuse_lone_gradient_options
from grace_store.run.pipeline import ListFeed, run_pipeline
from grace_store.run.plan import check_place, check_request, plan
from grace_store.run.run_log import logged
from grace_store.store.backend import LocalBackend, open_backend
from grace_store.store.lock import Lease, Shard, clear_dead, hold
from grace_store.store.opened import SignalView, Store, is_committed
from grace_store.store.unit_writer import complete_signal

COMPLETION_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ExtractJob:
    """Everything `grace-store extract` was asked for."""

    location: str
    model: str | None = None
    data: tuple[str, ...] = ()
    signal: str = "base"
    adapter: str | None = None
    """Merged into the model before anything else; of --kind gradient, what the gradients are taken of."""
    images: str | None = None
    """The folder that relative image paths start from."""
    data_request: DataRequest = field(default_factory=DataRequest)
    request: ExtractRequest = field(default_factory=ExtractRequest)
    options: RunOptions = field(default_factory=RunOptions)
    samples_per_unit: int | None = None
    shard: Shard = (0, 1)
    devices: tuple[str, ...] = ()
    """One worker process for each; none means in this process."""
    cluster: RayOptions | None = None
    """Workers on the nodes of a Ray cluster instead."""
    break_lock: bool = False
    door: str = PROXY


def extract(job: ExtractJob, listener: Listener = ignore, stop: threading.Event | None = None) -> SignalView:
    """Do what is missing of a signal and return it; raise Interrupted if asked to stop before the end."""
    stop = stop or threading.Event()
    store = _planned(job, listener)
    if job.signal in store.signal_names:
        view = store.signal(job.signal)
        check_said(view, job.request)
        if _is_done(view, job):
            return _nothing_to_do(view, job.shard, listener)
    # One of the ranks reads all of the data to see that it is the planned data; all look at every record they use.
    dataset = open_dataset(store, job.data or None, by_content=job.shard[0] == 0)
    try:
        return _extract(job, store, dataset, listener, stop)
    finally:
        dataset.close()


def is_finished(job: ExtractJob) -> bool:
    """Whether a job would find nothing to do. Needs no model, so that nobody has to wait for torch to hear it."""
    backend = open_backend(job.location)
    if backend.read("zarr.json") is None:
        return False
    store = Store.open(backend)
    return job.signal in store.signal_names and _is_done(store.signal(job.signal), job)


def _is_done(view: SignalView, job: ExtractJob) -> bool:
    return _is_only_asked_to_go_on(job) and view.completion() is not None and not missing_units(view)


def _is_only_asked_to_go_on(job: ExtractJob) -> bool:
    """Whether no model, data or setting was given that would have to be held against the signal's."""
    return not (job.model or job.adapter or job.data or job.images or said(job.request))


def _nothing_to_do(view: SignalView, shard: Shard, listener: Listener) -> SignalView:
    """Say so; neither the dataset nor the model has to be there for that."""
    clear_dead(view.store.backend)
    listener(_started(view, shard, []))
    listener(Note(f"Signal {view.name} is complete: there is nothing to do."))
    return view


def _planned(job: ExtractJob, listener: Listener) -> Store:
    """Return the store, planned now if it was not and data was given."""
    if open_backend(job.location).read("zarr.json") is not None:
        store = Store.open(job.location)
        check_request(store.plan, job.data_request, store.location, job.samples_per_unit)
        return store
    check_place(job.location)
    if not job.data:
        raise SettingError(f"{job.location} has no plan yet; give the dataset with --data, or run `grace-store plan`.")
    # A plan is frozen, so a slip of the pen must show before it is made.
    if job.model is None:
        raise SettingError("Say which --model to extract with. Nothing was planned.")
    refuse_lone_gradient_options(job.request)
    if job.request.kind == "gradient" and job.adapter is None:
        raise SettingError(
            "Say with --adapter which checkpoint to take gradients of; `grace-store warmup` makes one. "
            "Nothing was planned."
        )
    for option, path in (("model", job.model), ("adapter", job.adapter), ("images", job.images)):
        if path is not None and not Path(path).expanduser().exists():
            raise SettingError(f"There is nothing at --{option} {path}. Nothing was planned.")
    return plan(
        job.data, job.location, job.data_request, samples_per_unit=job.samples_per_unit, listener=listener
    )  # fmt: skip


def _extract(
    job: ExtractJob, store: Store, dataset: Dataset, listener: Listener, stop: threading.Event
) -> SignalView:  # fmt: skip
    view, model, adapter = open_signal(
        store, job.signal, job.model, job.request, job.options, model_door(job.door), job.adapter, job.images
    )
    job = replace(job, adapter=adapter, images=image_folder(job.images, view, dataset))
    units = missing_units(view, job.shard)
    if not units:
        clear_dead(store.backend)
        listener(_started(view, job.shard, units))
        if view.completion() is not None:
            return view
        # A run was killed between its last unit and the totals. Not under the signal's lock: others' shards may run.
        with hold(store.backend, f"complete-{view.name}", wait_seconds=COMPLETION_WAIT_SECONDS):
            return _completed(view, listener)
    with (
        hold(store.backend, view.name, job.shard, break_lock=job.break_lock) as lease,
        logged(store, listener) as tell,
    ):
        _warn_of_unlearnt(view, tell)
        units = missing_units(view, job.shard)  # another run may have done some before this one got the lock
        tell(_started(view, job.shard, units))
        began = time.monotonic()
        if units and (job.devices or job.cluster is not None):
            worker_job = _worker_job(job, view, model, dataset, units[len(units) // 2])
            _run_in_workers(job, worker_job, lease, partial(is_committed, view), units, tell, stop)
        elif units:
            _run_here(job, view, model, dataset, units, tell, stop)
        if stop.is_set() and missing_units(view, job.shard):
            raise Interrupted(
                f"Stopped. {len(view.committed_units())} of {store.plan.num_units} units are committed; run the same "
                "command again to go on from there."
            )
        tell(Finished(len(units), time.monotonic() - began))
        return _completed(view, tell)


def _warn_of_unlearnt(view: SignalView, tell: Listener) -> None:
    gradient = view.signal.spec.gradient
    if gradient is not None and gradient.learning_rate == 0:
        tell(
            Warned(
                f"The checkpoint of signal {view.name} was trained at a learning rate of 0 and has learnt nothing: it "
                "is the base model. Influence methods weigh it by that rate, so not at all. Take a later checkpoint."
            )
        )


def missing_units(view: SignalView, shard: Shard = (0, 1)) -> list[int]:
    """Return the shard's units that have no commit yet."""
    committed = set(view.committed_units())
    i, n = shard
    return [unit for unit in range(i, view.store.plan.num_units, n) if unit not in committed]


def _completed(view: SignalView, listener: Listener) -> SignalView:
    """Write the totals once every shard's units are there; whoever comes last does it."""
    if missing_units(view):
        listener(Note("This shard is done; other shards still have units to do."))
    elif view.completion() is None:
        complete_signal(view)
    return view


def _started(view: SignalView, shard: Shard, units: Sequence[int]) -> Event:
    plan_ = view.store.plan
    mine = range(shard[0], plan_.num_units, shard[1])
    samples = {unit: len(range(*plan_.unit_range(unit))) for unit in mine}
    to_do = sum(samples[unit] for unit in units)
    return Started(
        signal=view.name,
        num_units=len(units),
        num_units_skipped=len(mine) - len(units),
        num_samples=to_do,
        num_samples_skipped=sum(samples.values()) - to_do,
        bytes_expected=expected_bytes(view, to_do),
    )


def _run_here(
    job: ExtractJob, view: SignalView, model: str, dataset: Dataset, units: list[int], tell: Listener,
    stop: threading.Event,
) -> None:  # fmt: skip
    tell(Note(f"Loading {Path(model).name}{f' with {job.adapter}' if job.adapter else ''}."))
    extractor = model_door(job.door).open_extractor(
        model, view.signal.spec, job.options, adapter=job.adapter, images=job.images
    )
    loader = UnitLoader(view.store, dataset)
    tell(trial_rate(view, loader, extractor, units[len(units) // 2]))
    run_pipeline(view, ListFeed(units, stop), loader, extractor, job.options, tell)


def _run_in_workers(
    job: ExtractJob, worker_job: WorkerJob, lease: Lease, committed: Callable[[int], bool], units: list[int],
    tell: Listener, stop: threading.Event,
) -> None:  # fmt: skip
    engine: ProcessEngine | RayEngine
    if job.cluster is not None:
        where = f"the Ray cluster at {job.cluster.address}" if job.cluster.address else "a Ray cluster of this machine"
        tell(Note(f"Starting workers on {where}."))
        lock = Lock(key=lease.key, content=lease.content.decode())
        engine = RayEngine(worker_job.model_copy(update={"lock": lock}), job.cluster, committed, tell, stop)
    else:
        tell(Note(f"Starting {len(job.devices)} workers on {', '.join(job.devices)}."))
        environments = [device_environment(device) for device in job.devices]
        engine = ProcessEngine(worker_job, environments, committed, tell, stop)
    engine.run(units)


def _worker_job(job: ExtractJob, view: SignalView, model: str, dataset: Dataset, trial_unit: int) -> WorkerJob:
    backend = view.store.backend
    return WorkerJob(
        location=view.store.location,
        signal=view.name,
        data=tuple(_absolute(file.path) for file in dataset.files),
        extractor=job.door,
        model=_absolute(model),
        adapter=None if job.adapter is None else _absolute(job.adapter),
        images=None if job.images is None else _absolute(job.images),
        options=job.options,
        tmp_label=backend.tmp_label if isinstance(backend, LocalBackend) else "",
        trial_unit=trial_unit,
        parent=os.getpid(),
    )


def _absolute(path: str | Path) -> str:
    """Return a path that also a worker understands which is started elsewhere."""
    return str(Path(path).expanduser().absolute())


def device_environment(device: str) -> dict[str, str]:
    """Return the environment in which a worker sees one device only: "cpu", or a GPU's number."""
    return {} if device == "cpu" else {"CUDA_VISIBLE_DEVICES": device}
