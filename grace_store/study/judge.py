"""Judge: do stored signals agree with labels? Compare every measure of a store with labels of traces or steps."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
from pydantic import Field

from grace_store.base.arrays import Array, FloatArray, IntArray, aranges, offsets_of, sum_by_sample
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Note, Warned, ignore
from grace_store.base.finding import Cell, Column, Estimate, Finding, LabelsNote, Table, make_columns
from grace_store.base.text import counted
from grace_store.pool.labels import RIGHT, UNKNOWN, Labels, LabelSettings, read_labels, resolve_labels
from grace_store.pool.pool import Pool, PoolLike
from grace_store.pool.walk import SampleBlock, SignalReader, SignalSamples, Threads, arrays_of
from grace_store.store.opened import SignalView
from grace_store.study import Study
from grace_store.study.judge_conclusion import (
    FEWEST_PAIRS,
    JudgedItems,
    best_measure,
    conclude_judged,
    holds_fixed,
    how_to_choose,
)
from grace_store.values.gram import is_step
from grace_store.values.measures import MEASURES, step_numbers, trace_values
from grace_store.values.methods.method import ScoreSpec, parse_measure
from grace_store.values.random_values import random_values
from grace_store.values.ranking import rank
from grace_store.values.roc import (
    CHANCE,
    LabelledItems,
    LabelledTraces,
    area_across,
    area_within,
    cells_of,
    find_first_errors,
)

FEWEST_LABELS = 5
"""Fewest right labels, and fewest wrong labels."""
MAX_KINDS = 24
"""Most kinds of error in the tables."""
ABOUT_AREAS = (
    "Share of pairs, one right and one wrong, in which the right one has the better score, with 95 % intervals over "
    "questions; 0.50 is chance. same question: pairs of one question. held fixed: pairs with the same position (of "
    "traces: number of steps) and similar length (the same fourth of the lengths there). both: pairs of one question, "
    f"held fixed. -: fewer than {FEWEST_PAIRS} pairs."
)
ABOUT_F1 = (
    " F1: finding the first wrong step, as ProcessBench counts it; the threshold of each half of the questions is the "
    "best one on the other half."
)


class JudgeSettings(LabelSettings):
    """Measure how well stored signals agree with labels.

    Labels say which traces are right, or which steps are wrong. Each signal is judged by the share of pairs, one right
    and one wrong, in which the right one scores better (the area under the ROC): over all pairs, over pairs of the
    same question, and over pairs with the same position and similar length. Stores of ProcessBench or PRMBench need no
    option: their labels are known.
    """

    kind: str | None = None
    """Field that names kinds of error. Each kind is also judged separately. [default: the field that the format names,
    if any]"""
    question: str | None = None
    """Field that has the same value in all traces of a question. [default: the prompt]"""
    score: ScoreSpec = ScoreSpec()
    samples: int = Field(default=10_000, ge=1)
    """Maximum number of samples to judge. If the pool has more samples, a random part is judged; with labels of a file,
    of the samples that have a row in it."""
    seed: int = Field(default=0, ge=0)
    """Seed of all random draws."""


def judge(pool: PoolLike, settings: JudgeSettings | None = None, *, listener: Listener = ignore) -> Finding:
    """Measure how well every stored signal separates right traces or steps from wrong ones, by labels."""
    settings, pool = settings or JudgeSettings(), Pool.of(pool)
    if weighed := [str(each) for each in settings.score.measures if each.weight != 1.0]:
        raise SettingError(f"measures are judged apart: leave the weight of {weighed[0]} out")
    note = resolve_labels(pool, settings.asked(), settings.kind, settings.question)
    names, skipped = pool.stepwise()
    reader = SignalReader(pool.store, tuple(names), pool.wanted, reads=())
    reader.check_complete(partial=pool.partial)
    chosen = _chosen(reader, pool, settings, note)
    labels = read_labels(pool, note, chosen, listener)
    if labels.num_left_out:
        listener(Warned(f"{counted(labels.num_left_out, 'sample')} without a usable label in {note} left out."))
    measured: list[Measured] = []
    spec = settings.score.model_copy(update={"seed": settings.seed})
    for view in reader.views:
        sizes, found = _read(view, labels.position, spec, pool.threads, listener)
        measured += found
    measured += _without_model(sizes, pool.store.column("sample_row")[labels.position], settings.seed)
    judged = [_judged(bench, measured, listener) for bench in _benches(labels, sizes, note, settings)]
    numbers = {"num_samples": len(labels.position), "num_left_out": labels.num_left_out, "label": note.field}
    tables: dict[str, Table] = {}
    for items in judged:
        numbers |= {f"num_right_{items.of}": items.num_right, f"num_wrong_{items.of}": items.num_wrong}
        numbers |= {"num_questions": items.num_questions}
        tables |= _tables(items, note)
    left_out = [f"Left out, with one vector per sample and no steps: {', '.join(skipped)}."] if skipped else []
    num_traces = np.bincount(pool.records(chosen).questions(note.question))
    has_groups = bool(2 * num_traces[num_traces > 1].sum() >= len(chosen))
    best, _ = best_measure(judged, has_groups=has_groups)
    return Finding(
        study="judge",
        pool=pool.note(reader),
        settings=settings.model_dump(mode="json") | {"labels": note.model_dump(mode="json")},
        conclusion=" ".join(conclude_judged(items) for items in judged),
        numbers=numbers | {"choose_by": None if best is None else str(best["of"])},
        tables=tables,
        notes=(*left_out, how_to_choose(judged, pool, spec, note.question, has_groups=has_groups)),
    )


def _tables(items: JudgedItems, note: LabelsNote) -> dict[str, Table]:
    of = f"{items.num_right} right and {items.num_wrong} wrong {items.of} of {counted(items.num_questions, 'question')}"
    names = ("all_pairs", "same_question", "held_fixed", "both")
    areas = {
        name: Column(heading=name.replace("_", " "), digits=2, chance=CHANCE, fewest=FEWEST_PAIRS) for name in names
    }
    if holds_fixed(items):  # first, because a page draws the first column of areas
        areas = {"held_fixed": areas.pop("held_fixed"), **areas}
    columns = make_columns(measure="measure", better="better is", **areas)
    chance: dict[str, Cell] = {"measure": "chance", "better": "", **dict.fromkeys(areas, CHANCE)}
    about = ABOUT_AREAS
    if items.chance_of_first_errors is not None:
        columns["first_errors"] = Column(heading="F1", digits=2)
        chance["first_errors"] = items.chance_of_first_errors
        about += ABOUT_F1
    rows = (*items.measures, chance)
    tables: dict[str, Table] = {}
    tables[items.of] = Table(title=f"{of}, by {note}", columns=columns, rows=rows, about=about, is_drawn=True)
    if items.kinds:
        by_kind = {kind: Column(heading=kind, digits=2, fewest=FEWEST_PAIRS) for kind in items.kinds}
        tables[f"{items.of}_by_kind"] = Table(
            title=f"{items.of.capitalize()} by kind of error, position and length held fixed",
            columns=make_columns(measure="measure") | by_kind,
            rows=({"measure": NUM_WRONG, **items.kinds}, *items.by_kind),
        )
    return tables


NUM_WRONG = "wrong ones"
"""The row with the numbers of wrong items in the table by kind of error."""


def _chosen(reader: SignalReader, pool: Pool, settings: JudgeSettings, note: LabelsNote) -> IntArray:
    """Return positions of samples that all signals have, ascending; a random part of them if there are many."""

    def in_all(block: SampleBlock) -> IntArray:
        samples: list[IntArray] = [each.sample for each in block.signals]
        return reduce(np.intersect1d, samples)

    done = np.concatenate([np.zeros(0, np.int64), *reader.map(in_all, pool.threads)])
    if not len(done):
        names = ", ".join(reader.names)
        raise SettingError(
            f"No sample of {reader.store.location} is done in all signals: {names}. Name fewer signals with --signal."
        )
    labels = pool.label_columns
    if len(done) > settings.samples and labels is not None and labels.are_in(note.field):
        done = done[labels.has_row[done]]  # of many samples, only those that can have a label are drawn
    if len(done) <= settings.samples:
        return done
    # Whole units, because neighbours are often traces of one question.
    unit = done // reader.store.plan.samples_per_unit
    turn = np.argsort(rank(random_values(settings.seed, np.arange(unit[-1] + 1))))
    return np.sort(done[np.argsort(turn[unit], kind="stable")[: settings.samples]])


# ---------------------------------------------------------------- measures


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """One measure of all labelled samples; larger values predict right ones."""

    measure: str
    better: str
    """The sign of a right one in words: higher, lower, more, earlier, or a dash."""
    signal: str | None = None
    step: FloatArray | None = None
    """A value for each step, flat."""
    trace: FloatArray | None = None
    """A value for each trace."""


def _response_tokens(sizes: SignalSamples) -> FloatArray:
    return sum_by_sample(sizes.num_steps + 1, sizes.num_tokens)


def _read(
    view: SignalView, positions: IntArray, spec: ScoreSpec, threads: Threads, listener: Listener
) -> tuple[SignalSamples, list[Measured]]:
    """Return the steps and tokens of the samples at these positions, and their measures: the given ones, or all."""
    listener(Note(f"Reading signal {view.name}."))
    wanted = np.zeros(view.store.plan.num_samples, dtype=np.bool_)
    wanted[positions] = True
    measures = spec.measures
    if "measure" not in spec.model_fields_set:
        stored = [name for name in MEASURES if spec.model_copy(update={"measure": (name,)}).reads_model]
        measures = tuple(map(parse_measure, (*(name for name in stored if name != "tokens"), *WORST_STEPS)))
    reads = arrays_of(*(ScoreSpec(measure=(each.bare,)) for each in measures))
    reader = SignalReader(view.store, (view.name,), wanted, reads)

    def work(block: SampleBlock) -> tuple[SignalSamples, list[tuple[FloatArray | None, FloatArray]]]:
        samples = block.responses(0, spec)
        found = [(step_numbers(each, samples), trace_values(each, samples)) for each in measures]
        return block.signals[0].sizes, found

    sizes, found = zip(*reader.map(work, threads, listener), strict=True)
    measured = []
    for measure, columns in zip(measures, zip(*found, strict=True), strict=True):
        steps, traces = zip(*columns, strict=True)
        is_of_steps = steps[0] is not None and measure.aggregation is None
        step = np.concatenate(steps) if is_of_steps else None
        better = "higher" if measure.way == "highest" else "lower"
        measured.append(Measured(measure.bare, better, view.name, step, np.concatenate(traces)))
    return SignalSamples.joined(sizes), measured


WORST_STEPS = ("grace:min", "loss:lowest:min")
"""Values of traces by their worst step, which are judged beside all measures."""


def _without_model(sizes: SignalSamples, row: IntArray, seed: int) -> Iterator[Measured]:
    """Yield measures that need no model: length, number of steps, position, and random numbers."""
    position = aranges(sizes.num_steps).astype(np.float64)
    drawn = np.random.Generator(np.random.Philox(seed)).random(len(position))
    step_tokens = sizes.num_tokens[is_step(sizes.num_steps)].astype(np.float64)
    yield Measured("tokens:highest", "more", None, step_tokens, _response_tokens(sizes))
    yield Measured("steps:highest", "more", None, None, sizes.num_steps.astype(np.float64))
    yield Measured("earliest", "earlier", None, -position, None)
    yield Measured("random", "-", None, drawn, random_values(seed, row))


# ---------------------------------------------------------------- measures against labels


@dataclass(frozen=True, slots=True)
class _Bench:
    """Labelled steps or traces."""

    of: Literal["steps", "traces"]
    items: LabelledItems
    place: IntArray
    """Places of the items in the column of a measure."""
    kind: Array
    """The kind of error of each item."""
    num_questions: int
    seed: int
    traces: LabelledTraces | None = None
    """The traces of the steps, if some traces are right and some are wrong."""

    def measure(self, measured: Measured, column: FloatArray) -> dict[str, Cell]:
        """Return the row of a measure."""
        score, items = column[self.place], self.items
        name = measured.measure if measured.signal is None else f"{measured.measure} of {measured.signal}"
        row: dict[str, Cell] = {
            "measure": name,
            "of": measured.measure,
            "signal": measured.signal,
            "better": measured.better,
            "all_pairs": area_across(score, items),
            "same_question": area_within(score, items),
            "held_fixed": area_across(score, items, fixed=True),
            "both": area_within(score, items, fixed=True),
        }
        if self.traces is not None:
            row["first_errors"] = find_first_errors(column, self.traces, self.seed)
        return row

    def kinds(self) -> dict[str, int]:
        """Return the most frequent kinds of error, with their numbers of wrong items."""
        counts = Counter(self.kind[~self.items.is_right].tolist())
        return dict(sorted((kind, num) for kind, num in counts.most_common(MAX_KINDS) if kind))

    def by_kind(self, column: FloatArray) -> dict[str, Estimate]:
        """Return the areas of a measure for the wrong items of each kind against all right items."""
        score, areas = column[self.place], {}
        for kind in self.kinds():
            chosen = self.items.is_right | (self.kind == kind)
            areas[kind] = area_across(score[chosen], self.items.taken(chosen), fixed=True)
        return areas


def _benches(labels: Labels, sizes: SignalSamples, note: LabelsNote, settings: JudgeSettings) -> list[_Bench]:
    """Return a bench of steps if steps have labels, and one of traces if some are right and some are wrong."""
    num_questions = int(labels.question.max()) + 1
    is_right = labels.is_right == RIGHT
    has_both = min(is_right.sum(), (~is_right).sum()) >= FEWEST_LABELS
    found = []
    if labels.steps is not None:
        found.append(_step_bench(labels, sizes, num_questions, settings.seed, has_both=has_both))
        _check_labels(found[0].items, "steps", note)
    if labels.steps is None or has_both:
        items = LabelledItems(is_right, labels.question, cells_of(sizes.num_steps, _response_tokens(sizes)))
        _check_labels(items, "traces", note)
        kind = np.array(labels.kind, dtype=object)
        found.append(_Bench("traces", items, np.arange(len(is_right)), kind, num_questions, settings.seed))
    return found


def _step_bench(labels: Labels, sizes: SignalSamples, num_questions: int, seed: int, *, has_both: bool) -> _Bench:
    assert labels.steps is not None
    label = np.concatenate(labels.steps)
    known = np.flatnonzero(label != UNKNOWN)
    sample = np.repeat(np.arange(len(sizes.num_steps)), sizes.num_steps)[known]
    cell = cells_of(aranges(sizes.num_steps)[known], sizes.num_tokens[is_step(sizes.num_steps)][known])
    items = LabelledItems(label[known] == RIGHT, labels.question[sample], cell)
    traces = LabelledTraces(offsets_of(sizes.num_steps), labels.first_wrong, labels.question) if has_both else None
    return _Bench("steps", items, known, np.array(labels.kind, dtype=object)[sample], num_questions, seed, traces)


def _check_labels(items: LabelledItems, what: str, note: LabelsNote) -> None:
    num_right = int(items.is_right.sum())
    num_wrong = len(items.is_right) - num_right
    if not num_right or not num_wrong:
        side = "right" if num_right else "wrong"
        raise DataError(
            f"All {len(items.is_right)} {what} are {side} by {note}. Both right and wrong {what} are needed."
        )
    if min(num_right, num_wrong) < FEWEST_LABELS:
        raise DataError(
            f"There are {num_right} right and {num_wrong} wrong {what} by {note}: of either, at least "
            f"{FEWEST_LABELS} are needed to say anything."
        )


def _judged(bench: _Bench, measured: Sequence[Measured], listener: Listener) -> JudgedItems:
    columns = {each: each.step if bench.of == "steps" else each.trace for each in measured}
    listener(Note(f"Judging {counted(len(bench.place), bench.of[:-1])}."))
    rows, by_kind = [], []
    for each, column in columns.items():
        if column is not None:
            rows.append(bench.measure(each, column))
            by_kind.append({"measure": rows[-1]["measure"], **bench.by_kind(column)})
    num_right = int(bench.items.is_right.sum())
    return JudgedItems(
        of=bench.of,
        num_right=num_right,
        num_wrong=len(bench.place) - num_right,
        num_questions=bench.num_questions,
        measures=tuple(rows),
        kinds=bench.kinds(),
        by_kind=tuple(by_kind),
        chance_of_first_errors=None if bench.traces is None else bench.traces.blind_f1,
    )


STUDY = Study(
    find=judge,
    settings=JudgeSettings,
    examples=(
        "grace-store judge traces.zarr --right is_correct",
        "grace-store judge traces.zarr --labels verdicts.csv --right \"verdict = 'good'\"",
        "grace-store judge processbench.zarr --out judgement.json",
    ),
    signal="Signal to judge. [default: all signals that have steps]",
    has_many_signals=True,
    measure="Measure to judge, as NAME:WAY:AGGREGATION; `score --help` lists the names. [default: every measure "
    "in the store]",
    has_many_measures=True,
)
