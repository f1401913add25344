"""The recipe of a warm-up and its other documents. The recipe is frozen once and compared on resuming."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field, field_validator

from grace_store.base.arrays import IntArray
from grace_store.base.documents import Count, SampleRef, parse_document
from grace_store.base.errors import ResumeMismatch
from grace_store.base.files import write_text
from grace_store.base.settings import Whole
from grace_store.base.text import json_sha256
from grace_store.base.training_settings import WarmupSpec
from grace_store.model.load.adapter_folder import WarmupDocument
from grace_store.run.open_signal import describe_differences, software
from grace_store.store.backend import is_url
from grace_store.store.digested_json import from_bytes, seal, sealed_body, to_bytes
from grace_store.store.opened import Store
from grace_store.values.random_values import random_values
from grace_store.values.ranking import budget, rank

RECIPE = "recipe.json"
REPLAY = "replay.toml"
SUBSET = "subset.json"
DONE = "done.json"
"""Files beside the checkpoints."""
_STREAM = 0x7761726D7570
"""A number added to the seed, so that a random selection with the same seed takes other samples than the warm-up."""
_EPOCHS_PER_SEED = 2**16
"""The distance between the seeds of two trainings in a comparison."""
ChosenSamples: TypeAlias = "tuple[WarmupSubset, tuple[IntArray, IntArray]]"
"""A subset, and the plan's positions of its samples and of its held-out samples, both in dataset order."""
OPTION_NAMES = {"num_heldout": "heldout", "num_epochs": "epochs"}
"""Fields with another name on the command line."""


class LeftOut(SampleRef):
    """A sample of the subset that cannot be trained on."""

    reason: str
    detail: str = ""


class WarmupSubset(WarmupDocument, words="the subset of a warm-up"):
    """The samples that a warm-up trains on and those that it holds out, in the order of the dataset."""

    kind: Literal["warmup_subset"] = "warmup_subset"
    num_planned: Count
    ratio: str
    seed: int
    samples: tuple[SampleRef, ...]
    heldout: tuple[SampleRef, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    def fingerprint(self) -> str:
        """Return a digest of the choice."""
        return json_sha256(self.model_dump(mode="json", include={"num_planned", "ratio", "seed", "samples", "heldout"}))


class Recipe(WarmupDocument, words="the recipe of a warm-up"):
    """Everything that changes a warm-up's numbers, frozen in recipe.json and compared on resuming."""

    kind: Literal["warmup_recipe"] = "warmup_recipe"
    spec: Whole[WarmupSpec]
    plan_sha256: str
    subset_sha256: str
    origin: dict[str, str]
    """The paths of model, store and images, and the software: for people, never compared."""

    @field_validator("origin")
    @classmethod
    def _names_places(cls, value: dict[str, str]) -> dict[str, str]:
        if missing := sorted({"model", "store", "images"} - value.keys()):
            raise ValueError(f"origin has no path for {', '.join(missing)}")
        return value

    def fingerprint(self) -> str:
        """Return a digest of the compared fields."""
        return json_sha256(self.model_dump(mode="json", include={"spec", "plan_sha256", "subset_sha256"}))


class WarmupDone(
    WarmupDocument,
    words="the end of a warm-up",
    remedy="Delete this file and run `grace-store {maker}` again. All finished steps are kept.",
):
    """The note that a warm-up is complete."""

    kind: Literal["warmup_done"] = "warmup_done"
    recipe_sha256: str
    num_planned: Count
    num_samples: Count
    num_left_out: Count
    num_steps: Count
    checkpoints: tuple[Annotated[str, Field(pattern="^checkpoint-[0-9]+$")], ...] = Field(min_length=1)
    """Names of the checkpoint folders beside this file, in the order of their steps."""


def read_recipe(out: Path) -> Recipe | None:
    """Return the recipe of a begun warm-up, or None."""
    path, where = out / RECIPE, str(out / RECIPE)
    if not path.is_file():
        return None
    return parse_document(sealed_body(from_bytes(path.read_bytes(), where), where), Recipe, where)


def make_recipe(spec: WarmupSpec, store: Store, subset: WarmupSubset, model: str, images: str) -> Recipe:
    """Return the recipe of a warm-up with the present settings."""
    place = store.location if is_url(store.location) else str(Path(store.location).resolve())
    origin = {**software(), "model": str(Path(model).resolve()), "store": place, "images": images}
    return Recipe(spec=spec, plan_sha256=store.plan.content_digest(), subset_sha256=subset.fingerprint(), origin=origin)


def check_recipe(frozen: Recipe, now: Recipe, out: Path) -> None:
    """Raise ResumeMismatch with the differences unless the warm-up would take the same steps."""
    lines = describe_differences(frozen.spec, now.spec, OPTION_NAMES)
    if frozen.plan_sha256 != now.plan_sha256:
        lines.append("planned samples: the data or the settings of the plan differ")
    elif frozen.subset_sha256 != now.subset_sha256 and not lines:
        lines.append("subset: the samples differ")
    if lines:
        raise ResumeMismatch(
            f"The warm-up in {out} began with other settings:\n  "
            + "\n  ".join(lines)
            + "\nLeave these options out to continue the warm-up, or choose a new --out. Nothing was written."
        )


def freeze(recipe: Recipe, out: Path, store: Store, *, planned_here: bool) -> None:
    """Write the recipe, and a configuration file that repeats the warm-up."""
    values: dict[str, Any] = {"model": recipe.origin["model"], "images": recipe.origin["images"]}
    if planned_here:
        values["data"] = [str(Path(file.path).resolve()) for file in store.plan.files]
        values |= store.plan.spec.model_dump(mode="json", exclude_none=True)
        values["unit_samples"] = store.plan.samples_per_unit
        values["map"] = [f"{part}={field}" for part, field in store.plan.spec.map.items()]
    else:
        values["store"] = recipe.origin["store"]
    values |= recipe.spec.model_dump(mode="json", exclude={"model"}, exclude_none=True)
    values["checkpoints"] = ",".join(recipe.spec.checkpoints)
    lines = [f"# grace-store warmup --config {REPLAY} --out NEW-FOLDER"]
    for name, value in values.items():
        # Texts, numbers, booleans and lists have the same form in JSON and TOML.
        lines.append(f"{OPTION_NAMES.get(name, name).replace('_', '-')} = {json.dumps(value, ensure_ascii=False)}")
    write_text(out / REPLAY, "\n".join(lines) + "\n")
    write_text(out / RECIPE, to_bytes(seal(recipe)).decode())


def choose_samples(store: Store, spec: WarmupSpec) -> ChosenSamples:
    """Choose ceil(ratio N) planned samples at random, and the next ones as held-out samples, by seed and row only."""
    row = store.column("sample_row").astype(np.int64)
    order = rank(random_values(spec.seed + _STREAM, row), row)
    count = budget(spec.ratio, len(row))
    samples, heldout = (some[np.argsort(row[some])] for some in np.split(order[: count + spec.num_heldout], [count]))
    settings = {"num_planned": len(row), "ratio": spec.ratio, "seed": spec.seed}
    return WarmupSubset(**settings, samples=store.refs(samples), heldout=store.refs(heldout)), (samples, heldout)


def order_steps(rows: Sequence[int], seed: int, batch_size: int, num_epochs: int) -> list[list[int]]:
    """Return the samples of each step, by position in rows. Every epoch has all samples in its own random order.

    >>> order_steps([3, 4, 9], seed=0, batch_size=2, num_epochs=1)
    [[2, 0], [1]]
    """
    row = np.asarray(rows, dtype=np.int64)
    steps = []
    for epoch in range(1, num_epochs + 1):
        order = rank(random_values(seed + _STREAM + epoch, row), row).tolist()
        steps += [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    return steps


def order_updates(rows: Sequence[int], seed: int, batch_size: int, num_updates: int) -> list[list[int]]:
    """Return the samples of num_updates full batches. No sample comes again before all others have come.

    >>> order_updates([3, 4, 9], seed=0, batch_size=2, num_updates=3)
    [[2, 0], [1, 0], [1, 2]]
    """
    # Epochs use consecutive seeds. Without a gap, a training's second epoch would be the next training's first.
    epochs = order_steps(rows, seed * _EPOCHS_PER_SEED, len(rows), -(-batch_size * num_updates // len(rows)))
    order = [place for epoch in epochs for place in epoch]
    return [order[start : start + batch_size] for start in range(0, batch_size * num_updates, batch_size)]
