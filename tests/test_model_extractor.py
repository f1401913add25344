"""The extractor as a whole: what it sets aside, what it does when memory runs out, and the door to it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import grace_store.model.backbone as head_vjp
from grace_store.base.errors import ModelError, OutOfMemory, SettingError
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.base.states import Reason
from grace_store.data.sample import ImageRef, Sample, Turn
from grace_store.model.inputs.tokens import SampleTokenizer
from grace_store.model.open_model import ProxyExtractor, open_extractor, resolve_spec
from tests.tiny_models import CHATML, tiny_text_model

OPTIONS = RunOptions(device="cpu", threads=1)
SPLIT_TOLERANCE = 1e-5
"""How far a vector of a unit split for want of memory may be from that of a whole one (docs/reliability.md)."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_text_model("qwen3", tmp_path_factory.mktemp("model") / "qwen3"))


def sample(number: int, *, prompt: str = "How many?", image: bool = False) -> Sample:
    segments = (f"Step {number}: add {number} apples.\n" * (1 + number % 3), f"So {number + 1}.\n", f"It is {number}.")
    bounds = np.concatenate(([0], np.cumsum([len(segment) for segment in segments])))
    parts = (prompt, ImageRef("a.png")) if image else (prompt,)
    return Sample(f"s{number}", (Turn("user", parts),), "".join(segments), tuple(bounds.tolist()))


SAMPLES = [sample(number) for number in range(7)]


def make(model: str, options: RunOptions = OPTIONS, **wishes) -> ProxyExtractor:
    """Return an extractor of plain batches; those of shared prompts have tests of their own."""
    wishes = {"share_prompts": False, **wishes}
    return open_extractor(model, resolve_spec(model, ExtractSpec(**wishes), options), options)


def extract(extractor: ProxyExtractor, samples=SAMPLES):
    return extractor.compute(extractor.prepare(samples)).result()


def test_samples_set_aside_keep_their_rows_and_others_their_place(model):
    mixed = [SAMPLES[0], sample(8, image=True), SAMPLES[1], sample(9, prompt="word " * 300), SAMPLES[2]]
    signals = extract(make(model, max_length=200), mixed)
    assert {position: verdict.reason for position, verdict in signals.set_aside.items()} == {
        1: Reason.NEEDS_VISION,
        3: Reason.TOO_LONG,
    }
    assert "at most 200" in signals.set_aside[3].detail
    clean = extract(make(model), SAMPLES[:3])
    rows = [*range(3), *range(6, 9), *range(12, 15)]
    np.testing.assert_allclose(signals.segment_vector[rows], clean.segment_vector, rtol=1e-4, atol=1e-6)
    for name in ("segment_vector", "segment_num_tokens", "segment_loss", "segment_entropy", "segment_hit_rate"):
        assert not getattr(signals, name)[[3, 4, 5, 9, 10, 11]].any()
    assert signals.num_tokens == clean.num_tokens


def test_a_unit_without_usable_samples_is_all_zero(model):
    signals = extract(make(model), [sample(1, image=True)])
    assert list(signals.set_aside) == [0]
    assert signals.segment_vector.shape == (3, 48)
    assert not signals.segment_vector.any()
    assert extract(make(model), []).segment_vector.shape == (0, 48)


def test_text_only_leaves_images_out(model):
    signals = extract(make(model, text_only=True), [sample(1, image=True)])
    assert signals.set_aside == {}
    np.testing.assert_array_equal(signals.segment_vector, extract(make(model), [sample(1)]).segment_vector)


def test_values_that_are_not_finite_set_the_sample_aside(model):
    extractor = make(model)
    pending = extractor.compute(extractor.prepare(SAMPLES[:2]))
    batch, rows = pending.results[0]
    rows.vector = rows.vector.clone()
    row = 0 if batch.members[0] == 1 else 3
    rows.vector[row + 1, 5] = float("inf")
    signals = pending.result()
    assert signals.set_aside[1].reason == Reason.NOT_FINITE
    assert signals.set_aside[1].detail.startswith("step 2")
    assert not signals.segment_vector[3:].any()
    assert not signals.segment_num_tokens[3:].any()
    assert signals.segment_vector[:3].any()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    ],
    ids=["cuda", "cpu", "python", "cublas", "driver"],
)
def test_a_batch_that_does_not_fit_is_split(model, monkeypatch, caplog, error):
    expected = extract(make(model))
    extractor = make(model)
    sizes = []
    actual = head_vjp.run_backbone

    def limited(model, *, input_ids):
        sizes.append(len(input_ids))
        if input_ids.numel() > 120:
            raise error
        return actual(model, input_ids=input_ids)

    monkeypatch.setattr(head_vjp, "run_backbone", limited)
    signals = extract(extractor)
    assert sizes == [7, 4, 2, 2, 3]
    np.testing.assert_allclose(signals.segment_vector, expected.segment_vector, rtol=1e-4, atol=1e-6)
    assert signals.num_tokens == expected.num_tokens
    assert "does not fit" in caplog.text
    assert signals.split == (2, 2, 3)
    sizes.clear()
    again = extract(extractor)
    assert sizes == [2, 2, 3], "what is known not to fit is halved without trying"
    assert again.split == signals.split
    np.testing.assert_array_equal(again.segment_vector, signals.segment_vector)
    assert expected.split is None


def limited_to(most: int, monkeypatch) -> list[int]:
    """Let the model run out of memory from so many tokens on; return the shapes it ran on, as they come."""
    ran: list[int] = []
    actual = head_vjp.run_backbone

    def limited(model, *, input_ids):
        if input_ids.numel() >= most:
            raise torch.OutOfMemoryError("out of memory")
        ran.append(len(input_ids))
        return actual(model, input_ids=input_ids)

    monkeypatch.setattr(head_vjp, "run_backbone", limited)
    return ran


def test_batches_that_fit_stay_as_the_signal_froze_them(model, monkeypatch):
    """A unit that was split says nothing about the next one, whose batches have fewer tokens."""
    short, long = [sample(number) for number in (0, 3, 6)], [sample(number) for number in (2, 5, 8)]
    extractor = make(model)
    expected = extract(extractor, short)
    longest = extractor.prepare(long).batches[0].num_padded_tokens
    assert extractor.prepare(short).batches[0].num_padded_tokens < longest
    limited_to(longest, monkeypatch)
    assert extract(extractor, long).split == (2, 1)
    found = extract(extractor, short)
    assert found.split is None
    np.testing.assert_array_equal(found.segment_vector, expected.segment_vector)


def test_the_bytes_of_a_split_unit_are_those_of_its_recorded_passes(model, monkeypatch):
    extractor = make(model)
    whole = extract(extractor)
    with monkeypatch.context() as scarce:
        limited_to(150, scarce)
        found = extract(extractor)
    assert found.split is not None
    prepared = make(model).prepare(SAMPLES)
    order = [member for batch in prepared.batches for member in batch.members]
    assert sum(found.split) == len(order)
    row = np.concatenate(([0], np.cumsum(prepared.num_rows)))
    for start, size in zip(np.cumsum((0, *found.split[:-1])), found.split, strict=True):
        members = order[start : start + size]
        alone = extract(make(model), [SAMPLES[member] for member in members]).segment_vector
        rows = np.concatenate([np.arange(row[member], row[member + 1]) for member in members])
        np.testing.assert_array_equal(found.segment_vector[rows], alone)
    norm = np.linalg.norm(whole.segment_vector, axis=1, keepdims=True)
    assert np.abs((found.segment_vector - whole.segment_vector) / norm).max() < SPLIT_TOLERANCE


def test_one_sample_that_does_not_fit_ends_the_run(model, monkeypatch):
    def full(*_args, **_kwargs):
        raise torch.OutOfMemoryError("out of memory")

    extractor = make(model)
    monkeypatch.setattr(head_vjp, "run_backbone", full)
    with pytest.raises(OutOfMemory, match=r"One sample of .* tokens does not fit on cpu") as raised:
        extract(extractor)
    # The length is frozen with the signal: lowering it here would only be refused.
    assert "Use a larger or less busy device, or begin a new --signal" in str(raised.value)


FAILURES = [
    IndexError("index 7 is out of range"),
    RuntimeError("no shape at 0x7f31"),
    AssertionError(),
    KeyError(3),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("batch_tokens", [16384, 1], ids=["together", "alone"])
def test_a_sample_the_model_fails_on_is_set_aside_and_no_other(model, monkeypatch, error, batch_tokens):
    extractor = make(model, batch_tokens=batch_tokens)
    expected = extract(extractor)
    culprit = torch.from_numpy(extractor.prepare(SAMPLES).tokens[3].ids)
    actual = head_vjp.run_backbone

    def failing(model, *, input_ids):
        if any(torch.equal(row[: len(culprit)], culprit) for row in input_ids):
            raise error
        return actual(model, input_ids=input_ids)

    monkeypatch.setattr(head_vjp, "run_backbone", failing)
    first, second = extract(extractor), extract(extractor)
    assert first.set_aside == second.set_aside
    assert list(first.set_aside) == [3]
    assert first.set_aside[3].reason == Reason.BAD_TEXT
    assert first.set_aside[3].detail.startswith(f"the model fails on this sample: {type(error).__name__}")
    assert "0x" not in first.set_aside[3].detail
    np.testing.assert_array_equal(first.segment_vector, second.segment_vector)
    others = [row for row in range(len(first.segment_vector)) if row // 3 != 3]
    np.testing.assert_allclose(first.segment_vector[others], expected.segment_vector[others], rtol=1e-4, atol=1e-6)
    assert not first.segment_vector[9:12].any()


@pytest.mark.parametrize(
    ("message", "kind"),
    [("shape mismatch", ModelError), ("CUDA error: device-side assert triggered", RuntimeError)],
    ids=["always", "device lost"],
)
def test_a_failure_that_is_no_samples_own_ends_the_run(model, monkeypatch, message, kind):
    def broken(*_args, **_kwargs):
        raise RuntimeError(message)

    extractor = make(model)
    monkeypatch.setattr(head_vjp, "run_backbone", broken)
    with pytest.raises(kind, match=message):
        extract(extractor)


@pytest.mark.parametrize("operation", ["1 / 0", "message.content.nothing.there", "[].pop()", "'%d' % 'x'"])
def test_a_template_that_fails_on_one_record_sets_that_aside(tmp_path, operation):
    guarded = "{% if 'poison' in message.content %}{{ " + operation + " }}{% endif %}{{ message.content }}"
    path = str(tiny_text_model("qwen3", tmp_path / "m", chat_template=CHATML.replace("{{ message.content }}", guarded)))
    signals = extract(make(path), [SAMPLES[0], sample(5, prompt="poison"), SAMPLES[1]])
    assert list(signals.set_aside) == [1]
    assert signals.segment_vector[[0, 1, 2, 6, 7, 8]].any(axis=1).all()


def test_a_tokenizer_that_fails_on_one_record_sets_that_aside(model, monkeypatch):
    extractor = make(model)
    actual = SampleTokenizer.tokenize

    def failing(self, rendered):
        if any("poison" in each.text for each in rendered):
            raise OverflowError("too many")
        return actual(self, rendered)

    monkeypatch.setattr(SampleTokenizer, "tokenize", failing)
    signals = extract(extractor, [SAMPLES[0], sample(5, prompt="poison"), SAMPLES[1]])
    assert {position: str(why) for position, why in signals.set_aside.items()} == {
        1: "bad_text: the sample cannot be encoded for this model: OverflowError: too many"
    }


def test_preparing_from_many_threads_gives_the_same_tokens(model):
    extractor = make(model)
    expected = extractor.prepare(SAMPLES).tokens
    start = threading.Barrier(4)

    def prepare(_):
        start.wait()
        return [extractor.prepare(SAMPLES).tokens for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        for made in (tokens for several in pool.map(prepare, range(4)) for tokens in several):
            for position, tokens in expected.items():
                np.testing.assert_array_equal(made[position].ids, tokens.ids)
                np.testing.assert_array_equal(made[position].segment, tokens.segment)


def test_include_eos_adds_one_token_to_the_answer(model):
    without, including = extract(make(model)), extract(make(model, include_eos=True))
    more = including.segment_num_tokens - without.segment_num_tokens
    assert more.reshape(-1, 3).tolist() == [[0, 0, 1]] * len(SAMPLES)


def test_include_eos_without_an_end_is_refused(tmp_path):
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    path = str(tiny_text_model("qwen3", tmp_path / "m", chat_template=template))
    with pytest.raises(SettingError, match="no end-of-turn token"):
        make(path, include_eos=True)


def test_tables_of_positions_are_never_overrun(tmp_path):
    path = str(tiny_text_model("gpt2", tmp_path / "gpt2", n_positions=60))
    signals = extract(make(path), [SAMPLES[0], sample(2, prompt="word " * 40)])
    assert signals.set_aside[1].reason == Reason.TOO_LONG
    assert signals.set_aside[1].detail.endswith("at most 60 are allowed")
    assert 0 not in signals.set_aside


def test_the_spec_says_all_that_was_left_open(model, tmp_path):
    spec = resolve_spec(model, ExtractSpec(), OPTIONS)
    assert (spec.dtype, spec.attention, spec.rendering, spec.storage) == ("float32", "sdpa", "template", "int8")
    wished = resolve_spec(model, ExtractSpec(rendering="plain", max_length=77, system="Hm", storage="int4"), OPTIONS)
    assert (wished.rendering, wished.max_length, wished.system, wished.storage) == ("plain", 77, "Hm", "int4")
    gemma = str(tiny_text_model("gemma2", tmp_path / "gemma2"))
    assert resolve_spec(gemma, ExtractSpec(), OPTIONS).attention == "eager"
    with pytest.raises(SettingError, match="no sdpa attention"):
        resolve_spec(gemma, ExtractSpec(attention="sdpa"), OPTIONS)


def test_another_model_than_the_planned_one_is_refused(model, tmp_path):
    other = str(tiny_text_model("qwen3", tmp_path / "other", seed=1))
    with pytest.raises(ModelError, match="not the model that this signal was planned with: weights"):
        open_extractor(other, resolve_spec(model, ExtractSpec(), OPTIONS), OPTIONS)


def test_vector_size_is_that_of_the_heads_input(tmp_path):
    path = str(tiny_text_model("opt", tmp_path / "opt"))
    extractor = make(path)
    assert extractor.vector_size == resolve_spec(path, ExtractSpec(), OPTIONS).model.hidden_size == 32
