"""Labels of traces and of steps, from fields of the records or from a file of labels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grace_store.base.arrays import IntArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Warned, ignore
from grace_store.base.finding import LabelsNote, LabelsOf
from grace_store.base.settings import Settings
from grace_store.base.text import counted, first_few, one_line
from grace_store.data.formats.known_formats import FORMATS
from grace_store.store.opened import Store

if TYPE_CHECKING:
    from grace_store.pool.pool import Pool

FIELDS_SHOWN = 20
RECORDS_ASKED = 20
"""Number of records that are read to list the fields."""
RIGHT, WRONG, UNKNOWN = 1, 0, -1


class LabelSettings(Settings):
    """Options that say which traces or steps are right."""

    right: str | None = None
    """Condition in SQL that right traces meet, such as is_correct, score >= 0.5 or verdict = 'good'. Traces for which
    the condition is NULL have no label and are left out. [default: the labels that the format names]"""
    first_wrong: str | None = None
    """Field with the number of the first wrong step. The first step of a trace has the number 0; -1 means that no step
    is wrong. [default: not used]"""
    wrong_steps: str | None = None
    """Field with a list of the numbers of the wrong steps. The first step of a trace has the number 1. [default: not
    used]"""

    def asked(self) -> LabelsNote | None:
        """Return the labels that the settings name; None for those of the format."""
        asked = {"traces": self.right, "first_wrong": self.first_wrong, "wrong_steps": self.wrong_steps}
        given = {says: name for says, name in asked.items() if name is not None}
        if len(given) > 1:
            raise SettingError("Give one of --right, --first-wrong and --wrong-steps.")
        return next((LabelsNote(field=name, says=says) for says, name in given.items()), None)


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of the samples at some positions."""

    position: IntArray
    """Samples that have a label, ascending."""
    is_right: IntArray
    """RIGHT or WRONG for each sample."""
    steps: list[IntArray] | None
    """RIGHT, WRONG or UNKNOWN for each step; None if only whole traces have labels."""
    first_wrong: IntArray
    """Number of the first wrong step, from 0; -1 for a right trace."""
    kind: list[str]
    """Kind of error of each sample; empty for no error."""
    question: IntArray
    """Number of each sample's question, from 0."""
    num_left_out: int


def resolve_labels(pool: Pool, asked: LabelsNote | None, kind: str | None, question: str | None) -> LabelsNote:
    """Return the field of the labels and their meaning: as the user says, or as the format of the store defines."""
    known = format_labels(pool.store)
    if asked is None and known is None:
        raise SettingError(
            "Say which traces are right with --right CONDITION, such as is_correct or verdict = 'good', or name the "
            "field of the first wrong step with --first-wrong FIELD. The records have the fields "
            f"{first_few(pool.records().spread(RECORDS_ASKED).field_names(), FIELDS_SHOWN)}."
        )
    found = asked or known
    assert found is not None
    kinds, questions = (None, None) if known is None else (known.kind, known.question)
    return found.model_copy(update={"kind": kind or kinds, "question": question or questions})


def format_labels(store: Store) -> LabelsNote | None:
    """Return the fields of the labels that the format of a store defines, if it does."""
    known = FORMATS[store.plan.spec.format].step_labels if store.plan.spec.format in FORMATS else None
    if known is None:
        return None
    says: LabelsOf = "first_wrong" if known.is_first else "wrong_steps"
    return LabelsNote(field=known.field, says=says, kind=known.kind, question=known.question)


def read_labels(pool: Pool, note: LabelsNote, positions: IntArray, listener: Listener = ignore) -> Labels:
    """Read the labels of samples at some positions, ascending; samples without a label are left out."""
    of_steps = note.field if note.says != "traces" else None
    fields = [field for field in (of_steps, note.kind, note.question) if field is not None]
    found = pool.records(positions).fields(fields)
    for field in fields:
        if all(value is None for value in found[field]):
            raise pool.records().unknown(field)
    if of_steps is None:
        right, wrong = pool.fields(positions).right(note.field, listener)
        kept, steps = np.flatnonzero(right | wrong), None
        first_wrong = np.where(right[kept], -1, 0)
    else:
        num_steps, reader = pool.store.column("sample_num_steps")[positions].tolist(), _Reader(note.says)
        read = [reader.read(value, num) for value, num in zip(found[of_steps], num_steps, strict=True)]
        if all(each is None for each in read):
            raise DataError(f"No sample has a usable label in {note}: {reader.refused[0]}.")
        if num := len(reader.refused):
            listener(Warned(f"{counted(num, 'label')} in {note} cannot be used. The first: {reader.refused[0]}."))
        kept = np.flatnonzero([each is not None for each in read])
        steps, firsts = zip(*(each for each in read if each is not None), strict=True)
        first_wrong = np.array(firsts)
    numbers = kept.tolist()
    kinds = [found[note.kind][number] for number in numbers] if note.kind else [None] * len(kept)
    if note.question is None:
        question = pool.records(positions[kept]).questions()
    else:  # a record without a question in this field has a question of its own
        asked, seen = found[note.question], dict[object, int]()
        names = ((number,) if asked[number] is None else asked[number] for number in numbers)
        question = np.array([seen.setdefault(name, len(seen)) for name in names])
    return Labels(
        position=positions[kept],
        is_right=np.where(first_wrong < 0, RIGHT, WRONG),
        steps=None if steps is None else list(steps),
        first_wrong=first_wrong,
        kind=["" if each is None else one_line(each) for each in kinds],
        question=question,
        num_left_out=len(positions) - len(kept),
    )


Label = tuple[IntArray, int]
"""RIGHT, WRONG or UNKNOWN for each step, and the first wrong step."""


class _Reader:
    """Parses the values of a field as labels of steps."""

    def __init__(self, says: LabelsOf) -> None:
        self._says = says
        self.refused: list[str] = []  # why labels cannot be used

    def read(self, value: object, num_steps: int) -> Label | None:
        """Return the label of a sample; None if it has none that can be used."""
        parse = self._first_wrong if self._says == "first_wrong" else self._wrong_steps
        return None if value is None else parse(value, num_steps)

    def _first_wrong(self, value: object, num_steps: int) -> Label | None:
        if isinstance(value, float) and value.is_integer():  # as pandas writes whole numbers if some are missing
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < -1:
            return self._refused(value, "the number of a step from 0, or -1, is wanted")
        # A number after the last step means that the answer is wrong.
        if value > num_steps:
            return self._refused(value, f"a trace of {counted(num_steps, 'step')} has no such step")
        steps = np.full(num_steps, RIGHT)
        if value >= 0:
            steps[value:] = UNKNOWN
            steps[value : value + 1] = WRONG
        return steps, value

    def _wrong_steps(self, value: object, num_steps: int) -> Label | None:
        try:
            listed = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(each, int) and each >= 1 for each in listed):
            return self._refused(value, "a list of the wrong steps' numbers, from 1, is wanted")
        if any(each > num_steps + 1 for each in listed):
            return self._refused(value, f"a trace of {counted(num_steps, 'step')} has no such step")
        steps = np.full(num_steps, RIGHT)
        steps[[each - 1 for each in listed if each <= num_steps]] = WRONG
        return steps, min(listed) - 1 if listed else -1

    def _refused(self, value: object, why: str) -> Label | None:
        self.refused.append(f"it holds {one_line(value)!r}, and {why}")
        return None
