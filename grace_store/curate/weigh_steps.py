"""Weigh the steps of a store: a table out, block by block, from Grams alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

import numpy as np
import pyarrow as pa

from grace_store.artifacts.filtered_scores import where_note
from grace_store.artifacts.made_from import store_note, weighted_signals
from grace_store.artifacts.notes import WeightsNote
from grace_store.artifacts.outputs import check_outputs, sources_of
from grace_store.artifacts.weight_table import WeightTable, weight_rows, weights_schema, write_weights
from grace_store.base.arrays import BoolArray, IntArray
from grace_store.base.events import Listener, SamplesScored, ignore
from grace_store.base.flags import Flag
from grace_store.curate.score import score_signals
from grace_store.curate.weight_summary import WeightSummary
from grace_store.read.blocks import BlockReader, SampleBlock, SampleGrams
from grace_store.read.kept_samples import keep_planned
from grace_store.read.parallel import Threads
from grace_store.read.signal_choice import Signals, SignalWeights, resolve_signals
from grace_store.store.opened import Store, StoreLike
from grace_store.store.storages import num_packed
from grace_store.values.ragged_weights import RaggedWeights
from grace_store.values.step_weights import SignalGrams, weigh_ragged
from grace_store.values.weightings import WEIGHTINGS
from grace_store.values.weights_spec import WeightsSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsRequest:
    """Which steps are weighed, and how."""

    spec: WeightsSpec = field(default_factory=WeightsSpec)
    signals: Signals = None
    """A name, several, or {name: weight}; None for the only one. Several are weighed as one."""
    where: str | None = None
    """Weigh only what this keeps: a condition in SQL over fields of the records, id, row and num_steps."""
    data: Sequence[str] | None = None
    """Where the dataset is now, if it moved; where reads it."""
    partial: bool = False
    """Weigh what is there of unfinished signals."""


@dataclass(frozen=True, slots=True)
class WeightsRun:
    """What was written."""

    out: Path
    note: WeightsNote
    summary: WeightSummary

    @property
    def conclusion(self) -> str:
        """What the weights do, in a sentence or two."""
        return self.summary.conclusion


Wanted = WeightsRequest | WeightsSpec | None


@overload
def weights(
    store: StoreLike, request: Wanted = None, *, out: None = None, threads: Threads = None, listener: Listener = ignore
) -> WeightTable: ...


@overload
def weights(
    store: StoreLike, request: Wanted = None, *, out: str | Path, threads: Threads = None, listener: Listener = ignore
) -> WeightsRun: ...


def weights(
    store: StoreLike,
    request: Wanted = None,
    *,
    out: str | Path | None = None,
    threads: Threads = None,
    listener: Listener = ignore,
) -> WeightTable | WeightsRun:
    """Return the step weights of all done samples, or write them to out; a spec alone is for the only signal."""
    if not isinstance(request, WeightsRequest):
        request = WeightsRequest() if request is None else WeightsRequest(spec=request)
    weighing = _Weighing.of(store if isinstance(store, Store) else Store.open(store), request)
    summary = WeightSummary()
    tables = _counted(weighing, summary, threads, listener)
    if out is None:
        schema = weights_schema(weighing.note)
        return WeightTable(pa.concat_tables([schema.empty_table(), *tables]), weighing.note)
    out = Path(out)
    check_outputs([out], sources_of(weighing.reader.store))
    with write_weights(out, weighing.note) as writer:
        for table in tables:
            writer.write_table(table)
    return WeightsRun(out, weighing.note, summary)


def _counted(weighing: _Weighing, summary: WeightSummary, threads: Threads, listener: Listener) -> Iterator[pa.Table]:
    """Yield the tables of all blocks, adding what they hold to the summary."""
    num_samples = weighing.reader.store.plan.num_samples
    for table, found in weighing.reader.map(weighing, threads):
        summary.add(found)
        listener(SamplesScored(summary.num_samples, num_samples))
        yield table


@dataclass(frozen=True, slots=True)
class _Weighing:
    """Weighs the samples of one block after the other."""

    reader: BlockReader
    weights: SignalWeights
    note: WeightsNote

    @classmethod
    def of(cls, store: Store, request: WeightsRequest) -> _Weighing:
        signals = resolve_signals(store, request.signals)
        kept = None if request.where is None else keep_planned(store, request.where, request.data)
        reader = BlockReader(store, signals.names, wanted=None if kept is None else kept.is_kept)
        reader.check_complete(partial=request.partial)
        scored = weighted_signals(reader, signals)
        note = WeightsNote(spec=request.spec, signals=scored, **store_note(reader), where=where_note(kept))
        return cls(reader, signals, note)

    def __call__(self, block: SampleBlock) -> tuple[pa.Table, RaggedWeights]:
        found = weigh_block(block, self.note.spec, self.weights)
        return weight_rows(block, self.reader.ids(block), found), found


def weigh_block(block: SampleBlock, spec: WeightsSpec, weights: SignalWeights) -> RaggedWeights:
    """Return the step weights of a block's samples, by all its signals together."""
    in_all = np.ones(len(block), dtype=np.bool_)
    for place in block.places:
        if place is not None:
            in_all &= np.isin(np.arange(len(block)), place)
    total = sum(weights.weights.values())
    signals = [
        _taken(signal, in_all if place is None else in_all[place], share / total)
        for signal, place, share in zip(block.signals, block.places, weights.weights.values(), strict=True)
    ]
    score = None
    if WEIGHTINGS[spec.method].uses_scores:
        score = score_signals(block, spec.scores, weights).step_score[np.repeat(in_all, block.num_steps)]
    part = weigh_ragged(block.num_steps[in_all], signals, spec, score)
    if in_all.all():
        return part
    found = RaggedWeights.none(block.num_steps)
    found.flags[~in_all] = Flag.MISSING_SIGNAL
    found.put(part, np.flatnonzero(in_all))
    return found


def _taken(signal: SampleGrams, chosen: BoolArray, share: float) -> SignalGrams:
    """Return what a signal has of some of its samples."""
    if chosen.all():
        return SignalGrams(signal.gram, signal.num_tokens, share)
    num_segments: IntArray = signal.num_steps + 1
    gram = signal.gram[np.repeat(chosen, num_packed(num_segments))]
    return SignalGrams(gram, signal.num_tokens[np.repeat(chosen, num_segments)], share)
