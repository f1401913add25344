"""Batches without padding: the same numbers where a model takes them, and a refusal where it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grace_store.base.errors import SettingError
from grace_store.base.settings import ExtractSpec
from grace_store.model.open_model import open_extractor, resolve_spec
from tests.autograd import ONE_THREAD, relative
from tests.tiny_models import tiny_text_model
from tests.tiny_vision_models import tiny_vision_model
from tests.traces import TEXTS, WITH_PICTURES

PADDED = {"packing": False}
PACKED = {"packing": True}


def extract(model: str, wishes: dict[str, Any], samples):
    spec = resolve_spec(model, ExtractSpec(**wishes), ONE_THREAD)
    extractor = open_extractor(model, spec, ONE_THREAD)
    prepared = extractor.prepare(samples)
    return prepared, extractor.compute(prepared).result()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["qwen3", "llama", "mistral", "gpt2"])
def test_packed_texts_have_the_same_vectors(tmp_path, family, attention):
    model = str(tiny_text_model(family, tmp_path / family))
    _, expected = extract(model, {**PADDED, "attention": attention}, TEXTS)
    prepared, found = extract(model, {**PACKED, "attention": attention}, TEXTS)
    (batch,) = prepared.batches
    assert batch.num_padded_tokens == sum(tokens.num_tokens for tokens in prepared.tokens.values())
    assert relative(found.segment_vector, expected.segment_vector) < 1e-5
    np.testing.assert_array_equal(found.segment_num_tokens, expected.segment_num_tokens)


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "qwen2_vl", "llava", "llava_onevision"])
def test_packed_samples_with_images_have_the_same_vectors(tmp_path, family):
    model = str(tiny_vision_model(family, tmp_path / family))
    _, expected = extract(model, PADDED, WITH_PICTURES)
    prepared, found = extract(model, PACKED, WITH_PICTURES)
    assert len(prepared.batches) == 1
    assert relative(found.segment_vector, expected.segment_vector) < 1e-5


@pytest.mark.parametrize("family", ["opt", "bloom"])
def test_models_that_would_mix_packed_samples_up_are_refused(tmp_path, family):
    model = str(tiny_text_model(family, tmp_path / family))
    with pytest.raises(SettingError, match="Leave --packing out"):
        extract(model, PACKED, TEXTS)


def test_packs_are_filled_by_tokens_not_by_samples(tmp_path):
    model = str(tiny_text_model("qwen3", tmp_path / "qwen3"))
    small = {**PACKED, "batch_tokens": 110}
    _, expected = extract(model, PADDED, TEXTS)
    prepared, found = extract(model, small, TEXTS)
    assert len(prepared.batches) > 1
    assert all(len(batch.members) == 1 or batch.num_padded_tokens <= 110 for batch in prepared.batches)
    assert relative(found.segment_vector, expected.segment_vector) < 1e-5
