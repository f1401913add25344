"""Score a pool by its influence on a target set: projected gradients in, a table out, block by block.

Memory is that of a unit of vectors for each thread and of the subtasks' mean gradients; ICONS also holds the pool's
influences, 4 bytes for each sample and subtask, because its percentiles and ranks are of all samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from grace_store.artifacts.outputs import Source, sources_of
from grace_store.artifacts.score_table import RECONSTRUCTED, influence_lists, score_rows
from grace_store.base.arrays import Array, BoolArray, FlagArray, Float32Array, FloatArray, IntArray
from grace_store.base.errors import SettingError
from grace_store.base.events import Listener, Note, SamplesScored, Warned, ignore
from grace_store.base.text import counted
from grace_store.curate.made_by import describe
from grace_store.curate.signal_pairs import pair_signals
from grace_store.curate.targets import Targets, TargetSet, find_subtasks, read_targets
from grace_store.likeness.communities import find_communities
from grace_store.read.parallel import Threads, map_ordered
from grace_store.read.signal_choice import Signals
from grace_store.read.vectors import UnitVectors, VectorReader
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.opened import Store
from grace_store.values.grace import Flag
from grace_store.values.influence.cadc import capability_directions, joined_pairs, self_influence_slopes, trajectories
from grace_store.values.influence.directions import combine_checkpoints, products
from grace_store.values.influence.icons import count_votes, icons_values, mean_rank_shares, vote_thresholds
from grace_store.values.influence.influence_spec import InfluenceSpec
from grace_store.values.influence.less import strongest


@dataclass(frozen=True, slots=True)
class InfluenceBlock:
    """Influences of the samples of one block that at least one checkpoint has, in the order of their records."""

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
class Comparison:
    """What is read of a pool and what it is multiplied with. Threads may share it, and it may be sent elsewhere."""

    reader: VectorReader
    spec: InfluenceSpec
    shares: Sequence[float]
    """Of the checkpoints."""
    directions: FloatArray
    """(checkpoints, J, D): what every gradient of the pool is multiplied with, for subtasks or capabilities."""

    def block(self, start: int) -> InfluenceBlock:
        """Return the influences of the samples of one block."""
        plan, store = self.reader.store.plan, self.reader.store
        stop = min(start + SAMPLES_PER_CHUNK, plan.num_samples)
        found = [self._unit(unit) for unit in self.reader.units(start)]
        kept, tokens, influence, slope, flags = (np.concatenate(each) for each in zip(*found, strict=True))
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
        influence = combine_checkpoints(list(parts), self.shares).astype(np.float32)
        anywhere: BoolArray = np.asarray(has.any(axis=0))
        return anywhere, tokens, influence, self_influence_slopes(squared), flags

    def _products(self, found: UnitVectors, number: int) -> tuple[FloatArray, FlagArray]:
        vectors = found.decoded(slice(None) if found.done.all() else found.done)
        length = found.length[found.done].astype(np.float64) if self.spec.restores_length else None
        return products(vectors, self.directions[number], length)


@dataclass(slots=True)
class InfluenceScoring:
    """One scoring: what is compared, and what its table says of it."""

    compared: Comparison
    made_by: dict[str, Any]
    sources: list[Source]
    """What a table must not be written over."""
    tell: Listener = ignore
    _held: list[InfluenceBlock] = field(default_factory=list)
    """All blocks, if the method needs all of them before it knows one value."""
    _influence: Float32Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """(N, J), of which the blocks held have views."""

    def tables(self, threads: Threads) -> Iterator[tuple[pa.Table, FlagArray]]:
        """Yield rows of the table in order, with the samples' flags as numbers."""
        if self.compared.spec.method == "icons":
            yield from self._icons_tables()
            return
        for block in self.blocks(threads):
            value = strongest(block.influence)
            more = {"influence": influence_lists(block.influence)}
            if self.compared.spec.method == "cadc":
                has_value = np.isfinite(value)
                which = np.where(has_value, np.where(has_value[:, None], block.influence, 0).argmax(axis=1), -1)
                more["capability"] = pa.array(which, pa.int32(), mask=~has_value)
                more["stage"] = pa.array(block.slope, pa.float64(), from_pandas=True)
            yield self._rows(block, value, more), block.flags

    def hold_all(self, threads: Threads) -> None:
        """Read all of the pool, and note each subtask's threshold: what ICONS needs before its first row."""
        whole = np.empty((self.compared.reader.store.plan.num_samples, self.compared.directions.shape[1]), np.float32)
        stop = 0
        for block in self.blocks(threads):
            mine = slice(stop, stop := stop + len(block))
            whole[mine] = block.influence
            self._held.append(replace(block, influence=whole[mine]))
        self._influence = whole[:stop]
        thresholds = vote_thresholds(self._influence, self.compared.spec.vote_percent)
        self.made_by["thresholds"] = [None if np.isnan(each) else each for each in thresholds.tolist()]

    def _icons_tables(self) -> Iterator[tuple[pa.Table, FlagArray]]:
        influence = self._influence
        noted = self.made_by["thresholds"]
        votes = count_votes(influence, np.array([np.nan if each is None else each for each in noted]))
        values = icons_values(votes, mean_rank_shares(influence))
        start = 0
        for block in self._held:
            mine = slice(start, start + len(block))
            start += len(block)
            more = {
                "influence": influence_lists(block.influence),
                "votes": pa.array(votes[mine], pa.int32(), mask=np.isnan(values[mine])),
            }
            yield self._rows(block, values[mine], more), block.flags

    def blocks(self, threads: Threads) -> Iterator[InfluenceBlock]:
        """Yield the influences of all samples, block by block."""
        reader = self.compared.reader
        total, num_done = reader.store.plan.num_samples, 0
        for block in map_ordered(self.compared.block, reader.starts(), reader.threads(threads)):
            num_done = min(num_done + SAMPLES_PER_CHUNK, total)
            self.tell(SamplesScored(num_done, total))
            yield block

    def _rows(self, block: InfluenceBlock, value: FloatArray, more: dict[str, pa.Array]) -> pa.Table:
        return score_rows(
            sample_id=self.compared.reader.ids(block),
            row=block.row,
            num_steps=block.num_steps,
            num_tokens=block.num_tokens,
            value=value,
            steps=None,
            step_tokens=None,
            flags=block.flags,
            more=more,
        )


def prepare_influence(
    pool: Store, spec: InfluenceSpec, targets: Targets | None, signals: Signals = None, *, partial: bool = False,
    threads: Threads = None, tell: Listener = ignore,
) -> InfluenceScoring:  # fmt: skip
    """Read the targets, refuse what cannot be compared, and return a scoring whose metadata is complete."""
    if targets is None:
        raise SettingError(f"--method {spec.method} scores by the influence on a target set: give its store, --targets")
    store = targets.open()
    pairs = pair_signals(pool, store, spec.method, signals, targets.signals)
    reader = VectorReader(pool, pairs.weights.names)
    reader.check_complete(partial=partial)
    found = read_targets(store, pairs.targets, find_subtasks(targets, store), restore_length=spec.restores_length)
    made_by = describe(reader, spec.model_dump(mode="json"), pairs.weights)
    # A list, because the metadata keeps the keys of documents in alphabetical order.
    made_by |= {"checkpoints": list(pairs.weights.names), "weights_from": pairs.weights_from}
    made_by["targets"] = found.describe(pairs.weights.names)
    made_by["targets"]["data"] = list(targets.data)
    made_by["influence_of"] = list(found.subtasks.names)
    made_by["notes"] = [*pairs.notes, *_about_targets(found)]
    if store.plan.digest() == pool.plan.digest():
        made_by["notes"].append("the target set has the pool's own plan: samples that are in both favour themselves")
    directions = found.means
    if spec.method in RECONSTRUCTED:
        made_by["label"] = "reconstruction"
    if spec.method == "cadc":
        directions = _capabilities(found, spec, pairs.shares, made_by)
    for note in made_by["notes"]:
        tell(Warned(note))
    tell(Note(_about_work(found, made_by)))
    compared = Comparison(reader, spec, pairs.shares, directions)
    scoring = InfluenceScoring(compared, made_by, [*sources_of(pool), *_sources(store)], tell)
    if spec.method == "icons":
        scoring.hold_all(threads)
    return scoring


def _capabilities(
    found: TargetSet, spec: InfluenceSpec, shares: Sequence[float], made_by: dict[str, Any]
) -> FloatArray:  # fmt: skip
    """Join the subtasks to capabilities, note them, and return the capabilities' directions."""
    paths = trajectories(found.means, shares)
    cosine = paths @ paths.T
    names = found.subtasks.names
    capability = find_communities(len(names), joined_pairs(cosine, spec.join_cosine), spec.seed)
    members = [[names[s] for s in np.flatnonzero(capability == c)] for c in range(int(capability.max()) + 1)]
    made_by["capabilities"] = members
    made_by["influence_of"] = ["+".join(each) for each in members]
    made_by["subtask_cosine"] = [[round(each, 6) for each in line] for line in cosine.tolist()]
    return capability_directions(found.means, capability)


def _about_targets(found: TargetSet) -> list[str]:
    notes = []
    if found.num_set_aside:
        verb = "is set aside and does" if found.num_set_aside == 1 else "are set aside and do"
        notes.append(f"{counted(found.num_set_aside, 'record')} of the target set {verb} not count")
    if found.num_zero:
        notes.append(f"{found.num_zero} gradients of the target set are zero; cosines with them count as 0")
    if found.subtasks.by is not None and len(found.subtasks.names) == len(found.subtasks.of_sample) > 1:
        notes.append(f"every target sample is a subtask of its own, by {found.subtasks.by!r}: name a field they share")
    return notes


def _about_work(found: TargetSet, made_by: dict[str, Any]) -> str:
    num_samples, num_subtasks = int(found.sizes.sum()), len(found.subtasks.names)
    checkpoints = ", ".join(made_by["checkpoints"])
    what = f"{counted(num_samples, 'target sample')} in {counted(num_subtasks, 'subtask')}"
    return f"Comparing with {what} at {checkpoints}."


def _sources(targets: Store) -> list[Source]:
    return [(path, what.replace("the store", "the target store")) for path, what in sources_of(targets)]
