"""Choosing within questions: at most some traces of each, or pairs of its best and its worst trace.

The two responses of a pair are never the same text: where the worst trace is a copy of the best one, the worst of the
others takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from grace_store.artifacts.made_from import open_store_of
from grace_store.artifacts.score_table import ScoreTable
from grace_store.base.arrays import BitArray, BoolArray, FloatArray, IntArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Warned
from grace_store.base.text import counted
from grace_store.read.question_groups import question_groups, response_digests
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
    copies: str = ""
    """Of pairs, how many questions have a worst trace that is a copy of the best one, as the rest of a sentence."""

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
        return f"{what} whose values differ{least}, from {pool}{self.copies}"


@dataclass(frozen=True, slots=True)
class Questions:
    """The question of each row of a table, and how many of its traces a request chooses."""

    row: IntArray
    """Of the dataset, which ties go by."""
    group: IntArray
    """The question, by number."""
    spec: dict[str, Any]
    """The fields of a SubsetSpec that say what is chosen."""
    responses: Callable[[IntArray], BitArray]
    """A number for each row of the table, which those of some rows share whose responses are the same text. The records
    of these rows are read for it."""

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
        kept, rejected, copies = _pairs(self, value, ranking)
        return QuestionChoice(kept, self.spec, *counts, rejected, copies)


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
    spec = {"per_group": per_group, "margin": request.margin, "group_by": by}
    return Questions(table.row, group, spec, lambda rows: _responses(table, rows, request))


def _questions(table: ScoreTable, request: ChoosesInQuestions) -> tuple[IntArray, str | None]:
    """Return the question of each row of a table, by number, and the field that says it."""
    scored = table.note.groups
    if scored is not None and table.group is not None and request.group_by in (None, scored.by):
        # Numbered again from 0: a table from elsewhere may have any number there.
        return np.unique(table.group, return_inverse=True)[1], scored.by
    store = open_store_of(table, request.store)
    return question_groups(store, request.group_by, request.data, store.positions_of(table.row)), request.group_by


def _pairs(questions: Questions, value: FloatArray, ranking: IntArray) -> tuple[FloatArray, IntArray, str]:
    """Return the margin of each pair and the row that is rejected, both at the chosen row, and what copies cost."""
    group, least = questions.group, questions.spec["margin"] or 0.0
    best, worst = best_and_worst(ranking, group)
    is_wide = _is_wide(value[best] - value[worst], least)
    # Where values are too close, it makes no difference what the traces say: those are not read.
    ranking = ranking[np.isin(group[ranking], group[best[is_wide]])]
    said = questions.responses(ranking)
    num_copies = int((said[best[is_wide]] == said[worst[is_wide]]).sum())
    num_questions = int(is_wide.sum())
    best, worst = best_and_worst(ranking, group, said)
    margin = value[best] - value[worst]
    is_wide = _is_wide(margin, least, " and whose responses are different texts")
    kept, rejected = np.full(len(value), np.nan), np.full(len(value), -1)
    kept[best[is_wide]], rejected[best[is_wide]] = margin[is_wide], worst[is_wide]
    if not num_copies:
        return kept, rejected, ""
    num_without = num_questions - int(is_wide.sum())
    told = f"; in {counted(num_copies, 'question')} the worst trace has the same response as the best one"
    others = f"{num_copies - num_without} with the worst of the other traces in its place"
    return kept, rejected, f"{told}: {others}, {num_without} without a pair"


def _is_wide(margin: FloatArray, least: float, also: str = "") -> BoolArray:
    """Return which differences are large enough, or raise if none is; also says what else was asked of the traces."""
    is_wide = (margin > 0) & (margin >= least)
    if not is_wide.any():
        found = f"; the largest difference is {margin.max():.6g}" if len(margin) else ""
        by = f"by {least:g}" if least else "at all"
        raise DataError(f"no question has two traces whose values differ {by}{also}, so there are no pairs{found}.")
    return is_wide


def _responses(table: ScoreTable, rows: IntArray, request: ChoosesInQuestions) -> BitArray:
    """Return a number for each row of a table that those of some rows share whose responses are the same text."""
    store = open_store_of(table, request.store)
    positions, place = np.unique(store.positions_of(table.row[rows]), return_inverse=True)
    said = np.zeros(len(table), dtype=np.uint64)
    said[rows] = response_digests(store, request.data, positions)[place]
    return said
