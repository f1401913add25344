"""Step weights in real trainers: what they were recorded to make of exports is what weights mean.

golden/weights holds what jobs/trainers/record.py wrote, with the versions of everything that was at work.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

from grace_store.choose.exports.export_kind import cut_by_spaces, weighted_parts
from grace_store.data.sample import Sample
from grace_store.model.inputs.encode_samples import TokenCuts
from grace_store.model.inputs.tokens import TokenizedSample, place_of_tokens, segment_of_places
from tests.tiny_models import tiny_tokenizer
from tests.trainer_cases import THINKING_TEMPLATE, WEIGHTED, weighted_rows, weighted_sample

GOLDEN = {path.stem: json.loads(path.read_text()) for path in Path(__file__).parent.glob("golden/weights/*.json")}
END = "<|im_end|>\n"


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer(chat_template=THINKING_TEMPLATE)


def cuts(tokenizer):
    return {"by spaces": cut_by_spaces, "by tokens": TokenCuts(tokenizer)}


def recorded(trainer):
    for cut, cases in GOLDEN[trainer]["cuts"].items():
        for name, case in cases.items():
            for template, made in case["templates"].items():
                yield f"{cut}, {name}, {template}", cut, name, made


def response_of(tokenizer, name):
    """Return a response's tokens as they are in the whole, each with its segment."""
    sample = weighted_sample(name)
    encoding = TokenCuts(tokenizer)._backend.encode(sample.response, add_special_tokens=False)
    offsets = np.array(encoding.offsets)
    place = place_of_tokens(sample.response, offsets[:, 0], offsets[:, 1])
    segment = segment_of_places(place, sample.bounds)
    return TokenizedSample(np.array(encoding.ids), segment, len(sample.bounds) - 1)


@pytest.mark.parametrize("trainer", GOLDEN)
def test_trainers_were_given_what_is_exported_for_them(tokenizer, trainer):
    assert set(GOLDEN[trainer]["cuts"]) == set(cuts(tokenizer))
    for cut, way in cuts(tokenizer).items():
        rows = weighted_rows(way)
        assert {name: each["row"] for name, each in GOLDEN[trainer]["cuts"][cut].items()} == {
            name: row[trainer] for name, row in rows.items()
        }


def token_weights(tokens: TokenizedSample, weights: list[float]) -> np.ndarray:
    """The weight of each token's segment, 0 for those in none."""
    return np.where(tokens.segment < 0, 0.0, np.array(weights)[tokens.segment])


@pytest.mark.parametrize("trainer", GOLDEN)
def test_ids_are_those_of_the_response_in_one_piece(trainer):
    for what, _, _, made in recorded(trainer):
        assert made["ids"] == made["whole"], what


def test_in_ms_swift_each_token_has_the_weight_of_its_step_and_no_other_any(tokenizer):
    end = tokenizer.encode(END, add_special_tokens=False)
    for what, cut, name, made in recorded("ms-swift"):
        tokens, weights = response_of(tokenizer, name), WEIGHTED[name][1]
        start = len(made["ids"]) - len(end) - len(tokens.ids)
        assert made["ids"][start:] == [*tokens.ids.tolist(), *end], what
        # The end of the turn is ms-swift's own, which counts 1 as ever.
        assert made["weights"][-len(end) :] == [1.0] * len(end), what
        assert set(made["weights"][:start]) == {0}, what
        wanted, found = token_weights(tokens, weights), np.array(made["weights"][start : -len(end)])
        if cut == "by tokens":
            assert found.tolist() == wanted.tolist(), what
        else:
            # Without a tokenizer, a space of its own before a step may have the weight of that step.
            text = [tokenizer.decode([token]) for token in tokens.ids]
            assert all(word.isspace() for word, same in zip(text, found == wanted, strict=True) if not same), what


def test_in_ms_swift_without_its_option_any_weight_above_0_is_1():
    for what, _, _, made in recorded("ms-swift"):
        assert made["learnt_without_option"] == np.flatnonzero(made["weights"]).tolist(), what


def test_in_axolotl_steps_of_weight_0_are_not_trained_on(tokenizer):
    """Nothing of a prompt is; of a step with weight, all but what stands at its seams."""
    end = tokenizer.encode(END.strip(), add_special_tokens=False)
    for what, _, name, made in recorded("axolotl"):
        tokens = response_of(tokenizer, name)
        stop = len(made["ids"]) - len(tokenizer.encode(END, add_special_tokens=False))
        start = stop - len(tokens.ids)
        learnt = np.zeros(len(made["ids"]), bool)
        learnt[made["learnt"]] = True
        ends = [place for place in made["learnt"] if place < start]
        assert [made["ids"][place] for place in ends] == end, f"{what}: the end of the earlier turn, and nothing else"
        weight = token_weights(tokens, WEIGHTED[name][1])
        visible = np.array([bool(tokenizer.decode([token]).strip()) for token in tokens.ids])
        assert not (learnt[start:stop] & (weight == 0) & visible).any(), what
        assert np.count_nonzero(~learnt[start:stop] & (weight > 0) & visible) <= (8 if name == "thought" else 1), what
        assert made["ids"][stop] == end[0], what
        assert learnt[stop], what


# ---------------------------------------------------------------- cuts and tokens


def samples_of(segments):
    bounds = np.cumsum([0, *map(len, segments)]).tolist()
    return Sample("a", (), "".join(segments), tuple(bounds))


@pytest.mark.parametrize(
    ("segments", "parts"),
    [
        (["One. ", "Two."], ["One.", " Two."]),
        (["One.\n", "Two.\n\n", "Three."], ["One.\n", "Two.\n\n", "Three."]),
        (["One.  ", "Two."], ["One. ", " Two."]),
        (["One.\n ", "Two."], ["One.\n", " Two."]),
        ([" ", "Two."], [" ", "Two."]),
        (["One. ", "\nTwo."], ["One. ", "\nTwo."]),
    ],
)
def test_cuts_without_a_tokenizer(segments, parts):
    sample = samples_of(segments)
    weights = np.arange(len(segments), dtype=np.float64)
    assert [part.text for part in weighted_parts(sample, weights, cut_by_spaces)] == parts


def test_neighbours_of_one_weight_are_one_part():
    sample = samples_of(["One. ", "Two. ", "Three."])
    assert weighted_parts(sample, np.array([0.5, 0.5, 1.0]), cut_by_spaces) == [("One. Two.", 0.5), (" Three.", 1.0)]
    assert weighted_parts(sample, None, cut_by_spaces) == [("One. Two. Three.", 1.0)]


class _Joining:
    """Stands for a tokenizer that takes two line ends for one token only where nothing follows, as GPT-2's."""

    def encode(self, text, add_special_tokens):
        words, place = [], 0
        while place < len(text):
            is_last = text[place:] == "\n\n"
            words.append((place, place + (2 if is_last else 1)))
            place = words[-1][1]
        return type("E", (), {"ids": [hash(text[a:b]) for a, b in words], "offsets": words})

    def encode_batch(self, texts, add_special_tokens):
        return [self.encode(text, add_special_tokens) for text in texts]


def test_a_cut_that_would_join_tokens_is_moved(tokenizer):
    cut = TokenCuts(tokenizer)
    cut._backend = _Joining()
    sample = samples_of(["a.\n\n", "b.\n\n", "c"])
    assert cut(sample) == [0, 3, 7, 9]
    assert cut.num_unlike == 0


def test_a_tokenizer_that_marks_beginnings_is_told():
    """One that puts a space before every text has other tokens for parts, wherever they are cut."""
    cut = TokenCuts(tiny_tokenizer(metaspace=True))
    assert cut(samples_of(["One.\n", "Two."])) == [0, 5, 9]
    assert cut.num_unlike == 1


PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+",
}
"""How tokenizers cut texts into words before anything else, as published with the models."""


@pytest.mark.parametrize("name", WEIGHTED)
@pytest.mark.parametrize("family", PATTERNS)
def test_cuts_without_a_tokenizer_keep_the_words_of_common_ones(family, name):
    """All but GPT-2's where a line end is followed by white space: there, --model helps."""
    split = pre_tokenizers.Split(Regex(PATTERNS[family]), "isolated")

    def words(text):
        return [word for word, _ in split.pre_tokenize_str(text)]

    sample = weighted_sample(name)
    parts = weighted_parts(sample, np.arange(3.0), cut_by_spaces)
    is_kept = words(sample.response) == [word for part in parts for word in words(part.text)]
    assert is_kept == (family != "gpt2" or name not in ("blank lines", "thought", "indented"))
