"""The numbers of single tokens, and the statistics made from them, against the model's own logits in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers
from transformers import AutoTokenizer

from grace_store.base.settings import ExtractSpec
from grace_store.base.states import STATISTICS, TOKEN_COLUMNS, UnitSignals
from grace_store.data.sample import Sample
from grace_store.model.choose_head import OwnForward, VjpHead
from grace_store.model.inputs.tokens import RenderedSample, characters_of_tokens
from grace_store.model.open_model import ProxyExtractor, open_extractor, resolve_spec
from grace_store.model.token_numbers import segment_statistics, top_entropy
from tests.autograd import ONE_THREAD, extract, open_tiny
from tests.tiny_models import tiny_text_model
from tests.tiny_vision_models import tiny_vision_model
from tests.traces import TEXTS, WITH_PICTURES, make_sample

FAMILIES = ["qwen3", "gemma2", "granite", "cohere", "phi", "gptj", "minicpm3"]
"""Plain, with a soft cap, divided, multiplied, with a bias, with both, with a scale before the head."""
CLOSE = 2e-5
"""Rounding in float32 of logits, and of sums over the vocabulary."""


def own_logits(extractor: ProxyExtractor, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Return the float64 logits that predict each response token of a sample alone, and the tokens."""
    prepared = extractor.prepare([sample])
    (batch,) = prepared.batches
    inputs = extractor.inputs_on_device(batch, extractor.image_inputs(prepared, batch))
    model: Any = extractor.model
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits[0].double().numpy()
    tokens = prepared.tokens[0]
    places = np.flatnonzero(tokens.segment >= 0)
    return logits[places - 1], tokens.ids[places]


def expected_numbers(logits: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
    """Return the numbers of tokens by their definitions."""
    log_p = logits - logits.max(axis=1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
    p, own = np.exp(log_p), np.arange(len(target))
    y = np.zeros_like(p)
    y[own, target] = 1.0
    return {
        "log_probability": log_p[own, target],
        "entropy": -(p * log_p).sum(axis=1),
        "error": np.sqrt(((p - y) ** 2).sum(axis=1)),
        # Logits that are equal but for rounding may be in either order.
        "lowest_rank": 1 + (logits > logits[own, target][:, None] + 1e-4).sum(axis=1),
        "highest_rank": (logits > logits[own, target][:, None] - 1e-4).sum(axis=1),
    }


def samples_of(signals: UnitSignals, samples: Sequence[Sample]) -> Iterator[tuple[slice, slice]]:
    """Yield the segments and the rows in the token table of each sample."""
    segments = np.cumsum([0, *(sample.num_segments for sample in samples)]).tolist()
    rows = np.cumsum([0, *signals.sample_num_token_rows.tolist()]).tolist()
    for i in range(len(samples)):
        yield slice(*segments[i : i + 2]), slice(*rows[i : i + 2])


def check_numbers(signals: UnitSignals, extractor: ProxyExtractor, samples: Sequence[Sample]) -> None:
    """Compare the token table and the statistics of a unit with each sample's own logits."""
    assert signals.set_aside == {}
    for number, (segments, rows) in enumerate(samples_of(signals, samples)):
        expected = expected_numbers(*own_logits(extractor, samples[number]))
        for name in ("log_probability", "entropy", "error"):
            np.testing.assert_allclose(getattr(signals, f"token_{name}")[rows], expected[name], rtol=CLOSE, atol=CLOSE)
        rank = signals.token_rank[rows]
        assert ((rank >= expected["lowest_rank"]) & (rank <= expected["highest_rank"])).all()
        check_statistics(signals, segments, {**expected, "rank": rank})
        largest = sorted(expected["entropy"].tolist())[-max(1, int(0.005 * len(rank))) :]
        assert signals.sample_top_entropy[number] == pytest.approx(sum(largest), rel=CLOSE)
        assert signals.token_num_characters[rows].sum() == len(samples[number].response)


def check_statistics(signals: UnitSignals, segments: slice, expected: dict[str, np.ndarray]) -> None:
    cuts = np.cumsum(signals.segment_num_tokens[segments])
    assert cuts[-1] == len(expected["rank"])
    parts = {name: np.split(values, cuts[:-1]) for name, values in expected.items()}
    loss = [-part for part in parts["log_probability"]]
    wanted = {
        "loss": [part.mean() for part in loss],
        "first_loss": [part[0] for part in loss],
        "entropy": [part.mean() for part in parts["entropy"]],
        "error": [part.mean() for part in parts["error"]],
        "hit_rate": [(part == 1).mean() for part in parts["rank"]],
        "rank": [np.minimum(part, 100).mean() for part in parts["rank"]],
    }
    assert set(wanted) == set(STATISTICS)
    for name, values in wanted.items():
        np.testing.assert_allclose(getattr(signals, f"segment_{name}")[segments], values, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_numbers_are_those_of_the_models_own_logits(tmp_path: Path, family: str) -> None:
    _, extractor = open_tiny(tiny_text_model(family, tmp_path / family))
    check_numbers(extract(extractor, TEXTS), extractor, TEXTS)


def test_also_from_products_of_the_models_own_head(tmp_path: Path) -> None:
    loaded, extractor = open_tiny(tiny_text_model("gemma2", tmp_path / "m"))
    closed = extractor.head
    extractor.head = VjpHead(OwnForward(loaded.model), closed.vector_size, closed.vocab_size)
    check_numbers(extract(extractor, TEXTS), extractor, TEXTS)


@pytest.mark.parametrize("wishes", [{"batch_tokens": 1}, {"head_tokens": 3}, {"packing": True}], ids=str)
def test_also_in_other_batches(tmp_path: Path, wishes: dict[str, Any]) -> None:
    model = tiny_text_model("qwen3", tmp_path / "m")
    _, alone = open_tiny(model)
    _, extractor = open_tiny(model, **wishes)
    check_numbers(extract(extractor, TEXTS), alone, TEXTS)


def test_also_after_a_shared_prompt_and_in_segments_that_are_summed_in_stretches(tmp_path: Path) -> None:
    model = str(tiny_text_model("qwen3", tmp_path / "m"))
    extractor = open_extractor(model, resolve_spec(model, ExtractSpec(), ONE_THREAD), ONE_THREAD)
    traces = [make_sample(*(f"Step {i}, add {n}.\n" for i in range(n)), "7") for n in (3, 1, 4)]
    traces.append(make_sample("again and again " * 300, "Done.", prompt="Another prompt?"))
    batches = extractor.prepare(traces).batches
    assert any(batch.shared is not None for batch in batches)
    _, alone = open_tiny(Path(model))
    check_numbers(extract(extractor, traces), alone, traces)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
@pytest.mark.filterwarnings("ignore:__array__ implementation")  # within a processor of transformers
def test_also_with_images(tmp_path: Path, family: str) -> None:
    _, extractor = open_tiny(tiny_vision_model(family, tmp_path / family))
    check_numbers(extract(extractor, WITH_PICTURES), extractor, WITH_PICTURES)


# ---------------------------------------------------------------- characters


def pieces(text: str, counts: np.ndarray) -> list[str]:
    stops = np.cumsum(counts.astype(int)).tolist()
    assert stops[-1] == len(text)
    return [text[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]


@pytest.mark.parametrize("rendering", ["template", "verbatim", "plain"])
def test_the_characters_of_a_token_are_those_that_it_decodes_to(tmp_path: Path, rendering: str) -> None:
    _, extractor = open_tiny(tiny_text_model("qwen3", tmp_path / "m"), rendering=rendering)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    for sample in TEXTS:
        tokens = extractor.prepare([sample]).tokens[0]
        ids = tokens.ids[tokens.segment >= 0].tolist()
        found = pieces(sample.response, tokens.num_characters)
        assert len(found) == len(ids)
        if sample.response.isascii():
            assert found == [tokenizer.decode([token]) for token in ids]
        else:  # of a character in several tokens, the last token has it
            assert {"é", "😀"} <= set(found)
            assert "" in found


def test_what_a_template_trims_belongs_to_the_first_and_the_last_token(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    _, extractor = open_tiny(tiny_text_model("qwen3", tmp_path / "m", chat_template=template), include_eos=True)
    sample = make_sample(" \n Add 3 and 4.\n", "The answer is 7. \n")
    tokens = extractor.prepare([sample]).tokens[0]
    found = pieces(sample.response, tokens.num_characters)
    assert (found[0][:3], found[-1]) == (" \n ", "")  # the end of turn has no character of the response
    assert found[-2].endswith(". \n")


def test_a_sample_with_more_tokens_than_the_plan_reserves_has_no_rows_and_all_else(tmp_path: Path) -> None:
    model = tiny_text_model("qwen3", tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("é", "1 2 3 4 5 6 7 8 9")
    tokenizer.save_pretrained(model)
    _, extractor = open_tiny(model)
    expanding = make_sample("éééé.\n", "é")
    signals = extract(extractor, [TEXTS[0], expanding, TEXTS[1]])
    assert signals.set_aside == {}
    assert signals.segment_num_tokens[3:5].sum() > len(expanding.response.encode()) + 1
    assert signals.sample_num_token_rows.tolist() == [
        signals.segment_num_tokens[:3].sum(), 0, signals.segment_num_tokens[5:].sum(),
    ]  # fmt: skip
    assert signals.segment_loss.all()
    assert signals.sample_top_entropy.all()
    assert {len(getattr(signals, f"token_{name}")) for name in TOKEN_COLUMNS} == {signals.sample_num_token_rows.sum()}


def test_a_token_of_very_many_characters_leaves_the_sample_without_rows() -> None:
    text = "a" + " " * 70_000 + "b"
    sample = RenderedSample(text, (0, 1, len(text)))
    assert characters_of_tokens(sample, np.array([0, 1])) is None
    near = RenderedSample(text[:60_000], (0, 1, 60_000))
    assert characters_of_tokens(near, np.array([0, 1])).tolist() == [1, 59_999]


@given(st.lists(st.integers(-5, 40), min_size=1, max_size=20), st.integers(0, 3), st.integers(0, 3))
def test_whatever_a_tokenizer_says_the_characters_cover_the_response(starts, before, after) -> None:
    text = "p" * 5 + "r" * 30 + "s" * 5
    sample = RenderedSample(text, (5, 10, 35), (before, after))
    counts = characters_of_tokens(sample, np.array(starts) + 5)
    assert (counts >= 0).all()
    assert counts.sum() == 30 + before + after


# ---------------------------------------------------------------- statistics


def test_the_top_entropy_is_the_sum_over_one_token_in_two_hundred() -> None:
    numbers = np.random.default_rng(0).random((1999, 4)).astype(np.float32)
    for count, top in ((1, 1), (199, 1), (200, 1), (400, 2), (1999, 9)):
        expected = sum(sorted(numbers[:count, 2].tolist())[-top:])
        assert top_entropy(numbers[:count]) == pytest.approx(expected, rel=1e-7)


def test_numbers_that_are_not_finite_stay_so_without_a_warning() -> None:
    numbers = np.array([[-np.inf, 3, np.nan, 1], [-1, 1, 0.5, 0.1]], dtype=np.float32)
    found = segment_statistics(numbers, np.array([1, 1]))
    assert [np.isfinite(found[name]).tolist() for name in ("loss", "entropy", "error")] == [
        [False, True], [False, True], [True, True],
    ]  # fmt: skip
