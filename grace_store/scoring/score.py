"""Score a store: a table out, block by block, without a model. Measures read no vector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import cast, overload

import numpy as np
import pyarrow as pa

from grace_store.base.arrays import Array, FlagArray, FloatArray, IntArray
from grace_store.base.errors import SettingError, UnknownName
from grace_store.base.events import Listener, ignore
from grace_store.base.finding import LabelsNote
from grace_store.base.states import ABOUT, flag_counts
from grace_store.pool.arrow_arrays import numpy_numbers
from grace_store.pool.label_columns import LabelsLike, refuse_unread
from grace_store.pool.pool import Pool, Signals, SignalWeights
from grace_store.pool.walk import SampleBlock, SignalReader, Threads, arrays_of
from grace_store.scoring.grouped_scoring import (
    GroupAlignment,
    Scoring,
    align_with_groups,
    name_questions,
    score_in_groups,
)
from grace_store.scoring.notes import CustomHistory, ScoresNote, check_plan_of
from grace_store.scoring.provenance import (
    check_outputs,
    check_signals_of,
    moved_labels,
    open_made_from,
    scores_note,
    sources_of,
)
from grace_store.scoring.score_conclusion import conclude_scores
from grace_store.scoring.score_table import (
    ScoreRows,
    ScoreTable,
    read_scores,
    read_scores_note,
    scores_schema,
    write_scores,
)
from grace_store.scoring.targets import Targets
from grace_store.store.opened import Store, StoreLike
from grace_store.values.alignment import History
from grace_store.values.gram import is_step
from grace_store.values.measures import MEASURES, Scales, combine_measures, scores_by
from grace_store.values.methods.grace import RaggedScores, combine_scores
from grace_store.values.methods.method import METHODS, InfluenceSpec, MethodSpec, ScoreSpec
from grace_store.values.within_groups import Within


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """The settings of a scoring: the method, its signals, and the samples."""

    spec: MethodSpec = field(default_factory=ScoreSpec)
    signals: Signals = None
    """The name of a signal, several names, or {name: weight}; None for the only signal."""
    targets: Targets | None = None
    """The target set, for the influence methods alone."""
    custom_history: History | None = None
    """Replaces the history of the spec: weights (K, K), row k for the steps before step k, or a function from K to
    such weights."""
    partial: bool = False
    """Accept unfinished signals, and score their finished units."""
    where: str | None = None
    """Score only the samples that meet a condition in SQL over fields of the records, id, row and num_steps."""
    within: Within | None = None
    """Compare values within their question: subtract the mean of its traces (centred), and also divide by their
    standard deviation (standardised)."""
    group_by: str | None = None
    """The field of the records that names the question, for within and the target group; None for the same prompt and
    images."""
    data: Sequence[str] | None = None
    """New paths of the dataset, if it moved; where, within and the target group read the dataset."""
    labels: LabelsLike | None = None
    """A file of labels, whose columns where and group_by can use."""
    learn_from: LabelsNote | None = None
    """What a learned value is learned from; None for the labels that the format of the store names."""


@dataclass(frozen=True, slots=True)
class ScoreRun:
    """A table of scores that was written."""

    out: Path
    num_samples: int
    num_with_value: int
    flags: dict[str, int]
    """How many samples have each flag."""
    note: ScoresNote

    @property
    def conclusion(self) -> str:
        """The conclusion from the values, in a sentence or two; reads the table."""
        return conclude_scores(read_scores(self.out, steps=False, ids=False))


Wanted = ScoreRequest | MethodSpec | None


@overload
def score(
    store: StoreLike, request: Wanted = None, *, out: None = None, threads: Threads = None, listener: Listener = ignore
) -> ScoreTable: ...


@overload
def score(
    store: StoreLike, request: Wanted = None, *, out: str | Path, threads: Threads = None, listener: Listener = ignore
) -> ScoreRun: ...


def score(
    store: StoreLike,
    request: Wanted = None,
    *,
    out: str | Path | None = None,
    threads: Threads = None,
    listener: Listener = ignore,
) -> ScoreTable | ScoreRun:
    """Return the scores of all done samples, or write them to out; a spec alone scores the only signal."""
    if not isinstance(request, ScoreRequest):
        request = ScoreRequest() if request is None else ScoreRequest(spec=request)
    opened = store if isinstance(store, Store) else Store.open(store)
    scoring = _prepare(opened, request, threads, listener)
    if out is not None:
        return _write(scoring, Path(out), threads)
    tables = [table for table, _ in scoring.tables(threads)]
    return ScoreTable(pa.concat_tables([scores_schema(scoring.note).empty_table(), *tables]), scoring.note)


def _write(scoring: Scoring, out: Path, threads: Threads) -> ScoreRun:
    check_outputs([out], scoring.sources)
    num_samples = num_with_value = 0
    counts: Counter[str] = Counter()
    with write_scores(out, scoring.note) as writer:
        for table, flags in scoring.tables(threads):
            writer.write_table(table)
            num_samples += table.num_rows
            num_with_value += int(np.isfinite(numpy_numbers(table["value"])).sum())
            counts.update(flag_counts(flags))
    flagged = {name: counts[name] for name in ABOUT if counts[name]}
    return ScoreRun(out, num_samples, num_with_value, flagged, scoring.note)


def _prepare(store: Store, request: ScoreRequest, threads: Threads, listener: Listener) -> Scoring:
    """Return the scoring that a request asks for; raise SettingError if the request is impossible."""
    given = (request.signals, request.where, request.group_by, request.partial, request.data, threads, request.labels)
    pool = Pool(store, *given)
    has_group_target = isinstance(request.spec, ScoreSpec) and request.spec.target == "group"
    learns = isinstance(request.spec, ScoreSpec) and request.spec.learn
    is_read = learns or request.where is not None or request.group_by is not None
    refuse_unread(request.labels, "--where, --group-by or --learn", is_read=is_read)
    if request.learn_from is not None and not learns:
        raise SettingError("labels of right traces or steps are only for a learned value: give --learn, too")
    if request.within is None and not has_group_target and not learns:
        if request.group_by is not None:
            raise SettingError(
                "--group-by names the field that identifies a question: also give --within group or --target group"
            )
        return name_questions(_prepare_method(pool, request, None, listener), pool)
    group = np.full(store.plan.num_samples, -1)
    group[pool.positions] = pool.questions()
    scoring = _prepare_method(pool, request, group, listener)
    if learns and request.within is None:
        return name_questions(scoring, pool)
    return score_in_groups(scoring, store, group, request.group_by, request.within, threads)


def _prepare_method(pool: Pool, request: ScoreRequest, group: IntArray | None, listener: Listener) -> Scoring:
    """Return the scoring by the method of a request; raise SettingError if the request is impossible."""
    spec = request.spec
    uses_history = isinstance(spec, ScoreSpec) and "history" in spec.used and spec.history == "uniform"
    if request.custom_history is not None and (not uses_history or cast(ScoreSpec, spec).learn):
        raise SettingError(
            "custom_history replaces the history of measure grace: use this measure, and leave history out of the spec"
        )
    if isinstance(spec, InfluenceSpec):
        from grace_store.scoring.influence import prepare_influence  # no other method reads targets

        pool.kept  # noqa: B018  a filter that keeps no sample is refused before the targets are read
        return prepare_influence(pool, spec, request.targets, listener)
    if request.targets is not None:
        raise SettingError(f"only methods {', '.join(METHODS)} use a target set: leave the target set out")
    assert isinstance(spec, ScoreSpec)
    if spec.learn:
        from grace_store.scoring.learn import prepare_learned  # reads labels, which no other scoring needs

        assert group is not None
        return prepare_learned(pool, spec, request.learn_from, group, listener)
    return _score_blocks(pool, spec, request.custom_history, group, listener)


def replay(
    table: Path,
    out: Path,
    store: StoreLike | None = None,
    *,
    targets: Targets | None = None,
    data: Sequence[str] | None = None,
    labels: str | Path | None = None,
    threads: Threads = None,
    listener: Listener = ignore,
) -> ScoreRun:
    """Score a store, or a copy of the store, again with the settings of a table.

    targets gives the new paths of the target set and its data. All other settings of the target set come from the
    table. data gives the new paths of the dataset. Only tables with a filter need data. labels gives the new path of
    the file of labels, whose content must be the same.
    """
    note = read_scores_note(table)
    what = f"table of scores {table}"
    opened = open_made_from(note, store or None, what, "STORE (`grace-store score STORE --replay ...`)")
    check_plan_of(note, opened, what)
    check_signals_of(note.signals, opened)
    if note.targets is None and targets is not None:
        raise SettingError(f"{table} was scored without a target set: leave --targets and --target-data out")
    if note.custom_history is not None and note.custom_history.weights is None:
        raise SettingError(
            f"{table} was scored with a history function from Python: score again from Python with the same function."
        )
    request = replace(request_of(note, targets), data=data, labels=moved_labels(note.labels, labels, str(table)))
    return score(opened, request, out=out, threads=threads, listener=listener)


def request_of(note: ScoresNote, moved: Targets | None = None) -> ScoreRequest:
    """Return the request that made a table; moved gives the new paths of its target set. Raise if that has changed."""
    weights = {name: note.signals[name].weight for name in note.checkpoints or note.signals}
    custom = None if note.custom_history is None else note.custom_history.weights
    targets = None
    if (then := note.targets) is not None:
        what = "target set of the table"
        store = open_made_from(then, None if moved is None else moved.open(), what, "--targets")
        check_plan_of(then, store, what)
        check_signals_of(then.signals, store)
        names = tuple(then.signals[name].name for name in note.checkpoints or ())
        data = moved.data if moved is not None and moved.data else then.data
        targets = Targets(store, names, then.subtasks_by, data)
    return ScoreRequest(
        spec=note.spec,
        # Weights that the user did not give are found again, so that the new table has the same weights_from.
        signals=weights if note.weights_from in (None, "given") else list(weights),
        targets=targets,
        custom_history=None if custom is None else np.array(custom),
        partial=note.partial,
        where=None if note.where is None else note.where.sql,
        within=None if note.groups is None else note.groups.within,
        group_by=note.questions_by,
        labels=note.labels,
        learn_from=None if note.learned is None else note.learned.labels,
    )


def _score_blocks(
    pool: Pool, spec: ScoreSpec, history: History | None, group: IntArray | None, listener: Listener
) -> Scoring:
    """Return a scoring by measures of segments or of whole responses."""
    # What the plan knows needs no signal.
    has_none = pool.signals == {} or (not pool.signals and not pool.store.signal_names)
    is_planned = has_none and not spec.reads_model
    if spec.reads_model and not pool.signals and not pool.store.signal_names:
        of_plan = ", ".join(name for name in MEASURES if not ScoreSpec(measure=(name,)).reads_model)
        raise UnknownName(
            f"{pool.store.location} has no signal yet, and {spec.title} needs one. `grace-store extract` "
            f"writes a signal. The measures {of_plan} need none."
        )
    weights = SignalWeights({}) if is_planned else pool.weights
    # Some measures also work on whole responses, of signals with one vector per sample.
    of_responses = all(set(MEASURES[name].reads) <= {"loss", "plan"} for name in spec.names)
    reads = (*arrays_of(spec), *(("responses",) if of_responses else ()))
    whole = [name for name in weights.names if pool.store.signal(name).per_sample] if of_responses else []
    if whole and len(whole) < len(weights.names):
        others = ", ".join(name for name in weights.names if name not in whole)
        raise SettingError(
            f"signal {', '.join(whole)} has one vector per sample, signal {others} one vector per segment: score "
            "them apart"
        )
    reader = SignalReader(pool.store, weights.names, pool.wanted, reads)
    reader.check_complete(partial=pool.partial)
    described = None if history is None else CustomHistory.of(history)
    alignments = None
    if group is not None and spec.target == "group":
        vectors = SignalReader(pool.store, weights.names, reads=("vectors",))
        alignments = [align_with_groups(vectors, each, group, pool.threads) for each in range(len(weights.names))]

    def scores(block: SampleBlock) -> list[RaggedScores]:
        return measure_block(block, spec, weights, alignments, history=history)

    scales: Scales | None = None
    found: tuple[FloatArray, FlagArray] | None = None
    if len(spec.measure) > 1:
        # Values are standardised over the pool, so they are computed before the first row of the table.
        value, flags, scales = _combined(reader, scores, spec, pool.threads, listener)
        found = value, flags
        reader = reader.reading("responses")
    note = scores_note(reader, spec, weights, custom_history=described, scales=scales, **pool.filter_notes)

    def scored(block: SampleBlock) -> tuple[FloatArray, FlagArray, RaggedScores | None]:
        if found is not None:
            return found[0][block.sample], found[1][block.sample], None
        (mine,) = scores(block)
        return mine.value, mine.flags, mine

    def table(block: SampleBlock) -> tuple[pa.Table, Array]:
        value, flags, mine = scored(block)
        is_whole, steps = not reader.views or reader.views[0].per_sample, None
        if mine is not None and spec.has_steps and not is_whole:
            columns = (mine.step_score, mine.answer_alignment, mine.history_alignment)
            steps = columns if spec.reads_grams else columns[:1]
        step_tokens = None if is_whole else block.segment_tokens[is_step(block.num_steps)]
        rows = ScoreRows.of(reader, block, value, flags, steps=steps, step_tokens=step_tokens)
        return rows.to_table(note), rows.all_flags

    def values(block: SampleBlock) -> tuple[IntArray, FloatArray, Array]:
        return block.row, *scored(block)[:2]

    return Scoring(
        note,
        sources_of(pool.store, pool.labels),
        lambda threads: reader.map(table, threads, listener),
        lambda threads: reader.map(values, threads, listener),
    )


def _combined(
    reader: SignalReader,
    scores: Callable[[SampleBlock], list[RaggedScores]],
    spec: ScoreSpec,
    threads: Threads,
    listener: Listener,
) -> tuple[FloatArray, FlagArray, Scales]:
    """Return values by several standardised measures and flags of all samples of the plan, and each measure's scale."""
    num_samples = reader.store.plan.num_samples
    values, flags = np.full((len(spec.measure), num_samples), np.nan), np.zeros(num_samples, dtype=np.uint8)

    def measure(block: SampleBlock) -> tuple[IntArray, FloatArray, FlagArray]:
        found = scores(block)
        return block.sample, np.stack([each.value for each in found]), reduce(or_, (each.flags for each in found))

    for sample, value, flagged in reader.map(measure, threads, listener):
        values[:, sample], flags[sample] = value, flagged
    value, scales = combine_measures(values, spec)
    return value, flags, scales


def measure_block(
    block: SampleBlock,
    spec: ScoreSpec,
    weights: SignalWeights,
    others: Sequence[GroupAlignment] | None = None,
    history: History | None = None,
) -> list[RaggedScores]:
    """Return the scores of a block's samples by each measure, combined over all signals of the block.

    others has, for each signal, the cosines of steps with other traces' answers; history replaces that of the spec.
    """
    if not block.signals:
        return [scores_by(measure, block.responses(0, spec)) for measure in spec.measures]
    parts: list[list[RaggedScores]] = []
    alignments: Sequence[GroupAlignment | None] = others or [None] * len(block.signals)
    for number, (found, other) in enumerate(zip(block.signals, alignments, strict=True)):
        cosine = None if other is None else other.of(found.sample)
        samples = block.responses(number, spec, history=history, target_cosine=cosine)
        parts.append([scores_by(measure, samples) for measure in spec.measures])
        if other is not None:
            for each in parts[-1]:
                each.flags[:] |= other.flags[found.sample]
    share = list(weights.weights.values())
    return [combine_scores(block.num_steps, each, block.places, share) for each in zip(*parts, strict=True)]
