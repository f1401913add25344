"""The page's part on test sets: which of their items the pool has, by `contamination`. Computes nothing."""

from __future__ import annotations

from grace_store.choose.contamination_table import AgainstTable
from grace_store.pages.sections import Cell, Section
from grace_store.scoring.notes import BenchmarkNote

WORST_SHOWN = 20
"""Matches that are shown side by side."""


def against_section(found: AgainstTable) -> Section:
    """Return which benchmarks have items in the pool, and the strongest matches side by side."""
    section = Section("benchmarks", "Benchmark items", "Are items of test sets in the pool?")
    section.text(found.conclusion, kind="conclusion")
    section.records("Benchmarks", [_benchmark_row(each) for each in found.note.benchmarks])
    rows: list[dict[str, Cell]] = [
        {
            "kind": row["kind"],
            "strength": row["strength"],
            "sample": row["sample_id"],
            "where": row["where"],
            "the sample has": row["passage"],
            "item": row["item_id"],
            "the item says": row["item_text"],
        }
        for row in found.worst(WORST_SHOWN)
    ]
    about = "Of each item the strongest match: the share of the item's runs of words that the sample has, or a cosine."
    section.records("Side by side", rows, about)
    return section


def _benchmark_row(each: BenchmarkNote) -> dict[str, Cell]:
    return {
        "benchmark": each.name,
        "items": each.num_items,
        "found": each.num_found,
        "samples that have one": each.num_samples,
        "with other numbers": each.num_templates,
        "compared": "texts" if each.signal is None else "texts and vectors",
    }
