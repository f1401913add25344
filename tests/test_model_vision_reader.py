"""What a vision-language extractor sets aside, what its settings do, and the questions asked before any work."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import grace_store.model.inputs.encode_samples as reading
from grace_store.base.errors import DatasetChanged, ModelError, SettingError
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.base.states import Reason
from grace_store.data.sample import ImageRef, Sample, Turn
from grace_store.model import open_model as probes
from grace_store.model.inputs.encode_samples import ImageQueue
from grace_store.model.inputs.vision import SampleImages
from grace_store.model.load.weights import describe_model
from grace_store.model.open_model import ProxyExtractor, open_extractor, resolve_spec
from tests.autograd import relative
from tests.odd_vision_models import ODD_FAMILIES
from tests.tiny_models import CHATML, tiny_text_model
from tests.tiny_vision_models import picture, png, tiny_vision_model

OPTIONS = RunOptions(device="cpu", threads=1)
BAD_TEXT = Reason.BAD_TEXT
RESPONSE = "We count the apples.\nIt is 3."
BOUNDS = (0, 21, len(RESPONSE))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory) -> Path:
    return tiny_vision_model("qwen3_vl", tmp_path_factory.mktemp("model") / "qwen3_vl")


@pytest.fixture(scope="module")
def llava(tmp_path_factory) -> Path:
    return tiny_vision_model("llava", tmp_path_factory.mktemp("model") / "llava")


@pytest.fixture(scope="module")
def odd_model(tmp_path_factory):
    """Return a function from a family to its folder, made once."""
    root = tmp_path_factory.mktemp("odd")
    return cache(lambda family: tiny_vision_model(ODD_FAMILIES[family], root / family))


def ask(*parts: str | bytes | ImageRef, response: str = RESPONSE) -> Sample:
    """Return a sample; bytes are images."""
    made = tuple(ImageRef(part) if isinstance(part, bytes) else part for part in parts)
    bounds = (*BOUNDS[:-1], len(response))
    return Sample("id", (Turn("user", made),), response, bounds)


SMALL, LARGE = png(picture(30, 40)), png(picture(90, 70, 1))


def make(model: Path, images: Path | None = None, options: RunOptions = OPTIONS, **wishes) -> ProxyExtractor:
    spec = resolve_spec(str(model), ExtractSpec(**wishes), options)
    return open_extractor(str(model), spec, options, images=images)


def extract(extractor: ProxyExtractor, *samples: Sample):
    return extractor.compute(extractor.prepare(samples)).result()


def test_each_unusable_sample_is_set_aside_with_its_reason(qwen, tmp_path):
    (tmp_path / "cut.png").write_bytes(LARGE[: len(LARGE) // 2])
    samples = [
        ask(SMALL, "How many?"),
        ask(ImageRef("gone.png"), "How many?"),
        ask(ImageRef("cut.png"), "How many?"),
        ask(ImageRef("../secret.png"), "How many?"),
        ask("A <|image_pad|> in the text?"),
        ask("How many?", response=RESPONSE + " <|image_pad|>"),
        ask("How many?", response=RESPONSE + " <|video_pad|>"),
        ask(png(picture(600, 2)), "How many?"),
        ask(*[LARGE] * 5, "How many?"),
        ask("How many?"),
    ]
    signals = extract(make(qwen, tmp_path, max_length=200), *samples)
    assert {position: verdict.reason for position, verdict in signals.set_aside.items()} == {
        1: Reason.IMAGE_MISSING,
        2: Reason.IMAGE_UNREADABLE,
        3: Reason.IMAGE_REFUSED,
        4: Reason.BAD_TEXT,
        5: Reason.BAD_TEXT,
        6: Reason.BAD_TEXT,
        7: Reason.IMAGE_UNREADABLE,
        8: Reason.TOO_LONG,
    }
    assert "with its images, at most 200" in signals.set_aside[8].detail
    assert "aspect ratio" in signals.set_aside[7].detail
    assert str(tmp_path) not in "".join(verdict.detail for verdict in signals.set_aside.values())
    usable = extract(make(qwen, tmp_path), samples[0], samples[9])
    rows = [0, 1, 18, 19]
    np.testing.assert_allclose(signals.segment_vector[rows], usable.segment_vector, rtol=1e-4, atol=1e-6)
    assert signals.images_sha256 == usable.images_sha256


def test_the_digest_is_of_the_encoded_images_in_reading_order(qwen, tmp_path):
    (tmp_path / "a.png").write_bytes(LARGE)
    signals = extract(make(qwen, tmp_path), ask(SMALL, "and", ImageRef("a.png")), ask("?"), ask("Hm", SMALL))
    lines = "".join(f"{hashlib.sha256(content).hexdigest()}\n" for content in (SMALL, LARGE, SMALL))
    assert signals.images_sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert extract(make(qwen), ask("?")).images_sha256 is None


def test_text_only_leaves_images_out_unopened(qwen):
    extractor = make(qwen, text_only=True)
    shown = extract(extractor, ask("How ", ImageRef("/etc/passwd"), "many?"))
    assert shown.set_aside == {}
    assert shown.images_sha256 is None
    np.testing.assert_array_equal(shown.segment_vector, extract(extractor, ask("How many?")).segment_vector)


def test_a_text_only_sample_has_the_vectors_of_the_language_model(qwen):
    together = extract(make(qwen), ask(SMALL, "How many?"), ask("How many?")).segment_vector
    alone = extract(make(qwen, text_only=True), ask("How many?")).segment_vector
    assert relative(together[2:], alone) < 1e-5
    assert relative(together[:2], alone) > 1e-3


def test_pixel_limits_change_the_number_of_image_tokens(qwen):
    counts = {}
    for name, wishes in {"own": {}, "small": {"max_pixels": 1024}, "large": {"min_pixels": 4096}}.items():
        prepared = make(qwen, **wishes).prepare([ask(picture_bytes(60, 60), "How many?")])
        counts[name] = int((prepared.tokens[0].token_inputs["mm_token_type_ids"] == 1).sum())
    assert counts == {"own": 64, "small": 16, "large": 64}
    grown = make(qwen, min_pixels=2048).prepare([ask(picture_bytes(20, 20), "How many?")])
    assert int(grown.tokens[0].token_inputs["mm_token_type_ids"].sum()) == 36
    assert make(qwen).prepare([ask(picture_bytes(60, 60), "?")]).tokens[0].num_tokens > 64, "limits do not linger"


def picture_bytes(width: int, height: int) -> bytes:
    return png(picture(width, height))


def test_pixel_limits_without_meaning_are_refused(qwen, llava, tmp_path):
    with pytest.raises(SettingError, match="CLIPImageProcessorPil resizes all images to its own sizes"):
        make(llava, max_pixels=1000)
    with pytest.raises(SettingError, match=r"smallest image size \(5000 pixels\) is above the largest \(4096 pixels\)"):
        make(qwen, min_pixels=5000)
    with pytest.raises(SettingError, match="Qwen3ForCausalLM reads only text"):
        make(tiny_text_model("qwen3", tmp_path / "text"), max_pixels=1000)
    with pytest.raises(SettingError, match="is not a folder"):
        make(qwen, tmp_path / "nowhere")


@pytest.mark.parametrize("rendering", ["verbatim", "plain"])
def test_other_renderings_show_images_too(qwen, rendering):
    signals = extract(make(qwen, rendering=rendering), ask("See", SMALL, SMALL, "?"), ask("See?"))
    assert signals.set_aside == {}
    assert relative(signals.segment_vector[:2], signals.segment_vector[2:]) > 1e-3


def test_a_template_of_texts_only_gets_images_as_marks(qwen, tmp_path):
    folder = shutil.copytree(qwen, tmp_path / "chatml")
    (folder / "chat_template.jinja").write_text(CHATML)
    expected, found = (extract(make(model), ask("See", SMALL, "?"), ask("?")) for model in (qwen, folder))
    np.testing.assert_array_equal(found.segment_vector, expected.segment_vector)


def test_a_template_that_drops_images_is_refused(qwen, tmp_path):
    folder = shutil.copytree(qwen, tmp_path / "dropping")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template.replace("<|image_pad|>", ""))
    with pytest.raises(ModelError, match="writes 0 of the sample's 1 images"):
        make(folder)


def test_a_beginning_that_the_template_leaves_out_is_added(llava):
    tokens = make(llava).prepare([ask(SMALL, "How many?")]).tokens[0]
    vocabulary = json.loads((llava / "tokenizer.json").read_text())["model"]["vocab"]
    assert tokens.ids[0] == vocabulary["<s>"]
    assert (tokens.ids == vocabulary["<s>"]).sum() == 1


def test_the_processor_is_part_of_the_models_identity(qwen, tmp_path):
    spec = resolve_spec(str(qwen), ExtractSpec(), OPTIONS)
    assert spec.model.processor is not None
    folder = shutil.copytree(qwen, tmp_path / "other")
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings["image_processor_type"] = "Qwen2VLImageProcessor"
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    assert resolve_spec(str(folder), ExtractSpec(), OPTIONS).model == spec.model, "the same class, by another name"
    (folder / "preprocessor_config.json").write_text(json.dumps({**settings, "image_mean": [0.4, 0.5, 0.5]}))
    with pytest.raises(ModelError, match="planned with: processor"):
        open_extractor(str(folder), spec, OPTIONS)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match=r"image processor in .* cannot be used"):
        resolve_spec(str(folder), ExtractSpec(), OPTIONS)


def test_an_image_that_changes_under_way_ends_the_run(llava, monkeypatch, tmp_path):
    extractor = make(llava, tmp_path)
    monkeypatch.setattr(reading, "UNIT_IMAGE_BYTES", 0)
    (tmp_path / "a.png").write_bytes(SMALL)
    prepared = extractor.prepare([ask(ImageRef("a.png"), "How many?")])
    (tmp_path / "a.png").write_bytes(LARGE)
    with pytest.raises(DatasetChanged, match="An image changed"):
        extractor.compute(prepared)
    (tmp_path / "a.png").unlink()
    with pytest.raises(DatasetChanged, match=r"can no longer be read: no a\.png"):
        extractor.compute(prepared)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_images_are_joined_and_pinned_before_they_are_asked_for(monkeypatch, num_threads):
    calls = []

    def note(name, actual):
        def noted(*args):
            calls.append((name, threading.current_thread().name.partition("_")[0]))
            return actual(*args)

        return noted

    monkeypatch.setattr(reading, "join_images", note("join", reading.join_images))
    monkeypatch.setattr(reading.devices, "pin", note("pin", lambda tensor, device: tensor))
    pixels = {member: {"pixel_values": torch.full((1 + member, 2), float(member))} for member in range(4)}
    images = {
        member: SampleImages((), inputs if member % 2 else None, note("make", lambda inputs=inputs: inputs))
        for member, inputs in pixels.items()
    }
    with ThreadPoolExecutor(num_threads, thread_name_prefix="images") as pool:
        queue = ImageQueue(images, pool)
        for batch, upcoming in (((3, 0, 7), (1, 2)), ((1, 2), (8,)), ((8,), ())):
            found = queue.take(batch)
            queue.announce(upcoming)
            expected = [pixels[member]["pixel_values"] for member in batch if member in pixels]
            assert list(found) == ["pixel_values"] * bool(expected)
            assert all(torch.equal(tensor, torch.cat(expected)) for tensor in found.values())
    assert {thread for _, thread in calls} == {"images"}
    assert sorted(name for name, _ in calls) == ["join"] * 2 + ["make"] * 2 + ["pin"] * 2


@pytest.mark.parametrize(("max_length", "num_too_long"), [(45, 1), (100, 0)])
def test_questions_are_left_out_where_there_is_no_room_for_them(qwen, max_length, num_too_long):
    signals = extract(make(qwen, max_length=max_length), ask("How many?"), ask(LARGE, "How many?"))
    assert [verdict.reason for verdict in signals.set_aside.values()] == [Reason.TOO_LONG] * num_too_long


def test_a_model_whose_batches_disagree_is_refused(qwen, monkeypatch):
    actual = ProxyExtractor.hidden_states

    def leaking(self, batch, images):
        hidden = actual(self, batch, images)
        return hidden + 0.1 * (len(batch.members) > 1)

    monkeypatch.setattr(ProxyExtractor, "hidden_states", leaking)
    with pytest.raises(ModelError, match="depend on the other samples in the batch"):
        make(qwen)
    make(qwen, text_only=True)


def test_a_model_that_does_not_see_is_refused(qwen, monkeypatch):
    monkeypatch.setattr(probes, "_hidden", lambda _extractor, samples: torch.ones(len(samples), 4))
    with pytest.raises(ModelError, match="ignores its images"):
        make(qwen)


# ---------------------------------------------------------------- words that mean images to the model alone


@pytest.mark.parametrize(
    ("family", "word"),
    [
        ("glm4v", "<|begin_of_video|>"),
        ("glm4v", "<|end_of_video|>"),
        ("glm4v", "<|begin_of_image|>"),
        ("ovis2", "<IMG_ATOM>"),
        ("ovis2", "<IMG_START>"),
        ("ovis2", "<image>"),
    ],
)
@pytest.mark.filterwarnings("ignore:__array__ implementation")  # within transformers' own processor
def test_words_that_mean_images_set_their_sample_aside_and_no_other(odd_model, family, word):
    extractor = make(odd_model(family))
    good = [ask(SMALL, "How many?"), ask("What is known?")]
    expected = extract(extractor, *good)
    in_prompt = ask(SMALL, f"Is {word} here?")
    in_response = ask(LARGE, "How many?", response=RESPONSE[:5] + word + RESPONSE[5:])
    signals = extract(extractor, good[0], in_prompt, good[1], in_response)
    assert {position: why.reason for position, why in signals.set_aside.items()} == {1: BAD_TEXT, 3: BAD_TEXT}
    assert word in signals.set_aside[1].detail
    assert relative(signals.segment_vector[[0, 1, 4, 5]], expected.segment_vector) < 1e-5


def test_a_sample_the_processor_fails_on_is_set_aside(qwen, monkeypatch):
    extractor = make(qwen)
    reader = extractor.reader._vision
    actual = reader._processor.__class__.__call__

    def failing(self, *, text, **options):
        if "poison" in text[0]:
            raise LookupError("no such token")
        return actual(self, text=text, **options)

    monkeypatch.setattr(reader._processor.__class__, "__call__", failing)
    signals = extract(extractor, ask("Fine?"), ask("poison"), ask(SMALL, "poison"))
    assert {position: str(why) for position, why in signals.set_aside.items()} == {
        1: "bad_text: the sample cannot be encoded for this model: LookupError: no such token",
        2: "image_unreadable: the image processor refuses the images (30 x 40 pixels): LookupError: no such token",
    }


# ---------------------------------------------------------------- which processor a model gets


def named_processor(folder: Path, source: Path, processor: str, images: str | None = None) -> Path:
    """Copy a model, and have the copy name another processor."""
    copied = shutil.copytree(source, folder)
    for name in ("processor_config.json", "preprocessor_config.json"):
        path = copied / name
        settings = json.loads(path.read_text()) if path.is_file() else {}
        if images:
            settings.pop("image_processor", None)
            settings["image_processor_type"] = images
        path.write_text(json.dumps({**settings, "processor_class": processor}))
    return copied


def test_the_processor_that_a_folder_names_is_taken(llava, tmp_path):
    assert type(describe_model(llava).processor).__name__ == "LlavaProcessor"
    renamed = named_processor(tmp_path / "next", llava, "LlavaNextProcessor")
    assert isinstance(describe_model(renamed).processor, transformers.LlavaNextProcessor)
    unknown = named_processor(tmp_path / "unknown", llava, "WrittenByTheModelsOwnCode")
    assert isinstance(describe_model(unknown).processor, transformers.LlavaProcessor)


@pytest.mark.parametrize("kind", ["GitProcessor", "BlipProcessor", "Kosmos2Processor"])
def test_a_processor_without_a_token_for_images_is_refused(llava, tmp_path, kind):
    with pytest.raises(ModelError, match=rf"\({kind}\) has no token for an image"):
        describe_model(named_processor(tmp_path / "model", llava, kind))


def test_a_processor_that_needs_torchvision_is_not_replaced_by_another(llava, tmp_path):
    pixtral = named_processor(tmp_path / "pixtral", llava, "PixtralProcessor")
    if importlib.util.find_spec("torchvision"):
        assert isinstance(describe_model(pixtral).processor, transformers.PixtralProcessor)
        return
    with pytest.raises(ModelError, match=r"names the processor PixtralProcessor.*needs torchvision.*Install"):
        describe_model(pixtral)


@pytest.mark.parametrize("kind", ["Llama4ImageProcessor", "Cohere2VisionImageProcessor", "Kimi_K25ImageProcessor"])
def test_installing_torchvision_is_not_advised_in_vain(llava, tmp_path, kind):
    folder = named_processor(tmp_path / "model", llava, "LlavaProcessor", images=kind)
    with pytest.raises(ModelError, match=f"{kind}.* cannot run with PIL.*never uses torchvision for images"):
        describe_model(folder)
