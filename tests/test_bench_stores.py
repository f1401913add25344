"""The benchmark's synthetic stores are real ones: they verify, they score, and the scripts still run on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from grace_store.run.verify import verify
from grace_store.scoring.score import score
from grace_store.store.opened import Store
from grace_store.train.warmup import warmup
from tests import warmups


@pytest.fixture(scope="module")
def store(tmp_path_factory, repository):
    place = tmp_path_factory.mktemp("bench") / "small.zarr"
    script(repository, "synthetic_store.py", place, "--samples", 300, "--min-steps", 3, "--max-steps", 9)
    return Store.open(place)


def script(repository, name: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(repository / "jobs/bench" / name), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_synthetic_store_is_a_store(store):
    assert list(verify(store, deep=True, signals=store.signal_names)) == []
    assert len(score(store)) == 300


@pytest.mark.slow
def test_the_bench_of_gradients_prints_what_each_kind_costs(repository, tmp_path):
    warmups.write_traces(tmp_path / "traces.jsonl", 12)
    request = warmups.REQUEST.model_copy(update={"num_heldout": 0, "checkpoints": ("1",), "ratio": "0.7"})
    job = warmups.make_job(tmp_path, request=request)
    warmup(job)
    (checkpoint,) = (tmp_path / "warmup").glob("checkpoint-*")
    printed = script(
        repository,
        "gradient_cost.py",
        "--model",
        job.model,
        "--adapter",
        checkpoint,
        "--data",
        *job.data,
        "--samples",
        8,
        "--dimension",
        64,
        "--device",
        "cpu",
        "--threads",
        1,
        "--kinds",
        "gradient per sample, Adam",
        "--json",
    )
    proxy, gradient = json.loads(printed)
    assert (proxy["kind"], gradient["kind"]) == ("proxy", "gradient per sample, Adam")
    assert (proxy["num_samples"], proxy["num_tokens"]) == (8, gradient["num_tokens"])
    assert (proxy["vector_size"], gradient["vector_size"]) == (48, 64)
    assert all(row["cpu_seconds"] > 0 and row["bytes"] > 0 for row in (proxy, gradient))


def test_the_bench_of_the_search_finds_what_it_plants(repository, tmp_path):
    size = ("--samples", 64, "--size", 32, "--threads", 1)
    printed = script(repository, "search.py", tmp_path / "s.zarr", *size)
    assert "planted 12  planted_found 12" in printed
    assert "nearest synthetic-15" in printed
