"""Samples one by one: what went into the store, their vectors and texts too, and no more read than is asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import DataError, DatasetChanged, Unfinished, UnknownName
from grace_store.base.settings import Storage
from grace_store.pool.pool import Pool
from grace_store.pool.samples import iter_samples, open_store, read_sample
from grace_store.store.storages import stored_form
from tests.gradient_stores import DIMENSION, add_gradients, gradient_spec, plan_store, record
from tests.scored_stores import known_store
from tests.stores import NUM_SAMPLES, STORAGES, TOO_LONG, extract_store, finished_store, write_store


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Two signals; sample 5 is set aside in one of them, sample 9 in both."""
    folder = tmp_path_factory.mktemp("known")
    return known_store(folder, ("early", "late"), set_aside={"early": [9], "late": [5, 9]})


def test_samples_come_one_by_one_with_their_grams(known):
    found = list(iter_samples(Pool.of(known.store, signals="late")))
    assert [sample.sample_id for sample in found] == [f"s{i}" for i in range(13) if i not in (5, 9)]
    for sample in found:
        vectors, counts = known.samples["late"][sample.row]
        np.testing.assert_allclose(sample.gram, vectors.astype(float) @ vectors.T.astype(float), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(sample.num_tokens, counts)
        assert sample.num_steps == len(vectors) - 1


def test_they_have_their_vectors_and_losses_while_walking_and_afterwards(known):
    kept = []
    for sample in iter_samples(Pool.of(known.store, signals="late")):
        vectors, _ = known.samples["late"][sample.row]
        np.testing.assert_array_equal(sample.vectors, vectors)
        np.testing.assert_array_equal(sample.loss, known.loss["late"][sample.row])
        assert sample.entropy.shape == sample.hit_rate.shape == (sample.num_steps + 1,)
        assert sample.span.tolist() == [[10 * i, 10 * i + 10] for i in range(sample.num_steps + 1)]
        kept.append(sample)
    for sample in kept[::-1]:
        np.testing.assert_array_equal(sample.vectors, known.samples["late"][sample.row][0])


@pytest.mark.parametrize("storage", STORAGES)
def test_one_sample_is_found_by_id_and_by_row_and_says_the_same(tmp_path: Path, storage: Storage) -> None:
    store = open_store(finished_store(tmp_path, storage).location)
    for sample in iter_samples(store):
        for name in (sample.sample_id, f"#{sample.row}"):
            one = read_sample(store, name)
            assert (one.sample_id, one.row, one.position) == (sample.sample_id, sample.row, sample.position)
            for column in ("gram", "num_tokens", "vectors", "loss", "entropy", "hit_rate", "span"):
                np.testing.assert_array_equal(getattr(one, column), getattr(sample, column))
    with pytest.raises(UnknownName, match="has no sample 'nobody'"):
        read_sample(store, "nobody")
    with pytest.raises(DataError, match=r"'sample-3' has no vectors .* 'base': the sample was set aside \(too_long\)"):
        read_sample(store, f"sample-{TOO_LONG}")


def test_a_unit_is_read_once_and_of_one_sample_no_more_than_it_needs(tmp_path, monkeypatch):
    store = write_store(tmp_path / "s", [60, 90, 3, 1], 2, "int8", 6).store
    seen = []
    real = store.backend.read
    monkeypatch.setattr(store.backend, "read", lambda key: seen.append(key) or real(key))
    for sample in iter_samples(store):
        assert sample.gram.shape == (sample.num_steps + 1,) * 2
    chunks = [key for key in seen if "/c/" in key and key.startswith("signals")]
    assert len(chunks) == len(set(chunks)) == 3 * store.plan.num_units
    assert not any("segment_vector" in key for key in seen)
    seen.clear()
    assert read_sample(store, "s0").vectors.shape == (61, 6)
    assert not any("segment_vector/c" in key for key in seen)  # a slice of the chunk, not all of it


def test_texts_come_from_the_dataset(tmp_path: Path) -> None:
    store = extract_store(tmp_path)
    samples = list(iter_samples(store))
    assert len(samples) == NUM_SAMPLES - 1
    assert samples[1].segments == ["Step 1: from 1 take 0.\n", "Step 2: from 1 take 1.\n", "Step 3: from 1 take 2.\n",
                                   "naïve ∑ 1"]  # fmt: skip
    assert samples[1].prompt == "What of 1?"
    for sample in samples:
        assert [stop - start for start, stop in sample.span.tolist()] == [len(text) for text in sample.segments]
    moved = shutil.move(tmp_path / "data.jsonl", tmp_path / "moved.jsonl")
    with pytest.raises(DatasetChanged, match=r"data\.jsonl, which is no longer there.*data=\[\.\.\.\]"):
        _ = read_sample(store, "sample-1").segments
    assert read_sample(Pool.of(store, data=[str(moved)]), "sample-1").segments == samples[1].segments


def test_a_signal_with_one_vector_a_sample(tmp_path: Path) -> None:
    store = plan_store(tmp_path, "pool", {"a.jsonl": [record(f"p{i}") for i in range(20)]})
    gradients = np.random.default_rng(0).normal(size=(20, DIMENSION)).astype(np.float32)
    add_gradients(store, "ck", gradients, gradient_spec("int8", normalise=False), set_aside=[4])
    expected = stored_form(gradients, "int8")
    for sample in [*iter_samples(store), read_sample(store, "p7")]:
        np.testing.assert_array_equal(sample.vectors, expected[[sample.position]])
        assert sample.num_tokens.tolist() == [sample.position % 7 + 3]
        assert sample.loss.tolist() == [sample.position % 5 / 4]
        assert len(sample.segments) == sample.num_steps + 1
    with pytest.raises(UnknownName, match="has vectors per sample, and no sample_gram"):
        _ = sample.gram
    assert len(list(iter_samples(store))) == 19


def test_what_is_not_finished_is_walked_only_if_asked(tmp_path: Path) -> None:
    known = known_store(tmp_path, units={"base": [0, 2]})
    with pytest.raises(Unfinished, match="has 2 of 4 units"):
        next(iter_samples(known.store))
    assert [sample.row for sample in iter_samples(Pool.of(known.store, partial=True))] == [0, 1, 2, 3, 8, 9, 10, 11]
    with pytest.raises(Unfinished, match=r"sample 5 is in unit 1 of base\. This unit is not done yet"):
        read_sample(known.store, "s5")


def test_each_says_in_a_line_what_it_is(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    assert repr(store) == f"<Store {store.location}: 11 samples of 14 records, 3 units; signals: base>"
    assert repr(store.signal()) == (
        f"<Signal base of {store.location}: proxy, a vector of {store.signal().vector_size} for each segment, int8>"
    )
    assert repr(read_sample(store, "sample-1")) == "<Sample sample-1, row 1: 3 steps, signal base>"
    shutil.rmtree(store.location)
    assert repr(store).endswith("; signals: none yet>")
