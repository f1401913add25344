"""A pool and a target set of three subtasks, for influence methods to compare."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.targets import Targets
from grace_store.store.opened import Store
from grace_store.values.methods.method import InfluenceSpec
from tests.gradient_stores import (
    DIMENSION,
    add_gradients,
    gradient_spec,
    plan_store,
    record,
    stored_vectors,
)

NUM_POOL = 37


UNIT = 16


SIZES = {"algebra": 5, "counting": 2, "geometry": 9}


SUBTASK = [number for number, size in enumerate(SIZES.values()) for _ in range(size)]


CHECKPOINTS = ("ck1", "ck2", "ck3")


RATES = [3e-5, 2e-5, 1e-5]


LESS = InfluenceSpec(method="less")


ICONS = InfluenceSpec(method="icons")


CADC = InfluenceSpec(method="cadc")


def random_gradients(seed, num):
    return np.random.default_rng(seed).normal(size=(num, DIMENSION))


def make_pool(folder: Path, name: str = "pool", num: int = NUM_POOL, samples_per_unit: int = UNIT) -> Store:
    files = {"pool.jsonl": [record(f"p{i}") for i in range(num)]}
    return plan_store(folder, name, files, samples_per_unit=samples_per_unit)


def make_targets(folder: Path, name: str = "targets", samples_per_unit: int = 8) -> Store:
    files = {f"{task}.jsonl": [record(f"{task}{i}", task) for i in range(size)] for task, size in SIZES.items()}
    return plan_store(folder, name, files, samples_per_unit=samples_per_unit)


def fill(pool: Store, targets: Store, storage="float32", names=CHECKPOINTS, rates=RATES) -> None:
    for number, (name, rate) in enumerate(zip(names, rates, strict=True)):
        spec = gradient_spec(storage, weights=f"w{number}", learning_rate=rate)
        add_gradients(pool, name, random_gradients(number, pool.plan.num_samples), spec)
        add_gradients(targets, name, random_gradients(100 + number, targets.plan.num_samples), spec)


def stores(folder: Path, storage: str = "float32") -> tuple[Store, Targets]:
    return Store.open(folder / storage / "pool.zarr"), Targets(folder / storage / "targets.zarr")


def stored(folder, storage, names=CHECKPOINTS):
    pool, targets = stores(folder, storage)
    return [stored_vectors(pool, name) for name in names], [stored_vectors(targets.open(), name) for name in names]


def influence_stores(folder: Path) -> Path:
    """Write a pool and its targets with three checkpoints, in float32 and in int8."""
    for storage in ("float32", "int8"):
        (folder / storage).mkdir()
        fill(make_pool(folder / storage), make_targets(folder / storage), storage)
    return folder


def cadc_scores(folder: Path) -> Path:
    """Write a table with three capabilities of 25, 9 and 3 samples or so, and return where."""
    pool, targets = make_pool(folder), make_targets(folder)
    shift = np.eye(DIMENSION)[np.repeat([0, 1, 2], [25, 9, 3])] * 4
    for number, name in enumerate(CHECKPOINTS[:2]):
        add_gradients(pool, name, random_gradients(number, NUM_POOL) + shift)
        add_gradients(targets, name, random_gradients(9 + number, len(SUBTASK)) / 4 + np.eye(DIMENSION)[SUBTASK] * 5)
    out = folder / "cadc.parquet"
    score(pool, ScoreRequest(spec=CADC, signals=CHECKPOINTS[:2], targets=Targets(targets)), out=out)
    return out
