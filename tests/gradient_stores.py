"""Stores with one known gradient a sample, and influence scores from them by plain loops over single numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.base.metadata import Signal
from grace_store.base.settings import DataSpec, ExtractSpec, GradientSpec, ModelIdentity, Storage
from grace_store.base.states import Reason, SampleSignals, SetAside
from grace_store.run.plan import plan
from grace_store.store.opened import Store
from grace_store.store.unit_writer import UnitWriter, complete_signal, create_signal

DIMENSION = 24
NO_SPANS = np.zeros((0, 2), np.int32)


def record(name: str, subject: object = None) -> dict[str, Any]:
    fields = {} if subject is None else {"about": {"subject": subject}}
    num_steps = 1 + sum(map(ord, name)) % 4
    steps = [f"Look at part {j} of {name}." for j in range(num_steps)]
    return {"id": name, "prompt": f"What is {name}?", "steps": steps, "answer": f"It is {name}.", **fields}


def plan_store(
    folder: Path, name: str, files: Mapping[str, Sequence[dict[str, Any]]], *, samples_per_unit: int = 8
) -> Store:
    """Plan a store folder/name.zarr from JSON lines files of these records."""
    paths = []
    for file, records in files.items():
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(each) + "\n" for each in records))
        paths.append(str(path))
    return plan(
        paths, folder / f"{name}.zarr", DataSpec(format="explicit", min_steps=1), samples_per_unit=samples_per_unit
    )


def gradient_spec(storage: Storage = "float32", **changes: Any) -> ExtractSpec:
    """Return the spec of plain gradients a sample; changes go to the gradient, the model or the rest, by name."""
    model = {"architecture": "None", "hidden_size": 3, "vocab_size": 2, "config": "0", "weights": "a", "tokenizer": "0"}
    gradient: dict[str, Any] = {"dimension": DIMENSION, "normalise": True, "parameters": "0"}
    rest: dict[str, Any] = {"rendering": "plain", "storage": storage}
    for name, value in changes.items():
        part = gradient if name in GradientSpec.model_fields else model if name in ModelIdentity.model_fields else rest
        part[name] = value
    return ExtractSpec(kind="gradient", gradient=GradientSpec(**gradient), model=ModelIdentity(**model), **rest)


def add_gradients(
    store: Store,
    name: str,
    gradients: np.ndarray,
    spec: ExtractSpec | None = None,
    *,
    set_aside: Sequence[int] = (),
    units: Sequence[int] | None = None,
) -> None:
    """Add a signal with these gradients, normalised as its spec says; without all its units it is not complete."""
    spec = spec or gradient_spec(dimension=gradients.shape[1])
    assert spec.gradient is not None
    view = create_signal(store, Signal(name=name, spec=spec, plan_sha256=store.plan.digest()))
    writer = UnitWriter(view)
    length = np.linalg.norm(gradients.astype(np.float64), axis=1)
    for unit in range(store.plan.num_units) if units is None else units:
        start, stop = store.plan.unit_range(unit)
        alive = np.array([sample not in set_aside for sample in range(start, stop)])
        vectors = gradients[start:stop] * alive[:, None]
        if spec.gradient.normalise:
            vectors = vectors / np.where(length[start:stop] > 0, length[start:stop], 1)[:, None]
        signals = SampleSignals(
            sample_vector=vectors.astype(np.float32),
            sample_norm=(length[start:stop] * alive).astype(np.float32),
            sample_num_tokens=(np.arange(start, stop) % 7 + 3).astype(np.int32) * alive,
            sample_loss=(np.arange(start, stop) % 5 / 4).astype(np.float32) * alive,
            set_aside={i - start: SetAside(Reason.TOO_LONG, "long") for i in set_aside if start <= i < stop},
        )
        writer.write(unit, signals, NO_SPANS)
    if units is None:
        complete_signal(view)


def stored_vectors(store: Store, name: str) -> np.ndarray:
    """Return all vectors of a signal as they come out of the store, by FORMAT's rule for float32 and int8."""
    view = store.signal(name)
    units = range(store.plan.num_units)
    stored = np.concatenate([view.unit_array("sample_vector", unit) for unit in units]).astype(np.float64)
    if view.signal.spec.storage == "float32":
        return stored
    return stored * np.concatenate([view.unit_array("sample_scale", unit) for unit in units])[:, None]


# ---------------------------------------------------------------- brute force, one number at a time


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    product = math.fsum(x * y for x, y in zip(a, b, strict=True))
    lengths = math.sqrt(math.fsum(x * x for x in a)) * math.sqrt(math.fsum(y * y for y in b))
    return product / lengths if lengths else 0.0


def brute_influence(
    pool: Sequence[np.ndarray], targets: Sequence[np.ndarray], subtask: Sequence[int], weights: Sequence[float]
) -> np.ndarray:
    """Return the mean over v in j of sum_i w_i cos(G_i(z), g_i(v)), for all z and j."""
    pool_lists, target_lists = [each.tolist() for each in pool], [each.tolist() for each in targets]
    num_subtasks, total = max(subtask) + 1, math.fsum(weights)
    out = np.zeros((len(pool[0]), num_subtasks))
    for z in range(len(pool[0])):
        for j in range(num_subtasks):
            scores = []
            for v in (v for v, which in enumerate(subtask) if which == j):
                parts = [
                    weight / total * cosine(pool_lists[i][z], target_lists[i][v]) for i, weight in enumerate(weights)
                ]
                scores.append(math.fsum(parts))
            out[z, j] = math.fsum(scores) / len(scores)
    return out


def brute_votes(influence: np.ndarray, percent: float) -> list[int]:
    """Return the votes of each sample, percentiles by the textbook: linear between the two nearest ranks."""
    votes = [0] * len(influence)
    for column in influence.T.tolist():
        ordered = sorted(column)
        place = (100 - percent) / 100 * (len(ordered) - 1)
        below = math.floor(place)
        above = min(below + 1, len(ordered) - 1)
        threshold = ordered[below] + (place - below) * (ordered[above] - ordered[below])
        for z, each in enumerate(column):
            votes[z] += each >= threshold
    return votes


def brute_mean_rank(influence: np.ndarray) -> list[Fraction]:
    """Return the mean over subtasks of the share of samples below, equal ones (itself excepted) counting half."""
    num = len(influence)
    columns = influence.T.tolist()
    return [
        Fraction(
            sum(
                2 * sum(other < column[z] for other in column) + sum(other == column[z] for other in column) - 1
                for column in columns
            ),
            2 * num * len(columns),
        )
        for z in range(num)
    ]
