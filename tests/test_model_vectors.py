"""Vectors of every family against autograd of the whole model, and what they must not depend on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from grace_store.base.settings import ExtractSpec
from grace_store.model.inputs.tokens import NO_SEGMENT
from grace_store.model.open_model import open_extractor, resolve_spec
from tests.autograd import ONE_THREAD, extract, open_tiny, relative, text_truth
from tests.tiny_models import FAMILIES, tiny_text_model
from tests.traces import TEXTS


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory):
    """Return a function from a family to its folder, made once."""
    root = tmp_path_factory.mktemp("tiny-models")
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = tiny_text_model(family, root / family)
        return made[family]

    return make


INPUT_SCALES = {"minicpm3": 0.5}
"""Families that scale h before the head: dL/dh has one factor more than the gradient at the head's input."""


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_the_gradients_of_the_whole_model(model_folder, family):
    loaded, extractor = open_tiny(model_folder(family))
    signals = extract(extractor, TEXTS)
    assert signals.set_aside == {}
    first = 0
    for sample in TEXTS:
        rows = slice(first, first + sample.num_segments)
        first = rows.stop
        vectors, losses = text_truth(loaded.model, extractor, sample)
        assert relative(signals.segment_vector[rows], vectors * INPUT_SCALES.get(family, 1.0)) < 1e-5
        np.testing.assert_allclose(signals.segment_loss[rows], losses, rtol=1e-5)
    assert first == len(signals.segment_vector)


@pytest.mark.parametrize("shift", [-1, 1])
def test_targets_one_position_off_would_show(model_folder, shift):
    loaded, extractor = open_tiny(model_folder("qwen3"))
    signals = extract(extractor, TEXTS[:1])
    wrong, _ = text_truth(loaded.model, extractor, TEXTS[0], shift=shift)
    assert relative(signals.segment_vector, wrong) > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_vector_does_not_depend_on_its_batch_mates(model_folder, family):
    loaded, extractor = open_tiny(model_folder(family))
    together = extract(extractor, TEXTS)
    apart = [extract(extractor, [sample]) for sample in TEXTS]
    assert relative(together.segment_vector, np.concatenate([one.segment_vector for one in apart])) < 1e-5
    backward = extract(extractor, TEXTS[::-1])
    pieces = np.split(backward.segment_vector, np.cumsum([s.num_segments for s in TEXTS[::-1]])[:-1])
    assert relative(np.concatenate(pieces[::-1]), together.segment_vector) < 1e-5
    del loaded


@pytest.mark.parametrize(("batch_tokens", "head_tokens"), [(1, 512), (150, 1), (100_000, 7), (100_000, 33)])
def test_batch_and_block_sizes_change_the_rounding_only(model_folder, batch_tokens, head_tokens):
    _, usual = open_tiny(model_folder("gemma2"))
    _, other = open_tiny(model_folder("gemma2"), batch_tokens=batch_tokens, head_tokens=head_tokens)
    expected, found = extract(usual, TEXTS), extract(other, TEXTS)
    assert relative(found.segment_vector, expected.segment_vector) < 1e-5
    for name in ("segment_loss", "segment_entropy", "segment_hit_rate"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.segment_num_tokens, expected.segment_num_tokens)
    assert found.num_tokens == expected.num_tokens


def test_two_runs_are_bit_identical(model_folder):
    model = str(model_folder("qwen3_moe"))
    spec = resolve_spec(model, ExtractSpec(), ONE_THREAD)
    first, second = (extract(open_extractor(model, spec, ONE_THREAD), TEXTS) for _ in range(2))
    np.testing.assert_array_equal(first.segment_vector, second.segment_vector)
    np.testing.assert_array_equal(first.segment_entropy, second.segment_entropy)


def test_statistics_are_those_of_the_models_own_logits(model_folder):
    loaded, extractor = open_tiny(model_folder("cohere"))
    signals = extract(extractor, TEXTS[:1])
    tokens = extractor.prepare(TEXTS[:1]).tokens[0]
    logits = loaded.model(input_ids=torch.from_numpy(tokens.ids).unsqueeze(0)).logits[0].double()
    log_p = torch.log_softmax(logits, dim=-1)
    for segment in range(tokens.num_segments):
        at = np.flatnonzero(tokens.segment == segment)
        assert signals.segment_num_tokens[segment] == len(at)
        entropy = -(log_p.exp() * log_p).sum(dim=-1)[at - 1].mean()
        hits = (logits[at - 1].argmax(dim=-1) == torch.from_numpy(tokens.ids[at])).double().mean()
        assert signals.segment_entropy[segment] == pytest.approx(float(entropy), rel=1e-5)
        assert signals.segment_hit_rate[segment] == pytest.approx(float(hits))
    assert (tokens.segment[: int(np.flatnonzero(tokens.segment >= 0)[0])] == NO_SEGMENT).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close_to_float32(model_folder, dtype, request):
    request.addfinalizer(partial(torch.backends.mkldnn.set_flags, True))
    _, exact = open_tiny(model_folder("llama"))
    _, half = open_tiny(model_folder("llama"), dtype=dtype)
    expected, found = extract(exact, TEXTS).segment_vector, extract(half, TEXTS).segment_vector
    cosine = (expected * found).sum(1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(found, axis=1)
    assert cosine.min() > 0.99


def test_a_spaces_as_tokens_model_agrees_with_autograd_too(tmp_path):
    loaded, extractor = open_tiny(tiny_text_model("llama", tmp_path / "sp", metaspace=True, chat_template=None))
    signals = extract(extractor, TEXTS[:1])
    vectors, _ = text_truth(loaded.model, extractor, TEXTS[0])
    assert relative(signals.segment_vector, vectors) < 1e-5
