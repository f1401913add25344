"""Descriptors: one vector of length 1 a sample, as a loop over samples makes it, from every kind of store."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from grace_store.base.errors import DataError, ResumeMismatch, SettingError, Unfinished
from grace_store.likeness.points import DESCRIPTORS, describe, project, projection_for, random_projection
from grace_store.pool.descriptors import DescriptionReader, describe_samples
from grace_store.pool.pool import Pool
from grace_store.scoring.score import score
from grace_store.store.opened import Store
from grace_store.store.unit_writer import UnitWriter, complete_signal
from grace_store.values.methods.method import ScoreSpec
from tests.gradient_stores import NO_SPANS
from tests.stores import STORAGES, add_signal, random_vectors, write_plan
from tests.vector_stores import traces, vector_store

NUM_STEPS = [3, 1, 4, 2, 6, 1, 2, 5, 3, 2]
SIZE = 8


def unit(vector):
    return vector / np.linalg.norm(vector)


def expected(sample, descriptor, scores=None, projection=None):
    """The definition, one sample at a time, in float64."""
    sample = sample.astype(np.float64)
    answer = unit(sample[-1])
    weights = np.ones(len(sample) - 1) if scores is None else np.clip(np.nan_to_num(scores), 0, None)
    if not weights.any():
        weights = np.ones(len(weights))
    steps = unit(sum(w * unit(step) for w, step in zip(weights, sample[:-1], strict=True)))
    match descriptor:
        case "answer":
            return answer
        case "steps" | "weighted":
            return steps
        case "projected":
            both = np.concatenate([answer, steps])
            return unit(both if projection is None else both @ projection)


@pytest.fixture(scope="module")
def samples():
    return traces(NUM_STEPS, SIZE)


@pytest.fixture(scope="module")
def store(tmp_path_factory, samples):
    return vector_store(tmp_path_factory.mktemp("described") / "s.zarr", samples)


# ---------------------------------------------------------------- the definition


@pytest.mark.parametrize("descriptor", DESCRIPTORS)
def test_a_descriptor_is_what_a_loop_over_samples_makes(store, samples, descriptor):
    scores = score(store)
    found = describe_samples(store, descriptor, scores=scores)
    per_step = np.split(scores.flat("step_score"), scores.offsets[1:-1])
    truth = [
        expected(sample, descriptor, steps if descriptor == "weighted" else None)
        for sample, steps in zip(samples, per_step, strict=True)
    ]
    assert found.vector.dtype == np.float32
    assert found.vector.flags.c_contiguous
    np.testing.assert_allclose(found.vector, truth, rtol=0, atol=1e-6)
    assert found.sample.tolist() == found.row.tolist() == list(range(len(samples)))
    assert not found.is_zero.any()
    assert found.made_by["descriptor"] == descriptor
    assert found.made_by["signal"]["sha256"] == store.signal().signal.identity()


def test_a_descriptor_does_not_depend_on_the_samples_around_it(samples):
    num_steps = np.array(NUM_STEPS)
    projection = projection_for(SIZE, 5)
    for descriptor in ("answer", "steps", "projected"):
        together = describe(np.concatenate(samples), num_steps, descriptor, projection=projection)[0]
        alone = [
            describe(sample, np.array([len(sample) - 1]), descriptor, projection=projection)[0][0] for sample in samples
        ]
        assert np.array_equal(together, alone)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("descriptor", ["answer", "steps", "projected"])
def test_every_storage_gives_the_descriptors_of_its_vectors(tmp_path, samples, storage, descriptor):
    store = vector_store(tmp_path / "s.zarr", samples, storage)
    view = store.signal()
    truth = [expected(view.vectors(place), descriptor) for place in range(len(samples))]
    np.testing.assert_allclose(describe_samples(store, descriptor).vector, truth, rtol=0, atol=1e-6)


def test_weights_are_step_scores_and_those_below_zero_are_none(samples):
    scores = np.array([0.5, -0.2, np.nan, -1.0, 0.1, 0.3])
    vector, _, is_unweighted = describe(
        np.concatenate([samples[0], samples[5], samples[6]]), np.array([3, 1, 2]), "weighted", step_score=scores
    )
    np.testing.assert_allclose(vector[0], unit(samples[0][0]), rtol=0, atol=1e-6)
    np.testing.assert_allclose(vector[1], unit(samples[5][0]), rtol=0, atol=1e-6)
    np.testing.assert_allclose(vector[2], expected(samples[6], "weighted", scores[4:]), rtol=0, atol=1e-6)
    assert is_unweighted.tolist() == [False, True, False]


def test_samples_without_weights_are_told(tmp_path):
    away = np.array([[1, 0], [-1, 0.01]], dtype=np.float32)
    store = vector_store(tmp_path / "s.zarr", [away, np.array([[1, 0], [1, 0.1]], np.float32)])
    told = []
    found = describe_samples(store, "weighted", scores=score(store), listener=told.append)
    assert found.is_unweighted.tolist() == [True, False]
    assert told[0].text == "1 sample has no step with a score above 0: all steps have the same weight."


# ---------------------------------------------------------------- projections


def test_a_projection_keeps_cosines_as_well_as_it_must():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 600))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    projected = project(vectors, random_projection(600, 512))
    # Johnson and Lindenstrauss: errors of 1 / sqrt(512) = 0.044 in a cosine of 0; five times that for 780 pairs.
    assert np.abs(projected @ projected.T - vectors @ vectors.T).max() < 5 / np.sqrt(512)


def test_a_projection_depends_on_its_sizes_and_seed_alone():
    assert np.array_equal(random_projection(9, 4), random_projection(9, 4))
    assert not np.array_equal(random_projection(9, 4, seed=1), random_projection(9, 4))
    stream = hashlib.shake_256(b"grace-store projection of 3 numbers to 4, seed 0").digest(2)
    bits = f"{int.from_bytes(stream, 'big'):016b}"[:12]
    assert random_projection(3, 4).ravel().tolist() == [-0.5 if bit == "1" else 0.5 for bit in bits]


def test_what_is_small_enough_is_not_projected(store, samples):
    assert projection_for(256) is None
    assert projection_for(257).shape == (514, 512)
    whole = describe_samples(store, "projected")
    assert whole.vector.shape == (len(samples), 2 * SIZE)
    assert whole.made_by["dimension"] == 16
    answer = describe_samples(store, "answer").vector
    steps = describe_samples(store, "steps").vector
    mean = (answer @ answer.T + steps @ steps.T) / 2
    np.testing.assert_allclose(whole.vector @ whole.vector.T, mean, atol=1e-6)
    few = describe_samples(store, "projected", dimension=5, seed=3)
    truth = [expected(sample, "projected", projection=random_projection(16, 5, 3)) for sample in samples]
    np.testing.assert_allclose(few.vector, truth, atol=1e-6)
    assert (few.made_by["dimension"], few.made_by["seed"]) == (5, 3)


# ---------------------------------------------------------------- which samples


def test_only_done_samples_of_committed_units(tmp_path, samples):
    store = vector_store(tmp_path / "s.zarr", samples, set_aside=[1, 9], units=[0, 2])
    with pytest.raises(Unfinished, match="has 2 of the 3 units that are needed"):
        describe_samples(store)
    found = describe_samples(Pool.of(store, partial=True), "answer")
    assert found.sample.tolist() == [0, 2, 3, 8]
    np.testing.assert_allclose(found.vector, [expected(samples[i], "answer") for i in (0, 2, 3, 8)], atol=1e-6)
    assert found.made_by["partial"]
    assert found.made_by["signal"]["num_units"] == 2
    assert describe_samples(Pool.of(store, partial=True)).made_by["descriptor"] == "steps"


def test_some_samples_need_only_their_own_units(tmp_path, samples):
    store = vector_store(tmp_path / "s.zarr", samples, set_aside=[1], units=[0, 2])
    found = describe_samples(store, "steps", samples=np.array([9, 0, 1]))
    assert found.sample.tolist() == [0, 9]
    np.testing.assert_allclose(found.vector, [expected(samples[i], "steps") for i in (0, 9)], atol=1e-6)
    with pytest.raises(SettingError, match="positions in the plan, from 0 to 9"):
        describe_samples(store, samples=np.array([10]))


def test_blocks_are_the_whole_and_threads_change_nothing(store):
    whole = describe_samples(Pool.of(store, threads=1), "steps")
    blocks = list(DescriptionReader.of(Pool.of(store, threads=3), "steps").blocks())
    assert [len(block) for block in blocks] == [4, 4, 2]
    assert np.array_equal(np.concatenate([block.vector for block in blocks]), whole.vector)
    half = describe_samples(store, "steps", dtype="float16")
    assert np.array_equal(half.vector, whole.vector.astype(np.float16))


def test_units_are_decoded_a_bounded_number_of_rows_at_a_time(store, monkeypatch):
    whole = {name: describe_samples(store, name).vector for name in ("answer", "steps")}
    monkeypatch.setattr("grace_store.pool.descriptors.DECODED_ROWS", 3)
    for name, vector in whole.items():
        assert np.array_equal(describe_samples(store, name).vector, vector)


def test_a_signal_with_one_vector_a_sample_has_that_as_its_descriptor(tmp_path):
    write_plan(tmp_path / "s.zarr", NUM_STEPS, 4)
    store = Store.open(tmp_path / "s.zarr")
    view = add_signal(store, "int8", SIZE, per="sample", normalise=False)
    writer = UnitWriter(view)
    for number in range(store.plan.num_units):
        writer.write(number, random_vectors(view, number, set_aside=[1] if number == 0 else []), NO_SPANS)
    complete_signal(view)
    found = describe_samples(store)
    vectors = np.concatenate([view.unit_vectors(number) for number in range(3)])[found.sample]
    assert 1 not in found.sample.tolist()
    np.testing.assert_allclose(found.vector, [unit(vector) for vector in vectors], atol=1e-6)
    assert found.made_by["descriptor"] == "sample"
    with pytest.raises(SettingError, match="has one vector per sample, so there is no choice of descriptor"):
        describe_samples(store, "answer")


# ---------------------------------------------------------------- zero and wrong


def test_zero_vectors_are_flagged_and_never_nan(tmp_path):
    tiny, huge = np.float32(1e-40), np.float32(1e30)
    samples = [
        np.zeros((3, 2), np.float32),
        np.array([[1, 0], [-1, 0], [0, 1]], np.float32),
        np.array([[0, 0], [0, 2], [0, 0]], np.float32),
        np.array([[tiny, 0], [huge, 0], [0, tiny]], np.float32),
    ]
    store = vector_store(tmp_path / "s.zarr", samples)
    told = []
    steps = describe_samples(store, "steps", listener=told.append)
    assert steps.vector.tolist() == [[0, 0], [0, 0], [0, 1], [1, 0]]
    assert steps.is_zero.tolist() == [True, True, False, False]
    assert told[0].text.startswith("2 samples have a descriptor of zeros")
    answer = describe_samples(store, "answer")
    assert answer.vector.tolist() == [[0, 0], [0, 1], [0, 0], [0, 1]]
    assert answer.is_zero.tolist() == [True, False, True, False]
    both = describe_samples(store, "projected")
    assert both.is_zero.tolist() == [True, False, False, False]
    np.testing.assert_allclose(both.vector[2], [0, 0, 0, 1])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"descriptor": "mean"}, "unknown descriptor 'mean': use one of answer, steps, weighted, projected"),
        ({"descriptor": "weighted"}, "give a scores table"),
        ({"descriptor": "steps", "dimension": 3}, "only descriptor projected takes a dimension"),
        ({"descriptor": "projected", "dimension": 0}, "dimension 0 is below 1"),
    ],
)
def test_what_has_no_meaning_is_refused(store, settings, words):
    with pytest.raises(SettingError, match=words):
        describe_samples(store, **settings)


def test_scores_must_be_of_the_store_and_have_steps(store, tmp_path):
    other = vector_store(tmp_path / "other.zarr", traces([2, 2]))
    with pytest.raises(ResumeMismatch, match="another plan"):
        describe_samples(store, "weighted", scores=score(other))
    longest = score(store, ScoreSpec(measure=("steps",)))
    with pytest.raises(DataError, match="has no step scores to weigh steps by"):
        describe_samples(store, "weighted", scores=longest)
    with pytest.raises(ValueError, match="2 step scores for 3 steps"):
        describe(np.ones((4, 2), np.float32), np.array([3]), "weighted", step_score=np.ones(2))
