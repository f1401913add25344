"""Score a pool by its influence on a target set: projected gradients in, a table out, block by block.

Memory is that of a unit of vectors for each thread and of the subtasks' mean gradients; a method whose values depend
on the whole pool also holds its influences, 4 bytes for each sample and subtask.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from grace_store.artifacts.filtered_scores import where_note
from grace_store.artifacts.made_from import scores_note
from grace_store.artifacts.notes import ScoresNote
from grace_store.artifacts.outputs import Source, sources_of
from grace_store.artifacts.score_table import ScoreRows
from grace_store.base.arrays import Array, BoolArray, FlagArray, Float32Array, FloatArray, IntArray
from grace_store.base.errors import SettingError
from grace_store.base.events import Listener, Note, SamplesScored, Warned, ignore
from grace_store.base.flags import Flag
from grace_store.base.text import counted
from grace_store.curate.signal_pairs import pair_signals
from grace_store.curate.targets import Targets, TargetSet, find_subtasks, read_targets
from grace_store.likeness.communities import find_communities
from grace_store.read.kept_samples import Kept
from grace_store.read.parallel import Threads, map_ordered
from grace_store.read.signal_choice import Signals
from grace_store.read.vectors import UnitVectors, VectorReader
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.opened import Store
from grace_store.values.combine import combine_signals
from grace_store.values.directions import products
from grace_store.values.methods import METHODS
from grace_store.values.methods.cadc import capability_directions, joined_pairs, self_influence_slopes, trajectories
from grace_store.values.methods.method import InfluenceMethod, Influences, Valued
from grace_store.values.methods.method_spec import InfluenceSpec


@dataclass(frozen=True, slots=True)
class InfluenceBlock:
    """Influences of the samples of one block that at least one checkpoint has, in the order of the plan."""

    sample: IntArray
    """Positions in the plan."""
    row: IntArray
    num_steps: IntArray
    num_tokens: IntArray
    influence: Float32Array
    """(n, J). Values follow from it as it is kept, so that a table agrees with itself."""
    slope: FloatArray
    """Of the squared length over checkpoints."""
    flags: FlagArray

    def __len__(self) -> int:
        return len(self.sample)


@dataclass(frozen=True, slots=True)
class PoolProducts:
    """What is read of a pool and what it is multiplied with. Threads may share it, and it may be sent elsewhere."""

    reader: VectorReader
    restores_length: bool
    """Whether gradients count as long as they are."""
    shares: Sequence[float]
    """Of the checkpoints."""
    directions: FloatArray
    """(checkpoints, J, D): what every gradient of the pool is multiplied with, for subtasks or capabilities."""
    wanted: BoolArray | None = None
    """(N,) which samples of the plan are asked for; None for all."""

    def block(self, start: int) -> InfluenceBlock:
        """Return the influences of the samples of one block."""
        store = self.reader.store
        stop = self.reader.stop(start)
        found = [self._unit(unit) for unit in self.reader.units(start)]
        kept, tokens, influence, slope, flags = (np.concatenate(each) for each in zip(*found, strict=True))
        if self.wanted is not None:
            kept &= self.wanted[start:stop]
        return InfluenceBlock(
            sample=np.arange(start, stop)[kept],
            row=store.column("sample_row", start, stop)[kept].astype(np.int64),
            num_steps=store.column("sample_num_steps", start, stop)[kept].astype(np.int64),
            num_tokens=tokens[kept],
            influence=influence[kept],
            slope=slope[kept],
            flags=flags[kept],
        )

    def _unit(self, unit: int) -> tuple[Array, ...]:
        """Return of all samples of a unit: is it done anywhere, tokens, influences, slope, flags."""
        start, stop = self.reader.store.plan.unit_range(unit)
        num, num_directions = stop - start, self.directions.shape[1]
        parts = np.full((len(self.reader.names), num, num_directions), np.nan)
        squared = np.full((len(self.reader.names), num), np.nan)
        has = np.zeros((len(self.reader.names), num), dtype=np.bool_)
        flags = np.zeros(num, dtype=np.uint8)
        tokens = np.zeros(num, dtype=np.int64)
        for number in range(len(self.reader.names)):
            found = self.reader.read(number, unit)
            if found is None:
                continue
            done = has[number] = found.done
            parts[number, done], mine = self._products(found, number)
            flags[done] |= mine
            squared[number, done] = found.length[done].astype(np.float64) ** 2
            tokens = np.where(tokens == 0, found.num_tokens, tokens)
        flags[has.any(axis=0) & ~np.asarray(has.all(axis=0))] |= np.uint8(Flag.MISSING_SIGNAL)
        influence = combine_signals(parts, self.shares).astype(np.float32)
        anywhere: BoolArray = np.asarray(has.any(axis=0))
        return anywhere, tokens, influence, self_influence_slopes(squared), flags

    def _products(self, found: UnitVectors, number: int) -> tuple[FloatArray, FlagArray]:
        vectors = found.decoded(slice(None) if found.done.all() else found.done)
        length = found.length[found.done].astype(np.float64) if self.restores_length else None
        return products(vectors, self.directions[number], length)


@dataclass(slots=True)
class InfluenceScoring:
    """One scoring: what is compared, and what its table says of it."""

    compared: PoolProducts
    note: ScoresNote
    sources: list[Source]
    listener: Listener = ignore
    _held: list[InfluenceBlock] = field(default_factory=list)
    """All blocks, if the method needs all of them before it knows one value."""
    _valued: Valued | None = None
    """What the method made of all of them together."""

    @property
    def method(self) -> InfluenceMethod:
        method = METHODS[self.note.spec.method]
        assert isinstance(method, InfluenceMethod)
        return method

    def tables(self, threads: Threads) -> Iterator[tuple[pa.Table, Array]]:
        """Yield rows of the table in order, with the samples' flags as numbers."""
        if self._valued is not None:
            yield from self._held_tables(self._valued)
            return
        for block in self.blocks(threads):
            found = Influences(influence=block.influence, slope=block.slope)
            valued = self.method.values(self.note.spec, found)
            yield self._rows(block, valued.value, valued.columns)

    def hold_all(self, threads: Threads) -> None:
        """Read all of the pool and value it: what comes before the first row if values depend on one another."""
        whole = np.empty((self.compared.reader.store.plan.num_samples, self.compared.directions.shape[1]), np.float32)
        stop = 0
        for block in self.blocks(threads):
            mine = slice(stop, stop := stop + len(block))
            whole[mine] = block.influence
            self._held.append(replace(block, influence=whole[mine]))
        slopes = np.concatenate([np.zeros(0), *(block.slope for block in self._held)])
        self._valued = self.method.values(self.note.spec, Influences(influence=whole[:stop], slope=slopes))
        if self._valued.thresholds is not None:
            self.note = self.note.model_copy(update={"thresholds": tuple(self._valued.thresholds.tolist())})

    def _held_tables(self, valued: Valued) -> Iterator[tuple[pa.Table, Array]]:
        start = 0
        for block in self._held:
            mine = slice(start, start := start + len(block))
            columns = {name: column[mine] for name, column in valued.columns.items()}
            yield self._rows(block, valued.value[mine], columns)

    def blocks(self, threads: Threads) -> Iterator[InfluenceBlock]:
        """Yield the influences of all samples, block by block."""
        reader = self.compared.reader
        total, num_done = reader.store.plan.num_samples, 0
        for block in map_ordered(self.compared.block, reader.starts(), reader.threads(threads)):
            num_done = min(num_done + SAMPLES_PER_CHUNK, total)
            self.listener(SamplesScored(num_done, total))
            yield block

    def _rows(self, block: InfluenceBlock, value: FloatArray, columns: Mapping[str, Array]) -> tuple[pa.Table, Array]:
        rows = ScoreRows(
            sample_id=self.compared.reader.ids(block),
            row=block.row,
            num_steps=block.num_steps,
            num_tokens=block.num_tokens,
            value=value,
            flags=block.flags,
            text_flags=self.compared.reader.text_flags(block),
            more={"influence": block.influence, **columns},
        )
        return rows.to_table(self.note), rows.all_flags


@dataclass(frozen=True, slots=True)
class InfluenceRequest:
    """What is scored by its influence on what."""

    spec: InfluenceSpec
    targets: Targets | None
    signals: Signals = None
    partial: bool = False
    kept: Kept | None = None
    """The samples of the pool, if not all."""


def prepare_influence(
    pool: Store, request: InfluenceRequest, threads: Threads, listener: Listener = ignore
) -> InfluenceScoring:
    """Read the targets, refuse what cannot be compared, and return a scoring whose note is complete."""
    spec, targets, kept = request.spec, request.targets, request.kept
    method = METHODS[spec.method]
    assert isinstance(method, InfluenceMethod)
    if targets is None:
        raise SettingError(f"--method {spec.method} scores by the influence on a target set: give its store, --targets")
    store = targets.open()
    pairs = pair_signals(pool, store, method, request.signals, targets.signals)
    reader = VectorReader(pool, pairs.weights.names)
    reader.check_complete(partial=request.partial)
    found = read_targets(store, pairs.targets, find_subtasks(targets, store), restore_length=method.restores_length)
    directions, joined = found.means, {"influence_of": found.subtasks.names}
    if method.joins_subtasks:
        directions, joined = _capabilities(found, spec, pairs.shares)
    notes = [*pairs.notes, *_about_targets(found)]
    if store.plan.digest() == pool.plan.digest():
        notes.append("the target set has the pool's own plan: samples that are in both favour themselves")
    note = scores_note(
        reader,
        spec,
        pairs.weights,
        # A list, because the metadata keeps the keys of documents in alphabetical order.
        checkpoints=pairs.weights.names,
        weights_from=pairs.weights_from,
        targets=found.describe(pairs.weights.names, targets.data),
        notes=tuple(notes),
        label="reconstruction" if method.is_reconstruction else None,
        where=where_note(kept),
        **joined,
    )
    for text in notes:
        listener(Warned(text))
    listener(Note(_about_work(found, pairs.weights.names)))
    wanted = None if kept is None else kept.is_kept
    compared = PoolProducts(reader, method.restores_length, pairs.shares, directions, wanted)
    others = [(path, what.replace("the store", "the target store")) for path, what in sources_of(store)]
    scoring = InfluenceScoring(compared, note, [*sources_of(pool), *others], listener)
    if method.needs_whole_pool:
        scoring.hold_all(threads)
    return scoring


def _capabilities(found: TargetSet, spec: InfluenceSpec, shares: Sequence[float]) -> tuple[FloatArray, dict[str, Any]]:
    """Join the subtasks to capabilities; return the capabilities' directions and what the note says of them."""
    paths = trajectories(found.means, shares)
    cosine = paths @ paths.T
    names = found.subtasks.names
    capability = find_communities(len(names), joined_pairs(cosine, spec.join_cosine), spec.seed)
    members = [tuple(names[s] for s in np.flatnonzero(capability == c)) for c in range(int(capability.max()) + 1)]
    return capability_directions(found.means, capability), {
        "capabilities": tuple(members),
        "influence_of": tuple("+".join(each) for each in members),
        "subtask_cosine": tuple(tuple(round(each, 6) for each in line) for line in cosine.tolist()),
    }


def _about_targets(found: TargetSet) -> list[str]:
    notes = []
    if found.num_set_aside:
        verb = "is set aside and does" if found.num_set_aside == 1 else "are set aside and do"
        notes.append(f"{counted(found.num_set_aside, 'record')} of the target set {verb} not count")
    if found.num_zero:
        verb, what = ("is", "it") if found.num_zero == 1 else ("are", "them")
        gradients = counted(found.num_zero, "gradient")
        notes.append(f"{gradients} of the target set {verb} zero; cosines with {what} count as 0")
    if found.subtasks.by is not None and len(found.subtasks.names) == len(found.subtasks.of_sample) > 1:
        notes.append(f"every target sample is a subtask of its own, by {found.subtasks.by!r}: name a field they share")
    return notes


def _about_work(found: TargetSet, checkpoints: Sequence[str]) -> str:
    num_samples, num_subtasks = int(found.sizes.sum()), len(found.subtasks.names)
    what = f"{counted(num_samples, 'target sample')} in {counted(num_subtasks, 'subtask')}"
    return f"Comparing with {what} at {', '.join(checkpoints)}."
