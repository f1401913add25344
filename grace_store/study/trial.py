"""Run a trial: does a subset train better models than random subsets? Small trainings, and their result."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty
from threading import Event
from typing import Any, cast

from grace_store.base.documents import claim_document, read_document, write_document
from grace_store.base.errors import GraceStoreError, Interrupted, WorkerDied
from grace_store.base.events import Listener, Note, StepTaken, Warned, ignore
from grace_store.base.finding import Finding
from grace_store.base.text import counted, duration
from grace_store.base.watch import die_with_parent
from grace_store.model.load.adapter_folder import require_peft
from grace_store.scoring.provenance import check_outputs, sources_of
from grace_store.study import trial_plan
from grace_store.study.trial_conclusion import conclude_trial, say_held_out, standing
from grace_store.study.trial_documents import FOUND, PLAN, PlannedRun, TrialJob, TrialPlan, TrialRequest, TrialRun
from grace_store.study.trial_runs import TrialRunner, all_seconds, say_cost
from grace_store.study.trial_samples import gather_samples
from grace_store.values.subset_trial import difference_text, is_clear


def trial(
    out: str | Path, request: TrialRequest | None = None, *, listener: Listener = ignore, stop: Event | None = None
) -> Finding:
    """Train a model on subsets and on random subsets like them, and compare the models on held-out traces.

    Every training is one document in OUT. The same call runs only the missing trainings, and any number of processes
    may make this call at the same time. Raises Interrupted if stop is set before the end.
    """
    job = prepare_trial(Path(out), request or TrialRequest())
    if not job.is_begun and not claim_document(job.out / PLAN, job.plan):
        trial_plan.check_same_trial(read_document(job.out / PLAN, TrialPlan), job.plan, job.out)
    stop = stop or Event()
    if job.request.devices and progress_of(job).waiting:
        run_workers(job.out, job.request, listener, stop, lambda: not progress_of(job).waiting)
    found = run_rounds(job, listener, stop)
    write_document(job.out / FOUND, found)
    job.tidy()
    return found


def estimate_trial(out: str | Path, request: TrialRequest | None = None, *, listener: Listener = ignore) -> Finding:
    """Return how long a trial would take, by timing one update, without any training."""
    listener(Note("Reading the subsets and the held-out traces."))
    job = prepare_trial(Path(out), request or TrialRequest())
    progress, num_devices = progress_of(job), len(job.request.devices) or 1
    _say_beforehand(job, listener)
    cost = TrialRunner(job, listener, Event()).cost(job.samples.arms["subset-1"])
    return Finding(
        study="trial",
        settings=job.plan.spec.model_dump(mode="json"),
        conclusion=say_cost(cost, job.plan.spec.num_updates, progress.num_left, num_devices),
        numbers={
            "num_runs": progress.num_left,
            "num_done": len(progress.results),
            "num_devices": num_devices,
            "num_updates": job.plan.spec.num_updates,
            "update_seconds": cost[0],
            "run_seconds": cost[1],
            "seconds": all_seconds(cost[1], progress.num_left, num_devices),
        },
    )


def prepare_trial(out: Path, request: TrialRequest) -> TrialJob:
    """Return a trial as it would run now; raise ResumeMismatch if another trial was begun in its folder."""
    require_peft()
    begun = read_document(out / PLAN, TrialPlan) if (out / PLAN).is_file() else None
    files = trial_plan.subset_files(out, request, begun)
    notes = trial_plan.read_notes(files)
    store, view = trial_plan.open_subsets_store(files[0][0], notes, request, begun)
    given = [(path, "a subset") for path, _ in files]
    given += [(weights, "a table of weights") for _, weights in files if weights is not None]
    check_outputs([out], [*sources_of(store), *given])
    spec, origin = trial_plan.resolve_trial(store, view, request, begun)
    other, remarks = trial_plan.open_held_out(out, request, store, origin, begun)
    samples = gather_samples(store, files, spec, other, request.data, request.labels)
    plan = TrialPlan(
        spec=spec,
        plan_sha256=store.plan.content_digest(),
        num_pool=samples.num_pool,
        num_held_out_samples=samples.num_held_out_samples,
        subsets=samples.subsets,
        held_out=samples.held_out_store.refs(samples.held_out),
        held_out_sha256=samples.held_out_store.plan.samples_sha256,
        origin=origin,
    )
    if begun is not None:
        trial_plan.check_same_trial(begun, plan, out)
        plan = begun.model_copy(update={"origin": origin})
    remarks = [*trial_plan.unused_weights(files, notes), *remarks]
    return TrialJob(out, plan, samples, request, begun is not None, tuple(remarks))


def _say_beforehand(job: TrialJob, listener: Listener) -> None:
    """Report warnings and the number of held-out samples before the first training."""
    for remark in job.remarks:
        listener(Warned(remark))
    listener(Note(say_held_out(job.plan)))


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a trial: finished trainings, and trainings left."""

    results: dict[tuple[int, str], TrialRun]
    """Finished trainings by round and arm."""
    looks: tuple[str, ...]
    """One sentence about each subset after each finished round."""
    waiting: tuple[PlannedRun, ...]
    """Trainings that the current round lacks; empty if the trial is over."""
    num_left: int
    """Trainings left, unless the trial stops early because an answer is clear."""


def progress_of(job: TrialJob) -> Progress:
    plan, num_seeds = job.plan, job.plan.spec.num_seeds
    results: dict[tuple[int, str], TrialRun] = {}
    looks: list[str] = []
    open_subsets = list(range(len(plan.subsets)))
    for round in range(1, num_seeds + 1):
        runs = job.planned(job.arms(open_subsets), round)
        over = {run.arm.key: found for run in runs if (found := job.read(run)) is not None}
        results |= {(round, key): found for key, found in over.items()}
        if waiting := tuple(run for run in runs if run.arm.key not in over):
            return Progress(results, tuple(looks), waiting, len(waiting) + len(runs) * (num_seeds - round))
        job.check_items(runs, results)
        stands = {subset: standing(plan, job.samples, results, subset, round)[1][0] for subset in open_subsets}
        for subset, difference in stands.items():
            against = f"{plan.subsets[subset].name} against random subsets"
            looks.append(f"After seed {round} of {num_seeds}, {against}: held-out loss {difference_text(difference)}.")
        open_subsets = [subset for subset in open_subsets if not is_clear(stands[subset])]
        if not open_subsets:
            break
    return Progress(results, tuple(looks), (), 0)


def run_rounds(job: TrialJob, listener: Listener, stop: Event, *, num_devices: int = 1, tells: bool = True) -> Finding:
    """Run the remaining trainings that no other process has claimed; return the result."""
    runner, progress = TrialRunner(job, listener, stop), progress_of(job)
    listener = listener if tells else ignore
    if tells and progress.waiting:
        _say_beforehand(job, listener)
        cost = runner.cost(progress.waiting[0].arm)
        listener(Note(say_cost(cost, job.plan.spec.num_updates, progress.num_left, num_devices)))
    tell, num_reported = _reporter(job, listener, num_devices), 0
    while True:
        for look in progress.looks[num_reported:]:
            listener(Note(look))
        num_reported = len(progress.looks)
        if not progress.waiting:
            return conclude_trial(job.plan, job.samples, progress.results, job.num_most_runs)
        runner.finish(progress.waiting, tell)
        progress = progress_of(job)


def _reporter(job: TrialJob, listener: Listener, num_devices: int) -> Callable[[PlannedRun, TrialRun], None]:
    """Return a function that reports the progress after each training."""
    began, num_trained = time.monotonic(), 0

    def trained(run: PlannedRun, found: TrialRun) -> None:
        nonlocal num_trained
        num_trained += 1
        left = progress_of(job).num_left
        seconds = (time.monotonic() - began) / num_trained * left / num_devices
        told = f"{counted(left, 'training')} left, at most {duration(seconds)}" if left else "all trainings are done"
        seed = f"Seed {run.round} of {job.plan.spec.num_seeds}"
        listener(Note(f"{seed}, {run.arm.name}: held-out loss {found.heldout_loss:.4f}; {told}."))

    return trained


# ---------------------------------------------------------------- several devices share the trainings of a trial
# Each device has a process that claims trainings which no other process has claimed, as processes on other machines do.
# This differs from run/engines/processes.py, where a parent hands out units over pipes and replaces dead workers: here
# there is nothing to hand out or to replace. Both use base/watch.py and model/devices.py.

POLL_SECONDS = 0.2


def run_workers(out: Path, request: TrialRequest, listener: Listener, stop: Event, is_over: Callable[[], bool]) -> None:
    """Run a process on each device until all trainings are over; raise WorkerDied if processes died before that."""
    context = multiprocessing.get_context("spawn")
    said, stopping = context.Queue(), context.Event()
    listener(Note(f"Starting {counted(len(request.devices), 'worker')} on {', '.join(request.devices)}."))
    workers = []
    for number, device in enumerate(request.devices):
        arguments = (out, request, device, number, os.getpid(), said, stopping)
        workers.append(context.Process(target=_work, args=arguments, name=f"worker {number}"))
        with _environment(device):
            workers[-1].start()
    failures: list[str] = []
    while any(worker.is_alive() for worker in workers):
        if stop.is_set():
            stopping.set()
        _hear(said, listener, failures)
    _hear(said, listener, failures)
    codes = [worker.exitcode for worker in workers]
    if stop.is_set():
        raise Interrupted("Stopped. Finished trainings are kept. Run the same command again to go on.")
    if any(codes):
        told = " ".join(failures) or f"Exit codes: {', '.join(map(str, codes))}."
        if is_over():
            listener(Warned(f"{told} The other workers did all trainings."))
            return
        raise WorkerDied(f"{told} Finished trainings are kept. Run the same command again.")


def _hear(said: Any, listener: Listener, failures: list[str]) -> None:
    """Pass the events that the workers have sent to the listener, and collect their failures."""
    while True:
        try:
            event = said.get(timeout=POLL_SECONDS)
        except Empty:
            return
        if isinstance(event, str):
            failures.append(event)
        else:
            listener(event)


@contextmanager
def _environment(device: str) -> Iterator[None]:
    """Set environment variables so that a process started inside sees one device only."""
    from grace_store.model.devices import environment_of

    wanted = environment_of(device)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def _work(out: Path, request: TrialRequest, device: str, number: int, parent: int, said: Any, stopping: Any) -> None:
    """Run the rounds on one device in a worker process. The first worker reports the progress of all workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and sets stopping
    die_with_parent(parent)

    def tell(event: Any) -> None:
        if isinstance(event, Warned) or (number == 0 and isinstance(event, Note | StepTaken)):
            said.put(event)

    try:
        options = request.options.model_copy(update={"device": "cpu" if device == "cpu" else "auto"})
        job = prepare_trial(out, replace(request, options=options, devices=()))
        run_rounds(job, tell, cast(Event, stopping), num_devices=len(request.devices), tells=number == 0)
    except Interrupted:
        return
    except GraceStoreError as error:
        said.put(f"Worker {number} ({device}): {error}")
        said.close()
        said.join_thread()
        os._exit(1)
