"""Score a store: a table out, block by block, without a model. GRACE and heuristics read no vector."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from grace_store.artifacts.made_from import check_made_from, check_plan_of, check_signals_of, open_made_from
from grace_store.artifacts.outputs import Source, check_outputs, sources_of
from grace_store.artifacts.score_table import ScoreTable, read_made_by, schema_of, score_rows, write_scores
from grace_store.base.arrays import ByteArray, FloatArray
from grace_store.base.errors import SettingError
from grace_store.base.events import Listener, ignore
from grace_store.curate.influence import InfluenceScoring, prepare_influence
from grace_store.curate.made_by import describe
from grace_store.curate.response_scoring import ResponseScoring, are_whole_responses, heuristic_flags
from grace_store.curate.targets import Targets
from grace_store.read.blocks import BlockReader, SampleBlock
from grace_store.read.parallel import Threads
from grace_store.read.signal_choice import Signals, SignalWeights, resolve_signals
from grace_store.store.opened import Store
from grace_store.values.combine import combine_scores, combine_signals, placed
from grace_store.values.grace import Flag, RaggedScores, flag_names, score_ragged
from grace_store.values.heuristics import HeuristicSpec, heuristic_values
from grace_store.values.history import History
from grace_store.values.influence.influence_spec import INFLUENCE_METHODS, InfluenceSpec
from grace_store.values.score_spec import ScoreSpec

Spec = ScoreSpec | HeuristicSpec | InfluenceSpec


@dataclass(frozen=True, slots=True)
class ScoreRun:
    """What was written."""

    out: Path
    num_samples: int
    num_with_value: int
    flags: dict[str, int]
    """How many samples have each flag."""
    made_by: dict[str, Any]


def score_samples(
    store: Store | str | Path, spec: Spec | None = None, *, signals: Signals = None,
    custom_history: History | None = None, targets: Targets | None = None, partial: bool = False,
    threads: Threads = None, tell: Listener = ignore,
) -> ScoreTable:  # fmt: skip
    """Return the scores of every done sample as a table in memory.

    signals is a name, several, or {name: weight}; custom_history takes the place of the spec's: weights (K, K) with
    row k those of the steps before step k, or a function from K to such weights. targets is what the methods of
    InfluenceSpec, and only they, score by.
    """
    scoring = _prepare(store, spec, signals, custom_history, targets, partial=partial, threads=threads, tell=tell)
    tables = [table for table, _ in scoring.tables(threads)]
    return ScoreTable(pa.concat_tables([schema_of(scoring.made_by).empty_table(), *tables]), scoring.made_by)


def write_score_table(
    store: Store | str | Path, spec: Spec | None, out: Path, *, signals: Signals = None,
    custom_history: History | None = None, targets: Targets | None = None, partial: bool = False,
    threads: Threads = None, tell: Listener = ignore,
) -> ScoreRun:  # fmt: skip
    """Write the scores of every done sample, block by block, and say what was written."""
    scoring = _prepare(store, spec, signals, custom_history, targets, partial=partial, threads=threads, tell=tell)
    check_outputs([out], scoring.sources)
    num_samples = num_with_value = 0
    counts = np.zeros(256, dtype=np.int64)
    with write_scores(out, scoring.made_by) as writer:
        for table, flags in scoring.tables(threads):
            writer.write_table(table)
            num_samples += table.num_rows
            num_with_value += int(np.isfinite(table["value"].to_numpy()).sum())
            counts += np.bincount(flags, minlength=256)
    named = {flag_names(int(flag))[0]: int(counts[np.arange(256) & int(flag) > 0].sum()) for flag in Flag}
    flagged = {name: count for name, count in named.items() if count}
    return ScoreRun(out, num_samples, num_with_value, flagged, scoring.made_by)


def _prepare(
    store: Store | str | Path, spec: Spec | None, signals: Signals, history: History | None, targets: Targets | None,
    *, partial: bool, threads: Threads, tell: Listener,
) -> _Scoring | ResponseScoring | InfluenceScoring:  # fmt: skip
    opened = store if isinstance(store, Store) else Store.open(store)
    if not isinstance(spec, InfluenceSpec):
        if targets is not None:
            raise SettingError(f"a target set is for the methods {', '.join(INFLUENCE_METHODS)}: leave it out")
        return _prepare_without_targets(opened, spec or ScoreSpec(), signals, history, partial=partial)
    if history is not None:
        raise SettingError(f"method {spec.method} has no history: leave custom_history out")
    return prepare_influence(opened, spec, targets, signals, partial=partial, threads=threads, tell=tell)


def _prepare_without_targets(
    store: Store, spec: ScoreSpec | HeuristicSpec, signals: Signals, history: History | None, *, partial: bool
) -> _Scoring | ResponseScoring:
    if history is not None and (isinstance(spec, HeuristicSpec) or spec.history != "uniform"):
        raise SettingError("custom_history takes the place of the history: leave that out of the spec")
    weights = resolve_signals(store, signals)
    if isinstance(spec, HeuristicSpec) and are_whole_responses(store, weights):
        return ResponseScoring.of(store, spec, weights, partial=partial)
    return _Scoring.of(store, spec, weights, history, partial=partial)


def replay(
    table: Path, out: Path, store: Store | str | Path | None = None, threads: Threads = None, *,
    targets: Targets | None = None, tell: Listener = ignore,
) -> ScoreRun:  # fmt: skip
    """Score again exactly as a table was scored, from the store it was made from or a copy of it elsewhere.

    targets says where the target set and its data are now; what else it may say is taken from the table.
    """
    made_by = read_made_by(table)
    what = f"table of scores {table}"
    opened = open_made_from(made_by, store or None, what, "STORE (`grace-store score STORE --replay ...`)")
    check_made_from(made_by, opened, what)
    spec = spec_of(made_by)
    if isinstance(spec, InfluenceSpec):
        names = made_by["checkpoints"]
        weights = {name: made_by["signals"][name]["weight"] for name in names}
        given = made_by["weights_from"] == "given"
        where = targets_of(made_by, targets)
        return write_score_table(
            opened, spec, out, signals=weights if given else names, targets=where, partial=made_by["partial"],
            threads=threads, tell=tell,
        )  # fmt: skip
    if targets is not None:
        raise SettingError(f"{table} was scored without a target set: leave --targets and --target-data out")
    custom = made_by.get("custom_history")
    if custom is not None and "weights" not in custom:
        raise SettingError(f"{table} was scored with a history function given from Python; give it again there.")
    return write_score_table(
        opened,
        spec,
        out,
        signals={name: signal["weight"] for name, signal in made_by["signals"].items()},
        custom_history=None if custom is None else np.array(custom["weights"]),
        partial=made_by["partial"],
        threads=threads,
    )


def spec_of(made_by: dict[str, Any]) -> Spec:
    """Return the settings that a table was scored with."""
    settings = made_by["spec"]
    if settings.get("method") in INFLUENCE_METHODS:
        return InfluenceSpec.parse(**settings)
    return ScoreSpec.parse(**settings) if settings.get("method") == "grace" else HeuristicSpec.parse(**settings)


def targets_of(made_by: dict[str, Any], moved: Targets | None = None) -> Targets:
    """Return the target set that a table was made from, at its old place or a new one, if it still is the same."""
    then = made_by["targets"]
    store = open_made_from(then, None if moved is None else moved.open(), "target set of the table", "--targets")
    check_plan_of(then, store, "target set of the table")
    check_signals_of({each["name"]: each for each in then["signals"].values()}, store)
    names = tuple(then["signals"][name]["name"] for name in made_by["checkpoints"])
    data = moved.data if moved is not None and moved.data else tuple(then["data"])
    return Targets(store, names, then["subtasks_by"], data)


@dataclass(frozen=True, slots=True)
class _Scoring:
    """One scoring: what is read, by which settings, and what its table says of it."""

    reader: BlockReader
    spec: ScoreSpec | HeuristicSpec
    weights: SignalWeights
    history: History | None
    made_by: dict[str, Any]

    @property
    def sources(self) -> list[Source]:
        """What a table must not be written over."""
        return sources_of(self.reader.store)

    @classmethod
    def of(
        cls, store: Store, spec: ScoreSpec | HeuristicSpec, weights: SignalWeights, history: History | None, *,
        partial: bool,
    ) -> _Scoring:  # fmt: skip
        is_grace = isinstance(spec, ScoreSpec)
        needs_loss = not is_grace and spec.method in ("loss", "perplexity")
        reader = BlockReader(store, weights.names, gram=is_grace, loss=needs_loss)
        reader.check_complete(partial=partial)
        made_by = describe(reader, spec.model_dump(mode="json"), weights)
        if history is not None:
            made_by["custom_history"] = _described(history)
        return cls(reader, spec, weights, history, made_by)

    def tables(self, threads: Threads) -> Iterator[tuple[pa.Table, ByteArray]]:
        """Yield rows of the table in order, with the samples' flags as numbers."""
        return self.reader.map(self._table, threads)

    def _table(self, block: SampleBlock) -> tuple[pa.Table, ByteArray]:
        if isinstance(self.spec, ScoreSpec):
            scores = score_signals(block, self.spec, self.weights, self.history)
            steps = (scores.step_score, scores.answer_alignment, scores.history_alignment)
            value, flags = scores.value, scores.flags
        else:
            steps = None
            value, flags = _heuristic(block, self.spec, self.weights)
        is_answer = np.zeros(len(block.segment_tokens), dtype=np.bool_)
        is_answer[np.cumsum(block.num_steps + 1) - 1] = True
        rows = score_rows(
            sample_id=self.reader.ids(block),
            row=block.row,
            num_steps=block.num_steps,
            num_tokens=block.num_tokens,
            value=value,
            steps=steps,
            step_tokens=block.segment_tokens[~is_answer],
            flags=flags,
        )
        return rows, flags


def score_signals(
    block: SampleBlock, spec: ScoreSpec, weights: SignalWeights, history: History | None = None
) -> RaggedScores:
    """Return the scores of a block's samples, of all its signals together."""
    parts = [
        score_ragged(found.num_steps, found.gram, found.num_tokens, spec, custom_history=history)
        for found in block.signals
    ]
    return combine_scores(block.num_steps, parts, block.places, list(weights.weights.values()))


def _heuristic(block: SampleBlock, spec: HeuristicSpec, weights: SignalWeights) -> tuple[FloatArray, ByteArray]:
    values = []
    missing = np.zeros(len(block), dtype=np.bool_)
    for found, place in zip(block.signals, block.places, strict=True):
        row = block.row if place is None else block.row[place]
        # Only methods that look at losses have them.
        loss = found.loss if len(found.loss) else np.zeros(len(found.num_tokens), np.float32)
        steps = found.num_steps
        each = heuristic_values(
            spec, row=row, num_steps=steps, num_parts=steps + 1, num_tokens=found.num_tokens, loss=loss
        )
        values.append(placed(each, place, len(block)))
        if place is not None:
            missing |= ~np.isin(np.arange(len(block)), place)
    value = combine_signals(np.stack(values), list(weights.weights.values()))
    return value, heuristic_flags(value, missing)


def _described(history: History) -> dict[str, Any]:
    if callable(history):
        return {"function": getattr(history, "__qualname__", type(history).__name__)}
    weights = np.asarray(history, dtype=np.float64)
    return {"sha256": hashlib.sha256(weights.tobytes()).hexdigest(), "weights": weights.tolist()}
