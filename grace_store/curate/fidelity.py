"""Does the proxy follow the gradient, on the user's own data? Whole parameter gradients against stored proxies."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from grace_store.artifacts.measures import (
    FidelityDocument,
    FidelitySample,
    SampleAlignments,
    SpaceFidelity,
)
from grace_store.artifacts.pictures.panels import Axis, Panel, Point, Series, draw_panels
from grace_store.base.arrays import FloatArray
from grace_store.base.documents import write_document
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.files import write_text
from grace_store.base.settings import ExtractRequest, RunOptions
from grace_store.base.text import counted
from grace_store.base.watch import Watch
from grace_store.read.blocks import BlockReader
from grace_store.read.records import UnitLoader, image_folder, open_dataset
from grace_store.read.samples import samples_at
from grace_store.run.model_door import PROXY, model_door
from grace_store.run.open_signal import check_same
from grace_store.store.opened import SignalView, Store, StoreLike
from grace_store.values.agreement import (
    WIDE,
    Agreement,
    Survival,
    agreement,
    jaccard_by_chance,
    num_wanted,
    reach,
    survival,
)
from grace_store.values.methods.grace import RaggedScores, score_grams
from grace_store.values.methods.random import random_values
from grace_store.values.ranking import Ratio, budget, rank
from grace_store.values.score_spec import ScoreSpec

MIN_SAMPLES = 8
NOTE_SECONDS = 10.0
PANEL_SIDE = 260
TOO_WIDE = 0.25
"""A correlation whose interval reaches further to either side says nothing of how well an order is kept."""
KEPT_ORDER = {
    0.7: "the order of whole gradients",
    0.3: "much of the order of whole gradients, not all of it",
    0.0: "little of the order of whole gradients",
    -np.inf: "nothing of the order of whole gradients",
}
"""How the order that is kept is told, by what its correlation is surely above."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """What was found, and the scores behind it."""

    document: FidelityDocument
    """Without the samples."""
    sample_id: list[str]
    scores: dict[str, RaggedScores]
    """All scores, "proxy" first, then by set of parameters."""

    def with_samples(self) -> FidelityDocument:
        """Return the document with every number behind it."""
        samples = tuple(self._sample(number) for number in range(len(self.sample_id)))
        return self.document.model_copy(update={"samples": samples})

    def _sample(self, number: int) -> FidelitySample:
        scores = {}
        for name, found in self.scores.items():
            steps = slice(int(found.offsets[number]), int(found.offsets[number + 1]))
            scores[name] = SampleAlignments(
                value=float(found.value[number]),
                answer_alignment=tuple(found.answer_alignment[steps].tolist()),
                history_alignment=tuple(found.history_alignment[steps].tolist()),
            )
        return FidelitySample(sample_id=self.sample_id[number], scores=scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityRequest:
    """Which samples' gradients are taken, and where everything that it needs is now, if it moved."""

    spec: ScoreSpec = field(default_factory=ScoreSpec)
    signal: str | None = None
    """The proxy signal; None for the only one."""
    num_samples: int = 64
    ratio: Ratio = "0.2"
    seed: int = 0
    """Which samples, and the draws."""
    draws: int = 200
    num_layer_groups: int = 0
    """Also over the parameters of each of this many groups of layers."""
    lora: bool = True
    """Also over the adapter's own parameters, if there is one."""
    model: str | None = None
    adapter: str | None = None
    data: Sequence[str] | None = None
    images: str | None = None
    options: RunOptions = field(default_factory=RunOptions)


def fidelity(store: StoreLike, request: FidelityRequest | None = None, *, listener: Listener = ignore) -> Fidelity:
    """Take whole gradients of a seeded sample of the done ones, and compare their alignments with the stored ones."""
    request = request or FidelityRequest()
    opened = store if isinstance(store, Store) else Store.open(store)
    view = opened.signal(request.signal)
    if view.signal.spec.kind != "proxy":
        raise SettingError(f"signal {view.name!r} holds gradients itself: fidelity is measured for a proxy signal")
    if request.num_samples < MIN_SAMPLES:
        asked = counted(request.num_samples, "sample")
        raise SettingError(f"{asked}: too few to correlate anything; take at least {MIN_SAMPLES}")
    if request.draws < 1:
        raise SettingError(f"draws {request.draws} is not at least 1")
    ratio = request.ratio
    budget(ratio, 0)  # says so if it is no ratio
    positions, true = _gradients(view, _choose(view, request.num_samples, request.seed), request, listener)
    samples = samples_at(view, positions)
    proxy, tokens = [each.gram for each in samples], [each.num_tokens for each in samples]
    scores = {"proxy": score_grams(proxy, tokens, request.spec)}
    scores |= {space: score_grams(grams, tokens, request.spec) for space, grams in true.items()}
    document = FidelityDocument(
        store=opened.location,
        plan_sha256=opened.plan.digest(),
        signal=view.name,
        num_samples=len(proxy),
        num_steps=int(scores["proxy"].offsets[-1]),
        ratio=str(ratio),
        by_chance=jaccard_by_chance(len(proxy), budget(ratio, len(proxy))),
        spaces={space: _compare(scores["proxy"], scores[space], request) for space in true},
    )
    document = document.model_copy(update={"conclusion": conclude_fidelity(document)})
    return Fidelity(document, [each.sample_id for each in samples], scores)


def _choose(view: SignalView, num_samples: int, seed: int) -> list[int]:
    """Return positions of a random few of the done samples, ascending: a function of the seed and the rows alone."""
    reader = BlockReader(view.store, (view.name,), gram=False)
    blocks = [(block.sample, block.row) for block in reader.map(lambda block: block)]
    sample = np.concatenate([each for each, _ in blocks]) if blocks else np.zeros(0, np.int64)
    row = np.concatenate([each for _, each in blocks]) if blocks else np.zeros(0, np.int64)
    if len(sample) < MIN_SAMPLES:
        done = counted(len(sample), "done sample")
        raise SettingError(f"signal {view.name!r} has {done}: at least {MIN_SAMPLES} are needed to correlate anything")
    order = rank(random_values(seed, row), row)
    return sorted(int(position) for position in sample[order[:num_samples]])


def _gradients(
    view: SignalView, chosen: Sequence[int], request: FidelityRequest, listener: Listener
) -> tuple[list[int], dict[str, list[FloatArray]]]:
    """Return the positions of the samples that can still be used, and their Grams for each set of parameters."""
    from grace_store.model.gradients.true_gradients import open_gradients

    model = request.model or view.signal.origin["model"]
    adapter = request.adapter or view.signal.origin.get("adapter")
    check_same(view, model, ExtractRequest(), request.options, model_door(PROXY), adapter)
    watch = Watch(request.options.patience, listener)
    with open_dataset(view.store, request.data) as dataset, watch:
        folder = image_folder(request.images, view, dataset)
        samples = UnitLoader(view.store, dataset).read_some(chosen)
        gradients = open_gradients(
            model,
            view.signal.spec,
            request.options,
            adapter=adapter,
            images=folder,
            num_layer_groups=request.num_layer_groups,
            lora=request.lora,
        )
        grams: dict[str, list[FloatArray]] = {space: [] for space in gradients.spaces}
        positions = []
        began = told = time.monotonic()
        for number, (position, sample) in enumerate(zip(chosen, samples, strict=True)):
            with watch.over(f"the gradients of sample {number + 1} of {len(chosen)}"):
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
            f"{len(positions)} of {len(chosen)} samples can still be used; at least {MIN_SAMPLES} are needed to "
            f"correlate anything. Is the dataset, with its images, the one that the store was planned from?"
        )
    return positions, grams


def _compare(proxy: RaggedScores, true: RaggedScores, request: FidelityRequest) -> SpaceFidelity:
    each = np.arange(len(proxy.value) + 1)
    drawn = {"draws": request.draws, "seed": request.seed}
    return SpaceFidelity(
        answer_alignment=agreement(proxy.answer_alignment, true.answer_alignment, proxy.offsets, **drawn),
        history_alignment=agreement(proxy.history_alignment, true.history_alignment, proxy.offsets, **drawn),
        value=agreement(proxy.value, true.value, each, **drawn),
        chosen=survival(proxy.value, true.value, request.ratio, **drawn),
    )


def conclude_fidelity(found: FidelityDocument) -> str:
    """Return whether the proxy keeps the order of whole gradients and their subset, or that samples are too few."""
    name, space = next(iter(found.spaces.items()))
    value = space.value
    over = f"over {counted(found.num_samples, 'sample')}"
    if not np.isfinite(value.correlation):
        return f"Nothing can be said of orders: {over}, values do not differ."
    reached = reach(value.low, value.high)
    if reached > TOO_WIDE or (value.low <= 0 and reached > WIDE):
        enough = num_wanted(found.num_samples, reached, WIDE)
        return (
            f"Too few samples to say whether the proxy keeps the order of whole gradients: {over}, values have a rank "
            f"correlation of {shown_agreement(value)}. About {enough} would narrow that to {WIDE:.1f} to either side."
        )
    share = next(words for least, words in KEPT_ORDER.items() if value.low > least)
    order = f"The proxy keeps {share}: {over}, values have a rank correlation of {shown_agreement(value)}"
    others = [f"{shown_agreement(each.value)} over {other}" for other, each in found.spaces.items() if other != name]
    more = f" ({', '.join(others)})" if others else ""
    return f"{order}{more}. {_of_subset(space.chosen, found)}"


def _of_subset(chosen: Survival, found: FidelityDocument) -> str:
    shown = f"{chosen.jaccard:.2f} ({chosen.low:.2f} to {chosen.high:.2f})"
    chance = f"random choices would share {found.by_chance:.2f}"
    if chosen.low > found.by_chance:
        return f"It chooses much like gradients would: of the best {found.ratio}, both share {shown}, and {chance}."
    return f"That its subset is theirs is not shown: of the best {found.ratio}, both share {shown}, and {chance}."


def shown_agreement(each: Agreement) -> str:
    """Return a correlation with its interval, as tables and sentences have it.

    >>> shown_agreement(Agreement(0.8, 0.7, 0.9, 64))
    '0.80 (0.70 to 0.90)'
    """
    return f"{each.correlation:.2f} ({each.low:.2f} to {each.high:.2f})"


def write_fidelity(found: Fidelity, out: Path | None = None, figure: Path | None = None) -> None:
    """Write every number behind the audit as JSON, and a picture of it as SVG."""
    if out is not None:
        write_document(out, found.with_samples())
    if figure is not None:
        write_text(figure, fidelity_svg(found))


def fidelity_svg(found: Fidelity) -> str:
    """Return an SVG: alignment with the answer, with history, and values, the proxy's against the gradients'."""
    panels = [
        _panel(found, "answer_alignment", "Answer alignment of steps", "steps"),
        _panel(found, "history_alignment", "History alignment of steps", "steps"),
        _panel(found, "value", "Value of samples", "samples"),
    ]
    amount = f"{counted(found.document.num_samples, 'sample')}, signal {found.document.signal}"
    return draw_panels(panels, f"The proxy against parameter gradients ({amount})", "Dashed: where both are equal.")


def _panel(found: Fidelity, name: str, title: str, what: str) -> Panel:
    proxy, gradient = (getattr(found.scores[space], name).tolist() for space in ("proxy", "representation"))
    each: Agreement = getattr(found.document.spaces["representation"], name)
    return Panel(
        Axis("proxy"),
        Axis("whole gradient"),
        [Series("", [Point(*pair) for pair in zip(proxy, gradient, strict=True)], "dots")],
        title=title,
        note=f"rank correlation {each.correlation:.2f}, {each.num_pairs} {what}",
        width=PANEL_SIDE,
        height=PANEL_SIDE,
        equal_axes=True,
    )
