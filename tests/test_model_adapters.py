"""Adapters of peft and ms-swift: merged exactly, known by content, refused with a sentence where they do not fit."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from grace_store.base.errors import MissingExtra, ModelError, SettingError, UnsafeModel
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.model.load import adapter_folder
from grace_store.model.load.adapter_folder import CHECKED, IMMATERIAL, UNDERSTOOD, find_adapters, open_adapter
from grace_store.model.load.adapters import merge, read_adapter
from grace_store.model.load.weights import describe_model, load, skeleton_of
from grace_store.model.open_model import open_extractor, resolve_spec
from grace_store.run.open_signal import name_signals
from tests.adapters import (
    IDS,
    SWIFT_REGEX,
    change_config,
    change_tensors,
    make_adapter,
    our_logits,
    peft_model,
    their_logits,
)
from tests.autograd import extract, relative, text_truth
from tests.tiny_models import tiny_text_model, tiny_tokenizer
from tests.tiny_vision_models import tiny_vision_model
from tests.traces import TEXTS

OPTIONS = RunOptions(device="cpu", threads=1)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tiny_text_model("llama", tmp_path_factory.mktemp("base") / "llama")


@pytest.fixture(scope="module")
def plain(base, tmp_path_factory) -> Path:
    return make_adapter(base, tmp_path_factory.mktemp("adapter") / "checkpoint-7")


@pytest.fixture
def adapter(plain, tmp_path) -> Path:
    return shutil.copytree(plain, tmp_path / "checkpoint-7")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {r"layers\.1\.mlp\.up_proj": 32}},
        {"target_modules": "all-linear"},
        {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["norm"]},
        {"target_modules": ["q_proj", "lm_head"], "save_embedding_layers": "auto"},
        {"init_lora_weights": False},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "orthogonal"},
        {"init_lora_weights": "eva"},
        {"init_lora_weights": "mica"},
    ],
    ids=lambda settings: "-".join(f"{key}={value}" for key, value in settings.items()) or "plain",
)
def test_merged_gives_the_logits_of_peft(base, tmp_path, settings):
    folder = make_adapter(base, tmp_path / "a", **settings)
    expected = their_logits(base, folder)
    torch.testing.assert_close(our_logits(base, folder), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        untouched = load(base, "float32", "sdpa", "cpu", 1).model(input_ids=IDS).logits
    assert float((untouched - expected).abs().max()) > 0.05


def test_conv1d_and_tied_heads_merge(tmp_path):
    gpt2 = tiny_text_model("gpt2", tmp_path / "gpt2")
    folder = make_adapter(gpt2, tmp_path / "a", target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    torch.testing.assert_close(our_logits(gpt2, folder), their_logits(gpt2, folder), rtol=1e-4, atol=1e-4)
    tied = tiny_text_model("qwen2", tmp_path / "qwen2")
    folder = make_adapter(tied, tmp_path / "b")
    torch.testing.assert_close(our_logits(tied, folder), their_logits(tied, folder), rtol=1e-4, atol=1e-4)


def test_a_bfloat16_model_gets_the_sum_rounded_once(base, plain):
    model = merge(read_adapter(plain), load(base, "bfloat16", "sdpa", "cpu", 1).model)
    weights = load_file(base / "model.safetensors")
    lora = read_adapter(plain).lora
    for name, parts in lora.items():
        exact = weights[f"{name}.weight"].bfloat16().float() + 2.0 * (parts["lora_B"] @ parts["lora_A"])
        found = model.get_submodule(name).weight
        assert found.dtype == torch.bfloat16
        assert (found == exact.bfloat16()).float().mean() > 0.999


def test_the_layout_of_ms_swift_loads(base, adapter):
    """As swift 3.12 leaves it: one regular expression, its own files beside, training state as pickles."""
    before = read_adapter(adapter).digest
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["target_modules"] == SWIFT_REGEX
    change_config(adapter, base_model_name_or_path="/mnt/models/Qwen3-VL-2B-Instruct", lora_dropout=0.05,
                  inference_mode=True, corda_config=None, peft_version="0.18.0")  # fmt: skip
    additional = {"lora_dtype": None, "lorap_lr_ratio": None, "lorap_emb_lr": 1e-06}
    (adapter / "additional_config.json").write_text(json.dumps(additional))
    (adapter / "args.json").write_text(json.dumps({"model": "Qwen/Qwen3-VL-2B-Instruct", "train_type": "lora"}))
    (adapter / "trainer_state.json").write_text("{}")
    for pickled in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        (adapter / pickled).write_bytes(b"never opened")
    assert read_adapter(adapter).digest == before
    torch.testing.assert_close(our_logits(base, adapter), their_logits(base, adapter), rtol=1e-4, atol=1e-4)
    assert find_adapters(adapter.parent) == [adapter]


def test_checkpoints_are_found_below_the_folder_of_the_only_run(tmp_path):
    def make(*parts: str) -> Path:
        folder = tmp_path.joinpath(*parts)
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
        return folder

    late, early = make("output", "v0-20261101", "checkpoint-20"), make("output", "v0-20261101", "checkpoint-9")
    (tmp_path / "output" / "logs").mkdir()
    assert find_adapters(tmp_path / "output") == [early, late]
    make("output", "v1-20261102", "checkpoint-5")
    with pytest.raises(
        SettingError, match=r"checkpoints of several runs: v0-20261101, v1-20261102. Give the folder of one"
    ):
        find_adapters(tmp_path / "output")


@pytest.mark.parametrize("prefix", ["base_model.model.", "", "module.base_model.model."])
def test_prefixes_of_tools_do_not_matter(base, adapter, prefix):
    before = read_adapter(adapter)
    change_tensors(adapter, lambda t: {prefix + k.removeprefix("base_model.model."): v for k, v in t.items()})
    assert read_adapter(adapter).digest == before.digest
    named = {k.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default."): v
             for k, v in load_file(adapter / "adapter_model.safetensors").items()}  # fmt: skip
    save_file(named, adapter / "adapter_model.safetensors")
    assert read_adapter(adapter).digest == before.digest
    merge(read_adapter(adapter), load(base, "float32", "sdpa", "cpu", 1).model)


def test_module_names_of_other_releases_are_found(base, adapter, tmp_path):
    vision = tiny_vision_model("qwen3_vl", tmp_path / "vl")
    regex = r"^(model\.language_model(?=\.).*\.(q_proj|up_proj))$"
    made = make_adapter(vision, tmp_path / "a", images=True, target_modules=regex)
    names = set(read_adapter(made).lora)
    assert all(name.startswith("model.language_model.layers.") for name in names)
    expected = merge(read_adapter(made), load(vision, "float32", "sdpa", "cpu", 1).model).state_dict()
    for old in ("model.", "language_model.model."):
        older = shutil.copytree(made, tmp_path / f"old-{old}")
        change_tensors(older, lambda t, old=old: {k.replace("model.language_model.", old): v for k, v in t.items()})
        found = merge(read_adapter(older), load(vision, "float32", "sdpa", "cpu", 1).model).state_dict()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_pattern_keeps_its_meaning_under_new_names(tmp_path):
    vision = tiny_vision_model("qwen3_vl", tmp_path / "vl")
    made = make_adapter(vision, tmp_path / "a", images=True, target_modules=["q_proj"],
                        alpha_pattern={"model.language_model.layers.0.self_attn.q_proj": 64})  # fmt: skip
    expected = merge(read_adapter(made), load(vision, "float32", "sdpa", "cpu", 1).model).state_dict()
    change_tensors(made, lambda t: {k.replace("model.language_model.", "model."): v for k, v in t.items()})
    change_config(made, alpha_pattern={"model.layers.0.self_attn.q_proj": 64})
    found = merge(read_adapter(made), load(vision, "float32", "sdpa", "cpu", 1).model).state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_identity_is_content_not_place(base, adapter, tmp_path):
    before = resolve_spec(str(base), ExtractSpec(), OPTIONS, adapter=str(adapter))
    assert before.model.adapter is not None
    assert before.model.model_copy(update={"adapter": None}) == describe_model(base).identity
    moved = adapter.rename(tmp_path / "elsewhere")
    change_config(moved, base_model_name_or_path="somewhere else", lora_dropout=0.3, target_modules=["q_proj"])
    assert resolve_spec(str(base), ExtractSpec(), OPTIONS, adapter=str(moved)) == before
    change_config(moved, lora_alpha=9)
    changed = read_adapter(moved).digest
    assert changed != before.model.adapter
    change_tensors(moved, lambda t: {**t, (k := min(t)): t[k] * 1.0001})
    assert read_adapter(moved).digest not in (changed, before.model.adapter)


def test_extraction_with_an_adapter_is_extraction_from_the_merged_folder(base, plain, tmp_path):
    merged = tmp_path / "merged"
    peft_model(base, plain).merge_and_unload().save_pretrained(merged)
    tiny_tokenizer().save_pretrained(merged)
    spec = resolve_spec(str(base), ExtractSpec(), OPTIONS, adapter=str(plain))
    ours = extract(open_extractor(str(base), spec, OPTIONS, adapter=str(plain)), TEXTS)
    whole = resolve_spec(str(merged), ExtractSpec(), OPTIONS)
    theirs = extract(open_extractor(str(merged), whole, OPTIONS), TEXTS)
    np.testing.assert_allclose(ours.segment_vector, theirs.segment_vector, rtol=1e-3, atol=1e-5)
    with pytest.raises(ModelError, match="not the model that this signal was planned with: adapter"):
        open_extractor(str(base), spec, OPTIONS)


@pytest.mark.parametrize(
    ("breakage", "error", "message"),
    [
        (lambda f: shutil.rmtree(f), ModelError, "no adapter at"),
        (lambda f: (f / "adapter_config.json").unlink(), ModelError, r"no adapter_config\.json"),
        (lambda f: (f / "adapter_config.json").write_text("{"), ModelError, "not valid JSON"),
        (lambda f: (f / "adapter_config.json").write_text("[]"), ModelError, "expected an object"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), ModelError, r"no adapter_model\.safetensors"),
        (lambda f: (f / "adapter_model.safetensors").rename(f / "adapter_model.bin"), UnsafeModel, "pickle"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"no"), ModelError, "cannot be read"),
        (lambda f: change_config(f, peft_type="VERA"), ModelError, "of type VERA"),
        (lambda f: change_config(f, bias="all"), ModelError, "also trained biases"),
        (lambda f: change_config(f, alora_invocation_tokens=[1]), ModelError, "uses alora_invocation_tokens"),
        (lambda f: change_config(f, invented_later=True), ModelError, "uses invented_later"),
        (lambda f: change_config(f, r=16), ModelError, "has rank 4, but the adapter's configuration says 16"),
        (lambda f: change_config(f, use_dora=True), ModelError, "lacks .*lora_magnitude_vector"),
        (lambda f: change_tensors(f, lambda t: {k: v for k, v in t.items() if "k_proj.lora_B" not in k}), ModelError,
         "lacks lora_A or lora_B"),
        (lambda f: change_tensors(f, lambda t: {**t, "lm_head.weight": torch.ones(2)}), ModelError, "no tensors of"),
        (lambda f: change_tensors(f, lambda t: {k: v[0] for k, v in t.items()}), ModelError, "not LoRA on a linear"),
        (lambda f: change_config(f, r="4"), ModelError, "is damaged"),
        (lambda f: change_config(f, lora_alpha=None), ModelError, "is damaged"),
        (lambda f: change_config(f, rank_pattern={"(": 4}), ModelError, "is damaged"),
        (lambda f: change_config(f, alpha_pattern={"q_proj": -1}), ModelError, "is damaged"),
        (lambda f: change_config(f, modules_to_save="lm_head"), ModelError, "is damaged"),
        (lambda f: change_tensors(f, lambda t: {**t, "e.lora_embedding_A": torch.ones(2)}), ModelError, "not LoRA on"),
        (lambda f: change_tensors(f, lambda t: {k: v * float("nan") for k, v in t.items()}), ModelError, "not finite"),
        (lambda f: change_tensors(f, lambda t: {"x": torch.ones(1)}), ModelError, "no LoRA tensors"),
    ],
)  # fmt: skip
def test_unfit_adapters(base, adapter, breakage, error, message):
    breakage(adapter)
    with pytest.raises(error, match=message):
        resolve_spec(str(base), ExtractSpec(), OPTIONS, adapter=str(adapter))


def test_a_whole_model_is_no_adapter(base):
    with pytest.raises(ModelError, match="whole model, not an adapter"):
        open_adapter(base)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (
            "llama",
            {"intermediate_size": 72},
            r"6 layers have another shape .*down_proj is 48 x 72, the adapter's layer is 48 x 64",
        ),
        ("llama", {"num_hidden_layers": 1}, r"the model has no model\.layers\.1\..* and 4 more"),
        ("gpt2", {}, "does not fit this model"),
    ],
)
def test_an_adapter_of_another_base_is_refused(tmp_path, adapter, family, changes, message):
    other = tiny_text_model(family, tmp_path / "other", **changes)
    change_config(adapter, base_model_name_or_path="the/right-one")
    with pytest.raises(ModelError, match=f"{message}.*made for the/right-one"):
        resolve_spec(str(other), ExtractSpec(), OPTIONS, adapter=str(adapter))


# ---------------------------------------------------------------- adapters that change more than they hold

BASE_CHANGING = ["pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "lora-ga", "PiSSA", "invented later"]


@pytest.mark.parametrize("initialisation", BASE_CHANGING)
def test_only_what_is_known_to_leave_the_base_alone_is_taken(base, adapter, initialisation):
    change_config(adapter, init_lora_weights=initialisation)
    message = rf"init_lora_weights={initialisation}\. .*weights of the base.*converted/default of the checkpoint"
    with pytest.raises(ModelError, match=message):
        resolve_spec(str(base), ExtractSpec(), OPTIONS, adapter=str(adapter))


@pytest.mark.parametrize("initialisation", ["pissa", "pissa_niter_4", "olora"])
@pytest.mark.filterwarnings("ignore:.*changes the base weights of the model")
def test_an_adapter_that_changed_its_base_is_read_from_its_conversion(base, tmp_path, initialisation):
    """As ms-swift trains it: the adapter's beginning is kept, and held against its end when that is saved."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"], "task_type": "CAUSAL_LM"}
    adapted = get_peft_model(model, LoraConfig(**settings, init_lora_weights=initialisation))
    adapted.peft_config["default"].init_lora_weights = True
    adapted.save_pretrained(tmp_path / "initial_model")
    adapted.peft_config["default"].init_lora_weights = initialisation
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
        expected = adapted.eval()(input_ids=IDS).logits
    folder = tmp_path / "checkpoint-1"
    adapted.save_pretrained(folder)
    converted = folder / "converted" / "default"
    # Converting changes the model's settings, so it comes last.
    adapted.save_pretrained(converted, path_initial_model_for_weight_conversion=str(tmp_path / "initial_model"))
    with pytest.raises(ModelError, match=r"Give .*checkpoint-1/converted/default as --adapter"):
        read_adapter(folder)
    torch.testing.assert_close(our_logits(base, converted), expected, rtol=1e-4, atol=1e-4)
    # The beginning is saved as plain LoRA, but it is right only on the changed base.
    message = r"initial_model is the beginning of the training beside it.* Give .*checkpoint-1/converted/default as "
    with pytest.raises(ModelError, match=message):
        read_adapter(tmp_path / "initial_model")
    (tmp_path / "initial_model").rename(tmp_path / "start")
    with pytest.raises(ModelError, match=r"start holds an adapter before its training.* Give .*checkpoint-1/converted"):
        read_adapter(tmp_path / "start")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_beginnings_with_orthogonal_columns_are_refused_and_trained_ones_are_not(adapter, dtype):
    """As CorDA, LoftQ and LoRA-GA begin: B is U S of a decomposition, and saved with plain settings."""

    def begin(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = {}
        for name, tensor in tensors.items():
            left, sizes, _ = torch.linalg.svd(tensor, full_matrices=False)
            made[name] = ((left * sizes) if "lora_B" in name else tensor).to(dtype).contiguous()
        return made

    read_adapter(adapter)
    change_tensors(adapter, begin)
    with pytest.raises(ModelError, match=r"before its training.*converted/default of the checkpoint"):
        read_adapter(adapter)
    # One layer that was trained is enough to see a training.
    change_tensors(adapter, lambda tensors: tensors | {(last := max(tensors)): tensors[last] + tensors[last].flip(1)})
    read_adapter(adapter)


def test_an_adapter_whose_training_changed_one_column_of_each_layer_is_taken(adapter):
    def keep_first(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * (torch.arange(tensor.shape[1]) == 0) if "lora_B" in name else tensor

    change_tensors(adapter, lambda tensors: {name: keep_first(name, tensor) for name, tensor in tensors.items()})
    read_adapter(adapter)


def test_an_adapter_that_does_nothing_yet_is_taken(adapter):
    zero = {"lora_B": 0.0}
    change_tensors(
        adapter, lambda tensors: {name: each * zero.get(name.split(".")[-2], 1.0) for name, each in tensors.items()}
    )
    read_adapter(adapter)


def test_every_setting_of_peft_is_either_known_or_refused(adapter):
    known = {*UNDERSTOOD, *CHECKED, *IMMATERIAL}
    fields = {field.name for field in dataclasses.fields(LoraConfig)}
    assert {*UNDERSTOOD, *CHECKED} <= fields
    strange = sorted(fields - known)
    assert {"lora_bias", "trainable_token_indices", "layer_replication", "target_parameters"} <= {*strange}
    before = json.loads((adapter / "adapter_config.json").read_text())
    for name in strange:
        for value in ([1], {}) if name.endswith("_config") else ([1],):
            change_config(adapter, **{**before, name: value})
            with pytest.raises(ModelError, match=f"uses {name}\\."):
                open_adapter(adapter)


@pytest.mark.parametrize(
    "settings",
    [
        {"modules_to_save": ["norm"]},
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens", "lm_head"]},
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        {"target_modules": ["lm_head", "q_proj"]},
        {"target_modules": ["lm_head", "q_proj"], "save_embedding_layers": "auto"},
    ],
    ids=lambda settings: "-".join(f"{key}={value}" for key, value in settings.items()),
)
def test_one_of_two_tied_weights_changes_alone(tmp_path, settings):
    tied = tiny_text_model("qwen2", tmp_path / "qwen2")
    folder = make_adapter(tied, tmp_path / "a", **settings)
    torch.testing.assert_close(our_logits(tied, folder), their_logits(tied, folder), rtol=1e-4, atol=1e-4)
    spec = resolve_spec(str(tied), ExtractSpec(), OPTIONS, adapter=str(folder))
    extractor = open_extractor(str(tied), spec, OPTIONS, adapter=str(folder))
    expected, _ = text_truth(peft_model(tied, folder).get_base_model(), extractor, TEXTS[0])
    assert relative(extract(extractor, TEXTS[:1]).segment_vector, expected) < 1e-5


def test_weights_that_nobody_trained_whole_are_refused(base, adapter):
    change_tensors(adapter, lambda t: {**t, "base_model.model.model.norm.weight": torch.ones(48)})
    with pytest.raises(ModelError, match=r"holds model\.norm\.weight, but modules_to_save does not name"):
        resolve_spec(str(base), ExtractSpec(), OPTIONS, adapter=str(adapter))


def test_peft_is_an_extra(base, adapter, monkeypatch):
    monkeypatch.setattr(adapter_folder.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"extra `warmup`"):
        resolve_spec(str(base), ExtractSpec(), OPTIONS, adapter=str(adapter))


def test_signals_are_named_for_their_adapters(plain, tmp_path):
    for step in (100, 20, 3):
        shutil.copytree(plain, tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-9").mkdir()
    checkpoints = [str(tmp_path / f"checkpoint-{step}") for step in (3, 20, 100)]
    assert name_signals([], [str(tmp_path)]) == [(Path(path).name, path) for path in checkpoints]
    assert name_signals(["warmup-20"], checkpoints[1:2]) == [("warmup-20", checkpoints[1])]
    assert name_signals([], []) == [("base", None)]
    assert name_signals(["mine"], []) == [("mine", None)]
    with pytest.raises(SettingError, match="1 --signal name for 3 adapters"):
        name_signals(["a"], [str(tmp_path)])
    with pytest.raises(SettingError, match="Several adapters would be written as signal 'checkpoint-3'"):
        name_signals([], [checkpoints[0], checkpoints[0]])


def test_the_skeleton_is_the_model_without_weights(base):
    described = describe_model(base)
    skeleton = skeleton_of(described.folder, described.config)
    assert {p.device.type for p in skeleton.parameters()} == {"meta"}
