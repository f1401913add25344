"""Find the samples of a store that are alike: the same text, or descriptors that point the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grace_store.artifacts.duplicate_table import DuplicateTable, read_duplicates
from grace_store.artifacts.filtered_scores import keep_samples, where_note
from grace_store.artifacts.made_from import check_plan_of
from grace_store.artifacts.notes import DuplicatesNote, GroupSpec, RecallNote, SearchNote
from grace_store.artifacts.score_table import ScoresLike, ScoreTable, read_scores
from grace_store.artifacts.subset_file import samples_named
from grace_store.base.arrays import BoolArray, Float32Array, IntArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Note, Warned, ignore
from grace_store.base.text import counted
from grace_store.curate.text_digests import sample_digests
from grace_store.likeness.duplicate_groups import DEFAULT_FLOOR, DEFAULT_THRESHOLD, KEEPS, Keep, check_thresholds
from grace_store.likeness.forest import Pairs, joined, nearest_in, parents_in, spanning_forest
from grace_store.likeness.points import Descriptor
from grace_store.read.blocks import BlockReader
from grace_store.read.descriptors import DescriptionReader, DescriptorSpec, tell_oddities
from grace_store.read.kept_samples import Kept
from grace_store.read.parallel import Mapper, Threads, map_ordered
from grace_store.store.opened import SignalView, Store, StoreLike

if TYPE_CHECKING:
    from grace_store.likeness.searching import Found


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicatesRequest:
    """Which samples are compared, by what, and which one of a group is kept."""

    signal: str | None = None
    descriptor: Descriptor | None = None
    dimension: int | None = None
    """Of the descriptor projected."""
    seed: int = 0
    threshold: float = DEFAULT_THRESHOLD
    """Cosine from which samples are alike."""
    floor: float | None = None
    """Pairs are looked for down to here (0.9, or the threshold if that is lower), so that the table can be regrouped
    by any threshold from there up."""
    scores: ScoresLike | None = None
    """Values to keep the best of a group by, and step scores for the descriptor weighted."""
    subset: str | Path | IntArray | None = None
    """Only these: a file that names samples, or their positions in the plan."""
    keep: Keep | None = None
    """Which one of a group stays: that with the highest value (the default with scores), the shortest, the earliest."""
    data: Sequence[str | Path] | None = None
    """Where the dataset is now, if it moved: texts are compared if it is there."""
    partial: bool = False
    where: str | None = None
    """Search only among what this keeps: a condition in SQL over fields of the records, id, row and num_steps, and with
    scores num_tokens, value and flags."""


def duplicates(
    store: StoreLike, request: DuplicatesRequest | None = None, *, threads: Threads = None, listener: Listener = ignore
) -> DuplicateTable:
    """Return the done samples of a signal in groups: those with the same text, or with a cosine from a threshold up."""
    request = request or DuplicatesRequest()
    threshold, descriptor = request.threshold, request.descriptor
    floor = min(DEFAULT_FLOOR, threshold) if request.floor is None else request.floor
    check_thresholds(threshold, floor)
    opened = store if isinstance(store, Store) else Store.open(store)
    table = _scores(opened, request.scores, steps=descriptor == "weighted")
    keep = _checked(request.keep, table)
    view = opened.signal(request.signal if table is None else table.signal_named(request.signal))
    named = isinstance(request.subset, (str, Path))
    kept = keep_samples(opened, request.where, table, request.data)
    reader = DescriptionReader.of(
        opened,
        DescriptorSpec(view.name, descriptor, request.dimension, request.seed),
        scores=table if descriptor == "weighted" else None,
        samples=_asked_for(opened, request.subset, kept),
        partial=request.partial,
        threads=threads,
    )
    source = StoreVectors(reader)
    search, about = _search(source, floor, threads, request.seed, listener)
    row = opened.column("sample_row")[source.sample].astype(np.int64)
    by_row = np.argsort(row)  # of copies, the first in the dataset counts
    found, row = source.sample[by_row], row[by_row]
    digests, digest_of = sample_digests(opened, found, request.data, listener)
    copies, is_exact = _same_text(found, digests)
    note = DuplicatesNote(
        **reader.made_by
        | {
            "spec": GroupSpec(threshold=threshold, floor=floor, keep=keep),
            "num_samples": len(found),
            "num_zero": source.num_zero,
            "exact_by": digest_of,
            "search": about,
            "subset": str(request.subset) if named else None,
            "scores": None if table is None else table.note,
            "where": where_note(kept),
        }
    )
    forest = spanning_forest(joined([copies, search.forest]))
    return DuplicateTable(
        sample_id=opened.column("sample_id")[found].tolist(),
        row=row,
        exact=is_exact,
        **_likeness(found, forest, search),
        value=np.full(len(found), np.nan) if table is None else table.values_of(row),
        num_tokens=_num_tokens(view, threads)[found],
        note=note,
    )


def regroup(
    table: str | Path, *, threshold: float | None = None, keep: Keep | None = None, scores: ScoresLike | None = None
) -> DuplicateTable:
    """Return the samples of a table of duplicates in groups by another threshold or policy, without store or search."""
    found = read_duplicates(table)
    value = None
    if scores is not None:
        given = scores if isinstance(scores, ScoreTable) else read_scores(scores, steps=False)
        if given.note.plan_sha256 != found.note.plan_sha256:
            raise DataError(
                f"{table} and the scores are of different plans; score the store that {table} was made from."
            )
        value = given.values_of(found.row)
    _checked(keep or found.note.spec.keep, scores if scores is not None else found)
    return found.regrouped(threshold, keep, value)


@dataclass(slots=True)
class StoreVectors:
    """The descriptors of a store's samples as vectors to search; a point's number is its sample's place in the plan."""

    reader: DescriptionReader
    sample: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """The samples there are, once all were read."""
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
        self.sample = np.concatenate([np.zeros(0, np.int64), *samples])
        self.num_zero, self.num_unweighted = num_zero, num_unweighted

    def sampled(self, num_vectors: int, seed: int) -> tuple[IntArray, Float32Array]:
        """Return the vectors of some units at random: whole ones, so that few have to be read."""
        units, per_unit = self.reader.units, max(1, self.reader.max_samples // max(1, len(self.reader.units)))
        count = min(len(units), -(-num_vectors // per_unit))
        chosen = np.sort(np.random.default_rng(seed).permutation(len(units))[:count]).tolist()
        blocks = list(self.reader.blocks([units[place] for place in chosen]))
        return np.concatenate([block.sample for block in blocks]), np.concatenate([block.vector for block in blocks])


def _search(
    source: StoreVectors, floor: float, threads: Threads, seed: int, listener: Listener
) -> tuple[Found, SearchNote]:
    """Return what the search found and what the table says of it."""
    # Here, so that nothing but a search needs faiss: a table is regrouped without.
    from grace_store.likeness.search import num_gpus, plan_index, similar_pairs

    plan = plan_index(source.reader.max_samples, source.size, num_gpus=num_gpus())
    how = "all with all" if plan.kind == "flat" else f"in {plan.num_probed} of {plan.num_cells} cells each"
    listener(Note(f"Comparing {counted(source.reader.max_samples, 'sample')}, {source.size} numbers each, {how}."))
    by = {"workers": threads} if isinstance(threads, Mapper) else {"threads": threads}
    found = similar_pairs(source, floor, plan=plan, seed=seed, listener=listener, **by)
    tell_oddities(source.num_zero, source.num_unweighted, listener)
    recall, more = found.recall, {}
    if recall is not None:
        if recall.share is not None and recall.share < 0.99:
            listener(Warned(f"The search found {recall.share:.3f} of the similar pairs of samples drawn at random."))
        about = RecallNote(**asdict(recall), share=recall.share)
        more = {"recall": about, "num_cells": plan.num_cells, "num_probed": plan.num_probed}
    return found, SearchNote(index=plan.kind, seed=seed, num_distinct=found.num_distinct, **more)


def _same_text(samples: IntArray, digests: Sequence[bytes]) -> tuple[Pairs, BoolArray]:
    """Return pairs of every sample with the first that has the same text, and which samples have such a one."""
    first: dict[bytes, int] = {}
    earliest = np.array([first.setdefault(digest, place) for place, digest in enumerate(digests)], dtype=np.int64)
    again = np.flatnonzero(earliest != np.arange(len(earliest)))
    is_exact = np.zeros(len(samples), dtype=np.bool_)
    is_exact[again], is_exact[earliest[again]] = True, True
    return Pairs(samples[earliest[again]], samples[again], np.ones(len(again), np.float32)), is_exact


def _likeness(found: IntArray, forest: Pairs, search: Found) -> dict[str, Any]:
    """Return a table's columns of nearest samples and links, by places among the samples found instead of the plan."""
    place = np.zeros(len(search.nearest), dtype=np.int64)
    place[found] = np.arange(len(found))
    forest = Pairs(place[forest.first], place[forest.second], forest.similarity)
    nearest, similarity = nearest_in(len(found), forest)
    # A sample that is like no other still has a nearest one.
    alone = np.flatnonzero((nearest < 0) & (search.nearest[found] >= 0))
    nearest[alone] = place[search.nearest[found[alone]]]
    similarity[alone] = search.nearest_similarity[found[alone]]
    link, link_similarity = parents_in(len(found), forest)
    return {"nearest": nearest, "similarity": similarity, "link": link, "link_similarity": link_similarity}


def _num_tokens(view: SignalView, threads: Threads) -> IntArray:
    """Return the tokens in the response of every planned sample; 0 where it is not done."""
    out = np.zeros(view.store.plan.num_samples, dtype=np.int64)
    if view.per_sample:
        size = view.store.plan.samples_per_unit
        units = view.committed_units()
        for unit, counts in zip(
            units, map_ordered(lambda unit: view.unit_array("sample_num_tokens", unit), units, threads), strict=True
        ):
            here = out[unit * size : (unit + 1) * size]
            here[:] = counts[: len(here)]
        return out
    for sample, num_tokens in BlockReader(view.store, (view.name,), gram=False).map(
        lambda block: (block.sample, block.num_tokens), threads
    ):
        out[sample] = num_tokens
    return out


def _asked_for(store: Store, subset: str | Path | IntArray | None, kept: Kept | None) -> IntArray | None:
    """Return the positions that are searched, None for all."""
    named = samples_named(store, subset) if isinstance(subset, (str, Path)) else subset
    if kept is None:
        return named
    return kept.places if named is None else np.intersect1d(named, kept.places)


def _scores(store: Store, scores: ScoresLike | None, *, steps: bool) -> ScoreTable | None:
    if scores is None:
        return None
    table = scores if isinstance(scores, ScoreTable) else read_scores(scores, steps=steps)
    check_plan_of(table.note, store, table.what)
    return table


def _checked(keep: Keep | None, values: object | None) -> Keep:
    if keep is None:
        return "earliest" if values is None else "value"
    if keep not in KEEPS:
        raise SettingError(f"keep {keep!r} is none of {', '.join(KEEPS)}")
    if keep == "value" and values is None:
        raise SettingError("to keep the sample with the highest value, give the --scores that have the values")
    return keep
