"""Score a store: Grams in, a table out, block by block. Needs no model and reads no vector."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grace_store import __version__
from grace_store.errors import ResumeMismatch, SettingError
from grace_store.job.blocks import BlockReader, SampleBlock, Signals, SignalWeights, resolve_signals
from grace_store.job.outputs import check_outputs, sources_of
from grace_store.score import (
    HeuristicSpec,
    History,
    RaggedScores,
    ScoreSpec,
    combine_scores,
    combine_signals,
    flag_names,
    heuristic_values,
    placed,
    score_ragged,
)
from grace_store.score.grace import Flag
from grace_store.select.table import SCHEMA, ScoreTable, metadata_of, read_made_by, score_rows, write_scores
from grace_store.store import Store

Spec = ScoreSpec | HeuristicSpec


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
    custom_history: History | None = None, partial: bool = False, threads: int | None = None,
) -> ScoreTable:  # fmt: skip
    """Return the scores of every done sample as a table in memory.

    signals is a name, several, or {name: weight}; custom_history takes the place of the spec's: weights (K, K) with
    row k those of the steps before step k, or a function from K to such weights.
    """
    scoring = _Scoring.of(store, spec, signals, custom_history, partial=partial)
    schema = SCHEMA.with_metadata(metadata_of(scoring.made_by))
    tables = [table for table, _ in scoring.tables(threads)]
    return ScoreTable(pa.concat_tables([schema.empty_table(), *tables]), scoring.made_by)


def write_score_table(
    store: Store | str | Path, spec: Spec | None, out: Path, *, signals: Signals = None,
    custom_history: History | None = None, partial: bool = False, threads: int | None = None,
) -> ScoreRun:  # fmt: skip
    """Write the scores of every done sample, block by block, and say what was written."""
    scoring = _Scoring.of(store, spec, signals, custom_history, partial=partial)
    check_outputs([out], sources_of(scoring.reader.store))
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


def replay(table: Path, out: Path, store: Store | str | Path | None = None, threads: int | None = None) -> ScoreRun:
    """Score again exactly as a table was scored, from the store it was made from or a copy of it elsewhere."""
    made_by = read_made_by(table)
    opened = store if isinstance(store, Store) else Store.open(store or made_by["store"])
    check_made_from(made_by, opened)
    custom = made_by.get("custom_history")
    if custom is not None and "weights" not in custom:
        raise SettingError(f"{table} was scored with a history function given from Python; give it again there.")
    return write_score_table(
        opened,
        spec_of(made_by),
        out,
        signals={name: signal["weight"] for name, signal in made_by["signals"].items()},
        custom_history=None if custom is None else np.array(custom["weights"]),
        partial=made_by["partial"],
        threads=threads,
    )


def spec_of(made_by: dict[str, Any]) -> Spec:
    """Return the settings that a table was scored with."""
    settings = made_by["spec"]
    return ScoreSpec.parse(**settings) if settings.get("method") == "grace" else HeuristicSpec.parse(**settings)


def check_plan_of(made_by: dict[str, Any], store: Store) -> None:
    """Raise ResumeMismatch unless a table was made from the store's present plan."""
    if made_by.get("plan_sha256") != store.plan.digest():
        raise ResumeMismatch(
            f"The scores were made from another plan than the one now in {store.location}. Score the store again."
        )


def check_made_from(made_by: dict[str, Any], store: Store) -> None:
    """Raise ResumeMismatch unless the store still is what a table was made from: plan, signals, units."""
    check_plan_of(made_by, store)
    for name, then in made_by["signals"].items():
        view = store.signal(name)
        if view.signal.identity() != then["sha256"]:
            raise ResumeMismatch(
                f"Signal {name!r} of {store.location} is another one than the scores were made from. Score it again."
            )
        num_units = len(view.committed_units())
        if num_units != then["num_units"]:
            raise ResumeMismatch(
                f"Signal {name!r} of {store.location} had {then['num_units']} units when it was scored and has "
                f"{num_units} now, so the same table cannot be made. Score it anew."
            )


@dataclass(frozen=True, slots=True)
class _Scoring:
    """One scoring: what is read, by which settings, and what its table says of it."""

    reader: BlockReader
    spec: Spec
    weights: SignalWeights
    history: History | None
    made_by: dict[str, Any]

    @classmethod
    def of(
        cls, store: Store | str | Path, spec: Spec | None, signals: Signals, history: History | None, *, partial: bool
    ) -> _Scoring:
        opened = store if isinstance(store, Store) else Store.open(store)
        spec = spec or ScoreSpec()
        if history is not None and (isinstance(spec, HeuristicSpec) or spec.history != "uniform"):
            raise SettingError("custom_history takes the place of the history: leave that out of the spec")
        weights = resolve_signals(opened, signals)
        is_grace = isinstance(spec, ScoreSpec)
        needs_loss = not is_grace and spec.method in ("loss", "perplexity")
        reader = BlockReader(opened, weights.names, gram=is_grace, loss=needs_loss)
        reader.check_complete(partial=partial)
        return cls(reader, spec, weights, history, describe(reader, spec.model_dump(mode="json"), weights, history))

    def tables(self, threads: int | None) -> Iterator[tuple[pa.Table, npt.NDArray[np.uint8]]]:
        """Yield rows of the table in order, with the samples' flags as numbers."""
        return self.reader.map(self._table, threads)

    def _table(self, block: SampleBlock) -> tuple[pa.Table, npt.NDArray[np.uint8]]:
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


def _heuristic(
    block: SampleBlock, spec: HeuristicSpec, weights: SignalWeights
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
    values = []
    missing = np.zeros(len(block), dtype=np.bool_)
    for found, place in zip(block.signals, block.places, strict=True):
        row = block.row if place is None else block.row[place]
        # Only methods that look at losses have them.
        loss = found.loss if len(found.loss) else np.zeros(len(found.num_tokens), np.float32)
        each = heuristic_values(spec, row=row, num_steps=found.num_steps, num_tokens=found.num_tokens, loss=loss)
        values.append(placed(each, place, len(block)))
        if place is not None:
            missing |= ~np.isin(np.arange(len(block)), place)
    value = combine_signals(np.stack(values), list(weights.weights.values()))
    flags = missing * np.uint8(Flag.MISSING_SIGNAL) | (~missing & np.isnan(value)) * np.uint8(Flag.NO_VALUE)
    return value, flags.astype(np.uint8)


def describe(
    reader: BlockReader, spec: dict[str, Any], weights: SignalWeights, history: History | None = None
) -> dict[str, Any]:
    """Return what a table says of its making."""
    made_by = {
        "kind": "scores",
        "made_by": f"grace-store {__version__}",
        "spec": spec,
        "store": reader.store.location,
        "plan_sha256": reader.store.plan.digest(),
        "num_units": reader.store.plan.num_units,
        "signals": {
            view.name: {
                "weight": weights.weights[view.name],
                "sha256": view.signal.identity(),
                "num_units": len(units),
            }
            for view, units in zip(reader.views, reader.committed, strict=True)
        },
        "partial": reader.is_partial,
    }
    if history is not None:
        made_by["custom_history"] = _described(history)
    return made_by


def _described(history: History) -> dict[str, Any]:
    if callable(history):
        return {"function": getattr(history, "__qualname__", type(history).__name__)}
    weights = np.asarray(history, dtype=np.float64)
    return {"sha256": hashlib.sha256(weights.tobytes()).hexdigest(), "weights": weights.tolist()}
