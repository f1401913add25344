"""Projected gradients against autograd of the whole model, and what they must not depend on."""

from __future__ import annotations

import itertools
import json
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import grace_store.model.gradients.projection as projected_rows
import grace_store.model.gradients.sample_gradients as sample_gradients
from grace_store.base.errors import ModelError, OutOfMemory, SettingError
from grace_store.base.settings import ExtractSpec, GradientSpec
from grace_store.base.states import Reason, SampleSignals, UnitSignals
from grace_store.model.gradients.gradient_extractor import GradientExtractor
from grace_store.model.open_model import open_extractor, resolve_spec
from grace_store.train.warmup import warmup
from tests import adapters
from tests.gradients import MATRICES, ONE_THREAD, TrueGradients, make_adapter, open_gradient
from tests.tiny_models import tiny_text_model
from tests.tiny_vision_models import tiny_vision_model
from tests.traces import TEXTS, WITH_PICTURES, make_sample
from tests.warmups import make_job

TEXT_FAMILIES = ["qwen2", "llama", "gemma2", "gpt2", "qwen3_moe", "bloom", "opt"]
"""Tied embeddings, grouped queries, soft-capped logits, Conv1D, experts, and two with ways of their own."""
VISION_FAMILIES = ["qwen2_5_vl", "qwen3_vl", "llava", "gemma3"]
DIMENSION = 12


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function from a family to its folder and that of an adapter, made once."""
    root = tmp_path_factory.mktemp("gradient-models")

    @cache
    def make(family: str) -> tuple[Path, Path]:
        save = tiny_vision_model if family in VISION_FAMILIES else tiny_text_model
        model = save(family, root / family)
        return model, make_adapter(model, root / f"{family}-adapter")

    return make


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> tuple[Path, Path]:
    """A model and a checkpoint after real steps of AdamW."""
    folder = tmp_path_factory.mktemp("warmed")
    job = make_job(folder)
    warmup(job)
    return Path(job.model), folder / "warmup" / "checkpoint-3"


def per_sample(extractor: GradientExtractor, samples=TEXTS) -> SampleSignals:
    signals = extractor.compute(extractor.prepare(samples)).result()
    assert isinstance(signals, SampleSignals)
    return signals


def per_segment(extractor: GradientExtractor, samples=TEXTS) -> UnitSignals:
    signals = extractor.compute(extractor.prepare(samples)).result()
    assert isinstance(signals, UnitSignals)
    return signals


def worst(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.max(np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)))


# ---------------------------------------------------------------- what they are


def check_against_autograd(models, family: str, samples, projection: str) -> None:
    model, adapter = models(family)
    wishes = {"dimension": DIMENSION, "seed": 5, "projection": projection}
    samples_made = per_sample(made := open_gradient(model, adapter, normalise=False, **wishes), samples)
    segments_made = per_segment(open_gradient(model, adapter, per="segment", **wishes), samples)
    assert samples_made.set_aside == segments_made.set_aside == {}
    truth = TrueGradients(model, adapter, made)
    matrix = MATRICES[projection](truth.num_coordinates, DIMENSION, 5)
    whole, segments = zip(*(truth.of(sample) for sample in samples), strict=True)
    assert worst(samples_made.sample_vector, np.stack(whole) @ matrix) < 2e-4
    assert worst(segments_made.segment_vector, np.concatenate(segments) @ matrix) < 2e-4
    np.testing.assert_allclose(samples_made.sample_norm, np.linalg.norm(samples_made.sample_vector, axis=1), rtol=1e-5)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_vectors_are_the_projected_gradients_of_the_whole_model(models, family):
    check_against_autograd(models, family, TEXTS, "sparse" if family == "gpt2" else "rademacher")


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_vectors_of_samples_with_images_are_those_of_the_whole_model(models, family):
    check_against_autograd(models, family, WITH_PICTURES, "sparse")


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_an_adapter_on_the_head_has_gradients_there_too(tmp_path, family):
    """Also where the head is tied to the embeddings, which stay as they are."""
    model = tiny_text_model(family, tmp_path / family)
    adapter = adapters.make_adapter(model, tmp_path / "a", target_modules=["lm_head", "q_proj"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of the tie
        check_against_autograd(lambda _: (model, adapter), family, TEXTS, "sparse")


def test_projected_inner_products_estimate_those_of_whole_gradients(models):
    """Over seeds, without bias and with the variance of a Johnson-Lindenstrauss projection."""
    model, adapter = models("llama")
    truth = TrueGradients(model, adapter, open_gradient(model, adapter, dimension=8))
    gradients = np.stack([truth.of(sample)[0] for sample in TEXTS])
    exact = gradients @ gradients.T
    bound = np.sqrt((np.outer(np.diag(exact), np.diag(exact)) + exact**2) / 512)
    errors = []
    for seed in range(6):
        vectors = per_sample(open_gradient(model, adapter, dimension=512, seed=seed, normalise=False)).sample_vector
        errors.append((vectors.astype(np.float64) @ vectors.T - exact) / bound)
    assert np.abs(errors).max() < 4.5
    assert np.abs(np.mean(errors, axis=0)).max() < 4.5 / np.sqrt(len(errors))


def test_statistics_and_norms_are_kept_beside_the_vectors(models):
    model, adapter = models("qwen2")
    proxy = open_extractor(
        str(model), resolve_spec(str(model), ExtractSpec(), ONE_THREAD, adapter=str(adapter)), ONE_THREAD,
        adapter=str(adapter),
    )  # fmt: skip
    merged = per_segment(proxy)
    segments = per_segment(open_gradient(model, adapter, per="segment", dimension=8))
    for name in ("segment_loss", "segment_entropy", "segment_hit_rate", "segment_num_tokens"):
        np.testing.assert_allclose(getattr(segments, name), getattr(merged, name), rtol=1e-4, atol=1e-5)
    normalised = per_sample(open_gradient(model, adapter, dimension=8))
    plain = per_sample(open_gradient(model, adapter, dimension=8, normalise=False))
    np.testing.assert_allclose(np.linalg.norm(normalised.sample_vector, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(
        normalised.sample_vector * normalised.sample_norm[:, None], plain.sample_vector, rtol=1e-5, atol=1e-6
    )
    first = 0
    for i, sample in enumerate(TEXTS):
        rows = slice(first, first := first + sample.num_segments)
        tokens = merged.segment_num_tokens[rows]
        assert normalised.sample_num_tokens[i] == tokens.sum()
        np.testing.assert_allclose(
            normalised.sample_loss[i], np.average(merged.segment_loss[rows], weights=tokens), 1e-4
        )
    assert normalised.num_tokens == merged.num_tokens


# ---------------------------------------------------------------- Adam


def raw_moments(checkpoint: Path, truth: TrueGradients) -> list[np.ndarray]:
    """Return both moments from the file itself, in the order of the coordinates."""
    stored = load_file(checkpoint / "optimizer.safetensors")
    return [
        np.concatenate([stored[f"{m}.base_model.model.{name}.weight"].flatten().double() for name in truth.parameters])
        for m in ("exp_avg", "exp_avg_sq")
    ]


@pytest.mark.parametrize("bias_correction", [False, True])
def test_adam_features_are_those_computed_by_hand_from_the_optimisers_state(checkpoint, bias_correction):
    model, adapter = checkpoint
    extractor = open_gradient(
        model, adapter, preconditioner="adam", bias_correction=bias_correction, dimension=DIMENSION, normalise=False
    )
    truth = TrueGradients(model, adapter, extractor)
    m, v = raw_moments(adapter, truth)
    with safe_open(adapter / "optimizer.safetensors", framework="pt") as stored:
        adamw = json.loads(stored.metadata()["adamw"])
    (beta1, beta2), epsilon, step = adamw["betas"], adamw["eps"], adamw["step"]
    # Real moments of real steps.
    assert (v > 0).all()
    assert (m != 0).any()
    features = []
    for sample in TEXTS:
        g = truth.of(sample)[0]
        first, second = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        if bias_correction:
            first, second = first / (1 - beta1 ** (step + 1)), second / (1 - beta2 ** (step + 1))
        features.append(first / np.sqrt(second + epsilon))
    expected = np.stack(features) @ MATRICES["rademacher"](truth.num_coordinates, DIMENSION, 0)
    assert worst(per_sample(extractor).sample_vector, expected) < 1e-3


def test_with_bias_correction_it_is_the_step_that_torchs_adamw_takes(checkpoint, tmp_path):
    """With an epsilon so small that it does not matter where it is put."""
    model, adapter = checkpoint
    small = tmp_path / "small"
    small.mkdir()
    for file in adapter.iterdir():
        (small / file.name).write_bytes(file.read_bytes())
    rewrite_moments(small, eps=1e-30)
    extractor = open_gradient(
        model, small, preconditioner="adam", bias_correction=True, dimension=DIMENSION, normalise=False
    )
    truth = TrueGradients(model, small, extractor)
    stored = load_file(adapter / "optimizer.safetensors")
    optimizer = torch.optim.AdamW(truth.parameters.values(), lr=1e-3, betas=(0.9, 0.999), eps=1e-30, weight_decay=0.0)
    g = torch.from_numpy(truth.of(TEXTS[0])[0]).float()
    before = torch.cat([parameter.detach().flatten().double() for parameter in truth.parameters.values()])
    start = 0
    for name, parameter in truth.parameters.items():
        parameter.grad = g[start : (start := start + parameter.numel())].view_as(parameter)
        key = f"base_model.model.{name}.weight"
        optimizer.state[parameter] = {
            "step": torch.tensor(3.0), "exp_avg": stored[f"exp_avg.{key}"], "exp_avg_sq": stored[f"exp_avg_sq.{key}"],
        }  # fmt: skip
    optimizer.step()
    after = torch.cat([parameter.detach().flatten().double() for parameter in truth.parameters.values()])
    expected = ((before - after) / 1e-3).numpy()[None] @ MATRICES["rademacher"](truth.num_coordinates, DIMENSION, 0)
    assert worst(per_sample(extractor, TEXTS[:1]).sample_vector, expected) < 1e-2


def rewrite_moments(folder: Path, **changes) -> None:
    """Write optimizer.safetensors again with other settings, and with its first moments times a factor."""
    tensors = load_file(folder / "optimizer.safetensors")
    factor = changes.pop("factor", 1.0)
    tensors = {name: tensor * (factor if name.startswith("exp_avg.") else 1.0) for name, tensor in tensors.items()}
    adamw = {"step": 3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "learning_rate": 1e-3} | changes
    save_file(tensors, folder / "optimizer.safetensors", metadata={"adamw": json.dumps(adamw)})


def test_moments_are_never_updated(checkpoint):
    extractor = open_gradient(*checkpoint, preconditioner="adam", dimension=DIMENSION)
    once, again = per_sample(extractor), per_sample(extractor)
    np.testing.assert_array_equal(once.sample_vector, again.sample_vector)


def test_moments_that_are_not_there_are_asked_for(models, tmp_path):
    model, adapter = models("llama")
    with pytest.raises(
        SettingError, match=r"has no optimizer\.safetensors\. Give a checkpoint of `grace-store warmup`"
    ):
        open_gradient(model, adapter, preconditioner="adam")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    for file in adapter.iterdir():
        (pickled / file.name).write_bytes(file.read_bytes())
    (pickled / "optimizer.pt").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(SettingError, match=r"Its optimizer\.pt is a pickle\. A pickle can run any code"):
        open_gradient(model, pickled, preconditioner="adam")
    (pickled / "optimizer.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="is not the optimiser state of a warm-up"):
        open_gradient(model, pickled, preconditioner="adam")


def test_moments_of_another_adapter_are_refused(checkpoint, models, tmp_path):
    _, warmed = checkpoint
    model, adapter = models("llama")
    for file in adapter.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "optimizer.safetensors").write_bytes((warmed / "optimizer.safetensors").read_bytes())
    with pytest.raises(ModelError, match="The file belongs to another adapter"):
        open_gradient(model, tmp_path, preconditioner="adam")


# ---------------------------------------------------------------- what they must not depend on


def test_a_vector_does_not_depend_on_order_batch_or_padding(models):
    model, adapter = models("qwen2")
    for take, per in ((per_sample, "sample"), (per_segment, "segment")):
        name = f"{per}_vector"
        whole = take(open_gradient(model, adapter, per=per, dimension=64))
        for batch_tokens in (1, 60):
            small = ExtractSpec(batch_tokens=batch_tokens)
            found = take(open_gradient(model, adapter, small, per=per, dimension=64))
            np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=1e-3, atol=2e-5)
        packed = take(open_gradient(model, adapter, ExtractSpec(packing=True), per=per, dimension=64))
        np.testing.assert_allclose(getattr(packed, name), getattr(whole, name), rtol=1e-3, atol=2e-5)
    extractor = open_gradient(model, adapter, dimension=64)
    expected = per_sample(extractor).sample_vector
    for order in itertools.permutations(range(len(TEXTS))):
        found = per_sample(extractor, [TEXTS[i] for i in order]).sample_vector
        np.testing.assert_allclose(found, expected[list(order)], rtol=1e-3, atol=2e-5)


def test_nothing_is_left_behind_between_units(models):
    extractor = open_gradient(*models("qwen2"), dimension=64)
    before = per_sample(extractor, TEXTS[:1]).sample_vector
    per_sample(extractor, TEXTS[1:])
    np.testing.assert_array_equal(per_sample(extractor, TEXTS[:1]).sample_vector, before)


def test_gradients_that_wait_together_or_alone_give_the_same(models, monkeypatch):
    model, adapter = models("qwen2")
    for take, per in ((per_sample, "sample"), (per_segment, "segment")):
        whole = take(open_gradient(model, adapter, per=per, dimension=64))
        with monkeypatch.context() as patched:
            patched.setattr(projected_rows, "BUFFER_BYTES", 1)
            found = take(open_gradient(model, adapter, per=per, dimension=64))
        np.testing.assert_allclose(
            getattr(found, f"{per}_vector"), getattr(whole, f"{per}_vector"), rtol=1e-3, atol=2e-5
        )


def test_both_ways_of_making_gradients_give_the_same(models, monkeypatch):
    model, adapter = models("llama")
    recorded = open_gradient(model, adapter, per="segment", dimension=64)
    assert recorded.is_recorded
    monkeypatch.setattr(sample_gradients, "_is_exact", lambda *_: False)
    plain = open_gradient(model, adapter, per="segment", dimension=64)
    assert not plain.is_recorded
    assert {len(batch.members) for batch in plain.prepare(TEXTS).batches} == {1}
    one, other = per_segment(recorded), per_segment(plain)
    for name in ("segment_vector", "segment_loss", "segment_entropy", "segment_hit_rate"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-3, atol=1e-5)


def test_a_model_in_bfloat16_gives_nearly_the_same_by_both_ways(models, monkeypatch):
    model, adapter = models("llama")
    exact = per_sample(open_gradient(model, adapter, dimension=64))
    quick = open_gradient(model, adapter, ExtractSpec(dtype="bfloat16"), dimension=64)
    assert quick.is_recorded
    monkeypatch.setattr(sample_gradients, "_is_exact", lambda *_: False)
    plain = open_gradient(model, adapter, ExtractSpec(dtype="bfloat16"), dimension=64)
    assert not plain.is_recorded
    for rounded in (per_sample(quick), per_sample(plain)):
        assert (rounded.sample_vector * exact.sample_vector).sum(axis=1).min() > 0.99
        np.testing.assert_allclose(rounded.sample_loss, exact.sample_loss, rtol=0.05)


# ---------------------------------------------------------------- models that do not fit the quick way


def adapter_on(model: Path, folder: Path, targets: str, **settings) -> Path:
    """Save a random adapter on the modules that a regular expression names."""
    from peft import LoraConfig, get_peft_model

    from grace_store.model.load.weights import load

    config = LoraConfig(r=2, lora_alpha=4, target_modules=targets, init_lora_weights=False, **settings)
    torch.manual_seed(0)
    adapted = get_peft_model(load(model, "float32", "eager", "cpu", 1).model, config)
    adapted.save_pretrained(folder, save_embedding_layers=False)
    return folder


@pytest.mark.parametrize(
    ("family", "targets", "settings"),
    [
        ("llama", r".*(q_proj|lm_head)", {}),
        ("llama", r".*(q_proj|down_proj)", {"use_dora": True}),
        ("qwen3_vl", r".*visual.*(qkv|linear_fc1)", {}),
    ],
    ids=["on the head", "DoRA", "on the vision tower"],
)
def test_an_adapter_that_does_not_fit_the_quick_way_gets_the_exact_one(models, tmp_path, family, targets, settings):
    model, _ = models(family)
    adapter = adapter_on(model, tmp_path / "adapter", targets, **settings)
    samples = WITH_PICTURES if family in VISION_FAMILIES else TEXTS
    extractor = open_gradient(model, adapter, per="segment", dimension=DIMENSION)
    assert not extractor.is_recorded
    truth = TrueGradients(model, adapter, extractor)
    expected = np.concatenate([truth.of(sample)[1] for sample in samples])
    found = per_segment(extractor, samples).segment_vector
    keep = np.linalg.norm(expected, axis=1) > 0  # a sample without images has no gradient in the vision tower
    assert keep.sum() >= len(keep) - 2
    assert worst(found[keep], (expected @ MATRICES["rademacher"](truth.num_coordinates, DIMENSION, 0))[keep]) < 2e-4
    assert not found[~keep].any()


# ---------------------------------------------------------------- what cannot be used


def test_numbers_that_are_not_finite_set_the_sample_aside_and_no_other(models):
    extractor = open_gradient(*models("qwen2"), dimension=16)
    expected = per_sample(extractor).sample_vector
    pending = extractor.compute(extractor.prepare(TEXTS))
    batch, rows = pending.results[0]
    rows.vector[batch.members.index(1)] = torch.inf
    signals = pending.result()
    assert {member: why.reason for member, why in signals.set_aside.items()} == {1: Reason.NOT_FINITE}
    assert not signals.sample_vector[1].any()
    assert signals.sample_norm[1] == signals.sample_loss[1] == 0
    np.testing.assert_array_equal(signals.sample_vector[[0, 2]], expected[[0, 2]])


def test_samples_that_cannot_be_read_are_set_aside(models):
    model, adapter = models("qwen2")
    request = ExtractSpec(kind="gradient", gradient=GradientSpec(dimension=16), max_length=45)
    spec = resolve_spec(str(model), request, ONE_THREAD, adapter=str(adapter))
    extractor = open_extractor(str(model), spec, ONE_THREAD, adapter=str(adapter))
    long = make_sample(*["and again " * 30, "7"])
    signals = per_sample(extractor, [long, TEXTS[1]])
    assert signals.set_aside[0].reason == Reason.TOO_LONG
    assert not signals.sample_vector[0].any()
    assert signals.sample_vector[1].any()


def test_a_batch_that_does_not_fit_is_halved_and_nothing_is_lost(models, monkeypatch):
    model, adapter = models("qwen2")
    expected = per_segment(open_gradient(model, adapter, per="segment", dimension=16))
    extractor = open_gradient(model, adapter, per="segment", dimension=16)
    actual, seen = torch.autograd.backward, []

    def limited(tensors, *args, **kwargs):
        actual(tensors, *args, **kwargs)
        seen.append(extractor._source.args[2].shape[0])
        if seen[-1] > 1 and len(seen) % 3 == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.autograd, "backward", limited)
    found = per_segment(extractor, TEXTS)
    assert max(seen) > 1
    assert 1 in seen
    np.testing.assert_allclose(found.segment_vector, expected.segment_vector, rtol=1e-3, atol=1e-5)
    assert extractor._source.args[2].shape is None


def test_rows_that_wait_survive_a_projection_that_runs_out_of_memory(models, monkeypatch):
    model, adapter = models("qwen2")
    one_by_one = ExtractSpec(batch_tokens=1)
    expected = per_sample(open_gradient(model, adapter, one_by_one, dimension=16)).sample_vector
    extractor = open_gradient(model, adapter, one_by_one, dimension=16)
    actual, calls = extractor._projected.flush, []

    def failing():
        calls.append(len(extractor._projected._waiting))
        raise MemoryError

    monkeypatch.setattr(extractor._projected, "flush", failing)
    with pytest.raises(OutOfMemory, match="Projecting gradients to 16 numbers does not fit on cpu"):
        per_sample(extractor)
    assert calls == [3]
    monkeypatch.setattr(extractor._projected, "flush", actual)
    extractor._finished = []
    extractor._projected._waiting = []
    np.testing.assert_array_equal(per_sample(extractor).sample_vector, expected)


# ---------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"bias_correction": True}, "--bias-correction works only with --preconditioner adam"),
        ({"projection": "sparse", "dimension": 30}, "--projection sparse needs a --dimension that is a multiple of 4"),
    ],
)
def test_wishes_that_do_not_fit_together_are_refused(models, wishes, message):
    with pytest.raises(SettingError, match=message):
        open_gradient(*models("qwen2"), **wishes)


def test_gradient_wishes_need_the_kind_and_an_adapter(models):
    model, _ = models("qwen2")
    with pytest.raises(
        SettingError, match=r"--dimension, --seed cannot be used with --kind proxy\. Add --kind gradient"
    ):
        resolve_spec(str(model), ExtractSpec(gradient=GradientSpec(dimension=8, seed=1)), ONE_THREAD)
    with pytest.raises(SettingError, match="Give --adapter with a checkpoint that `grace-store warmup` wrote"):
        resolve_spec(str(model), ExtractSpec(kind="gradient"), ONE_THREAD)


def test_the_spec_says_whose_gradients_they_are(checkpoint, models):
    model, adapter = checkpoint
    request = ExtractSpec(kind="gradient", gradient=GradientSpec(preconditioner="adam"))
    gradient = resolve_spec(str(model), request, ONE_THREAD, adapter=str(adapter)).gradient
    state = json.loads((adapter / "training_state.json").read_text())
    assert gradient.learning_rate == state["mean_learning_rate"] > 0
    assert (gradient.per, gradient.projection, gradient.dimension, gradient.seed) == ("sample", "rademacher", 8192, 0)
    assert gradient.normalise
    assert len(gradient.moments) == len(gradient.parameters) == 64
    other = resolve_spec(str(model), request, ONE_THREAD, adapter=str(adapter.parent / "checkpoint-6")).gradient
    assert other.parameters == gradient.parameters
    assert other.moments != gradient.moments
    llama, foreign = models("llama")
    plain = ExtractSpec(kind="gradient")
    assert resolve_spec(str(llama), plain, ONE_THREAD, adapter=str(foreign)).gradient.learning_rate is None


def test_another_checkpoint_than_planned_is_not_opened(checkpoint, tmp_path):
    model, adapter = checkpoint
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in adapter.iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    rewrite_moments(changed, factor=2.0)
    request = ExtractSpec(kind="gradient", gradient=GradientSpec(preconditioner="adam"))
    spec = resolve_spec(str(model), request, ONE_THREAD, adapter=str(adapter))
    with pytest.raises(ModelError, match="changed does not have the moments that this signal was planned with"):
        open_extractor(str(model), spec, ONE_THREAD, adapter=str(changed))
