"""Fidelity: does the proxy follow the gradient on the user's data? Compare whole gradients with stored proxies."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from grace_store.base.arrays import FloatArray, IntArray, Positions, aranges
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.finding import WIDE, Cell, Column, Estimate, Finding, Table, make_columns
from grace_store.base.settings import ExtractSpec, RunOptions, Settings
from grace_store.base.text import counted
from grace_store.base.watch import Watch
from grace_store.pool.pool import Pool, PoolLike
from grace_store.pool.records import UnitLoader, image_folder, open_dataset
from grace_store.pool.samples import samples_at
from grace_store.pool.walk import SignalReader
from grace_store.run.extractor_protocol import PROXY, model_door
from grace_store.run.open_signal import check_same
from grace_store.study import Study
from grace_store.values.agreement import agreement, jaccard_by_chance, survival
from grace_store.values.intervals import FEWEST_QUESTIONS
from grace_store.values.methods.grace import RaggedScores, score_grams
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.random_values import random_values
from grace_store.values.ranking import budget, rank

MIN_SAMPLES = 8
NOTE_SECONDS = 10.0
TOO_WIDE = 0.25
"""Largest half-width with which the interval of a correlation says something about the order."""
KEPT_ORDER = {
    0.7: "the order of whole gradients",
    0.3: "much of the order of whole gradients, not all of it",
    0.0: "little of the order of whole gradients",
    -np.inf: "nothing of the order of whole gradients",
}
"""Words for the share of the order that is kept, by the correlation that the whole interval exceeds."""
PROXY_SCORES = "proxy"
"""The name of the stored scores among the sets of parameters."""


class FidelitySettings(Settings):
    """Measure how well GRACE's proxy follows whole gradients.

    Every segment of a few samples takes a backward pass. The alignments of steps with answer and history are computed
    from these gradients, over the parameters that make the last hidden state and over those of the adapter, and
    compared with the proxy's.
    """

    model: str | None = None
    """Model of the signal, if the model has moved. [default: the earlier place]"""
    adapter: str | None = None
    """Adapter of the signal, if the adapter has moved. [default: the earlier place]"""
    samples: int = Field(default=64, ge=MIN_SAMPLES)
    """Number of random samples whose gradients are computed."""
    ratio: str = "0.2"
    """Share of the samples to choose."""
    score: ScoreSpec = ScoreSpec()
    layers: int = Field(default=0, ge=0)
    """Number of groups of layers. Each group is also measured by itself. [default: all layers together]"""
    lora: bool = True
    """Also measure over the adapter's own parameters, if the signal has an adapter."""
    seed: int = Field(default=0, ge=0)
    """Seed of the random samples."""
    images: str | None = None
    """Folder that relative image paths start from. [default: the folder that the signal's first run used]"""
    device: str = "auto"
    """Device that runs the model."""


def fidelity(pool: PoolLike, settings: FidelitySettings | None = None, *, listener: Listener = ignore) -> Finding:
    """Compute whole gradients of random done samples, and compare their alignments with the stored ones."""
    settings, pool = settings or FidelitySettings(), Pool.of(pool)
    view = pool.signal
    if view.signal.spec.kind != "proxy":
        raise SettingError(
            f"signal {view.name!r} holds gradients: fidelity is measured only for proxy signals. Give a proxy signal"
        )
    if not settings.score.is_grace:
        raise SettingError(f"fidelity compares step scores of grace: leave --measure {settings.score.title} out")
    budget(settings.ratio, 0)  # raises SettingError if this is not a ratio
    reader = SignalReader(pool.store, (view.name,), pool.wanted, reads=())
    positions, true = _gradients(pool, _choose(reader, settings.samples, settings.seed), settings, listener)
    samples = samples_at(view, positions)
    proxy, tokens = [each.gram for each in samples], [each.num_tokens for each in samples]
    scores = {PROXY_SCORES: score_grams(proxy, tokens, settings.score)}
    scores |= {space: score_grams(grams, tokens, settings.score) for space, grams in true.items()}
    question = pool.questions(Positions(np.array(positions)))
    spaces = {space: _compare(scores[PROXY_SCORES], scores[space], settings.ratio, question) for space in true}
    by_chance = jaccard_by_chance(len(proxy), budget(settings.ratio, len(proxy)))
    num_steps = int(scores[PROXY_SCORES].offsets[-1])
    ids = [each.sample_id for each in samples]
    amount = f"{counted(len(proxy), 'sample')}, {counted(num_steps, 'step')}"
    title = f"The proxy of signal {view.name} against gradients, {amount}"
    values = {name: Column(heading=name) for name in ("sample_id", *scores)}
    by_sample = zip(ids, *(found.value.tolist() for found in scores.values()), strict=True)
    value_rows = tuple(dict(zip(values, row, strict=True)) for row in by_sample)
    return Finding(
        study="fidelity",
        pool=pool.note(reader),
        settings=settings.model_dump(mode="json"),
        conclusion=conclude_fidelity(spaces, len(proxy), settings.ratio, by_chance),
        numbers={"signal": view.name, "num_samples": len(proxy), "num_steps": num_steps, "by_chance": by_chance},
        tables={
            "spaces": _space_table(title, spaces, settings.ratio),
            "values": Table(title="Values of samples", columns=values, rows=value_rows, is_shown=False),
            "steps": _step_table(ids, scores),
        },
        notes=(
            f"Rank correlations with 95 % intervals over questions; two random choices would share {by_chance:.2f}.",
        ),
    )


def _space_table(title: str, spaces: Mapping[str, Mapping[str, Estimate]], ratio: str) -> Table:
    columns = make_columns(
        parameters="over parameters",
        value=Column(heading="value", digits=2, chance=0.0),
        answer_alignment=Column(heading="answer alignment", digits=2),
        history_alignment=Column(heading="history alignment", digits=2),
        chosen=Column(heading=f"best {ratio} shared", digits=2),
    )
    rows = tuple({"parameters": name, **space} for name, space in spaces.items())
    return Table(title=title, columns=columns, rows=rows, is_drawn=True)


def _step_table(ids: Sequence[str], scores: Mapping[str, RaggedScores]) -> Table:
    """Return the alignments of every step, by the proxy and by each set of parameters."""
    names = ("sample_id", "step", "parameters", "answer_alignment", "history_alignment")
    rows: list[dict[str, Cell]] = []
    for space, found in scores.items():
        num_steps = np.diff(found.offsets)
        sample = np.repeat(np.arange(len(ids)), num_steps).tolist()
        step = aranges(num_steps).tolist()
        both = zip(found.answer_alignment.tolist(), found.history_alignment.tolist(), strict=True)
        for i, k, pair in zip(sample, step, both, strict=True):
            rows.append(dict(zip(names, (ids[i], k + 1, space, *pair), strict=True)))
    columns = {name: Column(heading=name.replace("_", " ")) for name in names}
    return Table(title="Alignments of steps", columns=columns, rows=tuple(rows), is_shown=False)


def _choose(reader: SignalReader, num_samples: int, seed: int) -> list[int]:
    """Return positions of random done samples, ascending: a function of the seed and the rows alone."""
    view = reader.views[0]
    blocks = [(block.sample, block.row) for block in reader.map(lambda block: block)]
    sample = np.concatenate([each for each, _ in blocks]) if blocks else np.zeros(0, np.int64)
    row = np.concatenate([each for _, each in blocks]) if blocks else np.zeros(0, np.int64)
    if len(sample) < MIN_SAMPLES:
        done = counted(len(sample), "done sample")
        raise SettingError(f"signal {view.name!r} has {done}: at least {MIN_SAMPLES} are needed to correlate anything")
    return sorted(int(position) for position in sample[rank(random_values(seed, row), row)[:num_samples]])


def _gradients(
    pool: Pool, chosen: Sequence[int], settings: FidelitySettings, listener: Listener
) -> tuple[list[int], dict[str, list[FloatArray]]]:
    """Return the positions of the usable samples, and their Grams for each set of parameters."""
    from grace_store.model.gradients.true_gradients import open_gradients

    threads = pool.threads if isinstance(pool.threads, int) else None
    view, options = pool.signal, RunOptions(device=settings.device, threads=threads)
    model = settings.model or view.signal.origin["model"]
    adapter = settings.adapter or view.signal.origin.get("adapter")
    check_same(view, model, ExtractSpec(), options, model_door(PROXY), adapter)
    watch = Watch(options.patience, listener)
    with open_dataset(view.store, pool.data) as dataset, watch:
        folder = image_folder(settings.images, view, dataset)
        samples = UnitLoader(view.store, dataset).read_some(chosen)
        gradients = open_gradients(
            model,
            view.signal.spec,
            options,
            adapter=adapter,
            images=folder,
            num_layer_groups=settings.layers,
            lora=settings.lora,
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


def _compare(proxy: RaggedScores, true: RaggedScores, ratio: str, question: IntArray) -> dict[str, Estimate]:
    each, steps = np.arange(len(proxy.value) + 1), proxy.offsets
    return {
        "value": agreement(proxy.value, true.value, each, question),
        "answer_alignment": agreement(proxy.answer_alignment, true.answer_alignment, steps, question),
        "history_alignment": agreement(proxy.history_alignment, true.history_alignment, steps, question),
        "chosen": survival(proxy.value, true.value, ratio, question),
    }


def conclude_fidelity(
    spaces: Mapping[str, Mapping[str, Estimate]], num_samples: int, ratio: str, by_chance: float
) -> str:
    """Return whether the proxy keeps the order of whole gradients and the subset, or whether samples are too few."""
    name, space = next(iter(spaces.items()))
    value = space["value"]
    over = f"over {counted(num_samples, 'sample')}"
    if not np.isfinite(value.value):
        return f"Nothing can be said of orders: {over}, values do not differ."
    if value.half_width > TOO_WIDE or (value.low <= 0 and value.half_width > WIDE):
        wanted = f"At least {FEWEST_QUESTIONS} questions are wanted."
        if value.is_known:
            wanted = f"About {value.num_wanted(num_samples, WIDE)} would narrow that to {WIDE:.1f} to either side."
        return (
            f"Too few samples to say whether the proxy keeps the order of whole gradients: {over}, values have a rank "
            f"correlation of {value.text(2)}. {wanted}"
        )
    share = next(words for least, words in KEPT_ORDER.items() if value.low > least)
    order = f"The proxy keeps {share}: {over}, values have a rank correlation of {value.text(2)}"
    others = [f"{each['value'].text(2)} over {other}" for other, each in spaces.items() if other != name]
    more = f" ({', '.join(others)})" if others else ""
    chosen = space["chosen"]
    both = f"of the best {ratio}, both share {chosen.text(2)}, and random choices would share {by_chance:.2f}"
    if chosen.low > by_chance:
        return f"{order}{more}. It chooses much like gradients would: {both}."
    return f"{order}{more}. That its subset is theirs is not shown: {both}."


STUDY = Study(
    find=fidelity,
    settings=FidelitySettings,
    examples=(
        "grace-store fidelity traces.zarr --samples 64",
        "grace-store fidelity traces.zarr --model ./model --signal checkpoint-100 --layers 4 --out fidelity.json",
    ),
    signal="Signal of kind proxy to measure. [default: the only signal]",
    measure="Measure to score by: grace, or grace:AGGREGATION. [default: grace]",
)
