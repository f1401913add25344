"""The benchmark's synthetic stores are real ones: they verify, they score, and the scripts still run on them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from grace_store.job.scoring import score_samples
from grace_store.job.verify import verify
from grace_store.store import Store


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
    assert len(score_samples(store)) == 300


def test_the_bench_of_scoring_prints_its_ratios(store, repository):
    printed = script(repository, "scoring.py", store.location, "--looped", 2)
    assert "faster than the loop" in printed
    assert "bytes a sample" in printed
