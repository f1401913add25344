"""Orders of samples that trade value against redundancy, by the vectors of the samples that have a value."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from grace_store.base.arrays import Float32Array, IntArray, Places, Positions, find_rows
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.text import counted
from grace_store.choose.duplicate_table import DuplicateTable, read_duplicates
from grace_store.choose.duplicates import duplicates
from grace_store.choose.selection import Selection
from grace_store.likeness.duplicate_groups import DEFAULT_THRESHOLD
from grace_store.likeness.points import Descriptor, descriptor_named
from grace_store.pool.descriptors import Descriptions, describe_samples
from grace_store.pool.pool import Pool
from grace_store.scoring.score_table import ScoreTable
from grace_store.store.opened import Store
from grace_store.values.diverse_orders import DiversitySpec, distinct_first

DiverseOrder = tuple[IntArray, dict[str, Any], int | None]
"""Places in a ranking, in a diverse order. Then the fields of the selection that say what made the order. Then, of
dedup, how many samples are left without near-duplicates."""


def check_diverse(selection: Selection, spec: DiversitySpec) -> None:
    """Raise SettingError if a selection asks for diversity together with what it excludes."""
    if selection.by is not None:
        raise SettingError("strata and diversity are two ways to order samples: give --by or --diversity")
    if selection.duplicates is not None and spec.method != "dedup":
        raise SettingError(f"a table of duplicates is for diversity by dedup; {spec.method} would ignore it")


def diverse_order(
    scores: ScoreTable, ranked: IntArray, selection: Selection, pool: Pool, *, listener: Listener = ignore
) -> DiverseOrder:
    """Return the rows of a table that are ranked by value in the diverse order that a selection asks for.

    pool is the store that was scored, with the place of its dataset; its signal is that of the selection.
    """
    spec, given = selection.diversity, selection.duplicates
    assert spec is not None
    row = scores.row[ranked]
    if isinstance(given, str):
        return _distinct_order(_given_table(given, pool.store, spec), row, given)
    if given is not None:  # a table that is known by its note alone: the same vectors are searched anew
        spec = spec.model_copy(update={"signal": given.signal.name, "descriptor": given.descriptor})
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
    from grace_store.likeness.greedy import pool_orders  # imports faiss, which dedup by a table does without

    vectors = open_vectors(pool, descriptor, scores, samples=samples, listener=listener)
    at = places_in(vectors, row, "the table")
    listener(Note(f"Ordering {counted(len(at), 'sample')} by {spec.method}."))
    threads = pool.threads if isinstance(pool.threads, int) else None
    order = pool_orders(cast(Float32Array, vectors.vector), at, [spec], threads=threads)[0]
    used = spec.model_copy(update={"descriptor": vectors.made_by["descriptor"]})
    return order, {"diversity": used, "duplicates": None}, None


def _given_table(path: str, store: Store, spec: DiversitySpec) -> DuplicateTable:
    if spec.signal is not None or spec.descriptor is not None:
        raise SettingError("a table of duplicates was made from its own vectors: leave --signal and --descriptor out")
    table = read_duplicates(path)
    if table.note.plan_sha256 != store.plan.digest():
        raise DataError(
            f"The table of duplicates {path} was made from another plan than the scores: it belongs to "
            f"{table.note.store}. Look for duplicates in {store.location}."
        )
    return table.regrouped(threshold=spec.similarity)


def _distinct_order(table: DuplicateTable, row: IntArray, what: str) -> DiverseOrder:
    """Return an order of the samples with these dataset rows in which the near-duplicates of a table are last."""
    place, is_there = find_rows(table.row, row)
    if missing := int((~is_there).sum()):
        raise DataError(f"{what} lacks {missing} of the samples that have a value. Look for duplicates among all.")
    # A sample alone is a group of its own.
    group = np.where(table.group < 0, table.num_groups + np.arange(len(table)), table.group)[place]
    spec = DiversitySpec(method="dedup", similarity=table.threshold)
    return distinct_first(group), {"diversity": spec, "duplicates": table.note}, len(np.unique(group))


# ---------------------------------------------------------------- samples as points


def open_vectors(
    pool: Pool,
    descriptor: Descriptor | None,
    scores: ScoreTable | None = None,
    *,
    samples: Positions | None = None,
    listener: Listener = ignore,
) -> Descriptions:
    """Describe all done samples of a pool, or some (positions in the plan). The descriptor weighted needs scores."""
    weights = scores.with_steps() if descriptor == "weighted" and scores is not None else None
    num_samples = len(pool.positions) if samples is None else len(samples)
    listener(Note(f"Reading the vectors of {counted(num_samples, 'sample')}, signal {pool.signal.name}."))
    return describe_samples(pool, descriptor, scores=weights, samples=samples, listener=listener)


def places_in(vectors: Descriptions, row: IntArray, what: str) -> Places:
    """Return where the samples with these dataset rows stand among described samples; raise if one is missing."""
    place, is_there = find_rows(vectors.row, row)
    if not is_there.all():
        raise DataError(
            f"{int((~is_there).sum())} of the {len(row)} samples of {what} have no vector in signal "
            f"{vectors.made_by['signal']['name']!r} of {vectors.made_by['store']}. Name another --signal, or extract "
            "them."
        )
    return Places(place)
