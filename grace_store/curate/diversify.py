"""Rankings made diverse: value traded against redundancy, by the vectors of the samples that have a value."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from grace_store.artifacts.duplicate_table import DuplicateTable, read_duplicates
from grace_store.artifacts.made_from import open_store_of
from grace_store.artifacts.notes import ChosenDiversity
from grace_store.base.arrays import IntArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.row_places import find_rows
from grace_store.base.text import counted
from grace_store.curate.duplicates import DuplicatesRequest, duplicates
from grace_store.curate.pool import open_pool, pool_orders
from grace_store.curate.select import Diversified, Ranking, RankRequest
from grace_store.likeness.duplicate_groups import DEFAULT_THRESHOLD
from grace_store.likeness.points import descriptor_named
from grace_store.read.descriptors import DescriptorSpec
from grace_store.store.opened import Store
from grace_store.values.diverse_orders import distinct_first
from grace_store.values.diversity_spec import DiversitySpec


def diversify(
    ranking: Ranking, spec: DiversitySpec, request: RankRequest, *, threads: int | None, listener: Listener = ignore
) -> Ranking:
    """Return a ranking of the same samples in a diverse order; every subset of it has the budget it always had."""
    if ranking.by is not None:
        raise SettingError("strata and diversity are two ways to order samples: give --by or --diversity")
    if request.duplicates is not None and spec.method != "dedup":
        raise SettingError(f"a table of duplicates is for diversity by dedup; {spec.method} would ignore it")
    opened = open_store_of(ranking.scores, request.store)
    row = ranking.scores.row[ranking.ranked]
    if request.duplicates is not None:
        table = _given_table(request.duplicates, opened, spec)
        return _without_duplicates(ranking, table, row, str(request.duplicates))
    spec = spec.model_copy(update={"signal": ranking.scores.signal_named(spec.signal)})
    samples = np.sort(opened.positions_of(row))
    descriptor = None if spec.descriptor is None else descriptor_named(spec.descriptor)
    if spec.method == "dedup":
        similarity = spec.similarity or DEFAULT_THRESHOLD
        wanted = DuplicatesRequest(
            signal=spec.signal,
            descriptor=descriptor,
            threshold=similarity,
            floor=similarity,
            scores=ranking.scores.with_steps() if descriptor == "weighted" else None,
            subset=samples,
            data=request.data,
            partial=True,
        )
        table = duplicates(opened, wanted, threads=threads, listener=listener)
        return _without_duplicates(ranking, table, row, "the search")
    points = DescriptorSpec(spec.signal, descriptor)
    pool = open_pool(opened, points, ranking.scores, samples=samples, partial=True, threads=threads, listener=listener)
    at = pool.places_of(row, "the table")
    choice = ChosenDiversity(**spec.model_dump() | {"descriptor": pool.note.descriptor})
    listener(Note(f"Ordering {counted(len(at), 'sample')} by {spec.method}."))
    return _ranked(ranking, pool_orders(pool.vector, at, [spec], threads=threads)[0], choice)


def _given_table(path: str | Path, store: Store, spec: DiversitySpec) -> DuplicateTable:
    if spec.signal is not None or spec.descriptor is not None:
        raise SettingError("a table of duplicates was made from its own vectors: leave --signal and --descriptor out")
    table = read_duplicates(path)
    if table.note.plan_sha256 != store.plan.digest():
        raise DataError(
            f"The table of duplicates {path} was made from another plan than the scores: it belongs to "
            f"{table.note.store}. Look for duplicates in {store.location}."
        )
    return table.regrouped(threshold=spec.similarity)


def _without_duplicates(ranking: Ranking, table: DuplicateTable, row: IntArray, what: str) -> Ranking:
    """Return a ranking with the near-duplicates of a table last."""
    place, is_there = find_rows(table.row, row)
    if missing := int((~is_there).sum()):
        raise DataError(f"{what} lacks {missing} of the samples that have a value. Look for duplicates among all.")
    # A sample alone is a group of its own.
    group = np.where(table.group < 0, table.num_groups + np.arange(len(table)), table.group)[place]
    choice = ChosenDiversity(method="dedup", similarity=table.threshold, duplicates=table.note)
    return _ranked(ranking, distinct_first(group), choice, len(np.unique(group)))


def _ranked(ranking: Ranking, order: IntArray, choice: ChosenDiversity, num_distinct: int | None = None) -> Ranking:
    diversified = Diversified(choice, ranking.ranked, num_distinct)
    return replace(ranking, ranked=ranking.ranked[order], diversified=diversified)
