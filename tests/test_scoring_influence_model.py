"""The whole way to influence scores on a small real model: warm-up, gradients of both sets, LESS and ICONS."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import TargetMismatch
from grace_store.base.settings import DataSpec, ExtractSpec, GradientSpec, RunOptions
from grace_store.base.training_settings import WarmupSpec
from grace_store.data.dataset import Dataset
from grace_store.pool.records import UnitLoader
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.targets import Targets
from grace_store.store.opened import Store
from grace_store.train.warmup import warmup
from grace_store.values.methods.method import InfluenceSpec
from tests import warmups
from tests.gradient_stores import brute_influence, stored_vectors
from tests.gradients import TrueGradients, open_gradient

CHECKPOINTS = ("checkpoint-2", "checkpoint-4")
DIMENSION = 1024
SUBTASK = [0, 0, 0, 0, 1, 1]
NUM_POOL = 10


def write_records(path: Path, what: str, num: int) -> Path:
    records = [
        {
            "id": f"{what}-{i}",
            "prompt": f"Tom has {i} {what}. How many {what} does he have now?",
            "steps": [f"Step {j}: He buys {i + j} more {what}." for j in range(1, 2 + i % 2)],
            "answer": f"The answer is {2 * i + 1}.",
        }
        for i in range(num)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two checkpoints of a warm-up; Adam's steps and plain gradients of a pool, plain gradients of two subtasks."""
    folder = tmp_path_factory.mktemp("model")
    write_records(folder / "traces.jsonl", "nuts", NUM_POOL)
    for what, num in (("apples", 4), ("pears", 2)):
        write_records(folder / f"{what}.jsonl", what, num)
    request = WarmupSpec(ratio="0.8", batch_size=2, learning_rate=5e-3, num_heldout=0, checkpoints=("0.5", "1"))
    warmup(warmups.make_job(folder, data_request=DataSpec(min_steps=1), request=request))
    pool, targets = ("traces.jsonl",), ("apples.jsonl", "pears.jsonl")
    for store, files, preconditioner, names in (
        ("pool", pool, "adam", CHECKPOINTS),
        ("pool", pool, "none", CHECKPOINTS[-1:]),
        ("targets", targets, "none", CHECKPOINTS),
    ):
        for name in names:
            gradient = GradientSpec(preconditioner=preconditioner, dimension=DIMENSION)
            extract(
                ExtractJob(
                    store=str(folder / f"{store}.zarr"),
                    model=str(folder / "model"),
                    data=tuple(str(folder / file) for file in files),
                    adapter=str(folder / "warmup" / name),
                    signal=f"{name}-adam" if preconditioner == "adam" else name,
                    data_request=DataSpec(min_steps=1),
                    request=ExtractSpec(kind="gradient", gradient=gradient, attention="eager"),
                    options=RunOptions(device="cpu", threads=1),
                )
            )
    return folder


def test_less_over_the_checkpoints_of_a_warmup_is_the_brute_force(folder):
    pool, targets = Store.open(folder / "pool.zarr"), Store.open(folder / "targets.zarr")
    names = [f"{name}-adam" for name in CHECKPOINTS]
    table = score(pool, ScoreRequest(spec=InfluenceSpec(method="less"), signals=names, targets=Targets(targets)))
    rates = [pool.signal(name).signal.spec.gradient.learning_rate for name in names]
    assert rates[0] != rates[1]
    assert table.note.weights_from == "learning_rate"
    assert table.note.notes == ()
    ours, theirs = (
        [stored_vectors(pool, name) for name in names],
        [stored_vectors(targets, name) for name in CHECKPOINTS],
    )
    expected = brute_influence(ours, theirs, SUBTASK, rates)
    np.testing.assert_allclose(table.influence, expected, atol=1e-7)
    np.testing.assert_allclose(table.value, expected.max(axis=1), atol=1e-7)


def test_icons_is_that_of_the_whole_gradients_up_to_the_projection(folder):
    name = CHECKPOINTS[-1]
    model, adapter = folder / "model", folder / "warmup" / name
    truth = TrueGradients(model, adapter, open_gradient(model, adapter, dimension=DIMENSION))

    def gradients(store: Store) -> np.ndarray:
        with Dataset.open([file.path for file in store.plan.files]) as dataset:
            samples = UnitLoader(store, dataset).read(0, store.plan.num_samples)
        return np.stack([truth.of(sample)[0] for sample in samples])

    pool, targets = Store.open(folder / "pool.zarr"), Store.open(folder / "targets.zarr")
    ours, theirs = gradients(pool), gradients(targets)
    ours, theirs = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (ours, theirs))
    cosine = ours @ theirs.T
    expected = np.stack([cosine[:, np.array(SUBTASK) == j].mean(axis=1) for j in range(2)], axis=1)
    table = score(pool, ScoreRequest(spec=InfluenceSpec(method="icons"), signals=name, targets=Targets(targets)))
    # A projected cosine has a standard error below 1 / sqrt(dimension), and int8 adds less than a hundredth of that.
    assert np.abs(table.influence - expected).max() < 4 / np.sqrt(DIMENSION)
    assert np.corrcoef(table.influence.ravel(), expected.ravel())[0, 1] > 0.9


def test_a_target_set_of_another_checkpoint_is_refused(folder):
    with pytest.raises(TargetMismatch, match=r"checkpoint-4 and checkpoint-2: model adapter: pool .*, targets"):
        score(
            folder / "pool.zarr",
            ScoreRequest(
                spec=InfluenceSpec(method="icons"),
                signals=CHECKPOINTS[1],
                targets=Targets(folder / "targets.zarr", CHECKPOINTS[:1]),
            ),
        )
