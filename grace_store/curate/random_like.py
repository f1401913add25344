"""Random subsets like one that was chosen: the rules in its note, followed with random values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from grace_store.artifacts.against_table import AgainstTable
from grace_store.artifacts.notes import ChosenDiversity
from grace_store.artifacts.subset_file import WrittenSubset, read_subset, samples_named
from grace_store.base.arrays import IntArray
from grace_store.base.errors import DataError
from grace_store.base.files import sidecar_of
from grace_store.base.text import counted
from grace_store.curate.select import RankRequest, Rules
from grace_store.store.opened import Store
from grace_store.values.diversity_spec import DiversitySpec
from grace_store.values.methods.random import random_values
from grace_store.values.ranking import rank


@dataclass(frozen=True, slots=True)
class DrawSource:
    """What random subsets are drawn from, and by which rules, to be like one that was given."""

    store: Store
    positions: IntArray
    """In the plan, ascending, of the samples of the given subset."""
    possible: IntArray
    """In the plan, ascending, of all samples that could have been chosen."""
    stratum: IntArray
    """For each of the possible ones, the number of the stratum or capability that the subset keeps in balance."""
    rules: Rules | None = None
    """How it was chosen; None for a list of ids, which any samples may be in."""

    @classmethod
    def read(cls, store: Store, path: Path, data: Sequence[str] | None) -> Self:
        """Read a subset that ``select`` wrote, or a list of ids."""
        positions = samples_named(store, path)
        if not sidecar_of(path).is_file():
            possible = np.arange(store.plan.num_samples)
            return cls(store, positions, possible, np.zeros(len(possible), dtype=np.int64))
        rules = rules_of(read_subset(path), store, data)
        place = np.flatnonzero(rules.is_possible)
        possible = store.positions_of(rules.scores.row[place])
        order = np.argsort(possible)
        return cls(store, positions, possible[order], _strata(rules)[place[order]], rules)

    def random_order(self, seed: int, pool: IntArray) -> IntArray:
        """Return positions of a pool in the order in which the rules choose them when values are random.

        What the rules leave out, such as further traces of a question, is not among them.
        """
        row = self.store.column("sample_row").astype(np.int64)[pool]
        if self.rules is None:
            return pool[rank(random_values(seed, row), row)]
        table_row = self.rules.scores.row
        value = np.where(np.isin(table_row, row), random_values(seed, table_row), np.nan)
        ranked = self.rules.rank(value).ranked
        return self.store.positions_of(table_row[ranked])


def rules_of(subset: WrittenSubset, store: Store, data: Sequence[str] | None) -> Rules:
    """Return the rules that a subset was chosen by; raise DataError if they do not choose its samples any more."""
    spec = subset.spec
    request = RankRequest(
        by=spec.by,
        exclude_flagged=spec.exclude_flagged,
        exclude_contaminated=_contaminated(subset),
        control=spec.control,
        diversity=None if spec.diversity is None else _diversity(spec.diversity),
        per_group=spec.per_group,
        margin=spec.margin,
        group_by=spec.group_by,
        where=None if spec.where is None else spec.where.sql,
        store=store.location,
        data=data,
    )
    rules = Rules.of(subset.scores, request)
    again = rules.rank(rules.value).take(ratio=spec.ratio, count=spec.count, threshold=spec.threshold)
    chosen = subset.scores.row[subset.chosen]
    if num_others := len(np.setxor1d(again.row, chosen)):
        raise DataError(
            f"{subset.path} cannot be chosen again by the rules in {sidecar_of(subset.path).name}: "
            f"{counted(num_others, 'sample')} would enter or leave. So random subsets cannot follow its rules. Select "
            "it again" + (", without a table of --duplicates." if spec.diversity and spec.diversity.duplicates else ".")
        )
    return rules


def _contaminated(subset: WrittenSubset) -> AgainstTable | None:
    """Return which samples were left out for items of benchmarks, as the subset's note knows it."""
    note = subset.spec.exclude_contaminated
    if note is None:
        return None
    if subset.contaminated_rows is None:
        raise DataError(
            f"{sidecar_of(subset.path)} does not say which samples were left out as contaminated, so random subsets "
            "could hold them. Select the subset again."
        )
    return AgainstTable.of_rows(subset.contaminated_rows, note)


def _diversity(chosen: ChosenDiversity) -> DiversitySpec:
    """Return the settings that make a ranking as diverse; near-duplicates are searched by the vectors they were."""
    settings = chosen.model_dump(exclude={"duplicates"})
    if chosen.duplicates is not None:
        settings |= {"signal": chosen.duplicates.signal.name, "descriptor": chosen.duplicates.descriptor}
    return DiversitySpec(**settings)


def _strata(rules: Rules) -> IntArray:
    """Return the number of the stratum, or of the capability, of each row of the table; 0 where there are none."""
    kinds = rules.groups if rules.groups is not None else rules.scores.capability
    if kinds is None:
        return np.zeros(len(rules.scores), dtype=np.int64)
    codes: dict[object, int] = {}
    return np.array([codes.setdefault(kind, len(codes)) for kind in kinds], dtype=np.int64)
