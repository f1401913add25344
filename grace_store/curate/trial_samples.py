"""Who is trained on what in a trial: the subsets, random ones like them, and the held-out items. Knows no model.

Held-out questions are drawn from the whole pool, chosen or not, and then all their traces are taken out of every
subset, given or random. So the items are no worse for one way of choosing than for another, and a subset that was drawn
at random is like its random subsets in every respect.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import reduce
from pathlib import Path

import numpy as np
import numpy.typing as npt

from grace_store.artifacts.filtered_scores import filter_scores
from grace_store.artifacts.made_from import check_plan_of
from grace_store.artifacts.subset_file import read_subset, samples_named
from grace_store.artifacts.trial_documents import TrialSpec, TrialSubset
from grace_store.artifacts.weight_table import read_weights
from grace_store.base.arrays import BoolArray, FloatArray, IntArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.files import sidecar_of
from grace_store.base.text import counted
from grace_store.model.lora.recipe import SampleRef
from grace_store.read.kept_samples import planned_columns, read_groups
from grace_store.read.question_groups import question_digests, wording_digests
from grace_store.read.records import SampleRecords
from grace_store.store.opened import Store
from grace_store.values.methods.random import random_values
from grace_store.values.ranking import budget, rank
from grace_store.values.subset_trial import FEWEST_ITEMS

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
    pool = reduce(np.intersect1d, (_pool_of(store, file.path, data) for file in files))
    chosen = [samples_named(store, file.path) for file in files]
    _check_one_pool(files, chosen, pool)
    if other is None:
        digests = question_digests(store, None, data, pool)
        held = _hold_out(store, pool, digests, spec)
    else:
        digests, held = wording_digests(store, data, pool), _all_of(other, spec)
    _check_enough(held, spec.held_out)
    is_held = np.isin(digests, held.questions)
    group = _group_of(store, pool, spec.by, data)
    draws = _Draws(store, pool, group, spec)
    names = _names(files)
    arms: dict[str, Arm] = {}
    questions: dict[str, int] = {}
    subsets = []
    for number, (file, name, positions) in enumerate(zip(files, names, chosen, strict=True), start=1):
        is_chosen = np.isin(pool, positions)
        kept = _kept(pool, is_chosen, is_held, name)
        mine = [Arm(f"subset-{number}", name, kept, _weights_of(store, file, kept))]
        control, randoms = draws.like(is_chosen, name)
        for draw, is_drawn in enumerate(randoms, start=1):
            shown = f"random {draw}" if control == 1 else f"random {control}.{draw}"
            mine.append(Arm(f"random-{control}-{draw}", shown, _kept(pool, is_drawn, is_held, shown)))
        for arm, is_in in zip(mine, (is_chosen, *randoms), strict=True):
            questions[arm.key] = len(np.unique(digests[is_in]))
        arms |= {arm.key: arm for arm in mine}
        sizes = {"num_samples": len(positions), "num_trained": len(mine[0].positions)}
        digest = _digest(store, mine)
        places = {"path": str(file.path), "weights": None if file.weights is None else str(file.weights)}
        subsets.append(TrialSubset(name=name, random=control, samples_sha256=digest, **places, **sizes))
    return TrialSamples(store, tuple(subsets), arms, questions, held, len(pool), int(is_held.sum()))


def _pool_of(store: Store, path: Path, data: Sequence[str] | None) -> IntArray:
    """Return the positions of the samples that a subset could have been chosen from: with a value, and not excluded."""
    if not sidecar_of(path).is_file():
        return np.arange(store.plan.num_samples)
    written = read_subset(path)
    spec, where = written.spec, written.spec.where
    table, _ = filter_scores(written.scores, None if where is None else where.sql, store.location, data)
    is_possible = np.isfinite(table.value)
    if spec.exclude_flagged:
        is_possible &= ~table.is_flagged(spec.exclude_flagged)
    if spec.exclude_contaminated is not None:
        if written.contaminated_rows is None:
            raise DataError(
                f"{sidecar_of(path)} does not say which samples were left out as contaminated, so random subsets could "
                "hold them. Select the subset again."
            )
        is_possible &= ~np.isin(table.row, written.contaminated_rows)
    return np.sort(store.positions_of(table.row[is_possible]))


def _check_one_pool(files: Sequence[SubsetFile], chosen: Sequence[IntArray], pool: IntArray) -> None:
    """Raise if a subset has samples that another could not have had: one of them would be tried without some."""
    for file, positions in zip(files, chosen, strict=True):
        if num_outside := int((~np.isin(positions, pool)).sum()):
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
    """Random subsets; subsets with the same numbers of each group share theirs."""

    def __init__(self, store: Store, pool: IntArray, group: IntArray, spec: TrialSpec) -> None:
        self._group = group
        row = store.column("sample_row").astype(np.int64)[pool]
        seeds = (_DRAW_STREAM + spec.training.seed * _DRAWS_PER_SEED + draw for draw in range(spec.num_random))
        self._orders = [rank(random_values(seed, row), row) for seed in seeds]
        self._known: dict[tuple[int, ...], int] = {}

    def like(self, is_chosen: BoolArray, name: str) -> tuple[int, list[BoolArray]]:
        """Return the number of the set of random subsets of a subset's size and make-up, and which samples they are."""
        counts = np.bincount(self._group[is_chosen], minlength=int(self._group.max()) + 1)
        if ((counts == 0) | (counts == np.bincount(self._group))).all():
            each = "" if len(counts) == 1 else ", or all or none of each value of --by"
            raise SettingError(
                f"{name} holds all samples that it could be chosen from{each}, so random subsets of its size would be "
                "the same. Try a smaller subset."
            )
        number = self._known.setdefault(tuple(counts.tolist()), len(self._known) + 1)
        return number, [self._draw(order, counts) for order in self._orders]

    def _draw(self, order: IntArray, counts: IntArray) -> BoolArray:
        """Return which samples come first in an order, so many of each group."""
        together = order[np.argsort(self._group[order], kind="stable")]
        group = self._group[together]
        first_of_group = np.searchsorted(group, np.arange(len(counts)))
        is_drawn = np.zeros(len(order), dtype=np.bool_)
        is_drawn[together[np.arange(len(order)) - first_of_group[group] < counts[group]]] = True
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
