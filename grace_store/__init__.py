"""Curate reasoning traces by how their steps would train a model.

    import grace_store as gs

    store = gs.open_store("traces.zarr")
    for sample in gs.iter_samples(store):               # ids, Grams, token counts; no vector is read
        sample.sample_id, sample.gram.shape
    table = gs.score_samples(store, gs.ScoreSpec(alpha=0.5, history="ema:0.8"))
    table.value, table.to_pandas()                      # NumPy, Arrow (table.table) or pandas
    subset = gs.select_samples(table, ratio="0.2")
    gs.export_subset(subset, "subset.jsonl", "ms-swift")

Names are looked up when first used: importing the package loads nothing else. Importing ``grace_store.score`` or
``grace_store.select`` gives the packages of those names.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "Comparison": "job.comparing",
    "Descriptions": "job.describing",
    "Diversity": "job.diversity",
    "DiversitySpec": "select.diversity_spec",
    "DuplicateTable": "analysis.duplicate_table",
    "Grid": "score.grid",
    "HeuristicSpec": "score.heuristics",
    "InfluenceSpec": "score.influence.spec",
    "LengthAudit": "score.length_bias",
    "Neighbours": "job.neighbours",
    "Report": "report.writing",
    "ReportRequest": "report.writing",
    "ScoreSpec": "score.spec",
    "ScoreTable": "select.table",
    "Store": "store",
    "StoredSample": "job.samples",
    "Subset": "job.selecting",
    "Sweep": "job.sweeping",
    "SweepSpec": "score.grid",
    "Targets": "job.target_sets",
    "TradeSpec": "job.trade_curve",
    "audit_length": "select.audit",
    "compare_subsets": "job.comparing",
    "describe_samples": "job.describing",
    "export_subset": "job.exporting",
    "find_duplicates": "job.finding_duplicates",
    "iter_samples": "job.samples",
    "measure_diversity": "job.diversity",
    "nearest_samples": "job.neighbours",
    "open_store": "job.samples",
    "read_duplicates": "analysis.duplicate_table",
    "read_scores": "select.table",
    "regroup_duplicates": "job.finding_duplicates",
    "score_samples": "job.scoring",
    "select_samples": "job.selecting",
    "sweep_settings": "job.sweeping",
    "write_report": "report.writing",
    "write_score_table": "job.scoring",
}
"""Every public name and the module it lives in."""

__all__ = [
    "Comparison",
    "Descriptions",
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
    "compare_subsets",
    "describe_samples",
    "export_subset",
    "find_duplicates",
    "iter_samples",
    "measure_diversity",
    "nearest_samples",
    "open_store",
    "read_duplicates",
    "read_scores",
    "regroup_duplicates",
    "score_samples",
    "select_samples",
    "sweep_settings",
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
