"""The warm-up job: plan, choose the subset, freeze the recipe, train what is missing. The same call resumes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from grace_store.artifacts.pictures.panels import Axis, Panel, Point, Series, draw_panels
from grace_store.base.documents import read_document, write_document
from grace_store.base.errors import NothingUsable, SettingError, StoreBusy
from grace_store.base.events import Listener, Note, Warned, ignore
from grace_store.base.file_lock import try_lock
from grace_store.base.settings import DataRequest, wishes_in
from grace_store.base.states import SetAside
from grace_store.base.text import counted
from grace_store.data.dataset import Dataset
from grace_store.data.folders import default_image_folder
from grace_store.data.sample import Sample
from grace_store.model.load.adapter_folder import TENSORS, read_state, require_peft
from grace_store.model.lora.loss_log import read_losses
from grace_store.model.lora.recipe import (
    DONE,
    SUBSET,
    LeftOut,
    Ranks,
    Recipe,
    SampleRef,
    WarmupDone,
    WarmupOptions,
    WarmupRequest,
)
from grace_store.read.records import UnitLoader, open_dataset
from grace_store.run.plan import open_planned, plan
from grace_store.run.warmup_recipe import (
    ChosenSamples,
    check_recipe,
    choose_samples,
    freeze,
    make_recipe,
    order_steps,
    read_recipe,
)
from grace_store.store.backend import is_url, open_backend
from grace_store.store.opened import Store

if TYPE_CHECKING:
    from grace_store.model.lora.trainer import TrainingSample, TrainingSet, Warmup

PLAN = "plan.zarr"
LOSS_PICTURE = "loss.svg"


@dataclass(frozen=True, slots=True)
class WarmupJob:
    """Everything `grace-store warmup` was asked for."""

    out: Path
    model: str | None = None
    store: str | None = None
    """A planned store; without one, data is planned inside out."""
    data: tuple[str, ...] = ()
    data_request: DataRequest = field(default_factory=DataRequest)
    request: WarmupRequest = field(default_factory=WarmupRequest)
    options: WarmupOptions = field(default_factory=WarmupOptions)
    samples_per_unit: int | None = None
    images: str | None = None
    """The folder that relative image paths start from."""
    ranks: Ranks = field(default_factory=Ranks)


def warmup(job: WarmupJob, listener: Listener = ignore, stop: Event | None = None) -> WarmupDone:
    """Do what is missing of a warm-up; raise Interrupted if asked to stop before the end."""
    require_peft()
    begun = read_recipe(job.out)
    if (model := job.model or (begun.origin["model"] if begun else None)) is None:
        raise SettingError(f"{job.out} has no warm-up yet; say which --model to train.")
    store = _planned(job, begun, listener)
    recipe, chosen = _resolve(job, begun, store, model)
    if begun is not None:
        check_recipe(begun, recipe, job.out)
    if (done := _read_done(job.out, recipe)) is not None:
        listener(Note(f"{job.out} is complete: {counted(done.num_steps, 'step')} taken before."))
        _warn_of_unlearnt(job, done, listener)
        return done
    with _held(job.out) if job.ranks.is_first else nullcontext():
        if begun is None and job.ranks.is_first:
            own = Path(_own_plan(job.out)).resolve()
            is_own = not is_url(store.location) and Path(store.location).resolve() == own
            freeze(recipe, job.out, store, planned_here=is_own)
        done = _train(job, recipe, store, chosen, model, listener, stop or Event())
    _warn_of_unlearnt(job, done, listener)
    return done


def _planned(job: WarmupJob, begun: Recipe | None, listener: Listener) -> Store:
    """Return the store that was planned, or plan one beside the checkpoints."""
    own = _own_plan(job.out)
    is_own = bool(job.data) or open_backend(own).read("zarr.json") is not None
    if (location := job.store or (own if is_own else begun.origin["store"] if begun else None)) is None:
        raise SettingError("Give a planned --store, or the dataset with --data.")
    if (planned := open_planned(location, job.data_request, job.samples_per_unit)) is not None:
        return planned
    if not job.data:
        raise SettingError(f"{location} has no plan yet; give the dataset with --data, or run `grace-store plan`.")
    return plan(job.data, location, job.data_request, samples_per_unit=job.samples_per_unit, listener=listener)


def _own_plan(out: Path) -> str:
    return str(out / PLAN)


def _resolve(job: WarmupJob, begun: Recipe | None, store: Store, model: str) -> tuple[Recipe, ChosenSamples]:
    """Return the recipe as it would run now; what is not said comes from the one that was begun."""
    from grace_store.model.lora.trainer import resolve_warmup

    unsaid = begun.spec.model_dump(include=set(WarmupRequest.model_fields)) if begun else {}
    spec = resolve_warmup(model, WarmupRequest(**{**unsaid, **wishes_in(job.request)}), job.options)
    chosen = choose_samples(store, spec.ratio, spec.seed, spec.num_heldout)
    images = job.images or (begun.origin["images"] if begun else None)
    if not images:
        with Dataset.open(job.data or [file.path for file in store.plan.files]) as dataset:
            images = default_image_folder([file.path for file in dataset.files])
    return make_recipe(spec, store, chosen.document, model, images), chosen


def _train(
    job: WarmupJob, recipe: Recipe, store: Store, chosen: ChosenSamples, model: str, listener: Listener, stop: Event
) -> WarmupDone:
    from grace_store.model.lora.trainer import Warmup

    listener(Note(f"Loading {Path(model).name}."))
    trained = Warmup(model, recipe.spec, job.options, job.ranks, recipe.origin["images"])
    data, left_out = _training_set(job, recipe, store, chosen, trained)
    if job.ranks.is_first:
        write_document(job.out / SUBSET, chosen.document.model_copy(update={"left_out": tuple(left_out)}))
        if left_out:
            counts = Counter(each.reason for each in left_out)
            told = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
            those = counted(len(left_out), "sample")
            listener(Warned(f"{those} left out ({told}); see {job.out / SUBSET}."))
    trained.run(data, job.out, recipe.fingerprint(), listener, stop)
    done = WarmupDone(
        recipe_sha256=recipe.fingerprint(),
        num_planned=chosen.document.num_planned,
        num_samples=len(data.samples),
        num_left_out=len(left_out),
        num_steps=len(data.steps),
        checkpoints=tuple(f"checkpoint-{step}" for step in trained.checkpoint_steps(data)),
    )
    if job.ranks.is_first:
        write_document(job.out / DONE, done)
    return done


def _warn_of_unlearnt(job: WarmupJob, done: WarmupDone, listener: Listener) -> None:
    """Name the first checkpoint if every step up to it had a rate of 0, from which rates rise."""
    first = done.checkpoints[0]
    state = read_state(job.out / first) if job.ranks.is_first else None
    if state is not None and state.mean_learning_rate == 0:
        listener(
            Warned(
                f"{job.out / first} has learnt nothing yet: up to there the learning rate, which rises from 0, was 0. "
                "It is the base model; use later checkpoints, or take more steps (--ratio, --epochs, --batch-size)."
            )
        )


def _training_set(
    job: WarmupJob, recipe: Recipe, store: Store, chosen: ChosenSamples, trained: Warmup
) -> tuple[TrainingSet, list[LeftOut]]:
    """Return the tokens to train on and to hold out, and the samples that cannot be used."""
    from grace_store.model.lora.trainer import TrainingSet

    with open_dataset(store, job.data or None) as dataset:
        loader = UnitLoader(store, dataset)
        subset = _encode(trained, loader.read_some(chosen.samples.tolist()), chosen.document.samples)
        heldout = _encode(trained, loader.read_some(chosen.heldout.tolist()), chosen.document.heldout)
    if not subset.made:
        raise NothingUsable(
            f"None of the {len(chosen.samples)} samples of the subset can be trained on: {subset.left_out[0].reason} "
            f"({subset.left_out[0].detail})."
        )
    spec = recipe.spec
    steps = order_steps(subset.rows, spec.seed, spec.batch_size, spec.num_epochs)
    return TrainingSet(subset.made, steps, heldout.made), subset.left_out + heldout.left_out


class _Encoded(NamedTuple):
    made: list[TrainingSample]
    rows: list[int]
    left_out: list[LeftOut]


def _encode(trained: Warmup, samples: Sequence[Sample], refs: Sequence[SampleRef]) -> _Encoded:
    encoded = _Encoded([], [], [])
    for ref, made in zip(refs, trained.encode(samples), strict=True):
        if isinstance(made, SetAside):
            verdict = {"reason": made.reason.value, "detail": made.detail}
            encoded.left_out.append(LeftOut(sample_id=ref.sample_id, row=ref.row, **verdict))
        else:
            encoded.made.append(made)
            encoded.rows.append(ref.row)
    return encoded


def _read_done(out: Path, recipe: Recipe) -> WarmupDone | None:
    path = out / DONE
    if not path.is_file():
        return None
    done = read_document(path, WarmupDone)
    there = all((out / name / TENSORS).is_file() for name in done.checkpoints)
    return done if there and done.recipe_sha256 == recipe.fingerprint() else None


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """Be the only run that writes to a folder; the lock goes with the process that holds it."""
    with try_lock(out / ".lock") as is_mine:
        if not is_mine:
            raise StoreBusy(f"Another warm-up is writing to {out}. Wait for it, or choose a new --out.")
        yield


def draw_losses(out: Path) -> Path:
    """Draw the losses of the warm-up in a folder over its steps, and return where the picture is."""
    trained, heldout = read_losses(out)
    series = [
        Series("training", [Point(*each) for each in trained], "line"),
        Series("held out", [Point(step, loss, f"step {step}: {loss:.4f}") for step, loss in heldout]),
    ]
    panel = Panel(Axis("step"), Axis("loss"), [each for each in series if each.points], width=640)
    path = out / LOSS_PICTURE
    path.write_text(draw_panels([panel], "Loss of the warm-up"), encoding="utf-8")
    return path
