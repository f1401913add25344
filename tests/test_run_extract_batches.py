"""Batches in a store: frozen with the signal, split where memory runs out, and said in the commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import grace_store.model.backbone as own_forward
from grace_store.base.errors import ResumeMismatch
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.model.open_model import open_extractor
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.verify import verify, verify_against_model
from grace_store.store.opened import SignalView
from grace_store.store.unit_writer import withdraw_units
from tests.jobs import content, make_job
from tests.tiny_models import tiny_text_model

OPTIONS = RunOptions(device="cpu", threads=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_text_model("qwen3", tmp_path_factory.mktemp("model") / "qwen3"))


def job(folder: Path, model: str, **changes) -> ExtractJob:
    made = make_job(folder, **{"samples_per_unit": 8, "options": OPTIONS, **changes})
    return replace(made, model=model, door="grace_store.model.open_model")


def grams(view: SignalView) -> np.ndarray:
    return np.concatenate([view.unit_array("sample_gram", unit) for unit in view.committed_units()])


def test_a_unit_computed_again_in_another_run_has_the_same_bytes(tmp_path, model):
    view = extract(job(tmp_path, model, request=ExtractSpec(batch_tokens=200)))
    spec = view.signal.spec
    assert (spec.batch_tokens, spec.head_tokens, spec.packing) == (200, 512, False)
    before = content(view.store.location)
    withdraw_units(view, [1])
    extract(job(tmp_path, model))
    assert content(view.store.location) == before


@pytest.mark.parametrize(
    ("wish", "line"),
    [
        ({"batch_tokens": 4096}, "batch-tokens: begun with 16384, now 4096"),
        ({"head_tokens": 64}, "head-tokens: begun with 512, now 64"),
        ({"packing": True}, "packing: begun with False, now True"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_other_batches_are_refused_and_nothing_is_written(tmp_path, model, wish, line):
    view = extract(job(tmp_path, model))
    withdraw_units(view, [1])
    before = content(view.store.location)
    with pytest.raises(ResumeMismatch, match=line):
        extract(job(tmp_path, model, request=ExtractSpec(**wish)))
    assert content(view.store.location) == before


def test_a_split_is_said_in_the_commit_of_its_unit_and_in_no_other(tmp_path, model, monkeypatch):
    whole = extract(job(tmp_path, model, store="whole.zarr"))
    actual, sizes = own_forward.run_backbone, unit_sizes(whole, model)
    most = sorted(sizes)[1]

    def scarce(model, *, input_ids):
        if input_ids.numel() >= most:
            raise torch.OutOfMemoryError("out of memory")
        return actual(model, input_ids=input_ids)

    monkeypatch.setattr(own_forward, "run_backbone", scarce)
    view = extract(job(tmp_path, model))
    splits = [view.commit(unit).split for unit in view.committed_units()]
    assert splits == [(4, 4) if size >= most else None for size in sizes]
    assert None in splits, "a unit with fewer tokens is whole"
    for unit, split in zip(view.committed_units(), splits, strict=True):
        if split is None:
            assert view.commit(unit).chunks == whole.commit(unit).chunks
    np.testing.assert_allclose(grams(view), grams(whole), rtol=1e-4, atol=1e-6)
    assert list(verify(view.store, deep=True)) == []
    monkeypatch.setattr(own_forward, "run_backbone", actual)
    assert list(verify_against_model(view, ExtractJob(view.store.location, model, options=OPTIONS), 3)) == []


def unit_sizes(view: SignalView, model: str) -> list[int]:
    """Return the padded tokens of each unit's only batch."""
    extractor = open_extractor(model, view.signal.spec, OPTIONS)
    with open_dataset(view.store) as dataset:
        loader = UnitLoader(view.store, dataset)
        prepared = [extractor.prepare(loader.load(unit)[0]) for unit in view.committed_units()]
    assert all(len(unit.batches) == 1 for unit in prepared)
    return [unit.batches[0].num_padded_tokens for unit in prepared]
