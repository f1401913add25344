"""Stores of earlier versions of the format: later code opens them, finds nothing wrong and scores them alike."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import MissingExtra, ResumeMismatch, StoreError
from grace_store.base.flags import flag_lines
from grace_store.base.settings import ExtractRequest, GradientRequest, RunOptions
from grace_store.curate.inspect import planned_view
from grace_store.curate.score import ScoreRequest, score
from grace_store.run.extract import ExtractJob, extract, missing_units
from grace_store.run.repair import repair
from grace_store.run.verify import verify
from grace_store.store import check_zarr
from grace_store.store.opened import Store
from grace_store.store.unit_writer import withdraw_units
from tests.fake_model import make_fake_model
from tests.jobs import content

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(path.name for path in GOLDEN.iterdir() if (path / "store.zip").exists())


@pytest.fixture(params=VERSIONS)
def version(request) -> str:
    return request.param


@pytest.fixture
def store(version, tmp_path) -> Store:
    shutil.unpack_archive(GOLDEN / version / "store.zip", tmp_path)
    return Store.open(tmp_path / "store.zarr")


def expected(version: str) -> dict:
    return json.loads((GOLDEN / version / "expected.json").read_text())


def job_on(store: Store, version: str, tmp_path: Path, **changes) -> ExtractJob:
    model = make_fake_model(tmp_path / "model")
    data = (str(GOLDEN / version / "data.jsonl"),)
    return ExtractJob(store.location, model, data, door="tests.fake_model", **changes)


def test_it_opens_and_nothing_is_wrong_with_it(store, version):
    assert store.plan.format_version == version
    assert list(verify(store, deep=True)) == []


def test_it_is_who_it_was(store, version):
    known = expected(version)
    assert store.plan.digest() == known["plan"]
    assert {name: store.signal(name).signal.identity() for name in store.signal_names} == {
        name: signal["identity"] for name, signal in known["signals"].items()
    }


def test_its_flags_are_known_since_they_are_looked_for_and_otherwise_said_not_to_be(store, version):
    if version >= "1.2":
        assert store.plan.flagged is not None
        assert store.text_flags(0, 1) is not None
        return
    assert store.plan.flagged is None
    assert store.text_flags(0, 1) is None
    assert planned_view(store, 0)["flags"] is None
    assert "not known" in flag_lines(store.plan.flagged)[0]


def test_it_scores_as_it_did(store, version):
    for name, signal in expected(version)["signals"].items():
        table = score(store, ScoreRequest(signals=name))
        assert list(table.sample_id) == list(signal["value"])
        np.testing.assert_allclose(table.value, list(signal["value"].values()), rtol=1e-12)


def test_it_can_be_mended_and_ends_as_it_was(store, version, tmp_path):
    before = content(store.location)
    view = store.signal("int8")
    withdraw_units(view, [1])
    assert missing_units(view) == [1]
    extract(job_on(store, version, tmp_path, signal="int8"))
    assert content(store.location) == before
    assert repair(job_on(store, version, tmp_path)) == []


def test_signals_of_its_own_version_can_be_added_and_no_others(tmp_path):
    shutil.unpack_archive(GOLDEN / "1.0" / "store.zip", tmp_path)
    store = Store.open(tmp_path / "store.zarr")
    extract(job_on(store, "1.0", tmp_path, signal="later", request=ExtractRequest(max_length=300)))
    assert list(verify(store, deep=True)) == []
    before = content(store.location)
    request = ExtractRequest(kind="gradient", gradient=GradientRequest(dimension=24))
    with pytest.raises(StoreError, match=r"planned in version 1\.0 of the format, which has no gradient signals.* new"):
        extract(job_on(store, "1.0", tmp_path, signal="g", request=request, options=RunOptions()))
    with pytest.raises(StoreError, match="has no signals with settings for batches"):
        extract(job_on(store, "1.0", tmp_path, signal="g", request=ExtractRequest(batch_tokens=1024)))
    with pytest.raises(ResumeMismatch, match="batch-tokens: begun with None, now 1024"):
        extract(job_on(store, "1.0", tmp_path, signal="later", request=ExtractRequest(batch_tokens=1024)))
    with pytest.raises(StoreError, match="has no signals of images as ms-swift prepares them"):
        extract(job_on(store, "1.0", tmp_path, signal="g", request=ExtractRequest(images_as="ms-swift")))
    assert content(store.location) == before


@pytest.mark.parametrize(
    ("installed", "is_refused"), [("3.0.10", True), ("3.1.2", True), ("3.1.3", False), ("3.2.0rc1", False)]
)
def test_a_zarr_that_would_blame_the_store_is_refused(installed: str, is_refused: bool) -> None:
    with pytest.raises(MissingExtra, match=f"zarr {installed} is too old") if is_refused else nullcontext():
        check_zarr(installed)
