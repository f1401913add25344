"""Stability: measure how much of a subset survives another checkpoint, less precision, or other steps."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import SettingError, UnknownName
from grace_store.base.events import Listener, ignore
from grace_store.base.finding import NARROW, WIDE, Cell, Column, Estimate, Finding, Table, make_columns
from grace_store.base.settings import Settings, Storage
from grace_store.base.text import counted, enumerated, percent
from grace_store.pool.pool import Pool, PoolLike
from grace_store.pool.walk import SignalReader, Threads, map_ordered
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.score_table import ScoreTable
from grace_store.store.opened import SignalView
from grace_store.store.storages import STORAGES, packed_grams, stored_form
from grace_store.study import Study
from grace_store.values.agreement import jaccard_by_chance, share_kept, step_survival, survival
from grace_store.values.measures import MEASURES, Responses, trace_values
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.ranking import budget

MAX_DECODED = 20_000
"""Most samples for the test of precision, which reads their vectors; their units are spread evenly."""
ENOUGH_CHOSEN = 10
"""Fewest chosen samples for a conclusion: among fewer, one sample changes the share by more than a tenth."""
SHARES = {0.9: "Nearly all", 0.7: "Most", 0.5: "More than half", 0.0: "Less than half"}
"""Words for the share that survives, by the smallest share that they describe."""
STEPS = "steps drawn anew"


class StabilitySettings(Settings):
    """Measure how much of a subset survives small changes.

    The subset is chosen again by other signals in STORE (another checkpoint, warm-up seed or warm-up size), from
    vectors stored with less precision, and with each trace's steps drawn at random with replacement. Beside the share
    that stays stands the Jaccard index, samples in both subsets over samples in either: 1 is the same subset.
    """

    against: tuple[str, ...] = ()
    """Signal to compare with. [default: all other signals]"""
    ratio: str = "0.2"
    """Share of the samples to choose."""
    score: ScoreSpec = ScoreSpec()
    draws: int = Field(default=200, ge=1)
    """Number of random draws of each trace's steps."""
    seed: int = Field(default=0, ge=0)
    """Seed of the random draws."""


def stability(pool: PoolLike, settings: StabilitySettings | None = None, *, listener: Listener = ignore) -> Finding:
    """Choose by one signal, then again under each change, and compare the subsets."""
    settings, pool = settings or StabilitySettings(), Pool.of(pool)
    view, spec = pool.signal, settings.score
    if len(spec.measure) > 1:
        raise SettingError(f"stability takes one measure: {len(spec.measure)} are given, {', '.join(spec.measure)}")
    budget(settings.ratio, 0)  # raises SettingError if this is not a ratio
    others, skipped = _others(pool, view, settings.against)

    def scored(name: str) -> ScoreTable:
        wanted = ScoreRequest(spec=settings.score, signals=name, partial=pool.partial)
        found = score(pool.store, wanted, threads=pool.threads).by_row()
        return found if pool.kept is None else found.among(pool.rows)

    table = scored(view.name)
    num_samples = int(np.isfinite(table.value).sum())
    if not num_samples:
        raise SettingError(f"no sample of signal {view.name!r} has a value by these settings")
    count = budget(settings.ratio, num_samples)
    tried = {}
    for name in others:
        other = scored(name)
        tried[f"signal {name}"] = _against(table, other.row, other.value, settings)
    how = spec.measures[0].aggregation
    is_mean = (
        spec.aggregation == "mean" and MEASURES[spec.names[0]].is_mean_of_steps if how is None else str(how) == "mean"
    )
    if spec.has_steps and is_mean:
        flat = table.flat("step_score")
        drawn = {"draws": settings.draws, "seed": settings.seed}
        tried[STEPS] = step_survival(table.value, flat, table.offsets, settings.ratio, table.question, **drawn)
    by_storage = _by_storage(view, table, settings, pool.threads) if spec.reads_grams else {}
    by_chance = jaccard_by_chance(num_samples, count)
    chosen = f"{count} chosen of {counted(num_samples, 'sample')}"
    notes = [f"Left out, with one vector per sample and no steps: {', '.join(skipped)}."] if skipped else []
    if not spec.reads_model:
        notes.append(f"The measure {spec.title} comes from the plan alone, so every signal chooses the same subset.")
    elif not others:
        remedy = "To add one: `warmup --seed 1 --out other`, then `extract --adapter other`."
        notes.append(f"There is no other signal with steps to compare with. {remedy}")
    return Finding(
        study="stability",
        pool=pool.note(SignalReader(pool.store, (view.name, *others), reads=("responses",))),
        settings=settings.model_dump(mode="json"),
        conclusion=conclude_stability(tried, by_storage, num_samples, count),
        numbers={"signal": view.name, "num_samples": num_samples, "num_chosen": count, "by_chance": by_chance},
        tables={"changes": _table(f"{chosen} by signal {view.name}", {**tried, **by_storage}, num_samples, count)},
        notes=tuple(notes),
    )


def _table(title: str, tried: Mapping[str, Estimate], num_samples: int, count: int) -> Table:
    rows: list[dict[str, Cell]] = [
        {"change": name, "still": share_kept(each.value), "jaccard": each, "num_samples": each.num}
        for name, each in tried.items()
    ]
    by_chance = jaccard_by_chance(num_samples, count)
    rows.append({"change": "two random subsets", "still": count / num_samples, "jaccard": by_chance})
    columns = make_columns(
        change="chosen again",
        still=Column(heading="still chosen", is_share=True),
        jaccard=Column(heading="Jaccard, 95 %", chance=by_chance),
        num_samples="samples",
    )
    about = "Jaccard: samples in both subsets over samples in either. 1 is the same subset."
    return Table(title=title, columns=columns, rows=tuple(rows), about=about, is_drawn=True)


def _others(pool: Pool, view: SignalView, against: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the signals to compare with, and the signals left out because they have no steps."""
    store = pool.store
    names = [name for name in store.signal_names if name != view.name]
    if not against:
        skipped = [name for name in names if store.signal(name).per_sample]
        return [name for name in names if name not in skipped], skipped
    if unknown := [name for name in against if name not in names]:
        known = ", ".join(names) or "none"
        raise UnknownName(f"{store.location} has no other signal {', '.join(map(repr, unknown))} (there are: {known}).")
    return list(against), []


def _against(table: ScoreTable, row: IntArray, value: FloatArray, settings: StabilitySettings) -> Estimate:
    """Return how much of the choice by a table survives other values of the samples with these dataset rows."""
    _, mine, theirs = np.intersect1d(table.row, row, assume_unique=True, return_indices=True)
    return survival(table.value[mine], value[theirs], settings.ratio, table.question[mine])


def _by_storage(
    view: SignalView, table: ScoreTable, settings: StabilitySettings, threads: Threads
) -> dict[str, Estimate]:
    """Return how much survives scoring from the stored vectors, and from vectors with less precision."""
    order = tuple(STORAGES)
    storages = order[order.index(view.signal.spec.storage) :]
    reader, spec = SignalReader(view.store, (view.name,), reads=("vectors",)), settings.score
    units, wanted = list(view.committed_units()), max(1, MAX_DECODED // view.store.plan.samples_per_unit)
    if len(units) > wanted:
        units = [units[i * len(units) // wanted] for i in range(wanted)]
    found = list(map_ordered(lambda unit: _unit_values(reader, unit, spec, storages), units, reader.threads(threads)))
    rows = np.concatenate([row for row, _ in found])
    return {
        f"vectors as {name}": _against(table, rows, value, settings)
        for name, value in zip(storages, np.concatenate([value for _, value in found], axis=1), strict=True)
    }


def _unit_values(
    reader: SignalReader, unit: int, spec: ScoreSpec, storages: Sequence[Storage]
) -> tuple[IntArray, FloatArray]:
    """Return the dataset rows of a unit's samples and, for each storage, their values from vectors in that storage."""
    view, found = reader.views[0], reader.vectors(0, unit)
    assert found is not None  # only committed units are read
    start, stop = view.store.plan.unit_range(unit)
    num_steps = view.store.column("sample_num_steps", start, stop).astype(np.int64)
    row = view.store.column("sample_row", start, stop).astype(np.int64)
    total = int((num_steps + 1).sum())
    vectors = found.decoded(slice(total))
    tokens = found.num_tokens[:total]
    values = []
    for storage in storages:
        # Stored vectors are used as they are: the same storage loses nothing.
        kept = vectors if storage == view.signal.spec.storage else stored_form(vectors, storage)
        gram = packed_grams(kept, num_steps + 1)
        samples = Responses(spec=spec, row=row, num_steps=num_steps, num_tokens=tokens, gram=gram)
        values.append(trace_values(spec.measures[0], samples))
    return row, np.stack(values)


def conclude_stability(
    tried: Mapping[str, Estimate], by_storage: Mapping[str, Estimate], num_samples: int, num_chosen: int
) -> str:
    """Return sentences about how much of the subset survives, or that samples are too few."""
    precision = ""
    if by_storage and math.isfinite((last := list(by_storage.items())[-1])[1].value):  # the least precise storage
        name, share = last[0].replace("as", "stored as"), percent(share_kept(last[1].value))
        precision = f"From {name}, {share} would be chosen again ({last[1].value:.3f})."
    if not tried and not by_storage:
        precision = "this measure does not depend on the precision of vectors"
        return f"Nothing could be tried: there is no other signal to compare with, and {precision}."
    if not tried:
        precision = _too_few(list(by_storage.values()), num_samples, num_chosen) or precision
        return f"Nothing but precision could be tried. {precision}".strip()
    short = _too_few(list(tried.values()), num_samples, num_chosen)
    return short or f"{_survives(tried, num_samples, num_chosen)} {precision}".strip()


def _too_few(tried: Sequence[Estimate], num_samples: int, num_chosen: int) -> str:
    """Return why the samples are too few for a conclusion; empty if they are enough."""
    widest = max(tried, key=lambda each: each.half_width)
    if widest.half_width <= WIDE and num_chosen >= ENOUGH_CHOSEN:
        return ""
    told = "Too few samples to say how much of the subset survives"
    of = f"{num_chosen} chosen of {counted(num_samples, 'sample')}"
    enough = math.ceil(num_samples * ENOUGH_CHOSEN / num_chosen / 10) * 10
    if not widest.is_known:
        return f"{told}: {of} have no interval. About {enough} samples like these would do."
    enough = max(enough, widest.num_wanted(num_samples))
    return (
        f"{told}: {of} leave Jaccard indices anywhere between {widest.low:.3f} and {widest.high:.3f}. About {enough} "
        f"samples like these would narrow that to {NARROW:.2f} to either side."
    )


def _survives(tried: Mapping[str, Estimate], num_samples: int, num_chosen: int) -> str:
    """Return a sentence about the share of the subset that survives each change, the smallest share first."""
    by_chance = jaccard_by_chance(num_samples, num_chosen)
    ordered = sorted(tried, key=lambda name: tried[name].value)
    worst = tried[ordered[0]]
    share = share_kept(worst.value)
    numbers = (
        f"Jaccard {worst.value:.3f}, {worst.low:.3f} to {worst.high:.3f}; two random subsets share {by_chance:.3f}"
    )
    stay = f"{percent(share)} of the {num_chosen} chosen stay when {_happens(ordered[0])} ({numbers})"
    others = [
        f"{percent(share_kept(tried[name].value))} when {_happens(name)} ({tried[name].value:.3f})"
        for name in ordered[1:]
    ]
    more = f", {enumerated(others)}" if others else ""
    if worst.low <= by_chance:
        return f"The subset does not survive: {stay}{more}."
    words = next(words for least, words in SHARES.items() if share >= least)
    return f"{words} of the subset survives: {stay}{more}."


def _happens(change: str) -> str:
    return "each trace's steps are drawn anew" if change == STEPS else f"{change} chooses"


STUDY = Study(
    find=stability,
    settings=StabilitySettings,
    examples=(
        "grace-store stability traces.zarr --ratio 0.2",
        "grace-store stability traces.zarr --out stability.json",
        "grace-store stability traces.zarr --signal checkpoint-100 --against seed-2 --against checkpoint-25",
    ),
    signal="Signal that chooses the subset. [default: the only signal]",
)
