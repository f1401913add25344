"""Traces of one prompt in a store: the same bytes however often they are computed, and older signals as they were."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import ResumeMismatch, StoreError
from grace_store.base.settings import ExtractRequest, RunOptions
from grace_store.run.extract import ExtractJob, extract
from grace_store.run.verify import ExtractAgainJob, verify, verify_against_model
from grace_store.store.opened import SignalView
from grace_store.store.unit_writer import withdraw_units
from tests.jobs import content, make_job, record
from tests.tiny_models import tiny_text_model

OPTIONS = RunOptions(device="cpu", threads=1)
GOLDEN = Path(__file__).parent / "golden" / "1.2"
PROMPT = "Tom has 3 apples and buys 4 more. How many apples does he have after day"
OFF = ExtractRequest(share_prompts=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_text_model("qwen3", tmp_path_factory.mktemp("model") / "qwen3"))


def job(folder: Path, model: str, **changes) -> ExtractJob:
    """Return a job of three units of eight traces each: of two prompts four, but for the last unit."""
    data = folder / "traces.jsonl"
    if not data.exists():
        asked = [f"{PROMPT} {i if i >= 16 else i % 2 + i // 8}?" for i in range(24)]
        data.write_text("".join(json.dumps({**record(i), "prompt": asked[i]}) + "\n" for i in range(24)))
    made = make_job(folder, **{"samples_per_unit": 8, "options": OPTIONS, **changes})
    return replace(made, model=model, door="grace_store.model.door")


def grams(view: SignalView) -> np.ndarray:
    return np.concatenate([view.unit_array("sample_gram", unit) for unit in view.committed_units()])


def test_shared_units_computed_again_have_the_same_bytes_and_verify(tmp_path, model):
    view = extract(job(tmp_path, model))
    assert view.signal.spec.share_prompts is True
    before = content(view.store.location)
    withdraw_units(view, [0, 2])
    extract(job(tmp_path, model))
    assert content(view.store.location) == before
    assert list(verify(view.store, deep=True)) == []
    assert list(verify_against_model(view, ExtractAgainJob(model, 3, options=OPTIONS))) == []


def test_sharing_changes_rounding_only_and_nothing_where_prompts_differ(tmp_path, model):
    shared = extract(job(tmp_path, model))
    alone = extract(job(tmp_path, model, store="alone.zarr", request=OFF))
    found, expected = grams(shared), grams(alone)
    assert not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert shared.commit(2).chunks == alone.commit(2).chunks


def test_what_was_begun_without_sharing_is_not_finished_with_it(tmp_path, model):
    view = extract(job(tmp_path, model, request=OFF))
    withdraw_units(view, [1])
    with pytest.raises(ResumeMismatch, match="share-prompts: begun with False, now True"):
        extract(job(tmp_path, model, request=ExtractRequest(share_prompts=True)))


def test_a_store_of_the_version_before_stays_without_sharing(tmp_path, model):
    shutil.unpack_archive(GOLDEN / "store.zip", tmp_path)
    older = ExtractJob(
        str(tmp_path / "store.zarr"), model, (str(GOLDEN / "data.jsonl"),), signal="later", options=OPTIONS
    )
    with pytest.raises(StoreError, match="has no signals of shared prompts"):
        extract(replace(older, request=ExtractRequest(share_prompts=True)))
    view = extract(older)
    assert view.signal.spec.freezes_batches
    assert "share_prompts" not in view.signal.spec.model_dump()
    before = content(older.store)
    withdraw_units(view, [0])
    extract(older)
    assert content(older.store) == before
