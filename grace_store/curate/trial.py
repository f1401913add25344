"""Does a subset train better models than random ones? Small trainings of the model, and what they come to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from grace_store.artifacts.made_from import open_made_from
from grace_store.artifacts.notes import SubsetNote
from grace_store.artifacts.outputs import check_outputs, sources_of
from grace_store.artifacts.trial_documents import FOUND, PLAN, Trial, TrialPlan, TrialRun, TrialSpec
from grace_store.base.documents import claim_document, read_document, write_document
from grace_store.base.errors import DataError, ResumeMismatch, SettingError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.files import sidecar_of
from grace_store.base.settings import DataRequest, wishes_in
from grace_store.base.text import counted, duration
from grace_store.curate.benchmarks import as_store
from grace_store.curate.trial_runs import PlannedRun, RunFolder, TrialCost, TrialRunner, say_cost
from grace_store.curate.trial_samples import Arm, SubsetFile, TrialSamples, gather_samples, is_amount
from grace_store.curate.trial_verdict import last_standing, say_held_out, standing, tried_subset
from grace_store.data.folders import default_image_folder
from grace_store.model.load.adapter_folder import require_peft
from grace_store.model.lora.recipe import TrainingRequest, WarmupOptions
from grace_store.run.open_signal import describe_differences, software
from grace_store.run.plan import plan
from grace_store.store.backend import is_url
from grace_store.store.opened import SignalView, Store

HELD_OUT = "held-out.zarr"
"""Where a file of held-out traces is planned, in OUT."""
READING = ("rendering", "system", "max_length", "text_only", "images_as", "min_pixels", "max_pixels")
"""How samples are read: as the signal read them that the subsets were chosen by, unless said otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """What is tried, and how. What is not said comes from the trial that was begun, or else from the defaults."""

    subsets: Sequence[str | Path] = ()
    """Files that ``select`` wrote, or lists of ids."""
    weighted: Sequence[tuple[str | Path, str | Path]] = ()
    """Subsets that are trained with step weights, each with the table of them that ``weights`` wrote."""
    store: str | None = None
    """Where the store is now, if it moved, or if subsets are lists of ids."""
    model: str | None = None
    """None for the one that the scores' signal was extracted with."""
    training: TrainingRequest = field(default_factory=TrainingRequest)
    num_updates: int | None = None
    num_random: int | None = None
    num_seeds: int | None = None
    held_out: str | None = None
    by: str | None = None
    generate: bool | None = None
    max_new_tokens: int | None = None
    data: Sequence[str] | None = None
    """Where the dataset is now, if it moved."""
    images: str | None = None
    """The folder that relative image paths start from."""
    options: WarmupOptions = field(default_factory=WarmupOptions)
    devices: Sequence[str] = ()
    """Devices that get a process each, "cpu" or as the machine names them; none for this process alone."""

    def said(self) -> dict[str, Any]:
        """Return the settings of a TrialSpec that are said."""
        names = [name for name in TrialSpec.model_fields if name != "training"]
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class TrialJob:
    """A trial with all that decides its numbers."""

    folder: RunFolder
    samples: TrialSamples
    request: TrialRequest
    is_begun: bool

    @property
    def plan(self) -> TrialPlan:
        return self.folder.plan

    def runner(self, listener: Listener, stop: Event) -> TrialRunner:
        """Return what trains on this process's device."""
        origin, request = self.plan.origin, self.request
        return TrialRunner(
            self.folder,
            self.samples,
            origin["model"],
            request.options,
            origin["images"],
            request.data,
            listener,
            stop,
        )

    def arms(self, subsets: Sequence[int]) -> list[Arm]:
        """Return the arms that some subsets, numbered from 0, need, each once."""
        return list({arm.key: arm for subset in subsets for arm in self.samples.arms_of(subset)}.values())

    @property
    def num_most_runs(self) -> int:
        return len(self.samples.arms) * self.plan.spec.num_seeds


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
        _check_same(read_document(job.folder.out / PLAN, TrialPlan), job.plan, job.folder.out)
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
    listener(Note(say_held_out(job.plan)))
    cost = job.runner(listener, Event()).cost(job.samples.arms["subset-1"])
    return TrialEstimate(progress.num_left, len(progress.results), num_devices, cost)


# ---------------------------------------------------------------- before


def prepare_trial(out: Path, request: TrialRequest) -> TrialJob:
    """Return a trial as it would run now; raise ResumeMismatch if another one was begun in its folder."""
    require_peft()
    begun = read_document(out / PLAN, TrialPlan) if (out / PLAN).is_file() else None
    files = _files(request, begun)
    if not files:
        raise SettingError(f"{out} has no trial yet; give the subsets to try, as `grace-store select` writes them.")
    store, view = _open_store([file.path for file in files], request, begun)
    given = [(file.path, "a subset") for file in files]
    given += [(file.weights, "a table of weights") for file in files if file.weights is not None]
    check_outputs([out], [*sources_of(store), *given])
    spec, origin = _resolve(store, view, request, begun)
    other = _open_held_out(origin["held_out"], out) if "held_out" in origin else None
    samples = gather_samples(store, files, spec, other, request.data)
    found = TrialPlan(
        spec=spec,
        plan_sha256=store.plan.digest(),
        num_pool=samples.num_pool,
        num_held_out_samples=samples.num_held_out_samples,
        subsets=samples.subsets,
        held_out=samples.held_out.refs,
        held_out_sha256=samples.held_out.store.plan.samples_sha256,
        origin=origin,
    )
    if begun is not None:
        _check_same(begun, found, out)
        found = begun.model_copy(update={"origin": origin})
    return TrialJob(RunFolder(out, found), samples, request, begun is not None)


def _files(request: TrialRequest, begun: TrialPlan | None) -> list[SubsetFile]:
    """Return the subsets that are asked for, or else those of the trial that was begun."""
    said = [SubsetFile(Path(path).absolute()) for path in request.subsets]
    said += [SubsetFile(Path(path).absolute(), Path(weights).absolute()) for path, weights in request.weighted]
    if said or begun is None:
        return said
    return [SubsetFile(Path(each.path), Path(each.weights) if each.weights else None) for each in begun.subsets]


def _open_store(
    paths: Sequence[Path], request: TrialRequest, begun: TrialPlan | None
) -> tuple[Store, SignalView | None]:
    """Return the store that subsets were chosen from, and the signal that they were chosen by, if that is known."""
    if missing := [str(path) for path in paths if not path.exists()]:
        raise DataError(f"There is no {missing[0]}. Give subsets that `grace-store select` wrote, or lists of ids.")
    notes = [read_document(sidecar_of(path), SubsetNote) for path in paths if sidecar_of(path).is_file()]
    moved = request.store or (begun.origin["store"] if begun else None)
    if not notes:
        if moved is None:
            raise SettingError(f"{paths[0]} does not say which store it was chosen from; give it with --store.")
        return Store.open(moved), None
    store = open_made_from(notes[0].scores, moved, f"subset {paths[0]}", "--store")
    name = next(iter(notes[0].scores.signals))
    return store, store.signal(name) if name in store.signal_names else None


def _open_held_out(place: str, out: Path) -> Store:
    """Open a planned store of held-out traces, or plan a file of them in OUT; any number of steps will do."""
    return as_store(place) or plan([place], out / HELD_OUT, DataRequest(min_steps=1))


def _resolve(
    store: Store, view: SignalView | None, request: TrialRequest, begun: TrialPlan | None
) -> tuple[TrialSpec, dict[str, str]]:
    """Return the spec as it would be now, and where things are."""
    from grace_store.model.lora.trainer import resolve_training

    then = begun.origin if begun else {}
    model = request.model or then.get("model") or (view.signal.origin["model"] if view else None)
    if model is None:
        raise SettingError("Say which --model to train: the subsets do not name one.")
    read = {name: getattr(view.signal.spec, name) for name in READING} if view else {}
    unsaid = begun.spec.training.model_dump(include=set(TrainingRequest.model_fields)) if begun else read
    training = resolve_training(model, TrainingRequest(**{**unsaid, **wishes_in(request.training)}), request.options)
    said = {**(begun.spec.model_dump(exclude={"training"}) if begun else {}), **request.said()}
    images = request.images or then.get("images") or (view.signal.origin.get("images") if view else None)
    files = request.data or [file.path for file in store.plan.files]
    origin = {**software(), "model": str(Path(model).resolve()), "store": _absolute(store.location)}
    origin["images"] = images or default_image_folder(files)
    if (held_out := request.held_out) is not None and not is_amount(held_out):
        origin["held_out"], said["held_out"] = _absolute(held_out), Path(held_out).name
    elif held_out is None and "held_out" in then:
        origin["held_out"] = then["held_out"]
    return TrialSpec(training=training, **said), origin


def _absolute(place: str) -> str:
    return place if is_url(place) else str(Path(place).resolve())


def _check_same(begun: TrialPlan, now: TrialPlan, out: Path) -> None:
    if begun.fingerprint() == now.fingerprint():
        return
    lines = describe_differences(begun.spec.training, now.spec.training)
    lines += [line for line in describe_differences(begun.spec, now.spec) if not line.startswith("training ")]
    if begun.plan_sha256 != now.plan_sha256:
        lines.append("store: other data, or planned with other settings")
    then, theirs = ([each.name for each in plan.subsets] for plan in (begun, now))
    if then != theirs:
        lines.append(f"subsets: begun with {', '.join(then)}, now {', '.join(theirs)}")
    elif not lines:
        lines.append("subsets, pool or held-out traces: other samples than then")
    raise ResumeMismatch(
        f"The trial in {out} was begun with other settings:\n  "
        + "\n  ".join(lines)
        + "\nLeave those options out to go on as it was begun, or choose a new --out. Nothing was written."
    )


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
        listener(Note(say_held_out(job.plan)))
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
        rounds = max(round for round, key in results if key == f"subset-{subset + 1}")
        found = last_standing(plan, samples, results, subset, rounds)
        tried.append(tried_subset(plan, samples, results, subset, found))
    return Trial(
        store=job.samples.store.location,
        plan_sha256=plan.plan_sha256,
        spec=plan.spec,
        conclusion=" ".join(each.conclusion for each in tried),
        num_pool=plan.num_pool,
        num_items=len(next(iter(results.values())).items),
        num_runs=len(results),
        num_most_runs=job.num_most_runs,
        subsets=tuple(tried),
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
