"""Find near-duplicates (the same text, or a high cosine of descriptors), and put samples into a diverse order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from grace_store.base.arrays import BoolArray, Float32Array, IntArray, Places, Positions, find_rows
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Note, Warned, ignore
from grace_store.base.text import counted
from grace_store.choose.duplicate_table import DuplicateTable, read_duplicates
from grace_store.choose.selection import Selection, samples_named
from grace_store.data.sample_digests import text_digest
from grace_store.likeness.duplicate_groups import DEFAULT_FLOOR, DEFAULT_THRESHOLD, KEEPS, Keep, check_thresholds
from grace_store.likeness.forest import Pairs, joined, nearest_in, parents_in, spanning_forest
from grace_store.likeness.points import Descriptor, descriptor_named
from grace_store.pool.descriptors import DescriptionReader, Descriptions, describe_samples, tell_oddities
from grace_store.pool.pool import Pool, PoolLike
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.pool.walk import Mapper, SignalReader, Threads
from grace_store.scoring.notes import DuplicatesNote, GroupSpec, SearchNote, check_plan_of
from grace_store.scoring.provenance import keep_samples
from grace_store.scoring.score_table import ScoresLike, ScoreTable, read_scores
from grace_store.store.opened import Store
from grace_store.values.diverse_orders import DiversitySpec, distinct_first

if TYPE_CHECKING:
    from grace_store.likeness.search_base import Found


def duplicates(
    pool: PoolLike,
    *,
    descriptor: Descriptor | None = None,
    dimension: int | None = None,
    seed: int = 0,
    threshold: float = DEFAULT_THRESHOLD,
    floor: float | None = None,
    scores: ScoresLike | None = None,
    subset: str | Path | Positions | None = None,
    keep: Keep | None = None,
    listener: Listener = ignore,
) -> DuplicateTable:
    """Group the done samples of a pool that have the same text, or descriptors with a cosine of threshold or more.

    Pairs are searched down to floor (0.9, or the threshold if that is lower), so that the table can be grouped again by
    any threshold from floor up. scores give values, by which the best sample of a group is kept, step scores for the
    descriptor weighted, and more names for the pool's filter. subset is a file that names samples, or positions in the
    plan: only these samples are searched. Texts are compared if the pool's dataset is there.
    """
    floor = min(DEFAULT_FLOOR, threshold) if floor is None else floor
    check_thresholds(threshold, floor)
    pool = Pool.of(pool)
    store = pool.store
    if scores is None or isinstance(scores, ScoreTable):
        table = scores
    else:
        table = read_scores(scores, steps=descriptor == "weighted")
    if table is not None:
        check_plan_of(table.note, store, table.what)
    keep = _checked(keep, table)
    pool = scored_pool(pool, table)
    source = StoreVectors(
        DescriptionReader.of(
            pool,
            descriptor,
            dimension=dimension,
            seed=seed,
            scores=table if descriptor == "weighted" else None,
            samples=samples_named(store, subset) if isinstance(subset, (str, Path)) else subset,
        )
    )
    search, about = _search(source, floor, pool.threads, seed, listener)
    row = store.column("sample_row")[source.sample].astype(np.int64)
    by_row = np.argsort(row)  # the first of several copies is the first in the dataset
    found, row = Positions(source.sample[by_row]), row[by_row]
    digests, digest_of = sample_digests(store, found, pool.data, listener)
    copies, is_exact = _same_text(found, digests)
    note = DuplicatesNote(
        **source.reader.made_by,
        spec=GroupSpec(threshold=threshold, floor=floor, keep=keep),
        num_samples=len(found),
        num_zero=source.num_zero,
        exact_by=digest_of,
        search=about,
        subset=str(subset) if isinstance(subset, (str, Path)) else None,
        scores=None if table is None else table.note,
        **pool.filter_notes,
    )
    return DuplicateTable(
        sample_id=store.column("sample_id")[found].tolist(),
        row=row,
        exact=is_exact,
        **_likeness(found, spanning_forest(joined([copies, search.forest])), search),
        value=np.full(len(found), np.nan) if table is None else table.values_of(row),
        num_tokens=_num_tokens(pool)[found],
        note=note,
    )


def scored_pool(pool: Pool, table: ScoreTable | None) -> Pool:
    """Return a pool filtered with the names that a table adds, and the scored signal unless the pool names one."""
    if table is None:
        return pool
    signal = pool.signal.name if pool.signals else table.signal_named()
    return Pool.of(pool, where=keep_samples(pool, table), signals=signal)


def regroup(
    table: str | Path, *, threshold: float | None = None, keep: Keep | None = None, scores: ScoresLike | None = None
) -> DuplicateTable:
    """Return a table of duplicates grouped by another threshold or policy, without store or search."""
    found = read_duplicates(table)
    value = None
    if scores is not None:
        given = scores if isinstance(scores, ScoreTable) else read_scores(scores, steps=False)
        if given.note.plan_sha256 != found.note.plan_sha256:
            raise DataError(
                f"{table} and the scores come from different plans. Score the store that {table} was made from."
            )
        value = given.values_of(found.row)
    _checked(keep or found.note.spec.keep, scores if scores is not None else found)
    return found.regrouped(threshold, keep, value)


@dataclass(slots=True)
class StoreVectors:
    """The descriptors of a store's samples as vectors to search. The number of a point is its sample's position."""

    reader: DescriptionReader
    sample: Positions = field(default_factory=lambda: Positions(np.zeros(0, np.int64)))
    """Positions of the samples found, once all blocks were read."""
    num_zero: int = 0
    num_unweighted: int = 0

    @property
    def num_points(self) -> int:
        return self.reader.store.plan.num_samples

    @property
    def size(self) -> int:
        return self.reader.size

    def blocks(self) -> Iterator[tuple[IntArray, Float32Array]]:
        samples: list[IntArray] = []
        num_zero = num_unweighted = 0
        for block in self.reader.blocks():
            samples.append(block.sample)
            num_zero += int(block.is_zero.sum())
            num_unweighted += int(block.is_unweighted.sum())
            yield block.sample, block.vector
        self.sample = Positions(np.concatenate([np.zeros(0, np.int64), *samples]))
        self.num_zero, self.num_unweighted = num_zero, num_unweighted

    def sampled(self, num_vectors: int, seed: int) -> tuple[IntArray, Float32Array]:
        """Return the vectors of random units. Units are read whole, so that few of them have to be read."""
        units, per_unit = self.reader.units, max(1, self.reader.max_samples // max(1, len(self.reader.units)))
        count = min(len(units), -(-num_vectors // per_unit))
        chosen = np.sort(np.random.default_rng(seed).permutation(len(units))[:count]).tolist()
        blocks = list(self.reader.blocks([units[place] for place in chosen]))
        return np.concatenate([block.sample for block in blocks]), np.concatenate([block.vector for block in blocks])


def _search(
    source: StoreVectors, floor: float, threads: Threads, seed: int, listener: Listener
) -> tuple[Found, SearchNote]:
    """Search for similar pairs, and return them with the note of the search."""
    # Imported here because it needs faiss, and a table is grouped again without faiss.
    from grace_store.likeness.search import num_gpus, plan_index, similar_pairs

    plan = plan_index(source.reader.max_samples, source.size, num_gpus=num_gpus())
    how = "each with all others" if plan.kind == "flat" else f"in {plan.num_probed} of {plan.num_cells} cells each"
    listener(Note(f"Comparing {counted(source.reader.max_samples, 'sample')}, {source.size} numbers each, {how}."))
    by = {"workers": threads} if isinstance(threads, Mapper) else {"threads": threads}
    found = similar_pairs(source, floor, plan=plan, seed=seed, listener=listener, **by)
    tell_oddities(source.num_zero, source.num_unweighted, listener)
    recall = found.recall
    more: dict[str, Any] = {}
    if recall is not None:
        if recall.share is not None and recall.share < 0.99:
            listener(Warned(f"The search found {recall.share:.3f} of the similar pairs of samples drawn at random."))
        more = {"recall": recall, "num_cells": plan.num_cells, "num_probed": plan.num_probed}
    return found, SearchNote(index=plan.kind, seed=seed, num_distinct=found.num_distinct, **more)


def sample_digests(
    store: Store, samples: Positions, data: Sequence[str | Path] | None = None, listener: Listener = ignore
) -> tuple[list[bytes], Literal["text", "record"]]:
    """Return a digest for each sample, and its source: the text (conversation and response) or the whole record.

    A copy under another id has the same text. Without the dataset, only the plan's digests of whole records exist.
    """
    try:
        dataset = open_dataset(store, data)
    except DataError as error:
        if data:
            raise
        what = "the text of a copy under another id is not found"
        listener(Warned(f"{error}\nWhole records are compared instead of texts: {what}."))
        return [digest.tobytes() for digest in store.column("sample_digest")[samples]], "record"
    with dataset:
        return list(map(text_digest, UnitLoader(store, dataset).each(samples))), "text"


def _same_text(samples: IntArray, digests: Sequence[bytes]) -> tuple[Pairs, BoolArray]:
    """Return pairs of a sample and the first sample with the same text, and whether each sample is in a pair."""
    first: dict[bytes, int] = {}
    earliest = np.array([first.setdefault(digest, place) for place, digest in enumerate(digests)], dtype=np.int64)
    again = np.flatnonzero(earliest != np.arange(len(earliest)))
    is_exact = np.zeros(len(samples), dtype=np.bool_)
    is_exact[again], is_exact[earliest[again]] = True, True
    return Pairs(samples[earliest[again]], samples[again], np.ones(len(again), np.float32)), is_exact


def _likeness(found: IntArray, forest: Pairs, search: Found) -> dict[str, Any]:
    """Return the columns of nearest samples and links of a table, as places among the samples found."""
    place = np.zeros(len(search.nearest), dtype=np.int64)
    place[found] = np.arange(len(found))
    forest = Pairs(place[forest.first], place[forest.second], forest.similarity)
    nearest, similarity = nearest_in(len(found), forest)
    # A sample without a similar sample still has a nearest one.
    alone = np.flatnonzero((nearest < 0) & (search.nearest[found] >= 0))
    nearest[alone] = place[search.nearest[found[alone]]]
    similarity[alone] = search.nearest_similarity[found[alone]]
    link, link_similarity = parents_in(len(found), forest)
    return {"nearest": nearest, "similarity": similarity, "link": link, "link_similarity": link_similarity}


def _num_tokens(pool: Pool) -> IntArray:
    """Return the number of tokens in the response of every planned sample; 0 if the sample is not done."""
    out = np.zeros(pool.store.plan.num_samples, dtype=np.int64)
    reader = SignalReader(pool.store, (pool.signal.name,), reads=("responses",))
    for sample, num_tokens in reader.map(lambda block: (block.sample, block.num_tokens), pool.threads):
        out[sample] = num_tokens
    return out


def _checked(keep: Keep | None, values: object | None) -> Keep:
    """Return the policy, or the default without one; raise SettingError if it is unknown or lacks values."""
    if keep is None:
        return "earliest" if values is None else "value"
    if keep not in KEEPS:
        raise SettingError(f"unknown value {keep!r} of --keep: use one of {', '.join(KEEPS)}")
    if keep == "value" and values is None:
        raise SettingError("--keep value needs the values of the samples: give a scores table with --scores")
    return keep


DiverseOrder = tuple[IntArray, dict[str, Any], int | None]
"""Places in a ranking in a diverse order, the resolved fields of the selection, and for dedup the number of samples
without near-duplicates."""


def check_diverse(selection: Selection, spec: DiversitySpec) -> None:
    """Raise SettingError if a selection has diversity together with strata or a table that its method ignores."""
    if selection.by is not None:
        raise SettingError("--by and --diversity cannot be combined: give only one of them")
    if selection.duplicates is not None and spec.method != "dedup":
        raise SettingError(
            f"only --diversity dedup uses a table of duplicates: leave --duplicates out with {spec.method}"
        )


def diverse_order(
    scores: ScoreTable, ranked: IntArray, selection: Selection, pool: Pool, *, listener: Listener = ignore
) -> DiverseOrder:
    """Return a diverse order of rows that are ranked by value, by the diversity of a selection.

    pool is the store that was scored and the location of its dataset; the selection names the signal.
    """
    spec, given = selection.diversity, selection.duplicates
    assert spec is not None
    row = scores.row[ranked]
    if isinstance(given, str):
        return _distinct_order(_given_table(given, pool.store, spec), row, given)
    if given is not None:  # only the note of the table is known: search the same vectors again
        spec = spec.model_copy(update={"signal": given.signal.name, "descriptor": given.descriptor})
    if spec == DiversitySpec(method="dedup") and not scores.note.signals:
        return _copies_last(pool, row, spec, listener)
    spec = spec.model_copy(update={"signal": scores.signal_named(spec.signal)})
    samples = Positions(np.sort(pool.store.positions_of(row)))
    descriptor = None if spec.descriptor is None else descriptor_named(spec.descriptor)
    pool = Pool.of(pool, signals=spec.signal)
    if spec.method == "dedup":
        similarity = spec.similarity or DEFAULT_THRESHOLD
        table = duplicates(
            pool,
            descriptor=descriptor,
            threshold=similarity,
            floor=similarity,
            scores=scores.with_steps() if descriptor == "weighted" else None,
            subset=samples,
            listener=listener,
        )
        return _distinct_order(table, row, "the search")
    from grace_store.likeness.greedy import pool_orders  # imports faiss, which dedup by a table does not need

    vectors = open_vectors(pool, descriptor, scores, samples=samples, listener=listener)
    at = places_in(vectors, row, "the table")
    listener(Note(f"Ordering {counted(len(at), 'sample')} by {spec.method}."))
    threads = pool.threads if isinstance(pool.threads, int) else None
    order = pool_orders(cast(Float32Array, vectors.vector), at, [spec], threads=threads)[0]
    used = spec.model_copy(update={"descriptor": vectors.made_by["descriptor"]})
    return order, {"diversity": used, "duplicates": None}, None


def _copies_last(pool: Pool, row: IntArray, spec: DiversitySpec, listener: Listener) -> DiverseOrder:
    """Return an order of the samples with these dataset rows: further samples with the same text come last."""
    listener(Note("The scores come from the plan alone: samples with the same text are found, similar ones are not."))
    by_row = np.argsort(row)  # a file is read forwards
    digests, _ = sample_digests(pool.store, Positions(pool.store.positions_of(row[by_row])), pool.data, listener)
    first, group = dict[bytes, int](), np.empty(len(row), dtype=np.int64)
    group[by_row] = [first.setdefault(digest, len(first)) for digest in digests]
    return distinct_first(group), {"diversity": spec, "duplicates": None}, len(first)


def _given_table(path: str, store: Store, spec: DiversitySpec) -> DuplicateTable:
    if spec.signal is not None or spec.descriptor is not None:
        raise SettingError("--duplicates needs no vectors: leave --signal and --descriptor out")
    table = read_duplicates(path)
    if table.note.plan_sha256 != store.plan.digest():
        raise DataError(
            f"The table of duplicates {path} was made from another plan than the scores: it belongs to "
            f"{table.note.store}. Look for duplicates in {store.location}."
        )
    return table.regrouped(threshold=spec.similarity)


def _distinct_order(table: DuplicateTable, row: IntArray, what: str) -> DiverseOrder:
    """Return an order of the samples with these dataset rows: the near-duplicates of a table come last."""
    place, is_there = find_rows(table.row, row)
    if missing := int((~is_there).sum()):
        raise DataError(
            f"{what} lacks {missing} of the samples that have a value. Look for duplicates among all samples."
        )
    # A sample without duplicates makes a group by itself.
    group = np.where(table.group < 0, table.num_groups + np.arange(len(table)), table.group)[place]
    spec = DiversitySpec(method="dedup", similarity=table.threshold)
    return distinct_first(group), {"diversity": spec, "duplicates": table.note}, len(np.unique(group))


def open_vectors(
    pool: Pool,
    descriptor: Descriptor | None,
    scores: ScoreTable | None = None,
    *,
    samples: Positions | None = None,
    listener: Listener = ignore,
) -> Descriptions:
    """Describe the done samples of a pool, or those at some positions. The descriptor weighted needs scores."""
    weights = scores.with_steps() if descriptor == "weighted" and scores is not None else None
    num_samples = len(pool.positions) if samples is None else len(samples)
    listener(Note(f"Reading the vectors of {counted(num_samples, 'sample')}, signal {pool.signal.name}."))
    return describe_samples(pool, descriptor, scores=weights, samples=samples, listener=listener)


def places_in(vectors: Descriptions, row: IntArray, what: str) -> Places:
    """Return the places of dataset rows among described samples; raise DataError if a row is missing."""
    place, is_there = find_rows(vectors.row, row)
    if not is_there.all():
        raise DataError(
            f"{int((~is_there).sum())} of the {len(row)} samples of {what} have no vector in signal "
            f"{vectors.made_by['signal']['name']!r} of {vectors.made_by['store']}. Name another --signal, or extract "
            "them."
        )
    return Places(place)
