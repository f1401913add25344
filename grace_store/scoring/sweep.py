"""Sweep settings over a store: compute the values of all settings in one pass, then compare the settings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace_store.base.arrays import BitArray, BoolArray, FloatArray, Int32Array, IntArray, ascend, renumber
from grace_store.base.documents import document_metadata, read_document, write_document
from grace_store.base.errors import DataError
from grace_store.base.events import Listener, ignore
from grace_store.base.files import whole_folder
from grace_store.base.finding import Column, Finding, PoolNote, Table
from grace_store.base.text import counted
from grace_store.pool.arrow_arrays import arrow_numbers, arrow_texts
from grace_store.pool.pool import Pool, PoolLike
from grace_store.pool.walk import Mapper, SampleBlock, SignalReader, Threads, arrays_of, map_ordered
from grace_store.scoring.notes import check_plan_of
from grace_store.scoring.provenance import noted_pool
from grace_store.scoring.sweep_settings import (
    WITH_DEFAULT,
    Setting,
    SettingValues,
    conclude_sweep,
    resolve_settings,
    short_labels,
)
from grace_store.scoring.sweep_table import (
    OVERLAP,
    SUMMARY,
    SUMMARY_SCHEMA,
    SWEEP_NOTE,
    FolderTables,
    HeldTables,
    SweepNote,
    SweepTables,
    SweepWriter,
    is_sweep,
    read_sweep_table,
    samples_table,
    write_sweep,
)
from grace_store.store.opened import Store
from grace_store.values.agreement import jaccard, near_threshold, overlap
from grace_store.values.grid import SweepSpec
from grace_store.values.intervals import MAX_PARTS
from grace_store.values.length_bias import correlation, mean_ranks
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.ranking import OrderStatistics, budget, find_twins, grid_step, on_grid, top_mask

MAX_RANKED = 1 << 17
"""Largest number of samples, evenly spread, that rank correlations are taken over."""


@dataclass(frozen=True, slots=True, repr=False)
class Sweep:
    """The values of many settings, and how the settings differ. Arrays have settings in the order of ``settings``."""

    labels: list[str]
    """Short names of settings with only the differing parts, for tables and figures."""
    summary: list[dict[str, Any]]
    """One row for each setting: its parts, mean, spread, correlations with length and K, its command, and the overlap
    of its best samples with those of the default setting, at the first ratio."""
    jaccard: FloatArray
    """(ratios, settings, settings): overlap of the best samples, as intersection over union."""
    rank_correlation: FloatArray
    """(settings, settings): Spearman's."""
    num_samples: int
    num_ranked: int
    """Samples that the rank correlations are taken over."""
    note: SweepNote
    tables: SweepTables
    folder: Path | None = None
    """The folder of the sweep; None for a sweep in memory."""

    @property
    def settings(self) -> list[str]:
        """The names of the settings."""
        return list(self.note.settings)

    @property
    def ratios(self) -> list[str]:
        """Shares of the samples whose overlap between settings was measured."""
        return list(self.note.spec.ratio)

    @property
    def conclusion(self) -> str:
        """How settings change the chosen samples, compared with the default setting, in a sentence or two."""
        return conclude_sweep(self.summary, self.labels, self.ratios[0])

    def finding(self) -> Finding:
        """Return how the settings differ."""
        headings = {
            "label": "setting",
            "mean": "mean",
            "standard_deviation": "sd",
            "correlation_with_length": "length",
            "correlation_with_num_steps": "K",
            WITH_DEFAULT: f"overlap {self.ratios[0]}",
        }
        summary = Table(
            title=f"{counted(len(self.settings), 'setting')} over {counted(self.num_samples, 'sample')}",
            columns={name: Column(heading=heading) for name, heading in headings.items()},
            rows=tuple({"label": label} | row for label, row in zip(self.labels, self.summary, strict=True)),
            about="mean, sd: of the values. length, K: correlation of the value with the response's length and the "
            "number of steps. overlap: of the best samples with those of the default setting (Jaccard).",
        )
        return Finding(
            study="sweep",
            pool=noted_pool(self.note),
            settings=self.note.spec.model_dump(mode="json")
            | ({} if self.folder is None else {"out": str(self.folder)}),
            conclusion=self.conclusion,
            numbers={"num_samples": self.num_samples, "num_ranked": self.num_ranked},
            tables={"summary": summary},
        )

    def __repr__(self) -> str:
        place = f", {self.folder}" if self.folder else ""
        return f"<Sweep: {counted(len(self.settings), 'setting')}, {counted(self.num_samples, 'sample')}{place}>"

    def value(self, index: int) -> FloatArray:
        """Return the values of one setting, by its number."""
        return self.tables.values(index)

    def values(self) -> FloatArray:
        """Return all values, (settings, samples), in memory."""
        return np.stack([self.value(index) for index in range(len(self.settings))])

    def to_dict(self) -> dict[str, Any]:
        """Return values and comparisons as ``xarray.Dataset.from_dict`` takes them."""
        samples, pair = self.tables.samples(), ("setting", "other_setting")
        return {
            "coords": {
                "setting": {"dims": ("setting",), "data": self.settings},
                "other_setting": {"dims": ("other_setting",), "data": self.settings},
                "ratio": {"dims": ("ratio",), "data": self.ratios},
                "sample_id": {"dims": ("sample",), "data": samples["sample_id"].to_pylist()},
                "row": {"dims": ("sample",), "data": samples["row"].to_numpy()},
            },
            "data_vars": {
                "value": {"dims": ("setting", "sample"), "data": self.values()},
                "jaccard": {"dims": ("ratio", *pair), "data": self.jaccard},
                "rank_correlation": {"dims": pair, "data": self.rank_correlation},
            },
            "attrs": {"about": self.note.spec.about, "store": self.note.store},
        }


def sweep(pool: PoolLike, spec: SweepSpec, *, out: str | Path | None = None, listener: Listener = ignore) -> Sweep:
    """Score by every setting of a sweep in one pass, and compare the settings: in memory, or in the folder out.

    The folder is new, or holds an earlier sweep, which is replaced. values.parquet has a row for each sample and a
    column for each setting, samples.parquet the ids, rows and lengths of samples, summary.parquet a row for each
    setting, and overlap.parquet a row for each pair of settings. `grace-store report --sweep` draws the sweep.
    """
    pool = Pool.of(pool)
    settings = resolve_settings(pool.store, spec, listener, signals=pool.signals)
    for ratio in spec.ratio:
        budget(ratio, 0)
    names = tuple(dict.fromkeys(name for setting in settings for name in setting.weights.names))
    reads = arrays_of(ScoreSpec(), *(setting.spec for setting in settings))
    reader = SignalReader(pool.store, names, pool.wanted, reads)
    reader.check_complete(partial=pool.partial)
    made_from = pool.note(reader)
    note = SweepNote(
        spec=spec,
        settings=tuple(setting.name for setting in settings),
        **{name: getattr(made_from, name) for name in PoolNote.model_fields},
    )
    threads = pool.threads
    # This process compares the values, even if a cluster computed them.
    here = None if isinstance(threads, Mapper) else threads
    if out is None:
        held = HeldTables(note)
        beside = _add_values(reader, settings, held, threads)
        return _compare(held.joined(), settings, note, beside, here, pool.questions_by_row())
    with whole_folder(Path(out), is_sweep) as folder:
        with write_sweep(folder, note) as writer:
            beside = _add_values(reader, settings, writer, threads)
        result = _compare(FolderTables(folder), settings, note, beside, here, pool.questions_by_row())
        _write_comparison(folder, result)
        write_document(folder / SWEEP_NOTE, note)
    return replace(result, folder=Path(out), tables=FolderTables(Path(out)))


def read_sweep(store: Store, folder: Path) -> Sweep:
    """Read a sweep from its folder, if it was made from the store's plan."""
    note = read_document(folder / SWEEP_NOTE, SweepNote)
    check_plan_of(note, store, f"sweep {folder}")
    summary = read_sweep_table(folder, SUMMARY, SUMMARY_SCHEMA).to_pylist()
    pairs = read_sweep_table(folder, OVERLAP, _overlap_schema(note))
    shape = (len(note.settings), len(note.settings))
    if [row["setting"] for row in summary] != list(note.settings) or len(pairs) != shape[0] ** 2:
        raise DataError(f"{folder} does not hold the {len(note.settings)} settings that its note names. Sweep again.")
    found = resolve_settings(store, note.spec)
    # If signals were added or removed since, the settings keep their full names.
    is_same = [setting.name for setting in found] == list(note.settings)
    tables = FolderTables(folder)
    return Sweep(
        labels=short_labels(found) if is_same else list(note.settings),
        summary=summary,
        jaccard=np.stack([pairs[f"jaccard_{ratio}"].to_numpy().reshape(shape) for ratio in note.spec.ratio]),
        rank_correlation=pairs["rank_correlation"].to_numpy().reshape(shape),
        num_samples=tables.samples().num_rows,
        num_ranked=pairs["num_ranked"][0].as_py(),
        note=note,
        tables=tables,
        folder=folder,
    )


def _overlap_schema(note: SweepNote) -> pa.Schema:
    names = pa.schema([("setting", pa.string()), ("other_setting", pa.string())])
    numbers = [pa.field(f"jaccard_{ratio}", pa.float64()) for ratio in note.spec.ratio]
    return pa.schema([*names, *numbers, ("rank_correlation", pa.float64()), ("num_ranked", pa.int64())])


Beside = tuple[Int32Array, Int32Array, FloatArray, IntArray]
"""Arrays that settings are compared with: tokens, steps, values by the default setting, and rows of the samples."""


def _add_values(
    reader: SignalReader, settings: Sequence[Setting], out: HeldTables | SweepWriter, threads: Threads
) -> Beside:
    """Add the values of all settings to out; return the arrays that settings are compared with."""
    default = Setting(ScoreSpec(), settings[0].weights)
    names = [setting.name for setting in settings]
    place = names.index(default.name) if default.name in names else len(names)
    values = SettingValues(settings if place < len(names) else [*settings, default], reader.names)
    parts: list[Beside] = [(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int64))]

    def work(block: SampleBlock) -> tuple[pa.Table, SampleBlock, FloatArray]:
        samples = samples_table(reader.ids(block).tolist(), block.row, block.num_steps, block.num_tokens)
        return samples, block.without_signals(), values(block)

    for samples, block, found in reader.map(work, threads):
        out.add(samples, block.row, found[: len(names)])
        lengths = block.num_tokens.astype(np.int32), block.num_steps.astype(np.int32)
        parts.append((*lengths, found[place].copy(), block.row))
    num_tokens, num_steps, default_value, row = zip(*parts, strict=True)
    lengths = np.concatenate(num_tokens), np.concatenate(num_steps)
    return *lengths, np.concatenate(default_value), np.concatenate(row)


def _compare(
    tables: SweepTables,
    settings: Sequence[Setting],
    note: SweepNote,
    beside: Beside,
    threads: int | None,
    question_of: IntArray,
) -> Sweep:
    """Describe every setting and every pair of settings; each thread holds the values of one setting at a time.

    question_of has the question of each row of the dataset.
    """
    *lengths, default, row = beside
    question = renumber(question_of[row])
    part = question % MAX_PARTS
    ratios, num_samples = note.spec.ratio, len(default)
    covariates = [_Covariate(length.astype(np.float64)) for length in lengths]
    stride = max(1, -(-num_samples // MAX_RANKED))
    order = None if ascend(row) else row
    twin = find_twins(default, question, row)
    has_twin = np.flatnonzero(twin != np.arange(num_samples))
    twins = has_twin, twin[has_twin]
    usual = _Values(default, twins)
    by_default = usual.best(ratios[0], order), usual.near(ratios[0])
    ranked = slice(None, None, stride) if order is None else np.argsort(order)[::stride]
    sample = np.empty((len(settings), len(default[ranked])))

    def look(index: int) -> tuple[dict[str, Any], list[BitArray]]:
        value = _Values(tables.values(index), twins)
        sample[index] = value.compared[ranked]
        chosen = [value.best(ratio, order) for ratio in ratios]
        near = by_default[1], value.near(ratios[0])
        found = overlap((by_default[0], chosen[0]), near, question, len(usual.order), part)
        shared = {WITH_DEFAULT: found.value, "overlap_low": found.low, "overlap_high": found.high}
        return _describe(settings[index], value, covariates, note) | shared, [_packed(each) for each in chosen]

    looked = list(map_ordered(look, range(len(settings)), threads))
    has_all = np.isfinite(sample).all(axis=0)
    sample = sample if has_all.all() else sample[:, has_all]
    return Sweep(
        labels=short_labels(settings),
        summary=[row for row, _ in looked],
        jaccard=np.stack([_overlaps([chosen[number] for _, chosen in looked]) for number in range(len(ratios))]),
        rank_correlation=_rank_correlations(sample, threads),
        num_samples=num_samples,
        num_ranked=sample.shape[1],
        note=note,
        tables=tables,
    )


class _Values:
    """All values of one setting, and the finite ones; twins are samples and their earlier twins by the default."""

    def __init__(self, every: FloatArray, twins: tuple[IntArray, IntArray]) -> None:
        self.every = every
        step, (sample, twin) = grid_step(every), twins
        self.compared = on_grid(every, step)
        is_twin = np.abs(every[sample] - every[twin]) < step
        self.compared[sample[is_twin]] = self.compared[twin[is_twin]]
        self.is_finite = np.isfinite(every)
        self.finite = every if self.is_finite.all() else every[self.is_finite]
        self.order = OrderStatistics(self.finite)

    def best(self, ratio: str, row: IntArray | None) -> BoolArray:
        """Return which values are the best share of the finite values; ties by row (by place, without rows)."""
        return top_mask(self.compared, budget(ratio, len(self.finite)), row=row)

    def near(self, ratio: str) -> BoolArray:
        """Return which values are around the threshold of the best share."""
        return near_threshold(self.order, self.every, budget(ratio, len(self.finite)))


def _packed(chosen: BoolArray) -> BitArray:
    bits = np.packbits(chosen)
    return np.pad(bits, (0, -len(bits) % 8)).view(np.uint64)


class _Covariate:
    """A length that values are correlated with, centred once for all settings."""

    def __init__(self, raw: FloatArray) -> None:
        self.raw = raw
        self.centred = raw - raw.mean() if len(raw) else raw
        self.norm = math.sqrt(self.centred @ self.centred)

    def correlation(self, value: _Values, deviation: float) -> float:
        """Return the correlation with values that have this standard deviation; NaN if one side does not vary."""
        if not self.norm or not deviation > 0:
            return math.nan
        num = len(value.every)
        if len(value.finite) < num:
            return correlation(value.finite, self.raw[value.is_finite])
        return float(np.clip(self.centred @ value.every / (self.norm * deviation * math.sqrt(num)), -1.0, 1.0))


def _describe(setting: Setting, values: _Values, lengths: Sequence[_Covariate], note: SweepNote) -> dict[str, Any]:
    value = values.finite
    mean = float(value.mean()) if len(value) else math.nan
    centred = value - mean
    deviation = math.sqrt(centred @ centred / len(value)) if len(value) else math.nan
    q05, median, q95 = map(values.order.quantile, (0.05, 0.5, 0.95))
    return {
        "setting": setting.name,
        "measure": setting.spec.title,
        "alpha": setting.spec.alpha if "alpha" in setting.words else math.nan,
        # Empty for a setting that the measure does not use.
        **{name: setting.words.get(name, "") for name in ("history", "target", "aggregation")},
        "signals": str(setting.weights),
        "num_samples": len(values.every),
        "num_with_value": len(value),
        "mean": mean,
        "standard_deviation": deviation,
        "quantile_05": q05,
        "median": median,
        "quantile_95": q95,
        "correlation_with_length": lengths[0].correlation(values, deviation),
        "correlation_with_num_steps": lengths[1].correlation(values, deviation),
        "command": setting.command(note),
    }


def _overlaps(chosen: Sequence[BitArray]) -> FloatArray:
    """Return the overlap of all pairs of subsets, given as bits."""
    sizes = [int(np.bitwise_count(bits).sum(dtype=np.int64)) for bits in chosen]
    out = np.ones((len(chosen), len(chosen)))
    for i in range(len(chosen)):
        for j in range(i):
            both = int(np.bitwise_count(chosen[i] & chosen[j]).sum(dtype=np.int64))
            out[i, j] = out[j, i] = jaccard(both, sizes[i], sizes[j])
    return out


def _rank_correlations(values: FloatArray, threads: int | None) -> FloatArray:
    """Return Spearman's correlation of all pairs of settings; ranks replace the values (settings, n) in place."""
    out = np.full((len(values), len(values)), np.nan)
    if values.shape[1] < 2:
        return out
    ranks = values
    for index, found in enumerate(map_ordered(mean_ranks, list(values), threads)):
        np.subtract(found, (values.shape[1] - 1) / 2, out=ranks[index])  # ties share the mean of their ranks
    norms = np.sqrt(np.einsum("ij,ij->i", ranks, ranks))
    np.divide(ranks @ ranks.T, norms[:, None] * norms, out=out, where=(norms[:, None] * norms) > 0)
    return np.asarray(np.clip(out, -1.0, 1.0))


def _write_comparison(folder: Path, sweep: Sweep) -> None:
    metadata = document_metadata(sweep.note)
    arrays = []
    for name, kind in zip(SUMMARY_SCHEMA.names, SUMMARY_SCHEMA.types, strict=True):
        column = [row[name] for row in sweep.summary]
        arrays.append(arrow_texts(column) if kind == pa.string() else arrow_numbers(np.array(column), kind))
    summary = pa.Table.from_arrays(arrays, schema=SUMMARY_SCHEMA)
    pq.write_table(summary.replace_schema_metadata(metadata), folder / SUMMARY)
    num = len(sweep.settings)
    names = [one for one in sweep.settings for _ in sweep.settings], sweep.settings * num
    numbers = [*sweep.jaccard.reshape(-1, num**2), sweep.rank_correlation.ravel()]
    columns = [*map(arrow_texts, names), *(arrow_numbers(each, pa.float64()) for each in numbers)]
    columns.append(arrow_numbers(np.full(num**2, sweep.num_ranked), pa.int64()))
    pairs = pa.Table.from_arrays(columns, schema=_overlap_schema(sweep.note))
    pq.write_table(pairs.replace_schema_metadata(metadata), folder / OVERLAP)
