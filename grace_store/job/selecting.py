"""From a scores table to the user's own records: pick the best, copy them out byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from grace_store import __version__
from grace_store.errors import ResumeMismatch
from grace_store.job.dataset import open_dataset
from grace_store.select.budget import top_ratios
from grace_store.select.table import ScoreTable, read_scores
from grace_store.store import Store

SubsetFormat = Literal["source", "ids"]


@dataclass(frozen=True, slots=True)
class Subset:
    """What was chosen: rows of the scores table, in the order of the records."""

    chosen: npt.NDArray[np.int64]
    num_with_value: int
    threshold: float
    """The smallest value that was kept."""


def select(
    scores_path: Path, ratio: str, out: Path, as_format: SubsetFormat = "source", data: Sequence[str] | None = None
) -> Subset:
    """Write the ceil(ratio N) best samples of a table, in the records' order, with a note of what made them."""
    scores = read_scores(scores_path)
    ranked = top_ratios(scores.value, [ratio], scores.row)[0]
    chosen = np.sort(ranked)
    subset = Subset(chosen, int(np.isfinite(scores.value).sum()), float(scores.value[ranked[-1]]))
    lines = _ids(scores, chosen) if as_format == "ids" else _records(scores, chosen, data)
    _write_lines(out, lines)
    made_by = {
        "kind": "subset",
        "made_by": f"grace-store {__version__}",
        "ratio": ratio,
        "as": as_format,
        "num_samples": len(chosen),
        "num_with_value": subset.num_with_value,
        "threshold": subset.threshold,
        "scores": scores.made_by,
    }
    sidecar = out.with_name(out.name + ".spec.json")
    sidecar.write_text(json.dumps(made_by, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return subset


def _ids(scores: ScoreTable, chosen: npt.NDArray[np.int64]) -> Iterator[bytes]:
    ids = scores.sample_id
    for i in chosen.tolist():
        yield ids[i].encode()


def _records(scores: ScoreTable, chosen: npt.NDArray[np.int64], data: Sequence[str] | None) -> Iterator[bytes]:
    """Yield the chosen records as they stand in the dataset, after checking that it is the same dataset."""
    store = Store.open(scores.made_by["store"])
    check_plan_of(scores.made_by, store)
    wanted = np.searchsorted(store.column("sample_row"), scores.row[chosen])
    locators = zip(
        *(store.column(f"sample_{name}")[wanted].tolist() for name in ("file", "offset", "length")), strict=True
    )
    with open_dataset(store, data) as dataset:
        yield from dataset.read_many(locators)


def check_plan_of(made_by: dict[str, Any], store: Store) -> None:
    """Raise ResumeMismatch unless a table was made from the store's present plan."""
    if made_by.get("plan_sha256") != store.plan.digest():
        raise ResumeMismatch(
            f"The scores were made from another plan than the one now in {store.location}. Score the store again."
        )


def _write_lines(out: Path, lines: Iterator[bytes]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    try:
        with partial.open("wb") as stream:
            for line in lines:
                stream.write(line + b"\n")
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
