"""Verify names what is broken, by the store alone or against the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import ResumeMismatch
from grace_store.base.settings import ExtractSpec
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.verify import _largest_difference, describe_problems, verify, verify_against_model
from grace_store.store.check import Problem
from grace_store.store.opened import Store
from tests.fake_model import make_fake_model
from tests.jobs import make_job


@pytest.fixture
def job(tmp_path: Path) -> ExtractJob:
    job = make_job(tmp_path)
    extract(job)
    return job


def test_units_to_do_are_told_as_ranges() -> None:
    problems = [Problem("base", unit, "key", "unit is not committed", "extract") for unit in (0, 1, 2, 7)]
    problems.insert(2, Problem("base", 5, "key", "chunk is missing", "repair"))
    lines = ["base unit 5: key: chunk is missing", "base: 4 units not committed: 0-2, 7"]
    assert list(describe_problems(problems)) == lines


@pytest.mark.parametrize("storage", ["float32", "float16", "int8", "int4"])
def test_every_storage_is_sound(tmp_path: Path, storage: str) -> None:
    view = extract(make_job(tmp_path, request=ExtractSpec(storage=storage)))  # type: ignore[arg-type]
    assert list(verify(view.store, deep=True)) == []


# ---------------------------------------------------------------- against the model


def test_units_extracted_again_agree(job: ExtractJob) -> None:
    view = Store.open(job.store).signal("base")
    assert list(verify_against_model(view, job, 3)) == []


def test_a_store_of_other_numbers_is_noticed(tmp_path: Path, job: ExtractJob) -> None:
    """A unit whose bytes are all as committed, but not what the model gives."""
    other = Path(job.data[0]).read_text().replace("We look", "We gaze")
    Path(tmp_path / "other.jsonl").write_text(other)
    swapped = replace(job, store=str(tmp_path / "swapped.zarr"), data=(str(tmp_path / "other.jsonl"),))
    view = extract(swapped)
    source = Store.open(job.store).signal("base")
    view._group, view.chunks = source._group, source.chunks
    problems = list(verify_against_model(view, swapped, 99))
    assert [problem.unit for problem in problems] == list(range(view.store.plan.num_units))
    assert all("Grams differ" in problem.text for problem in problems)


def test_another_model_is_refused(tmp_path: Path, job: ExtractJob) -> None:
    view = Store.open(job.store).signal("base")
    other = make_fake_model(tmp_path / "other", "other")
    with pytest.raises(ResumeMismatch, match="model weights"):
        list(verify_against_model(view, replace(job, model=other), 1))


def test_a_new_vector_that_is_not_finite_differs_whatever_comes_after_it(job: ExtractJob) -> None:
    view = Store.open(job.store).signal(None)
    start, stop = view.store.plan.unit_range(0)
    vectors = np.concatenate([view.vectors(sample) for sample in range(start, stop)]).astype(np.float32)
    assert _largest_difference(view, 0, vectors) < 1e-2
    vectors[0, 0] = np.nan
    assert np.isnan(_largest_difference(view, 0, vectors))
