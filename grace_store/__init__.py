"""Curate reasoning traces by how their steps would train a model.

    import grace_store as gs

    store = gs.open_store("traces.zarr")
    for sample in gs.iter_samples(store):               # what is not asked for is not read
        sample.sample_id, sample.gram.shape, sample.vectors.shape, sample.segments
    table = gs.score_samples(store, gs.ScoreSpec(alpha=0.5, history="ema:0.8"))
    table.value, table.to_pandas()                      # NumPy, Arrow (table.table) or pandas
    subset = gs.select_samples(table, ratio="0.2")
    gs.export_subset(subset, "subset.jsonl", "ms-swift")

Names are looked up when first used: importing the package loads nothing else. Importing ``grace_store.values`` or
``grace_store.select`` gives the packages of those names.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "Comparison": "curate.compare",
    "Descriptions": "read.descriptors",
    "DescriptorSpec": "read.descriptors",
    "Diversity": "curate.diversity",
    "DiversitySpec": "values.diversity_spec",
    "DuplicateTable": "artifacts.duplicate_table",
    "Grid": "values.grid",
    "HeuristicSpec": "values.heuristics",
    "InfluenceSpec": "values.influence.influence_spec",
    "LengthAudit": "values.length_bias",
    "Neighbours": "curate.neighbours",
    "Report": "pages.report",
    "ReportRequest": "pages.report",
    "ScoreSpec": "values.score_spec",
    "ScoreTable": "artifacts.score_table",
    "Store": "store.opened",
    "StoredSample": "read.samples",
    "Subset": "curate.select",
    "Sweep": "curate.sweep",
    "SweepSpec": "values.grid",
    "Targets": "curate.targets",
    "TradeSpec": "curate.trade_curve",
    "audit_length": "curate.audit",
    "columns_of_rows": "read.records",
    "compare_subsets": "curate.compare",
    "describe_samples": "read.descriptors",
    "export_subset": "curate.exports.export",
    "find_duplicates": "curate.duplicates",
    "iter_samples": "read.samples",
    "measure_diversity": "curate.diversity",
    "nearest_samples": "curate.neighbours",
    "open_store": "read.samples",
    "read_duplicates": "artifacts.duplicate_table",
    "read_sample": "read.samples",
    "read_scores": "artifacts.score_table",
    "regroup_duplicates": "curate.duplicates",
    "score_samples": "curate.score",
    "select_samples": "curate.select",
    "sweep_settings": "curate.sweep",
    "to_pandas": "read.frames",
    "to_xarray": "read.frames",
    "write_report": "pages.report",
    "write_score_table": "curate.score",
}
"""Every public name and the module it lives in."""

__all__ = [
    "Comparison",
    "Descriptions",
    "DescriptorSpec",
    "Diversity",
    "DiversitySpec",
    "DuplicateTable",
    "Grid",
    "HeuristicSpec",
    "InfluenceSpec",
    "LengthAudit",
    "Neighbours",
    "Report",
    "ReportRequest",
    "ScoreSpec",
    "ScoreTable",
    "Store",
    "StoredSample",
    "Subset",
    "Sweep",
    "SweepSpec",
    "Targets",
    "TradeSpec",
    "__version__",
    "audit_length",
    "columns_of_rows",
    "compare_subsets",
    "describe_samples",
    "export_subset",
    "find_duplicates",
    "iter_samples",
    "measure_diversity",
    "nearest_samples",
    "open_store",
    "read_duplicates",
    "read_sample",
    "read_scores",
    "regroup_duplicates",
    "score_samples",
    "select_samples",
    "sweep_settings",
    "to_pandas",
    "to_xarray",
    "write_report",
    "write_score_table",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
