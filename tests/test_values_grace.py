"""Scores from Grams against a brute force over the vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.base.errors import SettingError
from grace_store.base.states import ABOUT, TEXT_FLAGS, Flag, flag_names, text_mask
from grace_store.values import gram as columns_module
from grace_store.values.alignment import FEWEST_SAME, SAME, history_weights
from grace_store.values.gram import TINY, pack, unpack
from grace_store.values.methods.grace import alignment_means, combine_signals, score_grams, score_ragged
from grace_store.values.methods.method import ScoreSpec
from tests.brute_force import AGGREGATIONS, HISTORIES, TARGETS, brute_force

# ---------------------------------------------------------------- samples


def packed_gram(vectors: np.ndarray) -> np.ndarray:
    return pack((vectors @ vectors.T)[None])[0].astype(np.float32)


def flat(samples: list[tuple[np.ndarray, np.ndarray]]):
    """Return num_steps, Grams and token counts of (vectors, num_tokens), as score_ragged takes them."""
    return (
        np.array([len(vectors) - 1 for vectors, _ in samples], dtype=np.int32),
        np.concatenate([np.zeros(0, np.float32), *(packed_gram(vectors) for vectors, _ in samples)]),
        np.concatenate([np.zeros(0, np.int32), *(counts for _, counts in samples)]),
    )


def gaussian_samples(seed: int, num_steps: list[int], size: int = 32):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(k + 1, size)) + rng.normal(size=size), rng.integers(1, 50, k + 1).astype(np.int32))
        for k in num_steps
    ]


def adversarial_sample(rng: np.random.Generator, num_steps: int, max_exponent: int):
    """Return vectors of small integers times powers of two, whose Grams are exact in float32."""
    vectors: list[np.ndarray] = []
    for _ in range(num_steps + 1):
        fresh = rng.integers(-3, 4, 5) * 2.0 ** rng.integers(-max_exponent, max_exponent + 1)
        earlier = vectors[rng.integers(len(vectors))] if vectors else fresh
        vectors.append([fresh, fresh, 0 * fresh, earlier, -earlier, 2 * earlier][rng.integers(6)])
    low = rng.choice([0, 1])
    return np.array(vectors), rng.integers(low, 4, num_steps + 1).astype(np.int32)


@st.composite
def specs(draw) -> ScoreSpec:
    without_answer = draw(st.booleans())
    return ScoreSpec(
        alpha=0.7 if without_answer else draw(st.sampled_from([0.0, 0.1, 0.7, 1.0])),
        history=draw(st.sampled_from(HISTORIES)),
        target="answer" if without_answer else draw(st.sampled_from(TARGETS)),
        without_answer=without_answer,
        aggregation=draw(st.sampled_from(AGGREGATIONS)),
    )


def points_one_way(steps: np.ndarray) -> bool:
    """Whether most of three or more steps have nearly the direction of the one before them."""
    lengths = np.sqrt(np.maximum(np.linalg.norm(steps, axis=1) ** 2, TINY))
    alike = [steps[k] @ steps[k - 1] >= SAME * lengths[k] * lengths[k - 1] for k in range(1, len(steps))]
    return len(steps) >= FEWEST_SAME and 2 * sum(alike) > len(alike)


def assert_as_expected(samples, spec: ScoreSpec, **custom) -> None:
    scores = score_ragged(*flat(samples), spec, **{k: v for k, v in custom.items() if k == "custom_history"})
    for i, (vectors, counts) in enumerate(samples):
        expected = brute_force(vectors, counts, spec, **{k: v for k, v in custom.items() if k == "weight"})
        mine = slice(scores.offsets[i], scores.offsets[i + 1])
        close = {"rtol": 0, "atol": 1e-6}
        np.testing.assert_allclose(scores.answer_alignment[mine], expected.answer_alignment, **close)
        np.testing.assert_allclose(scores.history_alignment[mine], expected.history_alignment, **close)
        np.testing.assert_allclose(scores.step_score[mine], expected.step_score, **close)
        np.testing.assert_allclose(scores.value[i], expected.value, **close)
        flags = (expected.zero_vector * Flag.ZERO_VECTOR) | (math.isnan(expected.value) * Flag.NO_VALUE)
        flags |= expected.cancelling * Flag.CANCELLING
        flags |= points_one_way(vectors[:-1]) * Flag.SAME_DIRECTION
        assert scores.flags[i] == flags


# ---------------------------------------------------------------- against the brute force


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("history", HISTORIES)
def test_every_history_and_target_on_gaussian_vectors(history, target):
    samples = gaussian_samples(7, [9, 1, 2, 60, 33, 9, 3, 1])
    assert_as_expected(samples, ScoreSpec(history=history, target=target))


@pytest.mark.parametrize("without_answer", [False, True])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_aggregation_on_gaussian_vectors(aggregation, without_answer):
    samples = gaussian_samples(8, [9, 1, 2, 60, 5])
    assert_as_expected(samples, ScoreSpec(aggregation=aggregation, without_answer=without_answer))


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_steps=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    max_exponent=st.sampled_from([0, 3, 20, 45]),
    spec=specs(),
)
def test_zero_parallel_opposite_huge_and_tiny_vectors(seed, num_steps, max_exponent, spec):
    rng = np.random.default_rng(seed)
    assert_as_expected([adversarial_sample(rng, k, max_exponent) for k in num_steps], spec)


def test_custom_weights_take_the_place_of_the_named_ones():
    def recent_twice(num_steps: int) -> np.ndarray:
        return np.tril(np.ones((num_steps, num_steps)), -1) + np.eye(num_steps, k=-1)

    def weight(_: str, k: int, j: int) -> float:
        return 2.0 if j == k - 1 else 1.0

    samples = gaussian_samples(9, [5, 1, 9, 2])
    assert_as_expected(samples, ScoreSpec(), custom_history=recent_twice, weight=weight)
    assert_as_expected(samples, ScoreSpec(), custom_history=recent_twice(20), weight=weight)


def test_a_sample_worked_out_by_hand():
    vectors, counts = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]), np.array([1, 1, 1])
    scores = score_ragged(*flat([(vectors, counts)]), ScoreSpec())
    half = math.sqrt(0.5)
    np.testing.assert_allclose(scores.answer_alignment, [half, half])
    np.testing.assert_array_equal(scores.history_alignment, [np.nan, 0.0])
    np.testing.assert_allclose(scores.step_score, [half, 0.7 * half])
    np.testing.assert_allclose(scores.value, [0.85 * half])
    assert scores.flags.tolist() == [0]


def test_one_step_has_the_answer_alignment_as_its_value_whatever_alpha():
    samples = gaussian_samples(1, [1])
    values = {float(score_ragged(*flat(samples), ScoreSpec(alpha=alpha)).value[0]) for alpha in (0.0, 0.3, 1.0)}
    assert len(values) == 1


def test_without_history_is_alpha_one():
    samples = gaussian_samples(2, [5])
    scores = score_ragged(*flat(samples), ScoreSpec(alpha=1.0))
    np.testing.assert_allclose(scores.value[0], scores.answer_alignment.mean(), rtol=1e-15)


def test_a_history_that_cancels_to_rounding_noise_is_the_zero_vector():
    rng = np.random.default_rng(3)
    one, other, step, answer = rng.normal(size=(4, 64)).astype(np.float32)
    vectors = np.array([one, other, -(one + other), step, answer], dtype=np.float32)
    scores = score_ragged(*flat([(vectors, np.ones(5, np.int32))]), ScoreSpec())
    assert scores.history_alignment[3] == 0.0
    assert scores.flags[0] == Flag.ZERO_VECTOR


@pytest.mark.parametrize(("left", "is_flagged"), [(0.3, False), (0.01, True), (0.003, True)])
def test_a_history_that_nearly_cancels_is_flagged_and_others_are_exact(left, is_flagged):
    """What is left of |a| in |a + b| decides how many digits of float32 Grams count."""
    rng = np.random.default_rng(5)
    worst = 0.0
    for _ in range(200):
        one, rest, step, answer = rng.normal(size=(4, 64)).astype(np.float32)
        rest *= left * np.linalg.norm(one) / np.linalg.norm(rest)
        vectors = np.array([one, rest - one, step, answer], dtype=np.float32)
        spec = ScoreSpec(history="uniform")
        scores = score_ragged(*flat([(vectors, np.ones(4, np.int32))]), spec)
        expected = brute_force(vectors, np.ones(4), spec)
        worst = max(worst, abs(scores.history_alignment[2] - expected.history_alignment[2]))
        assert bool(scores.flags[0] & Flag.CANCELLING) is is_flagged
    assert worst < (0.1 if is_flagged else 3e-5)


def test_cosines_never_leave_minus_one_to_one():
    rng = np.random.default_rng(4)
    vector = rng.normal(size=(2000, 1, 7)).astype(np.float32)
    signs = rng.choice([-1.0, 1.0], size=(2000, 9, 1)) * rng.uniform(0.1, 10, size=(2000, 9, 1))
    grams = (vector * signs) @ (vector * signs).transpose(0, 2, 1)
    scores = score_grams(list(grams.astype(np.float32)), np.ones((2000, 9)), ScoreSpec())
    for cosine in (
        scores.answer_alignment,
        np.delete(scores.history_alignment, scores.offsets[:-1]),
        scores.step_score,
    ):
        assert np.abs(cosine).max() <= 1.0
    # Parallel vectors differ from 1 by no more than float32 Grams do.
    np.testing.assert_allclose(np.abs(scores.answer_alignment), 1.0, atol=1e-6)


# ---------------------------------------------------------------- flags


def test_a_vector_too_short_for_float32_counts_as_zero():
    packed = np.array([[1e-39, 1e-39, 1e-39], [4e-38, 4e-38, 4e-38]], dtype=np.float32)
    scores = score_ragged(np.array([1, 1]), packed.ravel(), np.ones(4), ScoreSpec())
    assert scores.value.tolist() == pytest.approx([0.0, 1.0])
    assert scores.flags.tolist() == [Flag.ZERO_VECTOR, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gram_that_is_not_finite_is_flagged_and_touches_no_neighbour(bad):
    samples = gaussian_samples(5, [4, 6, 4])
    num_steps, packed, counts = flat(samples)
    good = score_ragged(num_steps, packed, counts, ScoreSpec())
    packed[15 + 3] = bad  # in the second sample
    scores = score_ragged(num_steps, packed, counts, ScoreSpec())
    assert scores.flags.tolist() == [0, Flag.NOT_FINITE, 0]
    assert np.isnan(scores.value).tolist() == [False, True, False]
    mine = slice(4, 10)
    for found in (scores.step_score, scores.answer_alignment, scores.history_alignment):
        assert np.isnan(found[mine]).all()
    np.testing.assert_array_equal(np.delete(scores.step_score, np.r_[mine]), np.delete(good.step_score, np.r_[mine]))
    means = alignment_means(num_steps, packed, counts, ["uniform", "ema:0.5"])
    assert means.flags.tolist() == [[0, Flag.NOT_FINITE, 0]] * 2
    assert np.isnan([means.value(h, alpha) for h in (0, 1) for alpha in (0.0, 1.0)]).all(axis=0).tolist() == [
        False,
        True,
        False,
    ]


def test_one_step_without_the_answer_has_no_value():
    scores = score_ragged(*flat(gaussian_samples(6, [1, 2])), ScoreSpec(without_answer=True))
    assert scores.flags.tolist() == [Flag.NO_VALUE, 0]
    assert scores.value[1] == scores.history_alignment[2]


def test_steps_that_all_point_one_way_are_flagged():
    rng = np.random.default_rng(3)
    same = np.array([1.0, 2.0, 3.0]) + 0.1 * rng.standard_normal((5, 3))
    answer = rng.standard_normal((1, 3))
    turned = np.roll(same, 1, axis=1) * np.array([1, 2, -1, -1, 3])[:, None]
    few = same[:2]
    samples = [(np.concatenate([steps, answer]), np.ones(len(steps) + 1, int)) for steps in (same, turned, few)]
    flags = score_ragged(*flat(samples), ScoreSpec()).flags
    assert [flag_names(int(each)) for each in flags] == [["same_direction"], [], []]


def test_every_flag_has_a_meaning_and_a_bit_of_its_own():
    assert [flag.name.lower() for flag in Flag] == list(ABOUT)
    assert {text_mask(name) for name in TEXT_FLAGS} == {1, 2, 4, 8, 16, 32}


def test_flags_have_names():
    assert flag_names(0) == []
    assert flag_names(Flag.NO_VALUE | Flag.ZERO_VECTOR) == ["zero_vector", "no_value"]


# ---------------------------------------------------------------- one pass, any block, any order


@pytest.mark.parametrize("target", TARGETS)
def test_one_pass_gives_every_alpha_and_history_to_the_last_bit(target):
    block = flat(gaussian_samples(10, [9, 3, 1, 20, 9, 2]))
    alphas = [0.0, 0.1, 0.25, 0.7, 1.0]
    means = alignment_means(*block, HISTORIES, target)
    for h, history in enumerate(HISTORIES):
        for alpha in alphas:
            spec = ScoreSpec(alpha=alpha, history=history, target=target)
            np.testing.assert_array_equal(means.value(h, alpha), score_ragged(*block, spec).value)


@pytest.mark.parametrize("custom", [None, history_weights("ema:0.3", 70)], ids=["named", "custom"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), spec=specs(), data=st.data())
def test_a_sample_has_the_same_bits_in_any_block_and_any_order(custom, seed, spec, data):
    rng = np.random.default_rng(seed)
    samples = gaussian_samples(seed, rng.choice([1, 2, 8, 9, 17, 40, 61], rng.integers(1, 12)).tolist(), size=8)
    whole = score_ragged(*flat(samples), spec, custom_history=custom)
    order = data.draw(st.permutations(range(len(samples))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(samples)))) | {len(samples)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_module, "CHUNK_ENTRIES", data.draw(st.sampled_from([1, 100, 1 << 19])))
        for start, stop in zip([0, *cuts], cuts, strict=False):
            block = order[start:stop]
            part = score_ragged(*flat([samples[i] for i in block]), spec, custom_history=custom)
            for place, i in enumerate(block):
                here, there = slice(*part.offsets[place : place + 2]), slice(*whole.offsets[i : i + 2])
                np.testing.assert_array_equal(part.step_score[here], whole.step_score[there])
                np.testing.assert_array_equal(part.answer_alignment[here], whole.answer_alignment[there])
                np.testing.assert_array_equal(part.history_alignment[here], whole.history_alignment[there])
                np.testing.assert_array_equal(part.value[place], whole.value[i])
                assert part.flags[place] == whole.flags[i]


def test_no_samples_are_no_scores():
    scores = score_ragged(*flat([]), ScoreSpec())
    assert len(scores.value) == len(scores.step_score) == 0
    assert alignment_means(*flat([]), ["uniform"]).value(0, 0.5).shape == (0,)
    assert alignment_means(*flat(gaussian_samples(1, [3])), []).history.shape == (0, 1)


def test_doubled_gram_and_scaled_vectors_change_nothing():
    num_steps, packed, counts = flat(gaussian_samples(13, [9, 4]))
    once = score_ragged(num_steps, packed, counts, ScoreSpec(target="trace"))
    scaled = score_ragged(num_steps, packed * np.float32(2.0**-40), counts, ScoreSpec(target="trace"))
    np.testing.assert_array_equal(once.value, scaled.value)


# ---------------------------------------------------------------- full Grams


def test_full_grams_give_the_same_scores():
    samples = gaussian_samples(14, [7, 3, 7])
    num_steps, packed, counts = flat(samples)
    grams = [unpack(packed_gram(vectors)[None])[0] for vectors, _ in samples]
    for target in TARGETS:
        spec = ScoreSpec(target=target, history="window:3")
        ragged, found = score_ragged(num_steps, packed, counts, spec), score_grams(grams, [c for _, c in samples], spec)
        for name in ("step_score", "answer_alignment", "history_alignment", "value"):
            np.testing.assert_array_equal(getattr(found, name), getattr(ragged, name))


def test_scores_of_full_grams_are_grace():
    vectors = np.random.default_rng(2).normal(size=(3, 5))
    found = score_grams([vectors @ vectors.T], [np.array([1, 1, 1])], ScoreSpec(alpha=1))
    cosines = [v @ vectors[2] / np.linalg.norm(v) / np.linalg.norm(vectors[2]) for v in vectors[:2]]
    np.testing.assert_allclose(found.answer_alignment, cosines)
    assert found.value[0] == pytest.approx(np.mean(cosines))


# ---------------------------------------------------------------- refusals


def test_arrays_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"1 samples with 2 steps have 6 Gram entries and 3 token counts, not \(5,\)"):
        score_ragged(np.array([2]), np.zeros(5), np.zeros(3), ScoreSpec())
    with pytest.raises(ValueError, match="a sample without steps cannot be scored"):
        score_ragged(np.array([0]), np.zeros(1), np.zeros(1), ScoreSpec())


def test_a_sweep_refuses_an_alpha_that_is_no_balance():
    means = alignment_means(*flat(gaussian_samples(15, [3])), ["uniform"])
    with pytest.raises(SettingError, match=r"alpha 1\.5 is not between 0 .* and 1"):
        means.value(0, 1.5)


# ---------------------------------------------------------------- several signals


def test_signals_weigh_equally_unless_told():
    values = np.array([[0.0, 1.0, np.nan], [1.0, 0.5, 0.0]])
    np.testing.assert_array_equal(combine_signals(values), [0.5, 0.75, np.nan])
    np.testing.assert_allclose(combine_signals(values, [3, 1]), [0.25, 0.875, np.nan])


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1.0], "1 weights were given for 2 signals"), ([1.0, 0.0], "not all finite and above 0")],
)
def test_signal_weights_without_meaning_are_refused(weights, message):
    with pytest.raises(SettingError, match=message):
        combine_signals(np.zeros((2, 3)), weights)
