"""Frames for other libraries: pandas rows with fields of the records, xarray datasets with decoded vectors."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import MissingExtra, SettingError, Unfinished
from grace_store.base.settings import Storage
from grace_store.pool.frames import to_pandas, to_xarray
from grace_store.pool.samples import iter_samples
from grace_store.store.opened import Store
from tests.gradient_stores import DIMENSION, add_gradients, gradient_spec, plan_store, record
from tests.scored_stores import known_store
from tests.stores import NUM_SAMPLES, STORAGES, TOO_LONG, finished_store


def gradient_store(folder: Path) -> Store:
    store = plan_store(folder, "pool", {"a.jsonl": [record(f"p{i}", "odd" if i % 2 else None) for i in range(20)]})
    gradients = np.random.default_rng(0).normal(size=(20, DIMENSION)).astype(np.float32)
    add_gradients(store, "ck", gradients, gradient_spec("int4"), set_aside=[4])
    return store


# ---------------------------------------------------------------- pandas


def test_a_row_for_each_done_sample_and_fields_of_its_record(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    frame = to_pandas(store, fields=["prompt", "nothing.here"])
    assert list(frame.columns) == ["sample_id", "row", "num_steps", "num_tokens", "loss", "prompt", "nothing.here"]
    for (_, line), sample in zip(frame.iterrows(), iter_samples(store), strict=True):
        assert (line["sample_id"], line["row"], line["num_steps"]) == (sample.sample_id, sample.row, sample.num_steps)
        assert line["num_tokens"] == sample.num_tokens.sum()
        assert line["loss"] == pytest.approx(np.average(sample.loss, weights=sample.num_tokens))
        assert line["prompt"] == sample.prompt
    assert frame["nothing.here"].isna().all()
    with pytest.raises(SettingError, match="the field row has the same name as a column"):
        to_pandas(store, fields=["row"])


def test_signals_with_one_vector_a_sample_too(tmp_path: Path) -> None:
    frame = to_pandas(gradient_store(tmp_path), fields=["about.subject"])
    assert frame["sample_id"].tolist() == [f"p{i}" for i in range(20) if i != 4]
    assert frame["loss"].tolist() == [i % 5 / 4 for i in range(20) if i != 4]
    assert frame["about.subject"].fillna("none").tolist() == ["odd" if i % 2 else "none" for i in range(20) if i != 4]


# ---------------------------------------------------------------- xarray


@pytest.mark.parametrize("storage", STORAGES)
def test_a_dataset_has_decoded_vectors_and_says_whose_they_are(tmp_path: Path, storage: Storage) -> None:
    store = finished_store(tmp_path, storage)
    found, view = to_xarray(store), store.signal()
    done = [i for i in range(NUM_SAMPLES) if i != TOO_LONG]
    assert found.sizes == {
        "segment": sum(store.num_steps(i) + 1 for i in done),
        "component": view.vector_size,
        "bound": 2,
        "sample": len(done),
    }
    assert found.sample_id.values.tolist() == [f"sample-{i}" for i in done]
    for place, sample in enumerate(iter_samples(store)):
        mine = found.isel(segment=found.segment_sample.values == place)
        assert int(found.sample_row[place]) == sample.row
        assert int(found.sample_num_steps[place]) == sample.num_steps
        np.testing.assert_array_equal(mine.segment_vector.values, sample.vectors)
        for name in ("num_tokens", "loss", "entropy", "hit_rate", "span"):
            np.testing.assert_array_equal(mine[f"segment_{name}"].values, getattr(sample, name))
        assert mine.segment_number.values.tolist() == list(range(sample.num_steps + 1))
        assert mine.segment_kind.values.tolist() == ["step"] * sample.num_steps + ["answer"]
    assert found.attrs["storage"] == storage
    assert found.attrs["signal_sha256"] == view.identity


def test_some_samples_by_any_name_in_the_order_of_the_plan(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    whole = to_xarray(store)
    for chosen in (["sample-9", "#0", f"sample-{TOO_LONG}"], np.array([9, 0, TOO_LONG, 9])):
        found = to_xarray(store, samples=chosen)
        assert found.sample_id.values.tolist() == ["sample-0", "sample-9"]
        mine = whole.isel(segment=np.isin(whole.segment_sample.values, [0, 8]))
        np.testing.assert_array_equal(found.segment_vector.values, mine.segment_vector.values)
    with pytest.raises(SettingError, match="positions in the plan, from 0 to 10"):
        to_xarray(store, samples=np.array([11]))
    with pytest.raises(SettingError, match="has no finished sample among those given"):
        to_xarray(store, samples=[])


def test_vectors_of_samples_have_no_segments(tmp_path: Path) -> None:
    store = gradient_store(tmp_path)
    found = to_xarray(store)
    assert found.sizes == {"sample": 19, "component": DIMENSION}
    for place, sample in enumerate(iter_samples(store)):
        np.testing.assert_array_equal(found.sample_vector[[place]].values, sample.vectors)
        assert found.sample_loss[place] == sample.loss[0]
    assert set(found.data_vars) == {"sample_vector", "sample_num_tokens", "sample_loss", "sample_norm"}


def test_what_is_not_finished_is_given_only_if_asked(tmp_path: Path) -> None:
    store = known_store(tmp_path, units={"base": [0, 2]}).store
    with pytest.raises(Unfinished, match="has 2 of 4 units"):
        to_xarray(store)
    assert to_xarray(store, partial=True).sample_row.values.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


@pytest.mark.parametrize(("make", "package"), [(to_pandas, "pandas"), (to_xarray, "xarray")])
def test_a_package_that_is_missing_is_named(tmp_path: Path, make, package: str, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=f"needs {package}, but {package} is not installed. Run `pip install"):
        make(finished_store(tmp_path))
