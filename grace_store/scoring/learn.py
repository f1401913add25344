"""Score by a learned value: fit the measures of labelled traces or steps, and give every sample a value.

A first walk writes the measures of all samples to scratch, a second one makes the rows of the table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from grace_store.base.arrays import Array, BoolArray, FlagArray, FloatArray, IntArray, aranges, offsets_of, renumber
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener
from grace_store.base.finding import Estimate, LabelsNote
from grace_store.base.states import TEXT_FLAGS, Flag
from grace_store.pool.labels import RIGHT, UNKNOWN, Labels, read_labels, resolve_labels
from grace_store.pool.pool import Pool, SignalWeights
from grace_store.pool.walk import Reads, SampleBlock, SignalReader, Threads, arrays_of
from grace_store.scoring.grouped_scoring import Scoring
from grace_store.scoring.notes import LearnedNote
from grace_store.scoring.provenance import scores_note, sources_of
from grace_store.scoring.score_table import ScoreRows
from grace_store.values.gram import is_step
from grace_store.values.learned import (
    fold_of_questions,
    learn,
    learn_forward,
    moments_by_fold,
    single_forward,
    standardise,
    values_by_fold,
)
from grace_store.values.measures import MEASURES, NO_VALUE, step_numbers, trace_values
from grace_store.values.methods.grace import aggregate
from grace_store.values.methods.method import Aggregation, NamedMeasure, ScoreSpec, parse_measure
from grace_store.values.roc import LabelledItems, area_across, area_within

FEWEST_LABELS = 20
"""Fewest right labels, and fewest wrong labels, to learn from."""
FEWEST_QUESTIONS = 15
"""Fewest questions with labels; those of four folds of five are judged."""
HAVE_NO_VALUE = np.uint8(Flag.MISSING_SIGNAL | Flag.NOT_FINITE)
MAX_JUDGED = 1 << 18
"""Of more labelled items, about this many judge a value: those of questions drawn at random. All labels teach."""
ENOUGH_QUESTIONS = 1000
"""Fewest questions that judge a value, if not all do."""
SCRATCH_BYTES = 1 << 26
"""Size from which on the measures of a pool lie in a temporary file instead of memory."""


def prepare_learned(
    pool: Pool, spec: ScoreSpec, asked: LabelsNote | None, group: IntArray, listener: Listener
) -> Scoring:
    """Learn from the labels of a pool and return the scoring; group is the question of every sample of the plan."""
    names, _ = pool.stepwise()
    signals = SignalWeights(dict.fromkeys(names, 1.0))
    if pool.signals and set(pool.weights.weights.values()) != {1.0}:
        raise SettingError("a learned value finds the weights of signals: leave the weights of --signal out")
    note = resolve_labels(pool, asked, None, None)
    if note.question is not None and pool.group_by is None:
        group = group.copy()
        group[pool.positions] = pool.records(pool.positions).questions(note.question)
    features = _Features.of(names, spec, of_steps=note.says != "traces")
    reader = SignalReader(pool.store, signals.names, pool.wanted, features.reads)
    reader.check_complete(partial=pool.partial)
    raw, position, flags = features.read(reader, pool.threads, listener)
    num_items = pool.store.column("sample_num_steps")[position] if features.of_steps else np.ones_like(position)
    owner = np.repeat(np.arange(len(position)), num_items)
    labels = read_labels(pool, note, position, listener)
    place, is_right = _labelled(labels, position, offsets_of(num_items))
    # Numbered by their first records, so that folds do not depend on the order of the plan.
    first_row = np.full(int(group.max(initial=0)) + 1, pool.store.plan.num_records)
    np.minimum.at(first_row, group[position], pool.store.column("sample_row")[position])
    question = renumber(first_row[group[position]])[owner]
    of_labels = renumber(question[place])
    num_questions = int(of_labels.max(initial=-1)) + 1
    _check_enough(is_right, num_questions, note)
    value, weights, areas = _fit(raw, question, place, of_labels, is_right, spec.seed)
    value[features.unknown(raw) | ((flags & HAVE_NO_VALUE) > 0)[owner]] = np.nan
    learned = LearnedNote(
        labels=note,
        of="steps" if features.of_steps else "traces",
        num_right=int(is_right.sum()),
        num_wrong=int((~is_right).sum()),
        num_questions=num_questions,
        by=pool.group_by,
        weights=features.named(weights),
        **areas,
    )
    scored = scores_note(reader, spec, signals, **pool.filter_notes, learned=learned)
    rows_of = reader.reading("responses")  # token counts alone
    of_trace = aggregate(value, num_items, np.ones(len(value)), Aggregation("mean")) if features.of_steps else value

    def table(block: SampleBlock) -> tuple[pa.Table, Array]:
        at = np.searchsorted(position, block.sample)
        steps = None
        if features.of_steps:
            steps = (value[aranges(num_items[at], offsets_of(num_items)[at])],)
        found = flags[at]
        found |= (np.isnan(of_trace[at]) & ((found & HAVE_NO_VALUE) == 0)) * np.uint8(Flag.NO_VALUE)
        tokens = block.segment_tokens[is_step(block.num_steps)]
        rows = ScoreRows.of(rows_of, block, of_trace[at], found, steps=steps, step_tokens=tokens)
        return rows.to_table(scored), rows.all_flags

    return Scoring(scored, sources_of(pool.store, pool.labels), lambda threads: rows_of.map(table, threads, listener))


def _fit(
    raw: Array, question: IntArray, place: IntArray, of_labels: IntArray, is_right: BoolArray, seed: int
) -> tuple[FloatArray, FloatArray, dict[str, Estimate]]:
    """Return all values, the weights from all labels, and areas on unseen questions, also of the best single one.

    place has the labelled items, of_labels their questions, numbered without gaps.
    """
    measures, singles = standardise(raw, question, _scratch)
    has_label = np.zeros(len(raw), dtype=np.bool_)
    has_label[place] = True
    fold = fold_of_questions(question, has_label, seed)
    folds = moments_by_fold(measures, place, is_right, fold[place])
    num_questions = int(of_labels.max()) + 1
    stride = max(1, min(-(-len(place) // MAX_JUDGED), num_questions // ENOUGH_QUESTIONS))
    is_judged = (np.random.default_rng([seed, stride]).permutation(num_questions) % stride == 0)[of_labels]
    judged, cell = place[is_judged], fold[place[is_judged]]
    learned, single = (
        values_by_fold(measures, cell, each, judged) for each in (learn_forward(folds), single_forward(folds, singles))
    )
    # Only items of the same fold are compared, because folds have different models.
    items = LabelledItems(is_right[is_judged], renumber(of_labels[is_judged]), cell)
    areas = {
        "area": area_across(learned, items, fixed=True),
        "area_within": area_within(learned, items),
        "single_area": area_across(single, items, fixed=True),
    }
    weights = learn(folds)
    return values_by_fold(measures, fold, weights), weights[-1], areas


def _scratch(num_rows: int, num_columns: int) -> Array:
    """Return float32 zeros, column by column; a large array lies in a temporary file that ends with the process."""
    shape = num_columns, num_rows
    if num_rows * num_columns * 4 < SCRATCH_BYTES:
        return np.zeros(shape, dtype=np.float32).T
    return np.memmap(tempfile.TemporaryFile(), dtype=np.float32, mode="w+", shape=shape).T


@dataclass(frozen=True, slots=True)
class _Features:
    """The measures to learn from: of each signal, and flags of the text."""

    signals: tuple[str, ...]
    measures: tuple[NamedMeasure, ...]
    spec: ScoreSpec
    of_steps: bool

    @classmethod
    def of(cls, names: Sequence[str], spec: ScoreSpec, *, of_steps: bool) -> _Features:
        """Return the given measures, or all (of traces with worst steps); raise SettingError if one has no use."""
        measures, every = spec.measures, ScoreSpec(learn=True).measure
        if spec.measure == every and of_steps:
            measures = tuple(each for each in measures if MEASURES[each.name].steps)
        elif spec.measure == every:
            measures += tuple(parse_measure(f"{each.name}:min") for each in measures if MEASURES[each.name].steps)
        for each in measures if of_steps else ():
            if MEASURES[each.name].steps is None or each.aggregation is not None:
                raise SettingError(f"{each.bare} has no number of each step, so labels of steps cannot teach it")
        return cls(tuple(names), measures, spec, of_steps)

    def unknown(self, raw: Array) -> BoolArray:
        """Return which items have none of the measures."""
        return np.asarray(~np.isfinite(raw[:, : len(self.measures) * len(self.signals)]).any(axis=1))

    @property
    def reads(self) -> tuple[Reads, ...]:
        return arrays_of(*(ScoreSpec(measure=(each.bare,)) for each in self.measures))

    @property
    def names(self) -> list[str]:
        """One name for each column."""
        several = len(self.signals) > 1
        of_signals = [
            f"{each.bare} of {name}" if several else each.bare for name in self.signals for each in self.measures
        ]
        return of_signals + ([] if self.of_steps else list(TEXT_FLAGS))

    def named(self, weights: FloatArray) -> dict[str, float]:
        """Return the weights by name; the second half, if there is one, is of the questions' means."""
        names = self.names
        both = names if len(weights) == len(names) else [*names, *(f"question's mean of {name}" for name in names)]
        return dict(zip(both, weights.tolist(), strict=True))

    def read(self, reader: SignalReader, threads: Threads, listener: Listener) -> tuple[Array, IntArray, FlagArray]:
        """Return the measures of all items, (items, F), the positions of the samples in the plan, and their flags."""
        steps = reader.store.column("sample_num_steps")
        raw = _scratch(int(steps.sum()) if self.of_steps else len(steps), len(self.names))
        samples, stop = [(np.zeros(0, np.int64), np.zeros(0, np.uint8))], 0
        for sample, flags, found in reader.map(lambda block: self._of_block(reader, block), threads, listener):
            raw[stop : (stop := stop + len(found))] = found
            samples.append((sample, flags))
        position, all_flags = map(np.concatenate, zip(*samples, strict=True))
        return raw[:stop], position, all_flags

    def _of_block(self, reader: SignalReader, block: SampleBlock) -> tuple[IntArray, FlagArray, Array]:
        counts = block.num_steps if self.of_steps else np.ones_like(block.num_steps)
        out = np.full((int(counts.sum()), len(self.names)), np.nan, dtype=np.float32, order="F")
        flags, column = np.zeros(len(block), dtype=np.uint8), 0
        for number, place in enumerate(block.places):
            samples, lacks = block.responses(number, self.spec), np.zeros(len(block), dtype=np.bool_)
            if place is not None:
                lacks = ~np.isin(np.arange(len(block)), place)
            if "gram" in reader.reads:
                flags[~lacks] |= samples.scores.flags & ~NO_VALUE
            flags |= lacks * np.uint8(Flag.MISSING_SIGNAL)
            items = np.flatnonzero(np.repeat(~lacks, counts)) if lacks.any() else slice(None)
            for measure in self.measures:
                numbers = (step_numbers if self.of_steps else trace_values)(measure, samples)
                assert numbers is not None  # only measures with steps are learned from steps
                out[items, column] = numbers
                column += 1
        if not self.of_steps:
            of_text = reader.text_flags(block)
            for name in TEXT_FLAGS:
                out[:, column] = (of_text & int(Flag[name.upper()])) > 0
                column += 1
        return block.sample, flags, out


def _labelled(labels: Labels, position: IntArray, first: IntArray) -> tuple[IntArray, BoolArray]:
    """Return the places of labelled items among all items, and whether each is right."""
    at = first[np.searchsorted(position, labels.position)]
    if labels.steps is None:
        return at, labels.is_right == RIGHT
    place = [start + np.flatnonzero(each != UNKNOWN) for start, each in zip(at.tolist(), labels.steps, strict=True)]
    known = np.concatenate([each[each != UNKNOWN] for each in labels.steps])
    return np.concatenate(place), known == RIGHT


def _check_enough(is_right: BoolArray, questions: int, note: LabelsNote) -> None:
    right, wrong = int(is_right.sum()), int((~is_right).sum())
    if min(right, wrong) >= FEWEST_LABELS and questions >= FEWEST_QUESTIONS:
        return
    raise DataError(
        f"{note} gives {right} right and {wrong} wrong labels of {questions} questions, too few to learn from: at "
        f"least {FEWEST_LABELS} right and {FEWEST_LABELS} wrong labels of {FEWEST_QUESTIONS} questions are needed. "
        f"About {10 * FEWEST_LABELS} labels of {10 * FEWEST_QUESTIONS} questions are a good start."
    )
