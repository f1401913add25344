"""Does a subset train better models than random ones? Small trainings of the model, and what they come to."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from grace_store.artifacts.trial_documents import FOUND, PLAN, Trial, TrialPlan, TrialRun, conclusions_of
from grace_store.base.documents import claim_document, read_document, write_document
from grace_store.base.events import Listener, Note, Warned, ignore
from grace_store.base.text import counted, duration
from grace_store.curate.trial_plan import TrialJob, TrialRequest, check_same_trial, prepare_trial
from grace_store.curate.trial_runs import PlannedRun, TrialCost, say_cost
from grace_store.curate.trial_verdict import (
    compare_pairs,
    conclude_questions,
    last_standing,
    num_rounds_of,
    say_held_out,
    standing,
    tried_subset,
)


@dataclass(frozen=True, slots=True)
class TrialEstimate:
    """What a trial would cost."""

    num_runs: int
    """Trainings to do, if no answer is clear early."""
    num_done: int
    num_devices: int
    cost: TrialCost

    @property
    def seconds(self) -> float:
        """Of all trainings, on all devices at once."""
        return self.cost.run_seconds * -(-self.num_runs // self.num_devices)

    def __str__(self) -> str:
        return say_cost(self.cost, self.num_runs, self.num_devices)


def trial(
    out: str | Path, request: TrialRequest | None = None, *, listener: Listener = ignore, stop: Event | None = None
) -> Trial:
    """Train a model on subsets and on random ones like them, and compare them on held-out traces.

    Every training is one document in OUT: the same call does only what is missing, and any number of processes may
    make it at once. Raises Interrupted if asked to stop before the end.
    """
    job = prepare_trial(Path(out), request or TrialRequest())
    if not job.is_begun and not claim_document(job.folder.out / PLAN, job.plan):
        check_same_trial(read_document(job.folder.out / PLAN, TrialPlan), job.plan, job.folder.out)
    stop = stop or Event()
    if job.request.devices and progress_of(job).waiting:
        from grace_store.curate.trial_workers import run_workers

        run_workers(job.folder.out, job.request, listener, stop, lambda: not progress_of(job).waiting)
    found = play(job, listener, stop)
    write_document(job.folder.out / FOUND, found)
    job.folder.tidy()
    return found


def estimate_trial(
    out: str | Path, request: TrialRequest | None = None, *, listener: Listener = ignore
) -> TrialEstimate:
    """Return what a trial would cost, from an update that is timed; nothing is trained."""
    job = prepare_trial(Path(out), request or TrialRequest())
    progress, num_devices = progress_of(job), len(job.request.devices) or 1
    _say_beforehand(job, listener)
    cost = job.runner(listener, Event()).cost(job.samples.arms["subset-1"])
    return TrialEstimate(progress.num_left, len(progress.results), num_devices, cost)


def _say_beforehand(job: TrialJob, listener: Listener) -> None:
    """Say what a user should know before anything is trained."""
    for remark in job.remarks:
        listener(Warned(remark))
    listener(Note(say_held_out(job.plan)))


# ---------------------------------------------------------------- the rounds


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a trial is, by the trainings that are over."""

    results: dict[tuple[int, str], TrialRun]
    """By round and arm."""
    looks: tuple[str, ...]
    """What was seen after each round that is over, in sentences."""
    waiting: tuple[PlannedRun, ...]
    """What the round under way lacks; nothing if the trial is over."""
    num_left: int
    """Trainings that are left, if no further answer is clear early."""


def progress_of(job: TrialJob) -> Progress:
    """Return how far a trial is."""
    plan, num_seeds = job.plan, job.plan.spec.num_seeds
    results: dict[tuple[int, str], TrialRun] = {}
    looks: list[str] = []
    open_subsets = list(range(len(plan.subsets)))
    for round in range(1, num_seeds + 1):
        runs = job.folder.planned(job.arms(open_subsets), round)
        over = {run.arm.key: found for run in runs if (found := job.folder.read(run)) is not None}
        results |= {(round, key): found for key, found in over.items()}
        if waiting := tuple(run for run in runs if run.arm.key not in over):
            return Progress(results, tuple(looks), waiting, len(waiting) + len(runs) * (num_seeds - round))
        job.folder.check_items(runs, results)
        stands = {subset: standing(plan, job.samples, results, subset, round) for subset in open_subsets}
        for subset, found_now in stands.items():
            against = f"{plan.subsets[subset].name} against random subsets"
            looks.append(f"After seed {round} of {num_seeds}, {against}: held-out loss {found_now.difference}.")
        open_subsets = [subset for subset in open_subsets if not stands[subset].difference.is_clear]
        if not open_subsets:
            break
    return Progress(results, tuple(looks), (), 0)


def play(job: TrialJob, listener: Listener, stop: Event, *, num_devices: int = 1, tells: bool = True) -> Trial:
    """Do all rounds that are needed, with the trainings that nobody else does, and return what they come to."""
    runner = job.runner(listener, stop)
    teller = _Teller(job, listener if tells else ignore, num_devices)
    progress = progress_of(job)
    if tells and progress.waiting:
        _say_beforehand(job, listener)
        cost = runner.cost(progress.waiting[0].arm)
        listener(Note(say_cost(cost, progress.num_left, num_devices)))
        teller.began = time.monotonic()
    num_told = 0
    while True:
        for look in progress.looks[num_told:]:
            teller.listener(Note(look))
        num_told = len(progress.looks)
        if not progress.waiting:
            return _conclude(job, progress.results)
        runner.finish(progress.waiting, teller.trained)
        progress = progress_of(job)


def _conclude(job: TrialJob, results: dict[tuple[int, str], TrialRun]) -> Trial:
    plan, samples = job.plan, job.samples
    tried = []
    for subset in range(len(plan.subsets)):
        found = last_standing(plan, samples, results, subset, num_rounds_of(results, subset))
        tried.append(tried_subset(plan, samples, results, subset, found))
    pairs, questions = compare_pairs(plan, samples, results), conclude_questions(tried)
    return Trial(
        store=samples.store.location,
        plan_sha256=samples.store.plan.digest(),
        spec=plan.spec,
        conclusion=" ".join(conclusions_of(tried, questions, pairs)),
        questions_conclusion=questions,
        num_pool=plan.num_pool,
        num_held_out_samples=plan.num_held_out_samples,
        num_items=len(next(iter(results.values())).items),
        num_runs=len(results),
        num_most_runs=job.num_most_runs,
        subsets=tuple(tried),
        pairs=pairs,
    )


@dataclass(slots=True)
class _Teller:
    """Says how far a trial is."""

    job: TrialJob
    listener: Listener
    num_devices: int
    num_trained: int = 0
    began: float = field(default_factory=time.monotonic)

    def trained(self, run: PlannedRun, found: TrialRun) -> None:
        self.num_trained += 1
        left = progress_of(self.job).num_left
        seconds = (time.monotonic() - self.began) / self.num_trained * left / self.num_devices
        told = f"{counted(left, 'training')} left, at most {duration(seconds)}" if left else "all trainings are done"
        self.listener(
            Note(
                f"Seed {run.round} of {self.job.plan.spec.num_seeds}, {run.arm.name}: held-out loss "
                f"{found.heldout_loss:.4f}; {told}."
            )
        )


def for_device(request: TrialRequest, device: str) -> TrialRequest:
    """Return the request of a process that trains on one device by itself."""
    options = request.options.model_copy(update={"device": device})
    return replace(request, options=options, devices=())
