"""Audit a choice from stored signals: what of the subset survives another checkpoint, less precision, other steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from grace_store.artifacts.filtered_scores import keep_samples, where_note
from grace_store.artifacts.measures import StabilityDocument
from grace_store.artifacts.notes import WhereNote
from grace_store.artifacts.score_table import ScoreTable
from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import SettingError, UnknownName
from grace_store.base.settings import Storage
from grace_store.base.text import counted, enumerated, percent
from grace_store.curate.score import ScoreRequest, score
from grace_store.read.parallel import map_ordered
from grace_store.read.vectors import VectorReader
from grace_store.store.opened import SignalView, Store, StoreLike
from grace_store.store.storages import STORAGES, packed_grams, stored_form
from grace_store.values.agreement import (
    NARROW,
    WIDE,
    Survival,
    jaccard_by_chance,
    num_wanted,
    reach,
    step_survival,
    survival,
)
from grace_store.values.methods.grace import score_ragged
from grace_store.values.ranking import Ratio, budget
from grace_store.values.score_spec import ScoreSpec

MAX_DECODED = 20_000
"""Precision is tried on at most this many samples, in units spread evenly: their vectors have to be read."""
ENOUGH_CHOSEN = 10
"""Of fewer, each one that stays or goes changes the share by more than a tenth."""
SHARES = {0.9: "Nearly all", 0.7: "Most", 0.5: "More than half", 0.0: "Less than half"}
"""How a share that survives is told, from which on."""


@dataclass(frozen=True, slots=True)
class Stability:
    """What of one choice survives."""

    signal: str
    ratio: str
    num_samples: int
    num_chosen: int
    by_chance: float
    """What two random subsets of that size would share."""
    signals: dict[str, Survival]
    """The same settings with another signal: another checkpoint, warm-up seed or warm-up size."""
    storages: dict[str, Survival]
    """The same choice from vectors stored with less precision, instead of from exact Grams."""
    skipped: list[str]
    """Other signals that were not named and have no steps: one vector a sample."""
    steps: Survival | None
    """Each sample's steps drawn again from its own; None where a value is no mean of steps."""
    where: WhereNote | None = None
    """What the samples had to pass, if there was a filter."""

    @property
    def conclusion(self) -> str:
        """How much of the subset survives, or that the samples are too few to say."""
        by = {f"signal {name} chooses": each for name, each in self.signals.items()}
        if self.steps is not None:
            by["each trace's steps are drawn anew"] = self.steps
        precision = _of_precision(self.storages)
        if not by:
            return f"Nothing but precision could be tried. {precision}".strip()
        return _too_few(self, list(by.values())) or f"{_survives(by, self.by_chance)} {precision}".strip()

    def to_document(self, store: StoreLike) -> StabilityDocument:
        """Return what was found of a store as a file holds it."""
        opened = store if isinstance(store, Store) else Store.open(store)
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found |= {"skipped": tuple(self.skipped), "conclusion": self.conclusion}
        return StabilityDocument(store=opened.location, plan_sha256=opened.plan.digest(), **found)


@dataclass(frozen=True, slots=True, kw_only=True)
class StabilityRequest:
    """Which choice is examined, and what it is compared with."""

    spec: ScoreSpec = field(default_factory=ScoreSpec)
    signal: str | None = None
    against: Sequence[str] | None = None
    """Other signals; None for all others that have steps."""
    ratio: Ratio = "0.2"
    draws: int = 200
    """For the intervals, which hold 95 % of them."""
    seed: int = 0
    partial: bool = False
    where: str | None = None
    """Choose only from what this keeps, as in ScoreRequest."""
    data: Sequence[str] | None = None
    """Where the dataset is now, if it moved; only where reads it."""

    @property
    def drawn(self) -> dict[str, int]:
        return {"draws": self.draws, "seed": self.seed}


def stability(store: StoreLike, request: StabilityRequest | None = None, *, threads: int | None = None) -> Stability:
    """Choose by one signal, then again with what might have come out otherwise, and compare the subsets."""
    request = request or StabilityRequest()
    opened = store if isinstance(store, Store) else Store.open(store)
    view = opened.signal(request.signal)
    budget(request.ratio, 0)  # says so if it is no ratio
    if request.draws < 1:
        raise SettingError(f"draws {request.draws} is not at least 1")
    others, skipped = _others(opened, view, request.against)

    def scored(name: str) -> ScoreTable:
        wanted = ScoreRequest(spec=request.spec, signals=name, partial=request.partial)
        found = score(opened, wanted, threads=threads).by_row()
        return found if rows is None else found.among(rows)

    kept = keep_samples(opened, request.where, None, request.data)
    rows = None if kept is None else opened.column("sample_row")[kept.places]
    table = scored(view.name)
    num_with_value = int(np.isfinite(table.value).sum())
    if not num_with_value:
        raise SettingError(f"no sample of signal {view.name!r} has a value by these settings")
    tables = {name: scored(name) for name in others}
    count, steps = budget(request.ratio, num_with_value), None
    if request.spec.aggregation == "mean":
        flat = table.flat("step_score")
        steps = step_survival(table.value, flat, table.offsets, request.ratio, **request.drawn)
    return Stability(
        signal=view.name,
        ratio=str(request.ratio),
        num_samples=num_with_value,
        num_chosen=count,
        by_chance=jaccard_by_chance(num_with_value, count),
        signals={name: _against(table, each.row, each.value, request) for name, each in tables.items()},
        skipped=skipped,
        storages=_by_storage(view, table, request, threads),
        steps=steps,
        where=where_note(kept),
    )


def _others(store: Store, view: SignalView, against: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the signals to compare with, and those left out because they have no steps."""
    names = [name for name in store.signal_names if name != view.name]
    if against is None:
        skipped = [name for name in names if store.signal(name).per_sample]
        return [name for name in names if name not in skipped], skipped
    if unknown := [name for name in against if name not in names]:
        known = ", ".join(names) or "none"
        raise UnknownName(f"{store.location} has no other signal {', '.join(map(repr, unknown))} (there are: {known}).")
    return list(against), []


def _against(table: ScoreTable, row: IntArray, value: FloatArray, request: StabilityRequest) -> Survival:
    """Return what of the choice by a table survives other values of the samples in some rows."""
    _, mine, theirs = np.intersect1d(table.row, row, assume_unique=True, return_indices=True)
    return survival(table.value[mine], value[theirs], request.ratio, **request.drawn)


def _by_storage(
    view: SignalView, table: ScoreTable, request: StabilityRequest, threads: int | None
) -> dict[str, Survival]:
    """Score from vectors as they are stored, and as they would be with less precision."""
    order = tuple(STORAGES)
    storages = order[order.index(view.signal.spec.storage) :]
    reader, spec = VectorReader(view.store, (view.name,)), request.spec
    found = list(
        map_ordered(lambda unit: _unit_values(reader, unit, spec, storages), _spread(view), reader.threads(threads))
    )
    rows = np.concatenate([row for row, _ in found])
    values = np.concatenate([value for _, value in found], axis=1)
    return {name: _against(table, rows, value, request) for name, value in zip(storages, values, strict=True)}


def _spread(view: SignalView) -> list[int]:
    units = list(view.committed_units())
    wanted = max(1, MAX_DECODED // view.store.plan.samples_per_unit)
    return units if len(units) <= wanted else [units[i * len(units) // wanted] for i in range(wanted)]


def _unit_values(
    reader: VectorReader, unit: int, spec: ScoreSpec, storages: Sequence[Storage]
) -> tuple[IntArray, FloatArray]:
    """Return the rows of a unit's samples and, for each storage, their values from vectors so stored."""
    view, found = reader.views[0], reader.read(0, unit)
    assert found is not None  # only committed units are asked for
    start, stop = view.store.plan.unit_range(unit)
    num_steps = view.store.column("sample_num_steps", start, stop).astype(np.int64)
    total = int((num_steps + 1).sum())
    vectors = found.decoded(slice(total))
    tokens = found.num_tokens[:total]
    values = []
    for storage in storages:
        # What is stored already loses nothing by being stored the same way: it is taken as it is.
        kept = vectors if storage == view.signal.spec.storage else stored_form(vectors, storage)
        gram = packed_grams(kept, num_steps + 1)
        values.append(score_ragged(num_steps, gram, tokens, spec).value)
    return view.store.column("sample_row", start, stop).astype(np.int64), np.stack(values)


# ---------------------------------------------------------------- what it means


def _too_few(found: Stability, tried: Sequence[Survival]) -> str:
    """Return why nothing can be said yet; empty if something can."""
    widest = max(tried, key=lambda each: reach(each.low, each.high))
    reached = reach(widest.low, widest.high)
    if reached <= WIDE and found.num_chosen >= ENOUGH_CHOSEN:
        return ""
    told = "Too few samples to say how much of the subset survives"
    of = f"{found.num_chosen} chosen of {counted(found.num_samples, 'sample')}"
    enough = math.ceil(found.num_samples * ENOUGH_CHOSEN / found.num_chosen / 10) * 10
    if not math.isfinite(reached):
        return f"{told}: {of} have no interval. About {enough} samples like these would do."
    enough = max(enough, num_wanted(found.num_samples, reached))
    return (
        f"{told}: {of} leave Jaccard indices anywhere between {widest.low:.3f} and {widest.high:.3f}. About {enough} "
        f"samples like these would narrow that to {NARROW:.2f} to either side."
    )


def _survives(by: Mapping[str, Survival], by_chance: float) -> str:
    """Say what is left of the subset by the change that leaves least of it, and by the others."""
    ordered = sorted(by, key=lambda name: by[name].jaccard)
    worst = by[ordered[0]]
    numbers = (
        f"Jaccard {worst.jaccard:.3f}, {worst.low:.3f} to {worst.high:.3f}; two random subsets share {by_chance:.3f}"
    )
    stay = f"{percent(worst.share_kept)} of the {worst.num_chosen} chosen stay when {ordered[0]} ({numbers})"
    others = [f"{percent(by[name].share_kept)} when {name} ({by[name].jaccard:.3f})" for name in ordered[1:]]
    more = f", {enumerated(others)}" if others else ""
    if worst.low <= by_chance:
        return f"The subset does not survive: {stay}{more}."
    share = next(words for least, words in SHARES.items() if worst.share_kept >= least)
    return f"{share} of the subset survives: {stay}{more}."


def _of_precision(storages: Mapping[str, Survival]) -> str:
    """Say what the least precise storage would choose."""
    if not storages or not math.isfinite((worst := list(storages.items())[-1])[1].jaccard):
        return ""
    name, each = worst
    return f"From vectors stored as {name}, {percent(each.share_kept)} would be chosen again ({each.jaccard:.3f})."
