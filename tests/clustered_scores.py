"""A store of planted clusters with its table of scores, and ways to choose from it."""

from __future__ import annotations

from pathlib import Path

from grace_store.scoring.score import score
from grace_store.values.diverse_orders import DiversitySpec
from tests.planted_stores import PlantedStore, planted_store

ANSWER = "answer"


def scored_clusters(folder: Path) -> tuple[Path, PlantedStore]:
    """Twelve clusters of twenty, the best 0.2 by value all lying in three of them; and a table, scores.parquet."""
    found = planted_store(folder)
    score(found.store, out=folder / "scores.parquet")
    return folder, found


def spec(method: str, **changes: object) -> DiversitySpec:
    """A way to choose, by what the answers say."""
    usual = {"similarity": 0.9} if method == "dedup" else {}
    return DiversitySpec.parse(method=method, descriptor=ANSWER, **usual | changes)
