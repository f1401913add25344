"""Heuristics of signals with one vector a sample: whole responses, and no vector read."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from grace_store.base.errors import (
    SettingError,
    Unfinished,
)
from grace_store.scoring.score import ScoreRequest, replay, score
from grace_store.store.opened import Store
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.random_values import random_values
from tests.gradient_stores import (
    add_gradients,
    record,
)
from tests.influence_stores import (
    NUM_POOL,
    influence_stores,
    make_pool,
    random_gradients,
)
from tests.stores import add_signal


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return influence_stores(tmp_path_factory.mktemp("influence"))


@pytest.mark.parametrize("measure", ["random", "tokens", "steps", "loss:highest"])
def test_measures_of_responses_need_no_vectors(tmp_path, folder, measure):
    copy = shutil.copytree(folder / "int8" / "pool.zarr", tmp_path / "pool.zarr")
    for vectors in copy.glob("signals/*/sample_vector"):
        shutil.rmtree(vectors / "c")  # what is not read cannot fail
    pool = Store.open(copy)
    place = np.arange(NUM_POOL)
    known = {
        "tokens": place % 7 + 3,
        "steps": [len(record(f"p{i}")["steps"]) for i in place],
        "loss:highest": place % 5 / 4,
    }
    spec = ScoreSpec(measure=(measure,))
    table = score(pool, ScoreRequest(spec=spec, signals=["ck1", "ck3"]))
    np.testing.assert_allclose(table.value, known.get(measure, random_values(0, place)), rtol=1e-6)
    assert table.num_tokens.tolist() == (place % 7 + 3).tolist()
    assert table.sample_id == [f"p{i}" for i in place]
    score(pool, ScoreRequest(spec=spec, signals="ck2"), out=tmp_path / "a.parquet")
    replay(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_heuristics_flag_samples_that_one_of_the_signals_lacks(tmp_path):
    pool = make_pool(tmp_path, num=12, samples_per_unit=4)
    add_gradients(pool, "ck1", random_gradients(0, 12), set_aside=[0, 5])
    add_gradients(pool, "ck2", random_gradients(0, 12), set_aside=[0], units=[0, 1])
    add_signal(pool, "float32", 4, "proxy")
    longest = ScoreSpec(measure=("tokens",))
    with pytest.raises(Unfinished, match=r"'ck2' .* has 2 of 3 units.*--partial"):
        score(pool, ScoreRequest(spec=longest, signals=["ck1", "ck2"]))
    table = score(pool, ScoreRequest(spec=longest, signals=["ck1", "ck2"], partial=True))
    assert table.row.tolist() == list(range(1, 12))  # 0 is done nowhere
    assert table.row[np.isnan(table.value)].tolist() == [5, 8, 9, 10, 11]
    assert [bool(each) for each in table.table["flags"].to_pylist()] == np.isnan(table.value).tolist()
    assert table.num_tokens.tolist() == [row % 7 + 3 for row in range(1, 12)]
    with pytest.raises(SettingError, match="signal ck1 has one vector per sample, signal proxy one vector per segment"):
        score(pool, ScoreRequest(spec=longest, signals=["ck1", "proxy"]))
