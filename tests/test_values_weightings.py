"""Step weights: closest to the answer as trainers count tokens, scaled as said, and flagged where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.base.errors import SettingError
from grace_store.base.states import flag_names
from grace_store.values.gram import pack
from grace_store.values.methods.grace import score_grams
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.weightings import SignalGrams, WeightsSpec, weigh_ragged
from tests.test_values_weightings_nnls import best_by_trying_all

FIT = WeightsSpec()
SCORES = WeightsSpec(method="scores")


def sample(rng, num_steps, size=12, shared=0.6):
    """Return vectors of steps and answer, and token counts."""
    made = rng.standard_normal((num_steps + 1, size)) + shared * rng.standard_normal(size)
    return made * rng.uniform(0.2, 5.0, (num_steps + 1, 1)), rng.integers(1, 40, num_steps + 1)


def weigh_grams(grams, num_tokens, spec, step_score=None):
    """Weigh the steps of samples from their full Grams, each (K + 1, K + 1), and their segments' token counts."""
    num_steps = np.array([len(gram) - 1 for gram in grams])
    packed = np.concatenate([pack(gram[None])[0] for gram in grams])
    return weigh_ragged(num_steps, [SignalGrams(packed, np.concatenate(num_tokens))], spec, step_score)


def cosine(one, other):
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


def test_fitted_weights_bring_the_trainers_sum_closest_to_the_answer():
    rng = np.random.default_rng(0)
    for num_steps in range(1, 9):
        vectors, tokens = sample(rng, num_steps, shared=1.5)
        found = weigh_grams([vectors @ vectors.T], [tokens], FIT)
        length = np.linalg.norm(vectors, axis=1)
        unit = vectors / length[:, None]
        amount = best_by_trying_all(unit[:-1], unit[-1])
        # Each token of a step counts its weight, so all of them pull as weight times their number.
        weight = amount / length[:-1] / tokens[:-1]
        np.testing.assert_allclose(found.weight, weight * tokens[:-1].sum() / (weight @ tokens[:-1]), rtol=1e-6)
        pulls = tokens[:-1, None] * vectors[:-1]
        assert found.equal_cosine[0] == pytest.approx(cosine(pulls.sum(axis=0), vectors[-1]))
        assert found.cosine[0] == pytest.approx(cosine(found.weight @ pulls, vectors[-1]))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["fit", "scores"]))
def test_mean_over_tokens_is_1_and_no_other_weights_are_closer(seed, method):
    rng = np.random.default_rng(seed)
    samples = [sample(rng, int(num)) for num in rng.integers(1, 7, 5)]
    grams = [vectors @ vectors.T for vectors, _ in samples]
    tokens = [each for _, each in samples]
    scores = score_grams(grams, tokens, ScoreSpec()).step_score
    found = weigh_grams(grams, tokens, WeightsSpec(method=method), scores if method == "scores" else None)
    fitted = weigh_grams(grams, tokens, FIT)
    for index, each in enumerate(tokens):
        weight = found.weight[found.offsets[index] : found.offsets[index + 1]]
        assert (weight >= 0).all()
        assert (weight == 0).all() or weight @ each[:-1] == pytest.approx(each[:-1].sum())
    others = np.maximum(found.cosine, found.equal_cosine)
    assert (fitted.cosine >= np.maximum(others, 0) - 1e-6).all()


def test_steps_that_oppose_the_answer_weigh_nothing():
    found = weigh_grams([np.array([[1.0, 0.2, -0.5], [0.2, 1.0, -0.1], [-0.5, -0.1, 1.0]])], [np.array([3, 4, 1])], FIT)
    assert found.weight.tolist() == [0.0, 0.0]
    assert found.cosine[0] == 0
    assert found.equal_cosine[0] < 0
    assert found.flags[0] == 0


def test_scores_below_0_count_as_0():
    gram = np.array([[1.0, 0.2, 0.5], [0.2, 1.0, -0.1], [0.5, -0.1, 1.0]])
    found = weigh_grams([gram], [np.array([3, 9, 1])], SCORES, np.array([0.5, -0.1]))
    assert found.weight.tolist() == [4.0, 0.0]


@pytest.mark.parametrize(
    ("score", "share", "kept"),
    [
        ([0.3, 0.1, 0.2, 0.4, 0.5], 0.2, [1, 0, 1, 1, 1]),
        ([0.3, 0.1, 0.2, 0.4, 0.5], 0.4, [1, 0, 0, 1, 1]),
        ([0.1, 0.1, 0.1], 0.3, [1, 1, 0]),
        ([0.2, 0.1], 0.9, [1, 0]),
        ([-1.0], 0.5, [1]),
    ],
)
def test_the_worst_steps_are_dropped_but_never_all(score, share, kept):
    rng = np.random.default_rng(2)
    (vectors, tokens), (other, other_tokens) = sample(rng, len(score)), sample(rng, 7)
    grams, spec = [other @ other.T, vectors @ vectors.T], WeightsSpec(method="drop", drop_share=share)
    scores = np.concatenate([np.arange(7.0), score])
    found = weigh_grams(grams, [other_tokens, tokens], spec, scores)
    assert found.weight[7:].tolist() == kept
    assert set(found.weight.tolist()) <= {0.0, 1.0}


def test_several_signals_are_weighed_as_one():
    rng = np.random.default_rng(4)
    (one, tokens), (other, _) = sample(rng, 5), sample(rng, 5)
    signals = [
        SignalGrams(pack((each @ each.T)[None])[0], tokens, share) for each, share in ((one, 0.25), (other, 0.75))
    ]
    # One long vector a segment does the same: each signal's part as long as the root of its share, answers of length 1.
    joined = np.concatenate(
        [np.sqrt(share) * each / np.linalg.norm(each[-1]) for each, share in ((one, 0.25), (other, 0.75))], 1
    )
    found, wanted = weigh_ragged(np.array([5]), signals, FIT), weigh_grams([joined @ joined.T], [tokens], FIT)
    np.testing.assert_allclose(found.weight, wanted.weight, rtol=1e-6)
    np.testing.assert_allclose(found.cosine, wanted.cosine)


def test_what_cannot_be_weighed_has_no_weights_and_a_flag():
    rng = np.random.default_rng(6)
    vectors, tokens = sample(rng, 3)
    sound = vectors @ vectors.T
    broken, no_answer, no_step, no_gram = (sound.copy() for _ in range(4))
    broken[1, 0] = broken[0, 1] = np.nan
    no_answer[-1] = no_answer[:, -1] = 0.0
    no_step[1] = no_step[:, 1] = 0.0
    no_gram[:3, :3] = 9.0 * no_gram.max() * (1 - np.eye(3)) + np.diag(np.diag(sound)[:3])
    no_gram[-1, :3] = no_gram[:3, -1] = 0.1
    found = weigh_grams([sound, broken, no_answer, no_step, no_gram], [tokens] * 5, FIT)
    told = [flag_names(each) for each in found.flags.tolist()]
    assert told == [[], ["not_finite"], ["zero_vector", "no_value"], ["zero_vector"], ["no_value"]]
    weight = found.weight.reshape(5, 3)
    assert np.isnan(weight).all(axis=1).tolist() == [False, True, True, False, True]
    assert np.isnan(found.cosine).tolist() == [False, True, True, False, True]
    assert weight[3, 1] == 0.0
    assert weight[0].tolist() == weigh_grams([sound], [tokens], FIT).weight.tolist()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"method": "best"}, "unknown value 'best' of --method: use one of fit, scores, drop"),
        ({"method": "drop", "drop_share": 1.0}, "--drop-share 1 is not between 0 and 1"),
        ({"drop_share": 0.5}, "--method fit does not drop steps"),
        ({"scores": ScoreSpec(alpha=0.1)}, "--method fit does not use step scores"),
        ({"method": "scores", "scores": ScoreSpec(without_answer=True)}, "Weights of steps need --target answer"),
        ({"method": "scores", "scores": ScoreSpec(target="group")}, "Weights of steps need --target answer"),
        ({"method": "drop", "scores": ScoreSpec(measure=("rsr:min",))}, "Weights of steps need --target answer"),
        ({"answer_weight": -1.0}, "answer_weight"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, told):
    with pytest.raises(SettingError, match=told):
        WeightsSpec.parse(**given)
