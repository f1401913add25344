"""What real trainers were recorded to give a model is what it is given here; and in what they differ, they do.

golden/trainers holds what jobs/trainers/record.py wrote, with the versions of everything that was at work.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grace_store.base.errors import SettingError
from grace_store.base.settings import ExtractSpec, ImagesAs, RunOptions
from grace_store.base.states import Reason
from grace_store.base.training_settings import WarmupOptions, WarmupSpec
from grace_store.choose.exports.trl import prompt_and_completion
from grace_store.data.image_files import ImageFolder
from grace_store.data.sample import ImageRef, Sample, Turn
from grace_store.model.inputs.encode_samples import PreparedUnit, SampleReader
from grace_store.model.inputs.trainer_images import TRAINERS, as_trainer
from grace_store.model.load.weights import describe_model, load
from grace_store.model.open_model import resolve_spec
from grace_store.train.training import resolve_training
from grace_store.train.training_data import reading_spec
from jobs.trainers.record import trl_row
from tests.tiny_models import tiny_text_model
from tests.tiny_vision_models import picture, png, tiny_vision_model
from tests.trainer_cases import CONVERSATIONS, MODELS, make_model, pictures, save_picture

GOLDEN = {path.stem: json.loads(path.read_text()) for path in Path(__file__).parent.glob("golden/trainers/*.json")}
IMAGES_AS: dict[str, ImagesAs] = {"ms-swift": "ms-swift", "llama-factory": "llama-factory", "trl": "processor"}
IMAGE_TOKENS = {"qwen3_vl": "<|image_pad|>", "qwen2_5_vl": "<|image_pad|>", "llava": "<image>"}
ONE_LEVEL = {"ms-swift": 1e-4, "llama-factory": 0.016, "trl": 0.016}
"""How far pixels may be off: one of 255 levels where torchvision resizes, not at all where Pillow does."""
ANSWER = "7<|im_end|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("cases")
    for name, image in pictures().items():
        save_picture(image, made / f"{name}.png")
    return made


@pytest.fixture(scope="module")
def read(folder):
    """Return a function from a model, a conversation, an image's name and a trainer to what is read."""

    @cache
    def reader(model: str, images_as: ImagesAs) -> tuple[Any, SampleReader]:
        path = folder / model
        if not path.exists():
            make_model(model, path)
        # LLaVA's template ends a response with a space.
        request = ExtractSpec(include_eos=model != "llava", max_length=10**5, images_as=images_as)
        spec = resolve_spec(str(path), request, RunOptions(device="cpu", threads=1))
        described = describe_model(str(path))
        loaded = load(described, spec.dtype, spec.attention, "cpu", 1)
        return described.tokenizer, SampleReader(loaded, spec, loaded.identity.vocab_size, folder)

    def do(model: str, conversation: str, image: str | None = None, images_as: ImagesAs = "processor"):
        tokenizer, made = reader(model, images_as)
        return tokenizer, made.read([sample(conversation, image)])

    return do


def sample(conversation: str, image: str | None) -> Sample:
    """Return a case; an image stands before the first question."""
    turns, shown = [], [] if image is None else [ImageRef(f"{image}.png")]
    for message in CONVERSATIONS[conversation][:-1]:
        before, shown = (shown, []) if message["role"] == "user" else ([], shown)
        turns.append(Turn(message["role"], (*before, message["content"])))
    response = CONVERSATIONS[conversation][-1]["content"]
    return Sample(conversation, tuple(turns), response, (0, len(response) // 2, len(response)))


def without_images(tokenizer: Any, unit: PreparedUnit, model: str) -> tuple[list[int], str, int]:
    """Return the tokens other than the image's, the text of those in segments, and the number of the image's."""
    tokens = unit.tokens[0]
    is_image = tokens.ids == tokenizer.convert_tokens_to_ids(IMAGE_TOKENS.get(model, "none"))
    return tokens.ids[~is_image].tolist(), tokenizer.decode(tokens.ids[tokens.segment >= 0]), int(is_image.sum())


def learnt(tokenizer: Any, expected: dict[str, Any]) -> str:
    return tokenizer.decode([expected["ids"][place] for place in expected["learnt"]])


# ---------------------------------------------------------------- images


@pytest.mark.parametrize("trainer", GOLDEN)
@pytest.mark.parametrize("model", IMAGE_TOKENS)
def test_images_become_the_trainers_tokens_and_pixels(read, model, trainer):
    recorded = GOLDEN[trainer]["models"][model]["images"]
    assert set(recorded) == set(pictures())
    for name, expected in recorded.items():
        tokenizer, unit = read(model, "plain", name, IMAGES_AS[trainer])
        ids, _, num_image_tokens = without_images(tokenizer, unit, model)
        pixels = unit.images[0].inputs()["pixel_values"]
        assert num_image_tokens == expected["num_image_tokens"], name
        assert list(pixels.shape) == expected["shape"], name
        line, count = pixels.flatten().numpy(), len(expected["pixels"])
        places = [(2 * i + 1) * len(line) // (2 * count) for i in range(count)]
        np.testing.assert_allclose(line[places], expected["pixels"], rtol=0, atol=ONE_LEVEL[trainer], err_msg=name)
        if model != "llava":
            assert ids == expected["ids"], name


@pytest.mark.parametrize(
    ("trainer", "model", "name", "ours", "theirs"),
    [
        ("ms-swift", "qwen3_vl", "28x28", 64, 4),
        ("ms-swift", "qwen3_vl", "100x60", 77, 6),
        ("ms-swift", "qwen3_vl", "255x255", 64, 64),
        ("ms-swift", "qwen2_5_vl", "10x600", 16, 21),
        ("llama-factory", "qwen3_vl", "800x900", 700, 575),
        ("llama-factory", "qwen3_vl", "2100x1500", 3102, 560),
    ],
)
def test_without_the_option_image_tokens_differ(read, trainer, model, name, ours, theirs):
    counts = [without_images(*read(model, "plain", name, way), model)[2] for way in ("processor", IMAGES_AS[trainer])]
    assert counts == [ours, theirs]
    assert GOLDEN[trainer]["models"][model]["images"][name]["num_image_tokens"] == theirs


# ---------------------------------------------------------------- text


@pytest.mark.parametrize("trainer", GOLDEN)
@pytest.mark.parametrize("model", ["qwen3_vl", "qwen2_5_vl"])
def test_ids_of_conversations_are_the_trainers(read, model, trainer):
    """All learn the line's end behind the end of the turn too; all but TRL learn earlier responses."""
    for name, expected in GOLDEN[trainer]["models"][model]["conversations"].items():
        tokenizer, unit = read(model, name)
        ids, ours, _ = without_images(tokenizer, unit, model)
        theirs = learnt(tokenizer, expected)
        assert ids == expected["ids"], name
        assert theirs.endswith(ours + "\n"), name
        assert (theirs != ours + "\n") == (name.startswith("earlier") and trainer != "trl"), name


@pytest.mark.parametrize("trainer", GOLDEN)
def test_think_blocks(read, trainer):
    """The empty one that a template writes is learnt by trainers and in no segment; ms-swift and LLaMA-Factory keep
    those of earlier turns, which the model's own template drops."""
    keeps = trainer != "trl"
    for name, expected in GOLDEN[trainer]["models"]["qwen3"]["conversations"].items():
        tokenizer, unit = read("qwen3", name)
        ids, ours, _ = without_images(tokenizer, unit, "qwen3")
        theirs = learnt(tokenizer, expected)
        is_equal = not keeps or not (name.startswith("earlier") or name == "lines around")
        assert (ids == expected["ids"]) == is_equal, name
        assert theirs.endswith(ours.lstrip("\n") + "\n"), name
        assert theirs.count("<think>") == (2 if keeps and name.startswith("earlier") else 1), name
        assert ours.count("<think>") == ("thought" in name), name


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("image", [None, "100x60"])
def test_trl_was_given_what_is_exported_for_it(conversation, image):
    made = prompt_and_completion(sample(conversation, image), lambda each: each.source, has_images=image is not None)
    assert made.pop("id") == conversation
    assert made == trl_row(CONVERSATIONS[conversation], image and f"{image}.png")


def test_llavas_conversations_are_written_otherwise_by_each_trainer(read):
    texts = {}
    for trainer, golden in GOLDEN.items():
        tokenizer, unit = read("llava", "plain", "100x60", IMAGES_AS[trainer])
        ours = tokenizer.decode(without_images(tokenizer, unit, "llava")[0])
        texts[trainer] = tokenizer.decode(golden["models"]["llava"]["images"]["100x60"]["ids"])
        assert texts[trainer] != ours
    assert texts["ms-swift"].endswith("Answer: 7</s>")
    assert "now?\nASSISTANT: Step" in texts["ms-swift"]
    assert texts["llama-factory"].startswith("A chat between a curious user")
    assert not texts["trl"].startswith("<s>")


# ---------------------------------------------------------------- the option


def test_limits_are_the_trainers_own_settings(tmp_path):
    processor = describe_model(str(tiny_vision_model("qwen3_vl", tmp_path / "qwen"))).processor  # tokens of 8 x 8
    small, large = picture(20, 20), picture(800, 800)
    _, swift = as_trainer("ms-swift", processor, 64 * 16 + 63, 64 * 100)
    assert swift(small).size == (32, 32)
    assert swift(large).size == (80, 80)
    _, factory = as_trainer("llama-factory", processor, 40 * 40, 500 * 500)
    assert factory(small).size == (40, 40)
    assert factory(large).size == (500, 500)
    for name in ("ms-swift", "llama-factory"):
        with pytest.raises(
            SettingError, match=r"smallest image size \(1280 pixels\) is above the largest \(640 pixels\)"
        ):
            as_trainer(name, processor, 1280, 640)


def test_images_too_long_for_qwen(tmp_path):
    processor = describe_model(str(tiny_vision_model("qwen3_vl", tmp_path / "qwen"))).processor
    long = ImageRef(png(picture(2, 6000)))
    factory = as_trainer("llama-factory", processor, None, None)[1]
    assert ImageFolder(tmp_path, factory).open(long)[0].size == (28, 5040)
    with pytest.raises(Exception, match="aspect ratio") as caught:
        ImageFolder(tmp_path, as_trainer("ms-swift", processor, None, None)[1]).open(long)
    assert caught.value.why.reason == Reason.IMAGE_UNREADABLE


def test_the_processor_of_others_is_left_as_it_is(tmp_path):
    processor = describe_model(str(tiny_vision_model("qwen3_vl", tmp_path / "qwen"))).processor
    before = processor.image_processor.to_dict()
    for name in TRAINERS:
        as_trainer(name, processor, None, None)
    assert processor.image_processor.to_dict() == before


def test_what_is_not_known_of_a_trainer_is_refused(tmp_path):
    options = RunOptions(device="cpu")
    gemma = tiny_vision_model("gemma3", tmp_path / "gemma")
    with pytest.raises(
        SettingError, match="grace-store does not know how ms-swift prepares images for Gemma3Processor"
    ):
        resolve_spec(str(gemma), ExtractSpec(images_as="ms-swift"), options)
    text = tiny_text_model("qwen3", tmp_path / "text")
    assert resolve_spec(str(text), ExtractSpec(images_as="ms-swift"), options).images_as == "ms-swift", "no harm"


def test_a_warm_up_reads_images_in_the_same_way(folder, read):
    read("llava", "plain")
    spec = resolve_training(str(folder / "llava"), WarmupSpec(images_as="ms-swift"), WarmupOptions(device="cpu"))
    assert reading_spec(spec).images_as == "ms-swift"


def test_every_way_has_a_model_that_it_was_held_against():
    assert set(IMAGES_AS.values()) == set(TRAINERS)
    assert all(set(golden["models"]) == set(MODELS) for golden in GOLDEN.values())
