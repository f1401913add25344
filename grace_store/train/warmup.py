"""The warm-up job: plan, choose the subset, freeze the recipe, take the missing steps. The same call resumes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from grace_store.base.documents import read_document, write_document
from grace_store.base.errors import NothingUsable, SettingError, StoreBusy
from grace_store.base.events import Listener, Note, Warned, ignore
from grace_store.base.files import try_lock
from grace_store.base.settings import DataSpec
from grace_store.base.states import SetAside
from grace_store.base.text import counted
from grace_store.base.training_settings import Ranks, WarmupOptions, WarmupSpec
from grace_store.data.dataset import Dataset
from grace_store.data.folders import default_image_folder
from grace_store.model.load.adapter_folder import TENSORS, read_state, require_peft
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.run.plan import open_planned, plan
from grace_store.store.backend import is_url, open_backend
from grace_store.store.opened import Store
from grace_store.train.recipe import (
    DONE,
    SUBSET,
    ChosenSamples,
    LeftOut,
    Recipe,
    WarmupDone,
    check_recipe,
    choose_samples,
    freeze,
    make_recipe,
    order_steps,
    read_recipe,
)

if TYPE_CHECKING:
    from grace_store.train.training import Training, TrainingSample, TrainingSet

PLAN = "plan.zarr"


@dataclass(frozen=True, slots=True)
class WarmupJob:
    """All settings of `grace-store warmup`."""

    out: Path
    model: str | None = None
    store: str | None = None
    """A planned store. Without a store, the job plans data in the folder out."""
    data: tuple[str, ...] = ()
    data_request: DataSpec = field(default_factory=DataSpec)
    request: WarmupSpec = field(default_factory=WarmupSpec)
    options: WarmupOptions = field(default_factory=WarmupOptions)
    samples_per_unit: int | None = None
    images: str | None = None
    """The folder of relative image paths."""
    ranks: Ranks = field(default_factory=Ranks)


def warmup(job: WarmupJob, listener: Listener = ignore, stop: Event | None = None) -> WarmupDone:
    """Run the missing part of a warm-up; raise Interrupted after a request to stop."""
    require_peft()
    begun = read_recipe(job.out)
    if (model := job.model or (begun.origin["model"] if begun else None)) is None:
        raise SettingError(f"{job.out} has no warm-up yet. Give the model to train with --model.")
    store = _planned(job, begun, listener)
    recipe, chosen = _resolve(job, begun, store, model)
    if begun is not None:
        check_recipe(begun, recipe, job.out)
    done = read_document(job.out / DONE, WarmupDone) if (job.out / DONE).is_file() else None
    has_all = done is not None and all((job.out / name / TENSORS).is_file() for name in done.checkpoints)
    if done is not None and has_all and done.recipe_sha256 == recipe.fingerprint():
        listener(Note(f"{job.out} is already complete, with {counted(done.num_steps, 'step')}."))
        _warn_of_unlearnt(job, done, listener)
        return done
    with _held(job.out) if job.ranks.is_first else nullcontext():
        if begun is None and job.ranks.is_first:
            is_own = not is_url(store.location) and Path(store.location).resolve() == (job.out / PLAN).resolve()
            freeze(recipe, job.out, store, planned_here=is_own)
        done = _train(job, recipe, store, chosen, model, listener, stop or Event())
    _warn_of_unlearnt(job, done, listener)
    return done


def _planned(job: WarmupJob, begun: Recipe | None, listener: Listener) -> Store:
    """Return the planned store, or plan a store beside the checkpoints."""
    own = str(job.out / PLAN)
    is_own = bool(job.data) or open_backend(own).read("zarr.json") is not None
    if (location := job.store or (own if is_own else begun.origin["store"] if begun else None)) is None:
        raise SettingError("No samples were given. Give a planned STORE, or the dataset with --data.")
    if (planned := open_planned(location, job.data_request, job.samples_per_unit)) is not None:
        return planned
    if not job.data:
        raise SettingError(f"{location} has no plan yet. Give the dataset with --data, or run `grace-store plan`.")
    return plan(job.data, location, job.data_request, samples_per_unit=job.samples_per_unit, listener=listener)


def _resolve(job: WarmupJob, begun: Recipe | None, store: Store, model: str) -> tuple[Recipe, ChosenSamples]:
    """Return the recipe with the present settings; missing settings come from the begun recipe."""
    from grace_store.train.training import resolve_training

    spec = resolve_training(model, job.request.over(begun.spec) if begun else job.request, job.options)
    chosen = choose_samples(store, spec)
    if not (images := job.images or (begun.origin["images"] if begun else None)):
        with Dataset.open(job.data or [file.path for file in store.plan.files]) as dataset:
            images = default_image_folder([file.path for file in dataset.files])
    return make_recipe(spec, store, chosen[0], model, images), chosen


def _train(
    job: WarmupJob, recipe: Recipe, store: Store, chosen: ChosenSamples, model: str, listener: Listener, stop: Event
) -> WarmupDone:
    from grace_store.train.training import Training, checkpoint_steps

    subset, spec = chosen[0], recipe.spec
    listener(Note(f"Loading {Path(model).name}."))
    training = Training(model, spec, job.options, job.ranks, recipe.origin["images"])
    data, left_out = _training_set(job, spec, store, chosen, training)
    if job.ranks.is_first:
        write_document(job.out / SUBSET, subset.model_copy(update={"left_out": tuple(left_out)}))
        if left_out:
            counts = Counter(each.reason for each in left_out)
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
            listener(Warned(f"{counted(len(left_out), 'sample')} left out ({reasons}). {job.out / SUBSET} lists them."))
    kept = checkpoint_steps(spec, len(data.steps))
    training.train(data, job.out, recipe.fingerprint(), listener, stop, seed=spec.seed, keep=kept)
    done = WarmupDone(
        recipe_sha256=recipe.fingerprint(),
        num_planned=subset.num_planned,
        num_samples=len(data.samples),
        num_left_out=len(left_out),
        num_steps=len(data.steps),
        checkpoints=tuple(f"checkpoint-{step}" for step in kept),
    )
    if job.ranks.is_first:
        write_document(job.out / DONE, done)
    return done


def _warn_of_unlearnt(job: WarmupJob, done: WarmupDone, listener: Listener) -> None:
    """Warn if the first checkpoint has learnt nothing, because every step before it had a learning rate of 0."""
    first = done.checkpoints[0]
    state = read_state(job.out / first) if job.ranks.is_first else None
    if state is not None and state.mean_learning_rate == 0:
        listener(
            Warned(
                f"{job.out / first} has learnt nothing yet: the learning rate rises from 0 and was 0 in all steps "
                "before this checkpoint. So the checkpoint equals the base model. Use later checkpoints, or take more "
                "steps (--ratio, --epochs, --batch-size)."
            )
        )


def _training_set(
    job: WarmupJob, spec: WarmupSpec, store: Store, chosen: ChosenSamples, training: Training
) -> tuple[TrainingSet, list[LeftOut]]:
    """Return the tokens to train on and to hold out, and the samples that cannot be used."""
    from grace_store.train.training import TrainingSet

    subset, positions = chosen
    left_out: list[LeftOut] = []
    rows: list[int] = []
    encoded: list[list[TrainingSample]] = [[], []]
    with open_dataset(store, job.data or None) as dataset:
        loader = UnitLoader(store, dataset)
        for refs, some, usable in zip((subset.samples, subset.heldout), positions, encoded, strict=True):
            for ref, made in zip(refs, training.encode(loader.read_some(some.tolist())), strict=True):
                if isinstance(made, SetAside):
                    why = {"reason": made.reason.value, "detail": made.detail}
                    left_out.append(LeftOut(sample_id=ref.sample_id, row=ref.row, **why))
                else:
                    usable.append(made)
                    rows.append(ref.row)
    samples, heldout = encoded
    if not samples:
        raise NothingUsable(
            f"None of the {len(subset.samples)} samples of the subset can be trained on: {left_out[0].reason} "
            f"({left_out[0].detail})."
        )
    steps = order_steps(rows[: len(samples)], spec.seed, spec.batch_size, spec.num_epochs)
    return TrainingSet(samples, steps, heldout), left_out


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """Hold the lock on a folder, so that only this process writes to it. The lock ends with the process."""
    with try_lock(out / ".lock") as is_mine:
        if not is_mine:
            raise StoreBusy(f"Another warm-up is writing to {out}. Wait until it ends, or choose a new --out.")
        yield
