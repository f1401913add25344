"""LoRA on the language part, and one step of training it: against transformers, peft and plain autograd."""

from __future__ import annotations

import math
import re
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import get_peft_model_state_dict
from pydantic import ValidationError
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)
from transformers.pytorch_utils import Conv1D

from grace_store.base.errors import ModelError, OutOfMemory, ResumeMismatch, SettingError
from grace_store.base.events import Note
from grace_store.base.training_settings import Ranks, WarmupOptions, WarmupSpec
from grace_store.model.load.weights import LoadedModel, load
from grace_store.train.adapter_trainer import (
    AdapterTrainer,
    attach_fresh_adapter,
    target_names,
    trainable,
)
from grace_store.train.checkpoints import MOMENTS, TrainingState, read_last, write_last
from grace_store.train.training import (
    StepLoop,
    TrainingSet,
    checkpoint_steps,
    learning_rate,
    mean_learning_rate,
    resolve_training,
)
from grace_store.train.training_data import TrainingSample, weigh
from tests.tiny_models import scaled_positions_model, tiny_text_model
from tests.tiny_vision_models import tiny_vision_model

OPTIONS = WarmupOptions(device="cpu", threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_text_model("llama", tmp_path_factory.mktemp("lora") / "llama")


def loaded(folder: Path, dtype: str = "float32", attention: str = "sdpa") -> LoadedModel:
    return load(folder, dtype, attention, "cpu", 1)


def spec_of(folder: Path, **wishes) -> WarmupSpec:
    return resolve_training(str(folder), WarmupSpec(**wishes), OPTIONS)


def samples(num: int = 5, seed: int = 0) -> list[TrainingSample]:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(num):
        length = int(random.integers(6, 30))
        first = int(random.integers(2, length - 2))
        ids = random.integers(3, 300, length).astype(np.int32)
        learnt = np.arange(first, length, dtype=np.int32)
        made.append(TrainingSample(ids, learnt, {}, None, learnt % 3))
    return made


def reference_loss(model: torch.nn.Module, batch: list[TrainingSample]) -> torch.Tensor:
    """The mean over all learnt tokens, each sample on its own, with all logits."""
    total, count = torch.zeros(()), 0
    for sample in batch:
        ids = torch.from_numpy(sample.ids.astype(np.int64))
        logits = model(input_ids=ids[None]).logits[0].float()
        learnt = torch.from_numpy(sample.learnt.astype(np.int64))
        total = total + torch.nn.functional.cross_entropy(logits[learnt - 1], ids[learnt], reduction="sum")
        count += len(learnt)
    return total / count


def make_trainer(folder: Path, options: WarmupOptions = OPTIONS, **wishes) -> tuple[LoadedModel, AdapterTrainer]:
    spec = spec_of(folder, **wishes)
    model = loaded(folder, attention=spec.attention)
    return model, AdapterTrainer(model, spec, options, Ranks(), "base")


def test_every_linear_layer_of_the_decoder_and_not_the_head(folder):
    names = target_names(loaded(folder).model)
    layer = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]  # fmt: skip
    assert sorted(names) == sorted(f"model.layers.{i}.{name}" for i in range(2) for name in layer)


def test_conv1d_of_gpt2_counts_as_linear(tmp_path):
    model = loaded(tiny_text_model("gpt2", tmp_path / "gpt2")).model
    names = target_names(model)
    assert len(names) == 8
    assert all(isinstance(dict(model.named_modules())[name], Conv1D) for name in names)
    assert attach_fresh_adapter(model, 4, 8.0, 0, "base").peft_config["default"].fan_in_fan_out


@pytest.mark.parametrize("family", ["qwen3_vl", "llava"])
def test_vision_tower_and_aligner_stay_out(tmp_path, family):
    model = loaded(tiny_vision_model(family, tmp_path / family)).model
    assert {name.split(".")[1] for name in target_names(model)} == {"language_model"}
    adapted = attach_fresh_adapter(model, 4, 8.0, 0, "base")
    assert trainable(adapted)
    assert all(".language_model." in name for name in trainable(adapted))


def test_an_adapter_starts_as_nothing_and_the_same_everywhere(folder):
    ids = torch.arange(3, 20)[None]
    plain = loaded(folder).model(input_ids=ids).logits
    first, second, other = (attach_fresh_adapter(loaded(folder).model, 8, 32.0, seed, "base") for seed in (0, 0, 1))
    assert torch.equal(first(input_ids=ids).logits, plain)
    start, again, elsewhere = (trainable(each) for each in (first, second, other))
    assert all(torch.equal(start[name], again[name]) for name in start)
    name = next(name for name in start if "lora_A" in name)
    assert not torch.equal(start[name], elsewhere[name])
    # As peft would draw it: uniform within one over the root of the inputs.
    bound = 1 / math.sqrt(start[name].shape[1])
    assert 0.9 * bound < float(start[name].detach().abs().max()) <= bound


def test_names_are_those_peft_saves(folder):
    adapted = attach_fresh_adapter(loaded(folder).model, 8, 32.0, 0, "base")
    saved = get_peft_model_state_dict(adapted)
    assert trainable(adapted).keys() == saved.keys()
    targets = make_trainer(folder)[1].adapter_config["target_modules"]
    assert targets == sorted(targets)


def test_the_adapter_is_float32_on_a_bfloat16_model(folder):
    model = loaded(folder, "bfloat16")
    adapted = attach_fresh_adapter(model.model, 8, 32.0, 0, "base")
    assert {parameter.dtype for parameter in trainable(adapted).values()} == {torch.float32}
    assert {p.dtype for p in adapted.parameters() if not p.requires_grad} == {torch.bfloat16}
    spec = spec_of(folder, dtype="bfloat16")
    trainer = AdapterTrainer(loaded(folder, "bfloat16"), spec, OPTIONS, Ranks(), "base")
    assert math.isfinite(trainer.take_step(samples(), 1e-3).loss)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "granite", "cohere", "opt", "bloom", "qwen3_moe"])
def test_a_step_is_that_of_plain_autograd_and_adamw(tmp_path, family):
    folder = tiny_text_model(family, tmp_path / family)
    batch = samples()
    model, trainer = make_trainer(folder, weight_decay=0.2, max_grad_norm=0.5)
    other, reference = make_trainer(folder, OPTIONS.model_copy(update={"gradient_checkpointing": False}))
    parameters = reference._parameters
    optimizer = torch.optim.AdamW(parameters.values(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.2)
    for rate in (1e-2, 5e-3):
        expected = reference_loss(other.model, batch)
        optimizer.zero_grad()
        expected.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), 0.5)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        result = trainer.take_step(batch, rate)
        assert result.loss == pytest.approx(float(expected.detach()), rel=1e-5)
        assert result.grad_norm == pytest.approx(float(norm), rel=1e-3)
    for name, parameter in trainer.capture(2).tensors.items():
        torch.testing.assert_close(parameter, parameters[name].detach(), rtol=1e-3, atol=1e-4)
    assert trainer.heldout_loss(batch) == pytest.approx(float(reference_loss(model.model, batch).detach()), rel=1e-5)


def test_tokens_count_by_their_weights(folder):
    """The weighted mean over a batch, with one sample that has no weights, is what plain autograd would follow."""
    batch = [weigh(each, np.array([0.0, 0.5, 2.0])) for each in samples(3)] + samples(1, seed=7)
    model, trainer = make_trainer(folder, OPTIONS.model_copy(update={"batch_tokens": 40}))
    other, _ = make_trainer(folder)
    total, weights = torch.zeros(()), 0.0
    for sample in batch:
        ids, learnt = (torch.from_numpy(each.astype(np.int64)) for each in (sample.ids, sample.learnt))
        logits = other.model(input_ids=ids[None]).logits[0].float()
        losses = torch.nn.functional.cross_entropy(logits[learnt - 1], ids[learnt], reduction="none")
        weight = [1.0] * len(learnt) if sample.weight is None else [(0.0, 0.5, 2.0)[i % 3] for i in learnt.tolist()]
        total, weights = total + (losses * torch.tensor(weight)).sum(), weights + sum(weight)
    expected = total / weights
    (gradient,) = torch.autograd.grad(expected, [next(p for n, p in other.model.named_parameters() if "lora_B" in n)])
    result = trainer.take_step(batch, 0.0)
    assert result.loss == pytest.approx(float(expected.detach()), rel=1e-5)
    mine = next(p for n, p in model.model.named_parameters() if "lora_B" in n).grad
    torch.testing.assert_close(mine / mine.norm(), gradient / gradient.norm(), rtol=1e-3, atol=1e-5)


def test_weights_of_one_change_nothing_and_a_batch_without_weight_teaches_nothing(folder):
    plain, weighed = samples(3), [weigh(each, np.ones(3)) for each in samples(3)]
    losses = [make_trainer(folder)[1].take_step(batch, 1e-2) for batch in (plain, weighed)]
    assert losses[0].loss == pytest.approx(losses[1].loss, rel=1e-6)
    assert losses[0].num_tokens == losses[1].num_tokens
    silent = make_trainer(folder)[1].take_step([weigh(each, np.zeros(3)) for each in samples(3)], 1e-2)
    assert (silent.loss, silent.grad_norm) == (0.0, 0.0)


def test_a_restarted_training_is_a_new_one_to_the_bit(folder):
    _, trainer = make_trainer(folder, seed=3)
    first = [trainer.take_step(samples(), 1e-2) for _ in range(2)], trainer.capture(2).tensors
    trainer.restart(5)
    trainer.take_step(samples(seed=1), 1e-2)
    trainer.restart(3)
    again = [trainer.take_step(samples(), 1e-2) for _ in range(2)], trainer.capture(2).tensors
    assert first[0] == again[0]
    assert all(torch.equal(first[1][name], again[1][name]) for name in first[1])


@pytest.mark.parametrize("batch_tokens", [1, 64, 4096])
def test_losses_of_samples_are_each_its_own_and_add_up(folder, batch_tokens):
    model, trainer = make_trainer(folder, OPTIONS.model_copy(update={"batch_tokens": batch_tokens}))
    batch = samples(6)
    found = trainer.sample_losses(batch)
    alone = [float(reference_loss(model.model, [each]).detach()) * len(each.learnt) for each in batch]
    assert found == pytest.approx(alone, rel=1e-5)
    total = sum(len(each.learnt) for each in batch)
    assert found.sum() / total == pytest.approx(trainer.heldout_loss(batch), rel=1e-5)


@pytest.mark.parametrize("scaling", [None, "longrope", "dynamic"])
@pytest.mark.parametrize("batch_tokens", [1, 40, 100])
def test_the_size_of_a_pass_changes_only_the_order_of_sums(folder, tmp_path, batch_tokens, scaling):
    """Also where positions depend on the longest sample of a pass."""
    if scaling:
        folder = scaled_positions_model(scaling, tmp_path / "scaled", limit=14)
    batch = samples(7)
    _, whole = make_trainer(folder)
    _, parts = make_trainer(folder, OPTIONS.model_copy(update={"batch_tokens": batch_tokens}))
    assert parts.take_step(batch, 1e-2).loss == pytest.approx(whole.take_step(batch, 1e-2).loss, rel=1e-5)
    expected, found = whole.capture(1), parts.capture(1)
    for moment in ("exp_avg", "exp_avg_sq"):
        for name, tensor in expected.moments[moment].items():
            torch.testing.assert_close(found.moments[moment][name], tensor, rtol=1e-3, atol=1e-6)


def test_activations_computed_twice_are_the_same(folder):
    _, once = make_trainer(folder, OPTIONS.model_copy(update={"gradient_checkpointing": False}))
    _, twice = make_trainer(folder)
    for _ in range(3):
        assert once.take_step(samples(), 1e-2) == twice.take_step(samples(), 1e-2)
    expected, found = once.capture(3).tensors, twice.capture(3).tensors
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_captured_state_goes_on_to_the_bit(folder):
    _, through = make_trainer(folder)
    for seed in range(4):
        through.take_step(samples(seed=seed), 1e-2)
    _, stopped = make_trainer(folder)
    for seed in range(2):
        stopped.take_step(samples(seed=seed), 1e-2)
    _, resumed = make_trainer(folder)
    resumed.restore(stopped.capture(2))
    for seed in range(2, 4):
        resumed.take_step(samples(seed=seed), 1e-2)
    expected, found = through.capture(4), resumed.capture(4)
    for group in ("tensors", "moments"):
        flat = lambda each: torch.cat([t.flatten() for t in torch.utils._pytree.tree_leaves(each)])  # noqa: E731
        assert torch.equal(flat(getattr(expected, group)), flat(getattr(found, group)))


def test_base_weights_do_not_move(folder):
    model, trainer = make_trainer(folder)
    before = {name: p.clone() for name, p in model.model.named_parameters() if "lora_" not in name}
    trainer.take_step(samples(), 1.0)
    assert all(torch.equal(dict(model.model.named_parameters())[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: out of memory"),
        MemoryError(),
    ],
    ids=["torch", "cublas", "driver", "python"],
)
def test_a_pass_that_does_not_fit_says_what_to_lower(folder, monkeypatch, error):
    def failing(*_args):
        raise error

    _, trainer = make_trainer(folder)
    monkeypatch.setattr(trainer, "_loss_sum", failing)
    with pytest.raises(OutOfMemory, match=r"does not fit on cpu\. Lower --batch-tokens"):
        trainer.take_step(samples(), 1e-2)


def test_other_failures_are_not_taken_for_lack_of_memory(folder, monkeypatch):
    def failing(*_args):
        raise RuntimeError("shape mismatch")

    _, trainer = make_trainer(folder)
    monkeypatch.setattr(trainer, "_loss_sum", failing)
    with pytest.raises(ModelError, match="fails in a training step: RuntimeError: shape mismatch"):
        trainer.take_step(samples(), 1e-2)


def test_a_gradient_that_is_not_finite_leaves_the_adapter_as_it_was(folder):
    _, trainer = make_trainer(folder)
    trainer.take_step(samples(), 1e-2)
    before = trainer.capture(1)
    next(iter(trainer._parameters.values())).register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(ModelError, match=r"The gradient is not finite\. Lower --learning-rate"):
        trainer.take_step(samples(), 1e-2)
    after = trainer.capture(1)
    assert all(torch.equal(after.tensors[name], tensor) for name, tensor in before.tensors.items())
    for moment, tensors in before.moments.items():
        assert all(torch.equal(after.moments[moment][name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(("schedule", "theirs"), [
    ("cosine", get_cosine_schedule_with_warmup), ("linear", get_linear_schedule_with_warmup),
    ("constant", None),
])  # fmt: skip
@pytest.mark.parametrize(("num_steps", "ratio"), [(40, 0.05), (7, 0.3), (1, 0.0), (3, 0.9)])
def test_learning_rates_are_those_of_transformers(folder, schedule, theirs, num_steps, ratio):
    spec = spec_of(folder, schedule=schedule, warmup_ratio=ratio, learning_rate=2e-4)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-4)
    warmup = math.ceil(num_steps * ratio)
    made = theirs(optimizer, warmup, num_steps) if theirs else get_constant_schedule_with_warmup(optimizer, warmup)
    rates = []
    for step in range(1, num_steps + 1):
        rates.append(made.get_last_lr()[0])
        assert learning_rate(spec, step, num_steps) == pytest.approx(rates[-1], abs=1e-12)
        optimizer.step()
        made.step()
    assert mean_learning_rate(spec, 1, num_steps, num_steps) == pytest.approx(np.mean(rates))


@pytest.mark.parametrize("fraction", ["0", "-0.5", "2", "nan", "half"])
def test_checkpoints_are_fractions_wherever_they_come_from(folder, fraction):
    with pytest.raises(ValidationError, match=f"'{fraction}' is not a number above 0 and at most 1"):
        spec_of(folder, checkpoints=("0.5", fraction))


def test_checkpoints_fall_on_steps(folder):
    spec = spec_of(folder, checkpoints=("0.75", "0.25", "0.5"))
    assert spec.checkpoints == ("0.25", "0.5", "0.75", "1")
    assert checkpoint_steps(spec, 398) == {100: "0.25", 199: "0.5", 299: "0.75", 398: "1"}
    assert checkpoint_steps(spec_of(folder, checkpoints=("0.07",)), 100) == {7: "0.07", 100: "1"}
    with pytest.raises(SettingError, match="both fall on step 1 of 2"):
        checkpoint_steps(spec, 2)


@pytest.mark.parametrize(
    ("family", "left_out"),
    [
        ("llama", None),
        ("gpt2", None),
        (
            "qwen3_moe",
            r"[0-9]+% of the language part's weights .*layers\.\*\.mlp\.experts\.gate_up_proj",
        ),
        ("mixtral", r"[0-9]+% of the language part's weights get no adapter, .*experts\.down_proj"),
    ],
)
def test_what_gets_no_adapter_is_told_before_the_first_step(tmp_path, family, left_out):
    folder = tiny_text_model(family, tmp_path / family)
    _, trainer = make_trainer(folder)
    notes: list[str] = []
    loop = StepLoop(
        spec_of(folder),
        trainer,
        TrainingSet(samples(2), [[0, 1]], []),
        out=tmp_path,
        recipe_sha256="0",
        options=OPTIONS,
        is_first=True,
        listener=lambda event: notes.append(event.text) if isinstance(event, Note) else None,
    )
    loop.run(threading.Event())
    found = [note for note in notes if "get no adapter" in note]
    assert len(found) == (left_out is not None)
    assert left_out is None or re.search(left_out, found[0])


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom"])
def test_answers_are_greedy_whoever_shares_the_batch(tmp_path, family):
    """Token by token with the largest logit, each prompt alone and without a cache, is what is written."""
    folder = tiny_text_model(family, tmp_path / family)
    model, trainer = make_trainer(folder)
    trainer.take_step(samples(), 1e-2)
    tokenizer = model.tokenizer
    asked = samples(4, seed=3)
    ends = {tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.eos_token_id}
    asked = [
        replace(each, ids=np.where(np.arange(len(each.ids)) == each.learnt[-1], max(ends), each.ids)) for each in asked
    ]
    found = trainer.answers(asked, tokenizer, 12)
    for sample, answer in zip(asked, found, strict=True):
        ids, written = sample.ids[: sample.learnt[0]].tolist(), []
        with torch.no_grad():
            while len(written) < 12 and not ends & set(written):
                written.append(int(model.model(input_ids=torch.tensor([ids + written])).logits[0, -1].argmax()))
        expected = None if written[-1] not in ends else tokenizer.decode(written[:-1], skip_special_tokens=True)
        assert answer == expected
    assert trainer.answers(asked[:1], tokenizer, 12) == found[:1]


def test_a_training_does_not_go_on_from_the_state_of_another(tmp_path):
    tensors = {"a": torch.arange(3.0)}
    write_last(tmp_path, TrainingState(5, tensors, {name: {"a": torch.zeros(3)} for name in MOMENTS}), "its own")
    assert (found := read_last(tmp_path, "its own")) is not None
    assert (found.step, found.tensors["a"].tolist()) == (5, [0.0, 1.0, 2.0])
    with pytest.raises(ResumeMismatch, match="does not belong to the recipe"):
        read_last(tmp_path, "another")
