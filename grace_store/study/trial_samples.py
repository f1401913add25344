"""The samples of a trial: the subsets, random subsets like them, and the held-out items. Knows no model.

Held-out questions are drawn from the whole pool, and all their traces are removed from every subset, given or random.
So the items favour no way of choosing, and a subset that was drawn at random has the same distribution as its random
subsets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import BoolArray, FloatArray, IntArray, find_rows
from grace_store.base.errors import DataError, SettingError
from grace_store.base.files import sidecar_of
from grace_store.base.text import counted
from grace_store.choose.selection import samples_named
from grace_store.data.sample_digests import wording_digest
from grace_store.pool.records import digest_samples, question_digests
from grace_store.scoring.notes import check_plan_of
from grace_store.scoring.weight_table import read_weights
from grace_store.store.opened import Store
from grace_store.study.trial_documents import Arm, SubsetFile, TrialSamples, TrialSpec, TrialSubset
from grace_store.values.random_values import random_values
from grace_store.values.ranking import budget, rank
from grace_store.values.subset_trial import FEWEST_ITEMS

if TYPE_CHECKING:
    from grace_store.choose.select import Rules

MOST_ITEMS = 256
"""Most held-out items of a share or a file: more would cost much time and narrow intervals little."""
FEWEST_SAMPLES = 2
_ITEM_STREAM, _DRAW_STREAM = 0x7472616974656D, 0x74726169647261
"""Added to the seed, so that draws for different purposes are independent."""
_DRAWS_PER_SEED = 2**16

Digests = npt.NDArray[np.uint64]


def gather_samples(
    store: Store,
    files: Sequence[SubsetFile],
    spec: TrialSpec,
    other: Store | None,
    data: Sequence[str] | None,
    labels: str | Path | None = None,
) -> TrialSamples:
    """Return the samples of every training: a function of the files, the seed and the rows alone.

    other has the held-out traces, if they are not from the pool.
    """
    known = {path: DrawSource.read(store, path, data, labels) for path in dict.fromkeys(path for path, _ in files)}
    sources = [known[path] for path, _ in files]
    pool = reduce(np.intersect1d, (each.possible for each in sources))
    for (path, _), source in zip(files, sources, strict=True):
        if num_outside := int((~np.isin(source.positions, pool)).sum()):
            raise SettingError(
                f"{path.name} has {counted(num_outside, 'sample')} that the filters or exclusions of another "
                "subset leave out. Run a separate trial for this subset."
            )
    digests = question_digests(store, pool) if other is None else digest_samples(store, data, pool, wording_digest)
    held, asked = _hold_out(store, pool, digests, spec) if other is None else _all_of(other, spec)
    if len(held) < FEWEST_ITEMS:
        raise SettingError(
            f"--held-out {spec.held_out} holds {counted(len(held), 'question')} out; at least {FEWEST_ITEMS} are "
            f"wanted to measure models on. Give --held-out {FEWEST_ITEMS} or more, or a file."
        )
    is_held = np.isin(digests, asked)
    draws = _Draws(pool, spec)
    arms: dict[str, Arm] = {}
    questions: dict[str, int] = {}
    subsets = []
    for number, ((path, weights), name, source) in enumerate(zip(files, _names(files), sources, strict=True), start=1):
        is_chosen = np.isin(pool, source.positions)
        kept = _kept(pool, is_chosen, is_held, name)
        mine = [Arm(f"subset-{number}", name, kept, _weights_of(store, weights, kept))]
        control, randoms = draws.like(source, name)
        for draw, is_drawn in enumerate(randoms, start=1):
            shown = f"random {draw}" if control == 1 else f"random {control}.{draw}"
            mine.append(Arm(f"random-{control}-{draw}", shown, _kept(pool, is_drawn, is_held, shown)))
        for arm, is_in in zip(mine, (is_chosen, *randoms), strict=True):
            questions[arm.key] = len(np.unique(digests[is_in]))
        arms |= {arm.key: arm for arm in mine}
        sizes = {"num_samples": len(source.positions), "num_trained": len(mine[0].positions)}
        digest = _digest(store, mine)
        places = {"path": str(path), "weights": None if weights is None else str(weights)}
        subsets.append(TrialSubset(name=name, random=control, samples_sha256=digest, **places, **sizes))
    measured_in = store if other is None else other
    return TrialSamples(store, tuple(subsets), arms, questions, measured_in, held, len(pool), int(is_held.sum()))


def _names(files: Sequence[SubsetFile]) -> list[str]:
    if len(set(files)) < len(files):
        raise SettingError("the same subset is given twice")
    for named in (lambda path: path.name, str):
        names = [named(path) + (f" with {named(weights)}" if weights else "") for path, weights in files]
        if len(set(names)) == len(names):
            break
    return names


def _weights_of(store: Store, weights: Path | None, positions: IntArray) -> dict[int, FloatArray]:
    """Return the weights of the segments of samples, by dataset row; samples without weights are left out."""
    if weights is None:
        return {}
    table = read_weights(weights)
    check_plan_of(table.note, store, table.what)
    rows = store.column("sample_row")[positions].astype(np.int64)
    found = zip(rows.tolist(), table.segment_weights(rows), strict=True)
    return {row: each for row, each in found if each is not None}


def _kept(pool: IntArray, is_chosen: BoolArray, is_held: BoolArray, name: str) -> IntArray:
    found = pool[is_chosen & ~is_held]
    if len(found) < FEWEST_SAMPLES:
        raise DataError(
            f"{counted(len(found), 'sample')} of {name} would be left to train on without the held-out questions; at "
            f"least {FEWEST_SAMPLES} are wanted. Hold fewer out with --held-out, or choose a larger subset."
        )
    return found


def _digest(store: Store, arms: Sequence[Arm]) -> str:
    rows = store.column("sample_row").astype("<i8")
    found = hashlib.sha256(b"|".join(rows[arm.positions].tobytes() for arm in arms))
    for arm in arms:
        for row, weight in sorted(arm.weights.items()):
            found.update(f"|{row}:".encode() + weight.astype("<f8").tobytes())
    return found.hexdigest()


@dataclass(frozen=True, slots=True)
class DrawSource:
    """A subset, and the rules and candidates from which random subsets like it are drawn."""

    store: Store
    positions: IntArray
    """Positions in the plan of the samples of the subset, ascending."""
    rules: Rules | None = None
    """The rules that chose the subset; None for a list of ids, for which every sample is a candidate."""

    @classmethod
    def read(cls, store: Store, path: Path, data: Sequence[str] | None, labels: str | Path | None = None) -> Self:
        """Read a subset that ``select`` wrote, or a list of ids."""
        from grace_store.choose.select import read_subset, replay_subset  # imports much

        positions = samples_named(store, path)
        if not sidecar_of(path).is_file():
            return cls(store, positions)
        return cls(store, positions, replay_subset(read_subset(path), store.location, data, labels))

    @property
    def possible(self) -> IntArray:
        """Positions of all candidates, ascending."""
        if self.rules is None:
            return np.arange(self.store.plan.num_samples)
        return np.sort(self.store.positions_of(self.rules.scores.row[self.rules.is_possible]))

    def stratum_of(self, pool: IntArray) -> IntArray:
        """Return the number of the stratum or capability of each candidate in the pool; all 0 without strata."""
        if self.rules is None:
            return np.zeros(len(pool), dtype=np.int64)
        place, _ = find_rows(self.rules.scores.row, self._rows_of(pool))
        return np.unique(self.rules.stratum[place], return_inverse=True)[1]

    def random_order(self, seed: int, pool: IntArray) -> IntArray:
        """Return the positions of a pool in the order in which the rules choose them when values are random."""
        row = self._rows_of(pool)
        if self.rules is None:
            return pool[rank(random_values(seed, row), row)]
        return self.store.positions_of(self.rules.random_like(seed, row))

    def _rows_of(self, positions: IntArray) -> IntArray:
        return self.store.column("sample_row").astype(np.int64)[positions]


class _Draws:
    """Random subsets of a pool. Subsets with the same random subsets share them."""

    def __init__(self, pool: IntArray, spec: TrialSpec) -> None:
        self._pool = pool
        first = _DRAW_STREAM + spec.training.seed * _DRAWS_PER_SEED
        self._seeds = range(first, first + spec.num_random)
        self._known: dict[bytes, int] = {}

    def like(self, source: DrawSource, name: str) -> tuple[int, list[BoolArray]]:
        """Return the number of the set of random subsets like a subset, and the members of each as booleans."""
        is_chosen = np.isin(self._pool, source.positions)
        group = source.stratum_of(self._pool)
        counts = np.bincount(group[is_chosen], minlength=int(group.max()) + 1)
        orders = (np.searchsorted(self._pool, source.random_order(seed, self._pool)) for seed in self._seeds)
        drawn = [_first_of_groups(order, group, counts, name) for order in orders]
        if all(np.array_equal(each, is_chosen) for each in drawn):
            each = "" if len(counts) == 1 else ", or all or none of each of its strata"
            raise SettingError(
                f"{name} holds all samples that its rules could choose{each}, so random subsets of its size would be "
                "the same. Try a smaller subset."
            )
        return self._known.setdefault(np.packbits(drawn).tobytes(), len(self._known) + 1), drawn


def _first_of_groups(order: IntArray, group: IntArray, counts: IntArray, name: str) -> BoolArray:
    """Return the members of the first counts samples of each group in an order; raise if a group has too few."""
    there = np.bincount(group[order], minlength=len(counts))
    if lacking := np.flatnonzero(there < counts).tolist():
        of, remedy = "", "Run a separate trial for this subset."
        if len(counts) > 1:
            of, remedy = " of one stratum", "Select again without --by: traces of one question are in different strata."
        raise SettingError(
            f"{name} has {counted(int(counts[lacking[0]]), 'sample')}{of}, but only "
            f"{there[lacking[0]]} samples can be drawn by its rules. {remedy}"
        )
    together = order[np.argsort(group[order], kind="stable")]
    first_of_group = np.searchsorted(group[together], np.arange(len(counts)))
    is_drawn = np.zeros(len(group), dtype=np.bool_)
    is_drawn[together[np.arange(len(order)) - first_of_group[group[together]] < counts[group[together]]]] = True
    return is_drawn


def _hold_out(store: Store, pool: IntArray, digests: Digests, spec: TrialSpec) -> tuple[IntArray, Digests]:
    """Return the positions of one trace of each held-out question of the pool, and digests of these questions."""
    first = _first_of_each(digests, store.column("sample_row").astype(np.int64)[pool], spec.training.seed)
    taken = first[: _num_held_out(spec.held_out, len(first))]
    return np.sort(pool[taken]), digests[taken]


def _all_of(other: Store, spec: TrialSpec) -> tuple[IntArray, Digests]:
    """Return positions of items in another store, and digests of the wording of all its questions.

    No trace with the same wording is trained on. Wording is compared because another file may write a question with
    other spaces or another system prompt.
    """
    positions = np.arange(other.plan.num_samples)
    digests = question_digests(other, positions)
    first = _first_of_each(digests, other.column("sample_row").astype(np.int64), spec.training.seed)
    return np.sort(first[:MOST_ITEMS]), digest_samples(other, None, positions, wording_digest)


def _first_of_each(digests: Digests, row: IntArray, seed: int) -> IntArray:
    """Return the place of one sample of each question, with questions in random order."""
    order = rank(random_values(_ITEM_STREAM + seed, row), row)
    _, first = np.unique(digests[order], return_index=True)
    return order[np.sort(first)]


def _num_held_out(held_out: str, num_questions: int) -> int:
    amount = Decimal(held_out)
    if amount < 1:
        return min(MOST_ITEMS, budget(amount, num_questions))
    if amount != int(amount) or amount >= num_questions:
        raise SettingError(
            f"--held-out {held_out} is neither a share below 1 nor a whole number below {num_questions}, the number of "
            "questions in the pool"
        )
    return int(amount)
