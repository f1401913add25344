"""Weigh the steps of a store from Grams alone: write the table block by block, and summarise the weights."""

import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import overload

import numpy as np
import pyarrow as pa

from grace_store.base.arrays import IntArray
from grace_store.base.events import Listener, ignore
from grace_store.base.finding import Cell, Column, Estimate, Finding, PoolNote, Table
from grace_store.base.states import Flag, flag_counts
from grace_store.base.text import counted, percent
from grace_store.pool.arrow_arrays import numpy_numbers
from grace_store.pool.pool import Pool, PoolLike, SignalWeights
from grace_store.pool.walk import SampleBlock, SignalReader, arrays_of
from grace_store.scoring.notes import WeightsNote
from grace_store.scoring.parquet_columns import write_blocks
from grace_store.scoring.provenance import check_outputs, sources_of, weighted_signals
from grace_store.scoring.score import measure_block
from grace_store.scoring.weight_table import WeightTable, weight_rows, weights_schema
from grace_store.store.storages import num_packed
from grace_store.values.intervals import FEWEST_QUESTIONS, MAX_PARTS, number_parts, ratio_over_questions
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.weightings import WEIGHTINGS, RaggedWeights, SignalGrams, WeightsSpec, weigh_ragged


@overload
def weights(
    pool: PoolLike, spec: WeightsSpec | None = None, *, out: None = None, listener: Listener = ignore
) -> WeightTable: ...


@overload
def weights(
    pool: PoolLike, spec: WeightsSpec | None = None, *, out: str | Path, listener: Listener = ignore
) -> Finding: ...


def weights(
    pool: PoolLike, spec: WeightsSpec | None = None, *, out: str | Path | None = None, listener: Listener = ignore
) -> WeightTable | Finding:
    """Return the step weights of all done samples; or write them to out, and return a summary of the weights.

    Several signals of the pool count as one signal.
    """
    pool = Pool.of(pool)
    spec = spec or WeightsSpec()
    reader = SignalReader(pool.store, pool.weights.names, pool.wanted, arrays_of(ScoreSpec(), spec.scores))
    reader.check_complete(partial=pool.partial)
    signals = weighted_signals(reader, pool.weights)
    note = WeightsNote(spec=spec, signals=signals, **reader.origin, **pool.filter_notes)
    summary = WeightSummary(number_parts(pool.questions_by_row(), pool.store.plan.num_records))

    def weigh(block: SampleBlock) -> tuple[pa.Table, RaggedWeights]:
        found = weigh_block(block, note.spec, pool.weights)
        return weight_rows(block, reader.ids(block), found), found

    def tables() -> Iterator[pa.Table]:
        for table, found in reader.map(weigh, pool.threads, listener):
            summary.add(found, numpy_numbers(table["row"]))
            yield table

    if out is None:
        return WeightTable(pa.concat_tables([weights_schema(note).empty_table(), *tables()]), note)
    out = Path(out)
    check_outputs([out], sources_of(pool.store, pool.labels))
    with write_blocks(out, weights_schema(note), note) as writer:
        for table in tables():
            writer.write_table(table)
    return summary.finding(pool.note(reader), note, out)


def weigh_block(block: SampleBlock, spec: WeightsSpec, weights: SignalWeights) -> RaggedWeights:
    """Return the step weights of a block's samples, by all its signals together."""
    in_all = np.ones(len(block), dtype=np.bool_)
    for place in block.places:
        if place is not None:
            in_all &= np.isin(np.arange(len(block)), place)
    signals = []
    for signal, place, share in zip(block.signals, block.places, weights.shares, strict=True):
        chosen = in_all if place is None else in_all[place]
        gram, tokens, num_segments = signal.gram, signal.num_tokens, signal.num_steps + 1
        if not chosen.all():
            gram = gram[np.repeat(chosen, num_packed(num_segments))]
            tokens = tokens[np.repeat(chosen, num_segments)]
        signals.append(SignalGrams(gram, tokens, share))
    score = None
    if "scores" in WEIGHTINGS[spec.method].settings:
        score = measure_block(block, spec.scores, weights)[0].step_score[np.repeat(in_all, block.num_steps)]
    part = weigh_ragged(block.num_steps[in_all], signals, spec, score)
    if in_all.all():
        return part
    found = RaggedWeights.none(block.num_steps)
    found.flags[~in_all] = Flag.MISSING_SIGNAL
    found.put(part, np.flatnonzero(in_all))
    return found


MEANS = {
    "cosine": "cosine of the weighted sum of the steps with the answer",
    "equal_cosine": "the same with equal weights",
    "gain": "difference of the two, sample by sample",
    "residual": "share of the answer's direction that the weighted sum leaves uncovered",
    "equal_residual": "the same with equal weights",
}
"""Numbers that are averaged over samples, in words."""


class WeightSummary:
    """Counts and means over all samples; memory does not grow with the number of samples.

    num_samples; num_weighed, samples that have weights; num_all_zero, samples with weights that are all 0; num_steps,
    steps that have a weight; num_zero, steps with weight 0.
    """

    def __init__(self, part: IntArray | None = None) -> None:
        self._part = part
        """The part of each row of the dataset in intervals, as number_parts gives it; None: rows are questions."""
        names = ("num_samples", "num_weighed", "num_all_zero", "num_steps", "num_zero")
        self.counts: Counter[str] = Counter(dict.fromkeys(names, 0))
        self.flags: Counter[str] = Counter()
        self.largest = 0.0
        self._sums, self._num = np.zeros((len(MEANS), MAX_PARTS)), np.zeros(MAX_PARTS)
        """Sums over the samples of each part, and the number of its samples."""

    def add(self, found: RaggedWeights, row: IntArray) -> None:
        """Count the samples of a block, which have these rows of the dataset."""
        has = np.isfinite(found.cosine)
        weight = found.weight[np.repeat(has, np.diff(found.offsets))]
        self.counts.update(num_samples=len(has), num_weighed=int(has.sum()), num_steps=len(weight))
        self.counts.update(num_zero=int((weight == 0).sum()))
        self.largest = max(self.largest, float(weight.max(initial=0.0)))
        if len(has):
            self.counts.update(num_all_zero=int((np.maximum.reduceat(found.weight, found.offsets[:-1]) == 0).sum()))
        self.flags.update(flag_counts(found.flags.astype(np.uint32)))
        cosine, equal = found.cosine[has], found.equal_cosine[has]
        # The best multiple of a sum leaves this share of the answer's squared length uncovered.
        left, equal_left = (1.0 - np.maximum(each, 0.0) ** 2 for each in (cosine, equal))
        part = (row % MAX_PARTS if self._part is None else self._part[row])[has]
        self._num += np.bincount(part, minlength=MAX_PARTS)
        for sums, each in zip(self._sums, (cosine, equal, cosine - equal, left, equal_left), strict=True):
            sums += np.bincount(part, each, MAX_PARTS)

    def means(self) -> dict[str, Estimate]:
        """Return the means over samples with their 95 % intervals, over questions."""
        has, num = self._num > 0, self.counts["num_weighed"]
        sums = zip(MEANS, self._sums[:, has], strict=True)
        return {name: ratio_over_questions(each, self._num[has], num, scale="plain") for name, each in sums}

    def finding(self, pool: PoolNote | None, note: WeightsNote, out: Path) -> Finding:
        """Return the summary as a finding; out is the file that was written."""
        means = self.means()
        rows: list[dict[str, Cell]] = [{"name": MEANS[name], "mean": each} for name, each in means.items()]
        columns = {"name": Column(heading="mean over samples"), "mean": Column(heading="95 %")}
        notes = [f"{out}: weights of {counted(self.counts['num_weighed'], 'sample')}, the largest {self.largest:.3g}."]
        notes += [f"{count} flagged {name}." for name, count in self.flags.items() if count]
        flagged: dict[str, Cell] = {f"num_{name}": count for name, count in self.flags.items() if count}
        if self.counts["num_weighed"]:
            trial = f"grace-store trial STORE SUBSET --weighted SUBSET {shlex.quote(str(out))} --out trial"
            notes.append(f"Do they train better models? {trial}")
        return Finding(
            study="weights",
            pool=pool,
            settings={
                "out": str(out),
                "spec": note.spec.model_dump(mode="json"),
                "signals": {name: each.weight for name, each in note.signals.items()},
            },
            conclusion=self.conclusion,
            numbers={**self.counts, "largest": self.largest, **means, **flagged},
            tables={"means": Table(columns=columns, rows=tuple(rows))} if self.counts["num_weighed"] else {},
            notes=tuple(notes),
        )

    @property
    def conclusion(self) -> str:
        """The effect of the weights, in a sentence or two."""
        if not self.counts["num_weighed"]:
            flagged = ", ".join(f"{count} {name}" for name, count in self.flags.items() if count)
            why = f": the flags say why ({flagged})" if flagged else ""
            return f"None of {counted(self.counts['num_samples'], 'sample')} has weights{why}."
        counts = self.counts
        zeros = percent(counts["num_zero"] / counts["num_steps"])
        told = f"{zeros} of {counted(counts['num_steps'], 'step')} get weight 0"
        if num_all := counts["num_all_zero"]:
            told += f"; in {counted(num_all, 'sample')} all do, since no step points the way of the answer"
        without = counts["num_samples"] - counts["num_weighed"]
        return f"{self._closer()} {told}.{f' {without} have no weights.' if without else ''}"

    def _closer(self) -> str:
        cosine, equal, gain, left, equal_left = self.means().values()
        between = ""
        if gain.is_known:
            between = f" ({gain.value:+.3f} a sample, 95 % interval {gain.low:.3f} to {gain.high:.3f})"
        if not gain.is_known:
            what = f"Too few to say what weights change ({FEWEST_QUESTIONS} questions are wanted)"
        elif gain.low <= 0 <= gain.high:
            what = "Weights change little: the sum of the steps is about as close to the answer as with equal ones"
        elif gain.value > 0:
            what = "Weights bring the sum of the steps closer to the answer"
        else:
            what = "Weights take the sum of the steps further from the answer"
        return (
            f"{what}: mean cosine {cosine.value:.3f}, {equal.value:.3f} with equal weights{between}; "
            f"the sum leaves {percent(left.value)} of the answer's direction uncovered, "
            f"{percent(equal_left.value)} with equal weights."
        )
