"""Does the proxy follow the gradient, on the user's own data? Whole parameter gradients against stored proxies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.settings import ExtractRequest, RunOptions
from grace_store.read.blocks import BlockReader
from grace_store.read.records import UnitLoader, image_folder, open_dataset
from grace_store.read.samples import samples_at
from grace_store.run.model_door import PROXY, model_door
from grace_store.run.open_signal import check_same
from grace_store.store.opened import SignalView, Store
from grace_store.values.agreement import Agreement, agreement, scores_of
from grace_store.values.grace import RaggedScores
from grace_store.values.heuristics import random_values
from grace_store.values.overlap import jaccard_by_chance
from grace_store.values.ranking import Ratio, budget, rank
from grace_store.values.score_spec import ScoreSpec
from grace_store.values.survival import Survival, survival

MIN_SAMPLES = 8
NOTE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SpaceFidelity:
    """How the proxy agrees with the gradients over one set of parameters."""

    answer_alignment: Agreement
    history_alignment: Agreement
    value: Agreement
    chosen: Survival
    """How much the two choices share."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The proxy's alignments against those of parameter gradients, over the same samples."""

    signal: str
    num_samples: int
    num_steps: int
    ratio: str
    by_chance: float
    """What two random choices of that size would share."""
    spaces: dict[str, SpaceFidelity]
    sample_id: list[str]
    scores: dict[str, RaggedScores]
    """All scores, "proxy" first, then by set of parameters."""


def measure_fidelity(
    store: Store | str, model: str | None = None, spec: ScoreSpec | None = None, *, signal: str | None = None,
    num_samples: int = 64, ratio: Ratio = "0.2", seed: int = 0, draws: int = 200, num_layer_groups: int = 0,
    lora: bool = True, options: RunOptions | None = None, data: Sequence[str] | None = None,
    adapter: str | None = None, images: str | None = None, listener: Listener = ignore,
) -> Fidelity:  # fmt: skip
    """Take whole gradients of a seeded sample of the done ones, and compare their alignments with the stored ones."""
    opened = store if isinstance(store, Store) else Store.open(store)
    view = opened.signal(signal)
    if view.signal.spec.kind != "proxy":
        raise SettingError(f"signal {view.name!r} holds gradients itself: fidelity is asked of a proxy signal")
    if num_samples < MIN_SAMPLES:
        raise SettingError(f"{num_samples} samples are too few to correlate anything: take at least {MIN_SAMPLES}")
    if draws < 1:
        raise SettingError(f"draws {draws} is not at least 1")
    budget(ratio, 0)  # says so if it is no ratio
    chosen = _choose(view, num_samples, seed)
    found = _gradients(
        view, model, chosen, num_layer_groups, lora, options or RunOptions(), data, adapter, images, listener
    )  # fmt: skip
    samples = samples_at(view, found.positions)
    proxy, tokens = [each.gram for each in samples], [each.num_tokens for each in samples]
    spec = spec or ScoreSpec()
    scores = {"proxy": scores_of(proxy, tokens, spec)}
    scores |= {space: scores_of(grams, tokens, spec) for space, grams in found.grams.items()}
    count = budget(ratio, len(proxy))
    return Fidelity(
        signal=view.name,
        num_samples=len(proxy),
        num_steps=int(scores["proxy"].offsets[-1]),
        ratio=str(ratio),
        by_chance=jaccard_by_chance(len(proxy), count),
        spaces={space: _compare(scores["proxy"], scores[space], ratio, draws, seed) for space in found.grams},
        sample_id=[each.sample_id for each in samples],
        scores=scores,
    )


def _choose(view: SignalView, num_samples: int, seed: int) -> list[int]:
    """Return positions of a random few of the done samples, ascending: a function of the seed and the rows alone."""
    reader = BlockReader(view.store, (view.name,), gram=False)
    blocks = [(block.sample, block.row) for block in reader.map(lambda block: block)]
    sample = np.concatenate([each for each, _ in blocks]) if blocks else np.zeros(0, np.int64)
    row = np.concatenate([each for _, each in blocks]) if blocks else np.zeros(0, np.int64)
    if len(sample) < MIN_SAMPLES:
        raise SettingError(
            f"signal {view.name!r} has {len(sample)} done samples: to correlate anything takes at least {MIN_SAMPLES}"
        )
    order = rank(random_values(seed, row), row)
    return sorted(int(position) for position in sample[order[:num_samples]])


@dataclass(frozen=True, slots=True)
class _Found:
    positions: list[int]
    grams: dict[str, list[FloatArray]]


def _gradients(
    view: SignalView, model: str | None, chosen: Sequence[int], num_layer_groups: int, lora: bool,
    options: RunOptions, data: Sequence[str] | None, adapter: str | None, images: str | None, listener: Listener,
) -> _Found:  # fmt: skip
    from grace_store.model.gradients.true_gradients import open_gradients

    model = model or view.signal.origin["model"]
    adapter = adapter or view.signal.origin.get("adapter")
    check_same(view, model, ExtractRequest(), options, model_door(PROXY), adapter)
    with open_dataset(view.store, data) as dataset:
        folder = image_folder(images, view, dataset)
        samples = UnitLoader(view.store, dataset).read_some(chosen)
        gradients = open_gradients(
            model, view.signal.spec, options, adapter=adapter, images=folder,
            num_layer_groups=num_layer_groups, lora=lora,
        )  # fmt: skip
        grams: dict[str, list[FloatArray]] = {space: [] for space in gradients.spaces}
        positions = []
        began = told = time.monotonic()
        for number, (position, sample) in enumerate(zip(chosen, samples, strict=True)):
            each = gradients.grams(sample)
            if each is None:
                listener(Note(f"{sample.sample_id} can no longer be used; left out."))
                continue
            positions.append(position)
            for space, gram in each.items():
                grams[space].append(gram)
            now = time.monotonic()
            if number == 0 or now - told > NOTE_SECONDS:
                told = now
                left = (now - began) / (number + 1) * (len(chosen) - number - 1)
                listener(Note(f"{number + 1}/{len(chosen)} samples' gradients; about {left:.0f} s left."))
    if len(positions) < MIN_SAMPLES:
        raise DataError(
            f"{len(positions)} of {len(chosen)} samples can still be used; to correlate anything takes at least "
            f"{MIN_SAMPLES}. Is the dataset, with its images, the one that the store was planned from?"
        )
    return _Found(positions, grams)


def _compare(proxy: RaggedScores, true: RaggedScores, ratio: Ratio, draws: int, seed: int) -> SpaceFidelity:
    each = np.arange(len(proxy.value) + 1)
    drawn = {"draws": draws, "seed": seed}
    return SpaceFidelity(
        answer_alignment=agreement(proxy.answer_alignment, true.answer_alignment, proxy.offsets, **drawn),
        history_alignment=agreement(proxy.history_alignment, true.history_alignment, proxy.offsets, **drawn),
        value=agreement(proxy.value, true.value, each, **drawn),
        chosen=survival(proxy.value, true.value, ratio, **drawn),
    )
