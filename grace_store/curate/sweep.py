"""Sweep settings over a store: one pass gives the values of all of them, then they are compared with each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace_store import __version__
from grace_store.artifacts.pictures.heat_map import draw_heat_map
from grace_store.artifacts.score_table import metadata_of
from grace_store.artifacts.sweep_table import SAMPLES, SAMPLES_SCHEMA, SweepValues, write_sweep
from grace_store.base.arrays import ByteArray, FloatArray, IntArray
from grace_store.base.events import Listener, ignore
from grace_store.base.files import whole_folder, write_json
from grace_store.curate.sweep_settings import Setting, SettingValues, resolve_settings, short_labels
from grace_store.read.blocks import BlockReader, Mapper, SampleBlock, Threads, map_ordered
from grace_store.store.opened import Store
from grace_store.values.grid import SweepSpec
from grace_store.values.length_bias import correlation, mean_ranks
from grace_store.values.overlap import jaccard
from grace_store.values.ranking import budget, top_mask

MAX_RANKED = 1 << 17
"""Rank correlations are taken over at most so many samples, evenly spread; the report says how many."""
SPEC = "sweep.json"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep on disk. All arrays have settings in the order of ``settings``."""

    folder: Path
    settings: list[str]
    labels: list[str]
    """What differs between the settings, for pictures."""
    summary: list[dict[str, Any]]
    """One row a setting: its parts, mean, spread, correlations with length and K, and the command that scores by it."""
    ratios: list[str]
    jaccard: FloatArray
    """(ratios, settings, settings): overlap of the best samples, as intersection over union."""
    rank_correlation: FloatArray
    """(settings, settings): Spearman's."""
    num_samples: int
    num_ranked: int
    """Samples that the rank correlations are taken over."""
    made_by: dict[str, Any]

    def values(self) -> FloatArray:
        """Return all values, (settings, samples). Memory for all of them is needed."""
        found = SweepValues(self.folder)
        return np.stack([found.read(index) for index in range(len(self.settings))])

    def to_dict(self) -> dict[str, Any]:
        """Return values and comparisons as ``xarray.Dataset.from_dict`` takes them."""
        samples = pq.read_table(self.folder / SAMPLES, columns=["sample_id", "row"])
        pair = ("setting", "other_setting")
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
            "attrs": {"about": self.made_by["spec"]["about"], "store": self.made_by["store"]},
        }


def sweep_settings(
    store: Store | str | Path, sweep: SweepSpec, out: str | Path, *, partial: bool = False,
    threads: Threads = None, listener: Listener = ignore,
) -> Sweep:  # fmt: skip
    """Write the values of every setting in a sweep, and how the settings differ, to a folder.

    A new one, or that of an earlier sweep, which is replaced.

    values.parquet has one row for each setting and sample, samples.parquet one for each sample; summary.parquet one
    for each setting; overlap.parquet and the pictures one for each pair of settings.
    """
    opened = store if isinstance(store, Store) else Store.open(store)
    settings = resolve_settings(opened, sweep, listener)
    for ratio in sweep.ratio:
        budget(ratio, 0)
    names = tuple(dict.fromkeys(name for setting in settings for name in setting.weights.names))
    reader = BlockReader(opened, names)
    reader.check_complete(partial=partial)
    made_by = _made_by(reader, sweep, settings)
    with whole_folder(Path(out), SPEC) as folder:
        _write_values(reader, settings, made_by, folder, threads)
        # What the driver has written is compared here, wherever it was computed.
        here = None if isinstance(threads, Mapper) else threads
        result = _compare(folder, settings, sweep, made_by, opened.location, here)
        _write_comparison(folder, result)
        write_json(folder / SPEC, made_by)
    return replace(result, folder=Path(out))


def _made_by(reader: BlockReader, sweep: SweepSpec, settings: Sequence[Setting]) -> dict[str, Any]:
    return {
        "kind": "sweep",
        "made_by": f"grace-store {__version__}",
        "spec": sweep.model_dump(mode="json"),
        "settings": [setting.name for setting in settings],
        "store": reader.store.location,
        "plan_sha256": reader.store.plan.digest(),
        "num_units": reader.store.plan.num_units,
        "signals": {
            view.name: {"sha256": view.signal.identity(), "num_units": len(units)}
            for view, units in zip(reader.views, reader.committed, strict=True)
        },
        "partial": reader.is_partial,
    }


def _write_values(
    reader: BlockReader, settings: Sequence[Setting], made_by: dict[str, Any], folder: Path, threads: Threads
) -> None:
    values = SettingValues(settings, reader.names)

    def work(block: SampleBlock) -> tuple[pa.Table, IntArray, FloatArray]:
        columns = [
            pa.array(reader.ids(block).tolist(), pa.string()),
            pa.array(block.row, pa.int64()),
            pa.array(block.num_steps, pa.int32()),
            pa.array(block.num_tokens, pa.int64()),
        ]
        return pa.table(columns, schema=SAMPLES_SCHEMA), block.row, values(block)

    with write_sweep(folder, made_by["settings"], made_by) as writer:
        for samples, row, found in reader.map(work, threads):
            writer.add(samples, row, found)


def _compare(
    folder: Path, settings: Sequence[Setting], sweep: SweepSpec, made_by: dict[str, Any], store: str,
    threads: int | None,
) -> Sweep:  # fmt: skip
    """Describe every setting and every pair of them, holding one setting's values at a time on each thread."""
    values = SweepValues(folder)
    lengths = pq.read_table(folder / SAMPLES, columns=["num_tokens", "num_steps"])
    covariates = [_Covariate.of(lengths[name].to_numpy().astype(np.float64)) for name in lengths.column_names]
    num_samples = lengths.num_rows
    stride = max(1, -(-num_samples // MAX_RANKED))

    def look(index: int) -> tuple[dict[str, Any], list[ByteArray], FloatArray]:
        value = values.read(index)
        num_with_value = int(np.isfinite(value).sum())
        chosen = [np.packbits(top_mask(value, budget(ratio, num_with_value))) for ratio in sweep.ratio]
        return _describe(settings[index], value, covariates, store), chosen, value[::stride].copy()

    looked = list(map_ordered(look, range(len(settings)), threads))
    sample = np.stack([some for _, _, some in looked])
    sample = sample[:, np.isfinite(sample).all(axis=0)]
    overlaps = [_overlaps([chosen[number] for _, chosen, _ in looked]) for number in range(len(sweep.ratio))]
    return Sweep(
        folder=folder,
        settings=[setting.name for setting in settings],
        labels=short_labels(settings),
        summary=[row for row, _, _ in looked],
        ratios=list(sweep.ratio),
        jaccard=np.stack(overlaps),
        rank_correlation=_rank_correlations(sample, threads),
        num_samples=num_samples,
        num_ranked=sample.shape[1],
        made_by=made_by,
    )


@dataclass(frozen=True, slots=True)
class _Covariate:
    """Something that values may go with, its centre and length known."""

    raw: FloatArray
    centred: FloatArray
    norm: float

    @classmethod
    def of(cls, raw: FloatArray) -> _Covariate:
        centred = raw - raw.mean() if len(raw) else raw
        return cls(raw, centred, math.sqrt(centred @ centred))

    def correlation(self, value: FloatArray, deviation: float) -> float:
        """Return the correlation with values, whose standard deviation is known; NaN where there is no value."""
        if not self.norm or not deviation > 0:
            return math.nan
        if len(finite := np.flatnonzero(np.isfinite(value))) < len(value):
            return correlation(value[finite], self.raw[finite])
        return float(np.clip(self.centred @ value / (self.norm * deviation * math.sqrt(len(value))), -1.0, 1.0))


def _describe(setting: Setting, values: FloatArray, lengths: Sequence[_Covariate], store: str) -> dict[str, Any]:
    finite = np.isfinite(values)
    value = values if finite.all() else values[finite]
    deviation = float(value.std()) if len(value) else math.nan
    q05, median, q95 = np.quantile(value, [0.05, 0.5, 0.95]).tolist() if len(value) else [math.nan] * 3
    return {
        "setting": setting.name,
        "alpha": math.nan if setting.spec.without_answer else setting.spec.alpha,
        "history": setting.spec.history,
        "target": setting.words["target"],
        "aggregation": setting.spec.aggregation,
        "signals": str(setting.weights),
        "num_samples": len(finite),
        "num_with_value": len(value),
        "mean": float(value.mean()) if len(value) else math.nan,
        "standard_deviation": deviation,
        "quantile_05": q05,
        "median": median,
        "quantile_95": q95,
        "correlation_with_length": lengths[0].correlation(values, deviation),
        "correlation_with_num_steps": lengths[1].correlation(values, deviation),
        "command": setting.command(store),
    }


def _overlaps(chosen: Sequence[ByteArray]) -> FloatArray:
    """Return the overlap of all pairs of subsets, given as bits."""
    sizes = [int(np.bitwise_count(bits).sum(dtype=np.int64)) for bits in chosen]
    out = np.ones((len(chosen), len(chosen)))
    for i in range(len(chosen)):
        for j in range(i):
            both = int(np.bitwise_count(chosen[i] & chosen[j]).sum(dtype=np.int64))
            out[i, j] = out[j, i] = jaccard(both, sizes[i], sizes[j])
    return out


def _rank_correlations(values: FloatArray, threads: int | None) -> FloatArray:
    out = np.full((len(values), len(values)), np.nan)
    if values.shape[1] < 2:
        return out
    ranks = np.stack(list(map_ordered(mean_ranks, list(values), threads)))
    ranks -= ranks.mean(axis=1, keepdims=True)
    norms = np.sqrt((ranks**2).sum(axis=1))
    np.divide(ranks @ ranks.T, norms[:, None] * norms, out=out, where=(norms[:, None] * norms) > 0)
    return np.asarray(np.clip(out, -1.0, 1.0))


def _write_comparison(folder: Path, sweep: Sweep) -> None:
    metadata = metadata_of(sweep.made_by)
    summary = pa.Table.from_pylist(sweep.summary)
    pq.write_table(summary.replace_schema_metadata(metadata), folder / "summary.parquet")
    pairs = [
        {
            "setting": sweep.settings[i],
            "other_setting": sweep.settings[j],
            **{f"jaccard_{ratio}": float(sweep.jaccard[r, i, j]) for r, ratio in enumerate(sweep.ratios)},
            "rank_correlation": float(sweep.rank_correlation[i, j]),
        }
        for i in range(len(sweep.settings))
        for j in range(len(sweep.settings))
    ]
    overlap = pa.Table.from_pylist(pairs)
    pq.write_table(overlap.replace_schema_metadata(metadata), folder / "overlap.parquet")
    note = f"{sweep.num_samples} samples of {sweep.made_by['store']}"
    for r, ratio in enumerate(sweep.ratios):
        title = f"Overlap (Jaccard) of the best {ratio}"
        (folder / f"overlap-{ratio}.svg").write_text(draw_heat_map(sweep.jaccard[r], sweep.labels, title, note))
    ranked = f"{sweep.num_ranked} of {note}"
    picture = draw_heat_map(sweep.rank_correlation, sweep.labels, "Rank correlation (Spearman)", ranked)
    (folder / "rank_correlation.svg").write_text(picture)
