"""Score signals with one vector a sample by heuristics, from the tokens and losses of whole responses; no vector."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from grace_store.artifacts.filtered_scores import where_note
from grace_store.artifacts.made_from import scores_note
from grace_store.artifacts.notes import ScoresNote
from grace_store.artifacts.outputs import Source, sources_of
from grace_store.artifacts.score_table import ScoreRows
from grace_store.base.arrays import Array, BoolArray, FlagArray, FloatArray, IntArray
from grace_store.base.errors import SettingError
from grace_store.base.flags import Flag
from grace_store.read.kept_samples import Kept
from grace_store.read.parallel import Threads, map_ordered
from grace_store.read.signal_choice import SignalWeights
from grace_store.read.vectors import VectorReader
from grace_store.store.opened import Store
from grace_store.values.combine import combine_signals
from grace_store.values.methods.method import Heuristic, Responses
from grace_store.values.methods.method_spec import MethodSpec


def are_whole_responses(store: Store, weights: SignalWeights) -> bool:
    """Return whether signals have one vector a sample; raise if some have and others have one a segment."""
    whole = [name for name in weights.names if store.signal(name).per_sample]
    if whole and len(whole) < len(weights.names):
        others = ", ".join(name for name in weights.names if name not in whole)
        raise SettingError(
            f"signal {', '.join(whole)} has one vector a sample and {others} one a segment: score either kind alone"
        )
    return bool(whole)


def heuristic_flags(value: FloatArray, missing: BoolArray) -> FlagArray:
    """Return the flags of samples with these values, some of which one of the signals lacks."""
    flags = missing * np.uint8(Flag.MISSING_SIGNAL) | (~missing & np.isnan(value)) * np.uint8(Flag.NO_VALUE)
    return flags.astype(np.uint8)


@dataclass(frozen=True, slots=True)
class ResponseScoring:
    """One scoring: what is read, by which settings, and what its table says of it."""

    reader: VectorReader
    weights: SignalWeights
    note: ScoresNote
    kept: Kept | None = None

    @property
    def sources(self) -> list[Source]:
        """What a table must not be written over."""
        return sources_of(self.reader.store)

    @classmethod
    def of(
        cls, store: Store, spec: MethodSpec, weights: SignalWeights, *, partial: bool, kept: Kept | None = None
    ) -> Self:
        reader = VectorReader(store, weights.names)
        reader.check_complete(partial=partial)
        return cls(reader, weights, scores_note(reader, spec, weights, where=where_note(kept)), kept)

    def tables(self, threads: Threads) -> Iterator[tuple[pa.Table, Array]]:
        """Yield rows of the table in order, with the samples' flags as numbers."""
        return map_ordered(self._table, self.reader.starts(), threads)

    def _table(self, start: int) -> tuple[pa.Table, Array]:
        store = self.reader.store
        stop = self.reader.stop(start)
        row, num_steps = (
            store.column(name, start, stop).astype(np.int64) for name in ("sample_row", "sample_num_steps")
        )
        found = [self._signal(number, start, row, num_steps) for number in range(len(self.reader.names))]
        has, values, tokens = (np.stack(each) for each in zip(*found, strict=True))
        wanted = True if self.kept is None else self.kept.is_kept[start:stop]
        kept = np.flatnonzero(has.any(axis=0) & wanted)
        value = combine_signals(values, list(self.weights.weights.values()))[kept]
        text_flags = store.text_flags(start, stop)
        rows = ScoreRows(
            sample_id=store.column("sample_id", start, stop)[kept],
            row=row[kept],
            num_steps=num_steps[kept],
            # Where signals tokenise differently, of the first one that has the sample.
            num_tokens=tokens[has.argmax(axis=0), np.arange(stop - start)][kept],
            value=value,
            flags=heuristic_flags(value, ~np.asarray(has[:, kept].all(axis=0))),
            text_flags=None if text_flags is None else text_flags[kept],
        )
        return rows.to_table(self.note), rows.all_flags

    def _signal(
        self, number: int, start: int, row: IntArray, num_steps: IntArray
    ) -> tuple[BoolArray, FloatArray, IntArray]:
        """Return of all samples of a block, by one signal: is it done, its value (NaN if not), its tokens."""
        parts = [self.reader.response(number, unit) for unit in self.reader.units(start)]
        done, tokens, loss = (np.concatenate(each) for each in zip(*parts, strict=True))
        parts_of = np.ones(len(row), np.int64)
        samples = Responses(row=row, num_steps=num_steps, num_parts=parts_of, num_tokens=tokens, loss=loss)
        method = self.note.method
        assert isinstance(method, Heuristic)
        value = method.values(self.note.spec, samples)
        return done, np.where(done, value, np.nan), tokens.astype(np.int64)
