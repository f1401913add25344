"""Score a pool by its influence on a target set: read projected gradients, write a table, block by block.

Memory holds a unit of vectors for each thread, and the subtasks' mean gradients. A method whose values depend on the
whole pool also needs 4 bytes for each sample and subtask.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from grace_store.base.arrays import Array, FlagArray, Float32Array, FloatArray
from grace_store.base.errors import SettingError
from grace_store.base.events import Listener, Note, Warned, ignore
from grace_store.base.states import Flag
from grace_store.base.text import counted
from grace_store.likeness.communities import find_communities
from grace_store.pool.pool import Pool
from grace_store.pool.walk import SampleBlock, SignalReader, Threads
from grace_store.scoring.grouped_scoring import Scoring
from grace_store.scoring.notes import ScoresNote
from grace_store.scoring.provenance import Source, scores_note, sources_of
from grace_store.scoring.score_table import ScoreRows
from grace_store.scoring.signal_pairs import pair_signals
from grace_store.scoring.targets import Targets, TargetSet, read_targets
from grace_store.values.directions import products
from grace_store.values.methods.cadc import capability_directions, joined_pairs, self_influence_slopes, trajectories
from grace_store.values.methods.grace import combine_signals
from grace_store.values.methods.method import METHODS, InfluenceMethod, InfluenceSpec

InfluenceBlock = tuple[SampleBlock, Float32Array, FloatArray, FlagArray]
"""One block of samples: their influences (n, J), the slopes of their squared norms across checkpoints, their flags.

Values are computed from the influences in float32, as the table stores them, so that a table agrees with itself."""


@dataclass(frozen=True, slots=True)
class PoolProducts:
    """The products of a pool's gradients with directions. Threads may share it, and it may be sent to a cluster."""

    reader: SignalReader
    restores_length: bool
    """Whether gradients keep their length; otherwise only their directions count."""
    shares: Sequence[float]
    """Share of each checkpoint."""
    directions: FloatArray
    """(checkpoints, J, D): directions of subtasks or capabilities, which every gradient is multiplied with."""

    def block(self, start: int) -> InfluenceBlock:
        """Return the influences of the samples of one block that at least one checkpoint has."""
        block = self.reader.read(start).without_signals()
        found = [self._unit(unit) for unit in self.reader.units(start)]
        influence, slope, flags = (np.concatenate(each)[block.sample - start] for each in zip(*found, strict=True))
        return block, influence, slope, flags

    def blocks(self, threads: Threads, listener: Listener) -> Iterator[InfluenceBlock]:
        """Yield the influences of all samples, block by block."""
        return self.reader.walk(self.block, self.reader.threads(threads), listener)

    def _unit(self, unit: int) -> tuple[Array, ...]:
        """Return three arrays over all samples of a unit: influences, slopes of the squared norm, and flags."""
        start, stop = self.reader.store.plan.unit_range(unit)
        num, num_directions = stop - start, self.directions.shape[1]
        parts = np.full((len(self.reader.names), num, num_directions), np.nan)
        squared = np.full((len(self.reader.names), num), np.nan)
        has = np.zeros((len(self.reader.names), num), dtype=np.bool_)
        flags = np.zeros(num, dtype=np.uint8)
        for number in range(len(self.reader.names)):
            found = self.reader.vectors(number, unit)
            if found is None:
                continue
            done = has[number] = found.done
            vectors = found.decoded(slice(None) if done.all() else done)
            length = found.length[done].astype(np.float64) if self.restores_length else None
            parts[number, done], mine = products(vectors, self.directions[number], length)
            flags[done] |= mine
            squared[number, done] = found.length[done].astype(np.float64) ** 2
        flags[has.any(axis=0) & ~np.asarray(has.all(axis=0))] |= np.uint8(Flag.MISSING_SIGNAL)
        return combine_signals(parts, self.shares).astype(np.float32), self_influence_slopes(squared), flags


def _rows(
    reader: SignalReader, note: ScoresNote, found: InfluenceBlock, value: FloatArray, columns: Mapping[str, Array]
) -> tuple[pa.Table, Array]:
    block, influence, _, flags = found
    rows = ScoreRows.of(reader, block, value, flags, more={"influence": influence, **columns})
    return rows.to_table(note), rows.all_flags


def _scoring_of_all(
    compared: PoolProducts,
    note: ScoresNote,
    sources: list[Source],
    method: InfluenceMethod,
    listener: Listener,
    threads: Threads,
) -> Scoring:
    """Return a scoring for values that depend on the whole pool; reads the whole pool first."""
    whole = np.empty((compared.reader.store.plan.num_samples, compared.directions.shape[1]), np.float32)
    held: list[InfluenceBlock] = []
    stop = 0
    for block, influence, slope, flags in compared.blocks(threads, listener):
        mine = slice(stop, stop := stop + len(block))
        whole[mine] = influence
        held.append((block, whole[mine], slope, flags))
    slopes = np.concatenate([np.zeros(0), *(slope for _, _, slope, _ in held)])
    value, more, thresholds = method.values(note.spec, whole[:stop], slopes)
    if thresholds is not None:
        note = note.model_copy(update={"thresholds": tuple(thresholds.tolist())})

    def tables(_: Threads) -> Iterator[tuple[pa.Table, Array]]:
        start = 0
        for found in held:
            mine = slice(start, start := start + len(found[0]))
            columns = {name: column[mine] for name, column in more.items()}
            yield _rows(compared.reader, note, found, value[mine], columns)

    return Scoring(note, sources, tables)


def prepare_influence(pool: Pool, spec: InfluenceSpec, targets: Targets | None, listener: Listener = ignore) -> Scoring:
    """Read the targets and return the scoring; raise if pool and targets cannot be compared."""
    method = METHODS[spec.method]
    if targets is None:
        raise SettingError(
            f"--method {spec.method} scores by the influence on a target set: give the store of the target set with "
            "--targets"
        )
    store = targets.open()
    weights, weights_from, target_names, remarks = pair_signals(
        pool.store, store, method, pool.signals, targets.signals
    )
    reader = SignalReader(pool.store, weights.names, pool.wanted, reads=("vectors",))
    reader.check_complete(partial=pool.partial)
    found = read_targets(targets, store, target_names, restore_length=method.restores_length)
    directions, joined = found.means, {"influence_of": found.subtasks}
    if method.joins_subtasks:
        directions, joined = _capabilities(found, spec, weights.shares)
    notes = [*remarks, *_about_targets(found, targets)]
    if store.plan.digest() == pool.store.plan.digest():
        notes.append("the target set has the pool's own plan: samples that are in both favour themselves")
    note = scores_note(
        reader,
        spec,
        weights,
        # A list keeps the order of training: keys of a JSON object are sorted.
        checkpoints=weights.names,
        weights_from=weights_from,
        targets=found.describe(weights.names, targets),
        notes=tuple(notes),
        label="reconstruction" if method.is_reconstruction else None,
        **pool.filter_notes,
        **joined,
    )
    for text in notes:
        listener(Warned(text))
    work = f"{counted(int(found.sizes.sum()), 'target sample')} in {counted(len(found.subtasks), 'subtask')}"
    listener(Note(f"Comparing with {work} at {', '.join(weights.names)}."))
    compared = PoolProducts(reader, method.restores_length, weights.shares, directions)
    others = [(path, what.replace("the store", "the target store")) for path, what in sources_of(store)]
    sources = [*sources_of(pool.store, pool.labels), *others]
    if method.needs_whole_pool:
        return _scoring_of_all(compared, note, sources, method, listener, pool.threads)

    def tables(threads: Threads) -> Iterator[tuple[pa.Table, Array]]:
        for each in compared.blocks(threads, listener):
            value, columns, _ = method.values(spec, each[1], each[2])
            yield _rows(reader, note, each, value, columns)

    return Scoring(note, sources, tables)


def _capabilities(found: TargetSet, spec: InfluenceSpec, shares: Sequence[float]) -> tuple[FloatArray, dict[str, Any]]:
    """Join the subtasks to capabilities; return the directions of capabilities, and fields for the note."""
    paths = trajectories(found.means, shares)
    cosine = paths @ paths.T
    names = found.subtasks
    capability = find_communities(len(names), joined_pairs(cosine, spec.join_cosine), spec.seed)
    members = [tuple(names[s] for s in np.flatnonzero(capability == c)) for c in range(int(capability.max()) + 1)]
    return capability_directions(found.means, capability), {
        "capabilities": tuple(members),
        "influence_of": tuple("+".join(each) for each in members),
        "subtask_cosine": tuple(tuple(round(each, 6) for each in line) for line in cosine.tolist()),
    }


def _about_targets(found: TargetSet, targets: Targets) -> list[str]:
    notes = []
    if found.num_set_aside:
        verb = "is set aside and does" if found.num_set_aside == 1 else "are set aside and do"
        notes.append(f"{counted(found.num_set_aside, 'record')} of the target set {verb} not count")
    if found.num_zero:
        verb, what = ("is", "it") if found.num_zero == 1 else ("are", "them")
        gradients = counted(found.num_zero, "gradient")
        notes.append(f"{gradients} of the target set {verb} zero; cosines with {what} count as 0")
    if targets.subtasks is not None and len(found.subtasks) == found.reader.store.plan.num_samples > 1:
        notes.append(f"every target sample is a subtask of its own, by {targets.subtasks!r}: name a field they share")
    return notes
