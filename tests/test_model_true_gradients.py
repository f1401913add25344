"""Inner products of whole gradients, against a plain backward pass of the model's own loss for every segment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from peft import PeftModel

from grace_store.base.errors import ModelError
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.model.gradients.true_gradients import LORA, REPRESENTATION, TrueGradients, open_gradients
from grace_store.model.load.adapters import read_adapter
from grace_store.model.load.resolve_spec import load_planned, resolve_spec
from grace_store.model.unit_extractor import ProxyExtractor
from tests.adapters import make_adapter
from tests.tiny_models import tiny_text_model
from tests.traces import TEXTS, make_sample

OPTIONS = RunOptions(device="cpu", threads=1)
SAMPLE = TEXTS[2]


def plain_gradients(model: torch.nn.Module, extractor: ProxyExtractor, parameters: list[torch.nn.Parameter]):
    """Return the gradient of every segment's mean loss over the parameters, (segments, numbers)."""
    tokens = extractor.prepare([SAMPLE]).tokens[0]
    ids = torch.from_numpy(tokens.ids).unsqueeze(0)
    for parameter in model.parameters():
        parameter.requires_grad_(any(parameter is each for each in parameters))
    rows = []
    for segment in range(tokens.num_segments):
        logits = model(input_ids=ids, use_cache=False).logits[0].float()
        positions = torch.from_numpy(np.flatnonzero(tokens.segment == segment))
        loss = torch.nn.functional.cross_entropy(logits[positions - 1], ids[0, positions])
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        rows.append(torch.cat([each.flatten() for each in found if each is not None]))
    return torch.stack(rows).double()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "granite"])
def test_inner_products_are_those_of_a_plain_backward_pass(tmp_path: Path, family: str) -> None:
    folder = str(tiny_text_model(family, tmp_path / family))
    spec = resolve_spec(folder, ExtractSpec(), OPTIONS)
    _, loaded = load_planned(folder, spec, OPTIONS, None)
    extractor = ProxyExtractor(loaded, spec, OPTIONS)
    found = TrueGradients(loaded, extractor, num_layer_groups=2).grams(SAMPLE)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    # So that a shared weight counts as embedding only, the head gets a copy of its own.
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    inside = [p for name, p in model.named_parameters() if all(p is not h for h in head.parameters())]
    truth = plain_gradients(model, extractor, inside)
    expected = (truth @ truth.T).numpy()
    assert found is not None
    np.testing.assert_allclose(found[REPRESENTATION], expected, rtol=2e-4, atol=1e-5 * np.abs(expected).max())
    layers = [gram for space, gram in found.items() if space.startswith("layers")]
    assert layers
    assert sum(np.trace(gram) for gram in layers) < np.trace(expected), "embeddings and norms are in no layer"


def test_layer_groups_are_parts_of_the_whole(tmp_path: Path) -> None:
    folder = str(tiny_text_model("llama", tmp_path / "llama"))
    spec = resolve_spec(folder, ExtractSpec(), OPTIONS)
    _, loaded = load_planned(folder, spec, OPTIONS, None)
    extractor = ProxyExtractor(loaded, spec, OPTIONS)
    gradients = TrueGradients(loaded, extractor, num_layer_groups=99)
    names = [name for name, _ in loaded.model.named_parameters() if ".layers.1." in name]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    truth = plain_gradients(model, extractor, [dict(model.named_parameters())[name] for name in names])
    found = gradients.grams(SAMPLE)
    assert found is not None
    np.testing.assert_allclose(found["layers 1-1"], (truth @ truth.T).numpy(), rtol=2e-4, atol=1e-7)
    assert gradients.spaces[:2] == [REPRESENTATION, "layers 0-0"]


@pytest.mark.parametrize(("family", "settings"), [
    ("llama", {}),
    ("llama", {"use_rslora": True, "rank_pattern": {"q_proj": 2}}),
    ("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
])  # fmt: skip
def test_loras_gradients_follow_from_those_of_the_merged_weights(tmp_path: Path, family: str, settings: dict) -> None:
    base = tiny_text_model(family, tmp_path / family)
    adapter = str(make_adapter(base, tmp_path / "adapter", **settings))
    spec = resolve_spec(str(base), ExtractSpec(), OPTIONS, adapter=adapter)
    gradients = open_gradients(str(base), spec, OPTIONS, adapter=adapter)
    found = gradients.grams(SAMPLE)
    assert gradients.spaces == [REPRESENTATION, LORA]
    model = PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    lora = [parameter for name, parameter in model.named_parameters() if "lora_" in name]
    truth = plain_gradients(model, gradients._extractor, lora)
    expected = (truth @ truth.T).numpy()
    assert found is not None
    np.testing.assert_allclose(found[LORA], expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())
    alone = open_gradients(str(base), spec, OPTIONS, adapter=adapter, lora=False)
    assert alone.spaces == [REPRESENTATION]


def test_memory_decides_the_groups_and_nothing_else(tmp_path: Path) -> None:
    folder = str(tiny_text_model("llama", tmp_path / "llama"))
    spec = resolve_spec(folder, ExtractSpec(), OPTIONS)
    _, loaded = load_planned(folder, spec, OPTIONS, None)
    extractor = ProxyExtractor(loaded, spec, OPTIONS)
    together = TrueGradients(loaded, extractor).grams(SAMPLE)
    one_by_one = TrueGradients(loaded, extractor, gradient_bytes=1).grams(SAMPLE)
    assert together is not None
    assert one_by_one is not None
    np.testing.assert_allclose(together[REPRESENTATION], one_by_one[REPRESENTATION], rtol=1e-5)


def test_what_cannot_be_used_is_said(tmp_path: Path) -> None:
    base = tiny_text_model("llama", tmp_path / "llama")
    spec = resolve_spec(str(base), ExtractSpec(max_length=4), OPTIONS)
    assert open_gradients(str(base), spec, OPTIONS).grams(make_sample("one two three four\n", "five")) is None
    dora = str(make_adapter(base, tmp_path / "dora", use_dora=True))
    assert read_adapter(dora).folder.config["use_dora"]
    spec = resolve_spec(str(base), ExtractSpec(), OPTIONS, adapter=dora)
    with pytest.raises(ModelError, match=r"is DoRA\. Gradients of DoRA's parameters are not supported"):
        open_gradients(str(base), spec, OPTIONS, adapter=dora)
    head = str(make_adapter(base, tmp_path / "head", target_modules=["lm_head", "q_proj"]))
    spec = resolve_spec(str(base), ExtractSpec(), OPTIONS, adapter=head)
    with pytest.raises(ModelError, match=r"also adapts the output head\. Gradients of the head's parameters are not"):
        open_gradients(str(base), spec, OPTIONS, adapter=head)
    assert open_gradients(str(base), spec, OPTIONS, adapter=head, lora=False).spaces == [REPRESENTATION]
