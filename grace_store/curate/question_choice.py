"""Choosing within questions: at most some traces of each, or pairs of its best and worst trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from grace_store.artifacts.made_from import open_store_of
from grace_store.artifacts.score_table import ScoreTable
from grace_store.base.arrays import FloatArray, IntArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Warned
from grace_store.base.text import counted
from grace_store.read.question_groups import question_groups
from grace_store.values.ranking import rank
from grace_store.values.within_groups import PerGroup, best_and_worst, best_of_groups


class ChoosesInQuestions(Protocol):
    """What a request says of questions."""

    @property
    def per_group(self) -> str | int | None: ...

    @property
    def margin(self) -> float | None: ...

    @property
    def group_by(self) -> str | None: ...

    @property
    def store(self) -> str | None: ...

    @property
    def data(self) -> Sequence[str] | None: ...


@dataclass(frozen=True, slots=True)
class QuestionChoice:
    """What is left of a table's values, and why."""

    value: FloatArray
    """Of every row of the table, NaN for what is not chosen; of pairs, how far the best one is above the worst."""
    spec: dict[str, Any]
    """The fields of a SubsetSpec that say so."""
    num_samples: int
    """With a value, before."""
    num_questions: int
    rejected: IntArray | None = None
    """Of pairs, the row of the table that each one is preferred to; -1 for what is not chosen."""

    def rejected_by(self, chosen: IntArray) -> IntArray | None:
        """Return, of pairs, what each of some rows of the table is preferred to."""
        return None if self.rejected is None else self.rejected[chosen]

    def __str__(self) -> str:
        num_left = int(np.isfinite(self.value).sum())
        pool = f"{counted(self.num_samples, 'trace')} of {counted(self.num_questions, 'question')}"
        if self.rejected is None:
            return f"at most {self.spec['per_group']} of the traces of a question: {num_left} of {pool}"
        least = f" by at least {self.spec['margin']:g}" if self.spec["margin"] else ""
        what = f"{counted(num_left, 'pair')} of the best and the worst trace of a question"
        return f"{what} whose values differ{least}, from {pool}"


@dataclass(frozen=True, slots=True)
class Questions:
    """The question of each row of a table, and how many of its traces a request chooses."""

    row: IntArray
    """Of the dataset, which ties go by."""
    group: IntArray
    """The question, by number."""
    spec: dict[str, Any]
    """The fields of a SubsetSpec that say what is chosen."""

    def choose(self, value: FloatArray, listener: Listener) -> QuestionChoice:
        """Return what is chosen within questions if the rows of the table have these values."""
        ranking = rank(value, self.row)
        counts = len(ranking), len(np.unique(self.group[ranking]))
        if counts[0] == counts[1]:
            listener(
                Warned("No question has two traces with a value: there is nothing to choose between within questions.")
            )
        if self.spec["per_group"] is not None:
            kept = np.full(len(value), np.nan)
            best = best_of_groups(ranking, self.group, PerGroup.parse(self.spec["per_group"]))
            kept[best] = value[best]
            return QuestionChoice(kept, self.spec, *counts)
        return _pairs(value, ranking, self.group, self.spec, counts)


def questions_of(table: ScoreTable, request: ChoosesInQuestions) -> Questions | None:
    """Return the questions that a request chooses within; None if it does not."""
    if request.per_group is None and request.margin is None:
        if request.group_by is not None:
            raise SettingError("--group-by says what a question is: give --per-group, or choose pairs, with it")
        return None
    if request.per_group is not None and request.margin is not None:
        raise SettingError("pairs are one for each question: leave --per-group out")
    if request.per_group is not None:
        PerGroup.parse(request.per_group)
    if request.margin is not None and not (math.isfinite(request.margin) and request.margin >= 0):
        raise SettingError(f"margin {request.margin:g} is not a number from 0 on")
    group, by = _questions(table, request)
    per_group = None if request.per_group is None else str(request.per_group)
    return Questions(table.row, group, {"per_group": per_group, "margin": request.margin, "group_by": by})


def _questions(table: ScoreTable, request: ChoosesInQuestions) -> tuple[IntArray, str | None]:
    """Return the question of each row of a table, by number, and the field that says it."""
    scored = table.note.groups
    if scored is not None and table.group is not None and request.group_by in (None, scored.by):
        # Numbered again from 0: a table from elsewhere may have any number there.
        return np.unique(table.group, return_inverse=True)[1], scored.by
    store = open_store_of(table, request.store)
    return question_groups(store, request.group_by, request.data, store.positions_of(table.row)), request.group_by


def _pairs(
    value: FloatArray, ranking: IntArray, group: IntArray, spec: dict[str, Any], counts: tuple[int, int]
) -> QuestionChoice:
    best, worst = best_and_worst(ranking, group)
    margin = value[best] - value[worst]
    is_wide = (margin > 0) & (margin >= spec["margin"])
    if not is_wide.any():
        found = f"; the largest difference is {margin.max():.6g}" if len(margin) else ""
        least = f"by {spec['margin']:g}" if spec["margin"] else "at all"
        raise DataError(f"no question has two traces whose values differ {least}, so there are no pairs{found}.")
    kept, rejected = np.full(len(value), np.nan), np.full(len(value), -1)
    kept[best[is_wide]], rejected[best[is_wide]] = margin[is_wide], worst[is_wide]
    return QuestionChoice(kept, spec, *counts, rejected)
