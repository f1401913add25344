"""The golden store: later code opens it, finds nothing wrong with it and scores it alike."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import MissingExtra
from grace_store.base.metadata import FORMAT_VERSION
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract, missing_units
from grace_store.run.verify import repair, verify
from grace_store.scoring.score import ScoreRequest, score
from grace_store.store.layout import check_zarr
from grace_store.store.opened import Store
from grace_store.store.unit_writer import withdraw_units
from tests.fake_model import make_fake_model
from tests.jobs import content

GOLDEN = Path(__file__).parent / "golden" / FORMAT_VERSION
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


@pytest.fixture
def store(tmp_path) -> Store:
    shutil.unpack_archive(GOLDEN / "store.zip", tmp_path)
    return Store.open(tmp_path / "store.zarr")


def job_on(store: Store, tmp_path: Path, **changes) -> ExtractJob:
    model = make_fake_model(tmp_path / "model")
    return ExtractJob(store.location, model, (str(GOLDEN / "data.jsonl"),), door="tests.fake_model", **changes)


def test_it_opens_and_nothing_is_wrong_with_it(store):
    assert list(verify(store, deep=True)) == []


def test_it_is_who_it_was(store):
    assert store.plan.digest() == EXPECTED["plan"]
    assert {name: store.signal(name).signal.identity() for name in store.signal_names} == {
        name: signal["identity"] for name, signal in EXPECTED["signals"].items()
    }


def test_it_scores_as_it_did(store):
    for name, signal in EXPECTED["signals"].items():
        table = score(store, ScoreRequest(signals=name))
        assert list(table.sample_id) == list(signal["value"])
        np.testing.assert_allclose(table.value, list(signal["value"].values()), rtol=1e-12)


def test_it_can_be_mended_and_ends_as_it_was(store, tmp_path):
    before = content(store.location)
    view = store.signal("int8")
    withdraw_units(view, [1])
    assert missing_units(view) == [1]
    extract(job_on(store, tmp_path, signal="int8"))
    assert content(store.location) == before
    assert repair(job_on(store, tmp_path)) == []


@pytest.mark.parametrize(
    ("installed", "is_refused"), [("3.0.10", True), ("3.1.2", True), ("3.1.3", False), ("3.2.0rc1", False)]
)
def test_a_zarr_that_would_blame_the_store_is_refused(installed: str, is_refused: bool) -> None:
    with pytest.raises(MissingExtra, match=f"zarr {installed} is too old") if is_refused else nullcontext():
        check_zarr(installed)
