"""Do stored signals agree with what people know? Every measure of a store against labels of traces or of steps."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from grace_store.artifacts.filtered_scores import where_note
from grace_store.artifacts.judgement import Better, JudgedItems, JudgedMeasure, Judgement, LabelsNote
from grace_store.artifacts.made_from import signal_notes, store_note
from grace_store.artifacts.notes import SignalNote
from grace_store.base.arrays import Array, FloatArray, IntArray
from grace_store.base.errors import DataError, SettingError, UnknownName
from grace_store.base.events import Listener, Note, SamplesScored, Warned, ignore
from grace_store.base.text import counted
from grace_store.curate.labels import RIGHT, UNKNOWN, Labels, read_labels, resolve_labels
from grace_store.curate.verdict import conclude
from grace_store.read.blocks import BlockReader
from grace_store.read.kept_samples import Kept, keep_planned
from grace_store.read.parallel import Threads
from grace_store.read.segments import SegmentColumns, done_in_all, segment_columns
from grace_store.store.opened import SignalView, Store, StoreLike
from grace_store.values.first_errors import LabelledTraces, chance_of_first_errors, find_first_errors
from grace_store.values.gram import offsets_of, sum_by_sample
from grace_store.values.methods.grace import score_ragged
from grace_store.values.methods.loss import loss_values
from grace_store.values.methods.random import random_values
from grace_store.values.ranking import rank
from grace_store.values.roc import Area, LabelledItems, area_across, area_within, cells_of, question_draws
from grace_store.values.score_spec import ScoreSpec

MAX_JUDGED = 10_000
FEWEST_LABELS = 5
"""Right ones and wrong ones that there must be of either."""
MAX_KINDS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """Which labels, and which signals are held against them."""

    label: str | None = None
    """A field of the records that says whether a trace is right: true or false, or a number."""
    first_wrong: str | None = None
    """A field with the number of the first wrong step, from 0; -1 for none."""
    wrong_steps: str | None = None
    """A field with a list of the wrong steps' numbers, from 1."""
    threshold: float | None = None
    """From which number on a label says right; needed where there are more than two."""
    kind: str | None = None
    """A field that names kinds of error, each judged by itself, too."""
    question: str | None = None
    """A field that traces of one question share; without it, the prompt."""
    signals: Sequence[str] | None = None
    """None for all that have steps."""
    spec: ScoreSpec = field(default_factory=ScoreSpec)
    max_samples: int = MAX_JUDGED
    """Of more samples than this, as many are drawn by the seed, in runs of neighbouring records."""
    draws: int = 400
    """For the intervals, which hold 95 % of them."""
    seed: int = 0
    where: str | None = None
    """A condition in SQL that samples have to meet, over fields of their records."""
    data: Sequence[str] | None = None
    """Where the dataset is now, if it moved."""
    partial: bool = False

    def labels(self) -> LabelsNote | None:
        """Return which labels are asked for; None for those of the format."""
        asked = {"traces": self.label, "first_wrong": self.first_wrong, "wrong_steps": self.wrong_steps}
        given = {says: name for says, name in asked.items() if name is not None}
        if len(given) > 1:
            raise SettingError("Give one of --label, --first-wrong and --wrong-steps.")
        if self.threshold is not None and self.label is None:
            raise SettingError("--threshold is for the numbers of --label: give both or neither.")
        return next((LabelsNote(field=name, says=says, threshold=self.threshold) for says, name in given.items()), None)


def judge(
    store: StoreLike, request: JudgeRequest | None = None, *, threads: Threads = None, listener: Listener = ignore
) -> Judgement:
    """Measure how well every stored signal tells what labels call right from what they call wrong."""
    request = request or JudgeRequest()
    opened = store if isinstance(store, Store) else Store.open(store)
    if request.draws < 1:
        raise SettingError(f"--draws {request.draws}: at least 1 is wanted.")
    note = resolve_labels(opened, request.labels(), request.kind, request.question)
    names, skipped = _signals(opened, request.signals)
    reader = BlockReader(opened, tuple(names), gram=False)
    reader.check_complete(partial=request.partial)
    kept = None if request.where is None else keep_planned(opened, request.where, request.data)
    labels = read_labels(opened, note, _chosen(reader, kept, request, threads), request.data)
    if labels.num_left_out:
        what = f"{counted(labels.num_left_out, 'sample')} without a label that can be used"
        listener(Warned(f"{what} in {note.field!r} left out."))
    columns = {view.name: _read(view, labels.position, threads, listener) for view in reader.views}
    sizes = _Sizes.of(next(iter(columns.values())))
    row = opened.column("sample_row")[labels.position].astype(np.int64)
    measured = [each for name, found in columns.items() for each in _of_signal(name, found, request.spec)]
    measured += _without_model(sizes, row, request.seed)
    return Judgement(
        **store_note(reader),
        signals={name: SignalNote(**each) for name, each in signal_notes(reader).items()},
        skipped=tuple(skipped),
        where=where_note(kept),
        spec=request.spec,
        labels=note,
        num_samples=len(labels.position),
        num_left_out=labels.num_left_out,
        draws=request.draws,
        seed=request.seed,
        judged=tuple(_judged(bench, measured, listener) for bench in _benches(labels, sizes, note, request)),
    )


def _signals(store: Store, asked: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the signals to judge, and those left out because they have no steps."""
    names = list(asked or store.signal_names)
    skipped = [] if asked else [name for name in names if store.signal(name).per_sample]
    if kept := [name for name in names if name not in skipped]:
        return kept, skipped
    raise UnknownName(f"{store.location} has no signal with steps yet; `grace-store extract` writes one.")


def _chosen(reader: BlockReader, kept: Kept | None, request: JudgeRequest, threads: Threads) -> IntArray:
    """Return positions of samples that all signals have, ascending; a seeded draw of them if there are many."""
    done = done_in_all(reader, threads)
    done = done if kept is None else done[kept.is_kept[done]]
    if not len(done):
        names = ", ".join(reader.names)
        raise SettingError(
            f"No sample of {reader.store.location} is done in all of {names}. Judge fewer: --signal NAME."
        )
    if len(done) <= request.max_samples:
        return done
    # Whole units, one after the other: neighbours stay together, which are often traces of one question.
    unit = done // reader.store.plan.samples_per_unit
    turn = np.argsort(rank(random_values(request.seed, np.arange(unit[-1] + 1))))
    return np.sort(done[np.argsort(turn[unit], kind="stable")[: request.max_samples]])


# ---------------------------------------------------------------- measures


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure of all labelled samples, larger where it takes them for right."""

    measure: str
    better: Better
    signal: str | None = None
    step: FloatArray | None = None
    """Flat, K to a sample."""
    trace: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What is known of the labelled samples without a model's help."""

    num_steps: IntArray
    step_tokens: IntArray
    """Flat, K to a sample."""
    num_tokens: FloatArray
    """Of whole responses."""

    @classmethod
    def of(cls, columns: SegmentColumns) -> "_Sizes":
        tokens = columns.num_tokens
        return cls(columns.num_steps, tokens[columns.is_step], sum_by_sample(columns.num_steps + 1, tokens))

    @property
    def offsets(self) -> IntArray:
        return offsets_of(self.num_steps)

    @property
    def position(self) -> IntArray:
        """Of each step in its trace, from 0, flat."""
        return np.arange(self.offsets[-1]) - np.repeat(self.offsets[:-1], self.num_steps)


def _read(view: SignalView, positions: IntArray, threads: Threads, listener: Listener) -> SegmentColumns:
    """Return what a signal has of some samples."""
    listener(Note(f"Reading signal {view.name}."))
    parts, num_read = [], 0
    for each in segment_columns(view, positions, threads):
        parts.append(each)
        num_read += len(each.num_steps)
        listener(SamplesScored(num_read, len(positions)))
    return SegmentColumns.joined(parts)


def _of_signal(name: str, columns: SegmentColumns, spec: ScoreSpec) -> Iterator[Measured]:
    scores = score_ragged(columns.num_steps, columns.gram, columns.num_tokens, spec)
    starts, is_step = scores.offsets[:-1], columns.is_step
    answer, history = scores.answer_alignment, scores.history_alignment
    yield Measured("grace", "higher", name, scores.step_score, scores.value)
    yield Measured("grace, worst step", "higher", name, None, np.fmin.reduceat(scores.step_score, starts))
    yield Measured("answer alignment", "higher", name, answer, _means(answer, starts))
    yield Measured("history alignment", "higher", name, history, _means(history, starts))
    for statistic, title in (("loss", "loss"), ("entropy", "entropy"), ("hit_rate", "hit rate")):
        each = columns.statistic[statistic]
        mean = loss_values(columns.num_steps + 1, columns.num_tokens, each)
        sign = 1 if statistic == "hit_rate" else -1
        yield Measured(title, "higher" if sign > 0 else "lower", name, sign * each[is_step], sign * mean)


def _without_model(sizes: _Sizes, row: IntArray, seed: int) -> Iterator[Measured]:
    position = sizes.position.astype(np.float64)
    generator = np.random.Generator(np.random.Philox(seed))
    drawn = generator.random(len(position))
    yield Measured("longest", "more", None, sizes.step_tokens.astype(np.float64), sizes.num_tokens)
    yield Measured("stepmax", "more", None, None, sizes.num_steps.astype(np.float64))
    yield Measured("earliest", "earlier", None, -position, None)
    yield Measured("random", "-", None, drawn, random_values(seed, row))


def _means(values: FloatArray, starts: IntArray) -> FloatArray:
    """Return the mean of each sample's steps that have a value."""
    known = np.isfinite(values)
    totals = np.add.reduceat(np.where(known, values, 0.0), starts)
    count = np.add.reduceat(known.astype(np.float64), starts)
    means: FloatArray = np.divide(totals, count, out=np.full(len(starts), np.nan), where=count > 0)
    return means


# ---------------------------------------------------------------- measures against labels


@dataclass(frozen=True, slots=True)
class _Bench:
    """Steps or traces with labels, and all that a measure of them is held against."""

    of: Literal["steps", "traces"]
    items: LabelledItems
    place: IntArray
    """Which entries of a measure's column the items are."""
    kind: Array
    """Of error, for each item."""
    drawn: FloatArray
    """How often each draw has each question."""
    seed: int
    traces: LabelledTraces | None = None
    """Where steps are judged and there are right and wrong traces."""

    def measure(self, measured: Measured, column: FloatArray) -> JudgedMeasure:
        score, against = column[self.place], (self.items, self.drawn)
        first = None if self.traces is None else find_first_errors(column, self.traces, self.drawn, self.seed)
        return JudgedMeasure(
            measure=measured.measure,
            signal=measured.signal,
            better=measured.better,
            across=area_across(score, *against),
            within=area_within(score, *against),
            across_fixed=area_across(score, *against, fixed=True),
            within_fixed=area_within(score, *against, fixed=True),
            kinds={kind: self._of_kind(kind, score) for kind in self._kinds()},
            first_errors=first,
        )

    def _kinds(self) -> list[str]:
        counts = Counter(self.kind[~self.items.is_right].tolist())
        return sorted(kind for kind, _ in counts.most_common(MAX_KINDS) if kind)

    def _of_kind(self, kind: str, score: FloatArray) -> Area:
        chosen = self.items.is_right | (self.kind == kind)
        return area_across(score[chosen], self.items.taken(chosen), self.drawn, fixed=True)


def _benches(labels: Labels, sizes: _Sizes, note: LabelsNote, request: JudgeRequest) -> list[_Bench]:
    """Return what there is to judge: steps if they have labels, and traces if some are right and some are wrong."""
    drawn = question_draws(int(labels.question.max()) + 1, request.draws, request.seed)
    is_right = labels.is_right == RIGHT
    has_both = min(is_right.sum(), (~is_right).sum()) >= FEWEST_LABELS
    found = []
    if labels.steps is not None:
        found.append(_step_bench(labels, sizes, drawn, request.seed, has_both=has_both))
        _check_labels(found[0].items, "steps", note.field)
    if labels.steps is None or has_both:
        cell = cells_of(sizes.num_steps, sizes.num_tokens)
        items = LabelledItems(is_right, labels.question, cell)
        _check_labels(items, "traces", note.field)
        kind = np.array(labels.kind, dtype=object)
        found.append(_Bench("traces", items, np.arange(len(is_right)), kind, drawn, request.seed))
    return found


def _step_bench(labels: Labels, sizes: _Sizes, drawn: FloatArray, seed: int, *, has_both: bool) -> _Bench:
    assert labels.steps is not None
    label = np.concatenate(labels.steps)
    known = np.flatnonzero(label != UNKNOWN)
    sample = np.repeat(np.arange(len(sizes.num_steps)), sizes.num_steps)[known]
    cell = cells_of(sizes.position[known], sizes.step_tokens[known])
    items = LabelledItems(label[known] == RIGHT, labels.question[sample], cell)
    kind = np.array(labels.kind, dtype=object)[sample]
    traces = LabelledTraces(sizes.offsets, labels.first_wrong, labels.question) if has_both else None
    return _Bench("steps", items, known, kind, drawn, seed, traces)


def _check_labels(items: LabelledItems, what: str, field: str) -> None:
    num_right = int(items.is_right.sum())
    num_wrong = len(items.is_right) - num_right
    if not num_right or not num_wrong:
        side = "right" if num_right else "wrong"
        raise DataError(f"All {len(items.is_right)} {what} are {side} by {field!r}: there is nothing to tell apart.")
    if min(num_right, num_wrong) < FEWEST_LABELS:
        raise DataError(
            f"Field {field!r} has {num_right} right and {num_wrong} wrong {what}: of either, at least "
            f"{FEWEST_LABELS} are needed to say anything."
        )


def _judged(bench: _Bench, measured: Sequence[Measured], listener: Listener) -> JudgedItems:
    columns = [(each, each.step if bench.of == "steps" else each.trace) for each in measured]
    judged = []
    listener(Note(f"Judging {counted(len(bench.place), bench.of[:-1])}."))
    for each, column in columns:
        if column is not None:
            judged.append(bench.measure(each, column))
    num_right = int(bench.items.is_right.sum())
    found = JudgedItems(
        of=bench.of,
        num_right=num_right,
        num_wrong=len(bench.place) - num_right,
        num_questions=bench.drawn.shape[1],
        conclusion="",
        measures=tuple(judged),
        chance_of_first_errors=None if bench.traces is None else chance_of_first_errors(bench.traces),
    )
    return found.model_copy(update={"conclusion": conclude(found)})
