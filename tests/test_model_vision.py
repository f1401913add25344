"""Vectors of vision-language families against autograd of the whole model, and what they must not depend on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
import transformers

import grace_store.model.inputs.encode_samples as reading
import grace_store.model.inputs.vision as vision
from grace_store.data.sample import Sample
from grace_store.model.load.weights import LoadedModel
from tests.autograd import autograd_truth, extract, open_tiny, relative
from tests.odd_vision_models import ODD_FAMILIES
from tests.tiny_vision_models import VISION_FAMILIES, png, tiny_vision_model
from tests.traces import PICTURES, WITH_PICTURES, ask_about

SUFFIXES = {
    "llava": " ",
    "llava_next": " ",
    "llava_onevision": "<|im_end|>",
    "ovis2": "<|im_end|>",
    "gemma3": "<end_of_turn>\n",
}
"""What a family's template writes after a response; the others write <|im_end|> and a newline."""


@pytest.fixture(scope="session")
def vision_model(tmp_path_factory: pytest.TempPathFactory):
    """Return a function from a family to its folder, made once."""
    root = tmp_path_factory.mktemp("tiny-vision-models")
    return cache(lambda family: tiny_vision_model(ODD_FAMILIES.get(family, family), root / family))


def processed(loaded: LoadedModel, sample: Sample) -> dict[str, torch.Tensor]:
    """Return the whole conversation, alone, as transformers' own way through template and processor has it."""
    images = iter(sample.images)
    by_bytes = {png(image): image for image in PICTURES.values()}
    conversation = [
        {
            "role": turn.role,
            "content": [
                {"type": "text", "text": part}
                if isinstance(part, str)
                else {"type": "image", "image": by_bytes[next(images).source]}
                for part in turn.parts
            ],
        }
        for turn in sample.turns
    ]
    conversation.append({"role": "assistant", "content": [{"type": "text", "text": sample.response}]})
    # SmolVLM's own method asks for what only videos need before it calls this one.
    apply = transformers.ProcessorMixin.apply_chat_template
    return dict(apply(loaded.processor, conversation, tokenize=True, return_dict=True, return_tensors="pt"))


def segments_by_decoding(loaded: LoadedModel, ids: torch.Tensor, sample: Sample, suffix: str) -> np.ndarray:
    """Return each token's segment, found from the end by the text of one token after the other."""
    segment = np.full(len(ids), -1)
    place = len(sample.response) + len(suffix)
    letter = loaded.tokenizer.convert_tokens_to_ids("a")  # before it, no space is taken for the text's first
    for i in range(len(ids) - 1, 0, -1):
        token = loaded.tokenizer.decode([letter, int(ids[i])], skip_special_tokens=False)[1:]
        place -= len(token)
        visible = place + (len(token) - len(token.lstrip()) if token.strip() else 0)
        if 0 <= visible < len(sample.response):
            segment[i] = np.searchsorted(sample.bounds, visible, side="right") - 1
        elif place < 0:
            break
    assert place <= 0
    return segment


def truth_of(loaded: LoadedModel, sample: Sample, family: str, *, shift: int = 0):
    inputs = processed(loaded, sample)
    segment = segments_by_decoding(loaded, inputs["input_ids"][0], sample, SUFFIXES.get(family, "<|im_end|>\n"))
    return autograd_truth(loaded.model, inputs, segment, shift=shift)


@pytest.mark.parametrize("family", [*VISION_FAMILIES, *ODD_FAMILIES])
@pytest.mark.filterwarnings("ignore:__array__ implementation")  # within a processor of transformers
def test_vectors_are_the_gradients_of_the_whole_model(vision_model, family):
    loaded, extractor = open_tiny(vision_model(family))
    signals = extract(extractor, WITH_PICTURES)
    assert signals.set_aside == {}
    first = 0
    for sample in WITH_PICTURES:
        rows = slice(first, first + sample.num_segments)
        first = rows.stop
        vectors, losses = truth_of(loaded, sample, family)
        assert relative(signals.segment_vector[rows], vectors) < 1e-5
        np.testing.assert_allclose(signals.segment_loss[rows], losses, rtol=1e-5)
    assert first == len(signals.segment_vector)


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_a_vector_does_not_depend_on_its_batch_mates(vision_model, family):
    _, extractor = open_tiny(vision_model(family))
    assert len(extractor.prepare(WITH_PICTURES).batches) == 1
    together = extract(extractor, WITH_PICTURES)
    apart = [extract(extractor, [sample]) for sample in WITH_PICTURES]
    assert relative(together.segment_vector, np.concatenate([one.segment_vector for one in apart])) < 1e-5
    backward = extract(extractor, WITH_PICTURES[::-1])
    pieces = np.split(backward.segment_vector, np.cumsum([s.num_segments for s in WITH_PICTURES[::-1]])[:-1])
    assert relative(np.concatenate(pieces[::-1]), together.segment_vector) < 1e-5


# ---------------------------------------------------------------- what would go wrong unseen


@pytest.mark.parametrize("family", ["qwen3_vl", "llava"])
@pytest.mark.parametrize("shift", [-1, 1])
def test_targets_one_position_off_would_show(vision_model, family, shift):
    loaded, extractor = open_tiny(vision_model(family))
    wrong, _ = truth_of(loaded, WITH_PICTURES[0], family, shift=shift)
    assert relative(extract(extractor, WITH_PICTURES[:1]).segment_vector, wrong) > 0.1


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_an_image_one_token_from_its_place_would_show(vision_model, family):
    loaded, extractor = open_tiny(vision_model(family))
    inputs = processed(loaded, WITH_PICTURES[0])
    ids = inputs["input_ids"][0]
    segment = segments_by_decoding(loaded, ids, WITH_PICTURES[0], SUFFIXES.get(family, "<|im_end|>\n"))
    places = torch.nonzero(ids == loaded.model.config.image_token_id)
    start, stop = int(places[0]), int(places[-1]) + 1
    order = torch.arange(len(ids))
    order[start : stop + 1] = torch.cat((order[stop : stop + 1], order[start:stop]))
    moved = {
        name: values[:, order] if values.shape == inputs["input_ids"].shape else values
        for name, values in inputs.items()
    }
    assert not torch.equal(moved["input_ids"], inputs["input_ids"])
    wrong, _ = autograd_truth(loaded.model, moved, segment)
    assert relative(extract(extractor, WITH_PICTURES[:1]).segment_vector, wrong) > 1e-3


def test_images_in_each_others_place_would_show(vision_model):
    _, extractor = open_tiny(vision_model("qwen3_vl"))
    swapped = ask_about(
        "Look:", "square", " and then ", "tall", "wide", ". Which?", response=("The first.\n", "It is 3.")
    )
    vectors = extract(extractor, [WITH_PICTURES[1], swapped]).segment_vector
    assert relative(vectors[:2], vectors[2:]) > 1e-3


def test_segments_one_token_off_would_show(vision_model, monkeypatch):
    loaded, extractor = open_tiny(vision_model("qwen2_5_vl"))
    actual = vision._counted_from_the_end
    monkeypatch.setattr(vision, "_counted_from_the_end", lambda tokens, ids: np.roll(actual(tokens, ids), 1))
    vectors, _ = truth_of(loaded, WITH_PICTURES[0], "qwen2_5_vl")
    assert relative(extract(extractor, WITH_PICTURES[:1]).segment_vector, vectors) > 0.1


@pytest.mark.parametrize(("family", "key"), [("qwen2_5_vl", "mm_token_type_ids"), ("gemma3", "token_type_ids")])
def test_a_key_of_the_processor_left_out_would_show(vision_model, family, key):
    loaded, extractor = open_tiny(vision_model(family))
    prepared = extractor.prepare(WITH_PICTURES[:1])
    assert key in prepared.batches[0].inputs
    del prepared.batches[0].inputs[key]
    vectors, _ = truth_of(loaded, WITH_PICTURES[0], family)
    assert relative(extractor.compute(prepared).result().segment_vector, vectors) > 1e-2


# ---------------------------------------------------------------- what it costs


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_the_vision_tower_runs_once_a_batch_and_the_head_on_responses_only(vision_model, family):
    loaded, extractor = open_tiny(vision_model(family))
    backbone = loaded.model.base_model
    tower = backbone.visual if hasattr(backbone, "visual") else backbone.vision_tower
    towers, rows = [], []
    tower.register_forward_hook(lambda *_: towers.append(1))
    actual = extractor.head.segment_means
    extractor.head.segment_means = lambda hidden, *rest: rows.append(len(hidden)) or actual(hidden, *rest)
    signals = extract(extractor, WITH_PICTURES)
    assert len(towers) == 1
    assert rows == [signals.segment_num_tokens.sum()]
    extract(extractor, WITH_PICTURES[2:3])
    assert len(towers) == 1, "no image, no tower"


@pytest.mark.parametrize("family", ["qwen3_vl", "llava_onevision"])
def test_images_that_are_not_kept_are_made_again(vision_model, monkeypatch, family):
    _, extractor = open_tiny(vision_model(family), batch_tokens=150)
    expected = extract(extractor, WITH_PICTURES)
    monkeypatch.setattr(reading, "UNIT_IMAGE_BYTES", 0)
    prepared = extractor.prepare(WITH_PICTURES)
    assert len(prepared.batches) > 1
    assert [images.kept for images in prepared.images.values() if images.digests] == [None] * 3
    found = extractor.compute(prepared).result()
    np.testing.assert_array_equal(found.segment_vector, expected.segment_vector)
    assert found.images_sha256 == expected.images_sha256


def test_preparing_from_many_threads_gives_the_same(vision_model):
    _, extractor = open_tiny(vision_model("qwen3_vl"))
    expected = extractor.prepare(WITH_PICTURES)
    start = threading.Barrier(4)

    def prepare(_):
        start.wait()
        return [extractor.prepare(WITH_PICTURES) for _ in range(3)]

    with ThreadPoolExecutor(4) as pool:
        for made in (unit for several in pool.map(prepare, range(4)) for unit in several):
            for position, tokens in expected.tokens.items():
                np.testing.assert_array_equal(made.tokens[position].ids, tokens.ids)
                for name, values in expected.images[position].inputs().items():
                    assert torch.equal(made.images[position].inputs()[name], values)
