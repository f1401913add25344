"""Who is trained on what in a trial: the subsets, random ones like them, and the held-out items. Knows no model.

Held-out questions are drawn from the whole pool, chosen or not, and then all their traces are taken out of every
subset, given or random. So the items are no worse for one way of choosing than for another, and a subset that was drawn
at random is like its random subsets in every respect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from grace_store.artifacts.made_from import check_plan_of
from grace_store.artifacts.trial_documents import TrialSpec, TrialSubset
from grace_store.artifacts.weight_table import read_weights
from grace_store.base.arrays import BoolArray, FloatArray, IntArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.text import counted
from grace_store.model.lora.recipe import SampleRef
from grace_store.read.kept_samples import planned_columns, read_groups
from grace_store.read.question_groups import question_digests, wording_digests
from grace_store.read.records import SampleRecords
from grace_store.store.opened import Store
from grace_store.values.methods.random import random_values
from grace_store.values.ranking import budget, rank
from grace_store.values.subset_trial import FEWEST_ITEMS

if TYPE_CHECKING:
    from grace_store.curate.random_like import DrawSource

MOST_ITEMS = 256
"""Held-out items of a share or a file: more would cost more time than they narrow an interval."""
FEWEST_SAMPLES = 2
_ITEM_STREAM, _DRAW_STREAM = 0x7472616974656D, 0x74726169647261
"""Added to the seed, so that draws for different purposes have nothing to do with each other."""
_DRAWS_PER_SEED = 2**16

Digests = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Arm:
    """What one training is on."""

    key: str
    """Its name in files: subset-1, or random-1-3 for the third random subset of the first set of them."""
    name: str
    """For people."""
    positions: IntArray
    """In the plan, ascending, without held-out questions."""
    weights: Mapping[int, FloatArray] = field(default_factory=dict)
    """By row, how much the loss of each of a sample's segments counts, the answer last; those of other rows count 1."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The items that models are measured on."""

    store: Store
    positions: IntArray
    """In that store's plan, ascending, one for each question."""
    questions: Digests
    """What samples of the pool with such a question have: of prompts, or of their words if the store is another."""

    @property
    def refs(self) -> tuple[SampleRef, ...]:
        """Return the items by id and row."""
        ids, rows = (self.store.column(name) for name in ("sample_id", "sample_row"))
        return tuple(SampleRef(sample_id=str(ids[i]), row=int(rows[i])) for i in self.positions.tolist())


@dataclass(frozen=True, slots=True)
class TrialSamples:
    """All samples of a trial."""

    store: Store
    subsets: tuple[TrialSubset, ...]
    arms: dict[str, Arm]
    """By key."""
    num_questions: dict[str, int]
    """Of how many questions the traces of each arm are, by its key, held-out ones included."""
    held_out: HeldOut
    num_pool: int
    num_held_out_samples: int

    def arms_of(self, subset: int) -> list[Arm]:
        """Return a subset, numbered from 0, and then its random ones."""
        randoms = f"random-{self.subsets[subset].random}-"
        return [self.arms[f"subset-{subset + 1}"]] + [arm for key, arm in self.arms.items() if key.startswith(randoms)]


@dataclass(frozen=True, slots=True)
class SubsetFile:
    """A subset as it was given."""

    path: Path
    weights: Path | None = None
    """A table of step weights that it is trained with."""


def gather_samples(
    store: Store, files: Sequence[SubsetFile], spec: TrialSpec, other: Store | None, data: Sequence[str] | None
) -> TrialSamples:
    """Return who is trained on what: a function of the files, the seed and the rows alone.

    other holds the traces that models are measured on, if these are not to be of the pool.
    """
    from grace_store.curate.random_like import DrawSource  # all that select needs, too

    known = {path: DrawSource.read(store, path, data) for path in dict.fromkeys(file.path for file in files)}
    sources = [known[file.path] for file in files]
    pool = reduce(np.intersect1d, (each.possible for each in sources))
    _check_one_pool(files, sources, pool)
    if other is None:
        digests = question_digests(store, None, data, pool)
        held = _hold_out(store, pool, digests, spec)
    else:
        digests, held = wording_digests(store, data, pool), _all_of(other, spec)
    _check_enough(held, spec.held_out)
    is_held = np.isin(digests, held.questions)
    group = _group_of(store, pool, spec.by, data)
    draws = _Draws(pool, group, spec)
    names = _names(files)
    arms: dict[str, Arm] = {}
    questions: dict[str, int] = {}
    subsets = []
    for number, (file, name, source) in enumerate(zip(files, names, sources, strict=True), start=1):
        is_chosen = np.isin(pool, source.positions)
        kept = _kept(pool, is_chosen, is_held, name)
        mine = [Arm(f"subset-{number}", name, kept, _weights_of(store, file, kept))]
        control, randoms = draws.like(source, name)
        for draw, is_drawn in enumerate(randoms, start=1):
            shown = f"random {draw}" if control == 1 else f"random {control}.{draw}"
            mine.append(Arm(f"random-{control}-{draw}", shown, _kept(pool, is_drawn, is_held, shown)))
        for arm, is_in in zip(mine, (is_chosen, *randoms), strict=True):
            questions[arm.key] = len(np.unique(digests[is_in]))
        arms |= {arm.key: arm for arm in mine}
        sizes = {"num_samples": len(source.positions), "num_trained": len(mine[0].positions)}
        digest = _digest(store, mine)
        places = {"path": str(file.path), "weights": None if file.weights is None else str(file.weights)}
        subsets.append(TrialSubset(name=name, random=control, samples_sha256=digest, **places, **sizes))
    return TrialSamples(store, tuple(subsets), arms, questions, held, len(pool), int(is_held.sum()))


def _check_one_pool(files: Sequence[SubsetFile], sources: Sequence[DrawSource], pool: IntArray) -> None:
    """Raise if a subset has samples that another could not have had: one of them would be tried without some."""
    for file, source in zip(files, sources, strict=True):
        if num_outside := int((~np.isin(source.positions, pool)).sum()):
            raise SettingError(
                f"{file.path.name} has {counted(num_outside, 'sample')} that not all subsets could be chosen from "
                "(filters, flags and contamination count). Try it in a trial of its own."
            )


def _names(files: Sequence[SubsetFile]) -> list[str]:
    if len(set(files)) < len(files):
        raise SettingError("the same subset is given twice")
    for named in (lambda path: path.name, str):
        names = [named(each.path) + (f" with {named(each.weights)}" if each.weights else "") for each in files]
        if len(set(names)) == len(names):
            break
    return names


def _weights_of(store: Store, file: SubsetFile, positions: IntArray) -> dict[int, FloatArray]:
    """Return by row how much each segment of the samples counts; nothing for those without weights of their own."""
    if file.weights is None:
        return {}
    table = read_weights(file.weights)
    check_plan_of(table.note, store, table.what)
    rows = store.column("sample_row")[positions].astype(np.int64)
    found = zip(rows.tolist(), table.segment_weights(rows), strict=True)
    return {row: weights for row, weights in found if weights is not None}


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


# ---------------------------------------------------------------- random subsets


def _group_of(store: Store, pool: IntArray, by: str | None, data: Sequence[str] | None) -> IntArray:
    """Return the number of each sample's group: all are in one unless a field is named."""
    if by is None:
        return np.zeros(len(pool), dtype=np.int64)
    num = store.plan.num_samples
    values = read_groups(by, planned_columns(store), num, lambda: SampleRecords(store, data))
    codes: dict[object, int] = {}
    return np.array([codes.setdefault(values[place], len(codes)) for place in pool.tolist()], dtype=np.int64)


class _Draws:
    """Random subsets; subsets that are like the same random ones share theirs."""

    def __init__(self, pool: IntArray, group: IntArray, spec: TrialSpec) -> None:
        self._pool, self._group = pool, group
        first = _DRAW_STREAM + spec.training.seed * _DRAWS_PER_SEED
        self._seeds = range(first, first + spec.num_random)
        self._known: dict[bytes, int] = {}

    def like(self, source: DrawSource, name: str) -> tuple[int, list[BoolArray]]:
        """Return the number of the set of random subsets of a subset's rules and make-up, and who is in each."""
        is_chosen = np.isin(self._pool, source.positions)
        stratum = source.stratum[np.searchsorted(source.possible, self._pool)]
        _, group = np.unique(self._group * (int(stratum.max()) + 1) + stratum, return_inverse=True)
        counts = np.bincount(group[is_chosen], minlength=int(group.max()) + 1)
        orders = (np.searchsorted(self._pool, source.random_order(seed, self._pool)) for seed in self._seeds)
        drawn = [_first_of_groups(order, group, counts, name) for order in orders]
        if all(np.array_equal(each, is_chosen) for each in drawn):
            each = "" if len(counts) == 1 else ", or all or none of each value of --by"
            raise SettingError(
                f"{name} holds all samples that its rules could choose{each}, so random subsets of its size would be "
                "the same. Try a smaller subset."
            )
        return self._known.setdefault(np.packbits(drawn).tobytes(), len(self._known) + 1), drawn


def _first_of_groups(order: IntArray, group: IntArray, counts: IntArray, name: str) -> BoolArray:
    """Return which samples come first in an order, so many of each group; raise if the order has not as many."""
    there = np.bincount(group[order], minlength=len(counts))
    if lacking := np.flatnonzero(there < counts).tolist():
        of, remedy = "", "Try it in a trial of its own."
        if len(counts) > 1:
            of, remedy = " of one value of --by", "Try or select it without --by, which traces of a question differ in."
        raise SettingError(
            f"{name} has {counted(int(counts[lacking[0]]), 'sample')}{of}, and a random subset by its rules only has "
            f"{there[lacking[0]]} to take from. {remedy}"
        )
    together = order[np.argsort(group[order], kind="stable")]
    first_of_group = np.searchsorted(group[together], np.arange(len(counts)))
    is_drawn = np.zeros(len(group), dtype=np.bool_)
    is_drawn[together[np.arange(len(order)) - first_of_group[group[together]] < counts[group[together]]]] = True
    return is_drawn


# ---------------------------------------------------------------- held-out items


def is_amount(held_out: str) -> bool:
    """Return whether this is a share or a number of questions rather than a file."""
    try:
        amount = Decimal(held_out)
    except InvalidOperation:
        return False
    return amount.is_finite() and amount > 0


def _hold_out(store: Store, pool: IntArray, digests: Digests, spec: TrialSpec) -> HeldOut:
    """Return some questions of the pool."""
    row = store.column("sample_row").astype(np.int64)[pool]
    first = _first_of_each(digests, row, spec.training.seed)
    taken = first[: _num_held_out(spec.held_out, len(first))]
    return HeldOut(store, np.sort(pool[taken]), digests[taken])


def _all_of(other: Store, spec: TrialSpec) -> HeldOut:
    """Return the questions of another store; none of them is trained on, whether it is an item or not.

    Other files may write a question with other spaces or another system prompt: what is trained on has other words.
    """
    positions = np.arange(other.plan.num_samples)
    digests = question_digests(other, None, None, positions)
    first = _first_of_each(digests, other.column("sample_row").astype(np.int64), spec.training.seed)
    return HeldOut(other, np.sort(first[:MOST_ITEMS]), wording_digests(other, None, positions))


def _check_enough(held: HeldOut, held_out: str) -> None:
    if len(held.positions) < FEWEST_ITEMS:
        raise SettingError(
            f"--held-out {held_out} holds {counted(len(held.positions), 'question')} out; at least {FEWEST_ITEMS} are "
            f"wanted to measure models on. Give --held-out {FEWEST_ITEMS} or more, or a file."
        )


def _first_of_each(digests: Digests, row: IntArray, seed: int) -> IntArray:
    """Return the place of one sample of each question, questions in a random order."""
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
