"""Which segment a token belongs to, against a slow and literal reading of the rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from grace_store.base.states import Reason, Unusable
from grace_store.model.inputs.tokens import NO_SEGMENT, RenderedSample, SampleTokenizer, TokenizedSample
from tests.tiny_models import tiny_tokenizer

TOKENIZERS = {"bytes": tiny_tokenizer(), "spaces": tiny_tokenizer(metaspace=True)}
BYTE_OF = {}
for _byte in range(256):
    # GPT-2's alphabet: printable bytes stand for themselves, the others come after 255 in order.
    printable = 33 <= _byte <= 126 or 161 <= _byte <= 172 or 174 <= _byte <= 255
    BYTE_OF[chr(_byte) if printable else chr(256 + sum(1 for c in BYTE_OF.values() if c[1]))] = (_byte, not printable)


def make(kind: str, **changes) -> SampleTokenizer:
    options = {"add_special_tokens": False, "include_eos": False, "max_length": 10_000, "vocab_size": 10_000}
    return SampleTokenizer(TOKENIZERS[kind], **{**options, **changes})


def spans_from_bytes(kind: str, text: str, ids) -> list[tuple[int, int]]:
    """Return each token's characters by adding up the bytes it stands for, without the library's offsets."""
    owner = [index for index, character in enumerate(text) for _ in character.encode()]
    spans, position = [], 0
    backend = TOKENIZERS[kind].backend_tokenizer
    after_marker = True
    for token in (backend.id_to_token(index) for index in ids):
        marker = token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        if marker:
            size = len(token)
        elif kind == "bytes":
            size = len(bytes(BYTE_OF[c][0] for c in token))
        elif token.startswith("<0x"):
            size = 1
        else:
            # The space put before a text, or before what follows a marker, stands for no character.
            size = len(token.replace("▁", " ").encode()) - after_marker
        after_marker = marker
        spans.append((owner[position] if position < len(owner) else len(text), position, position + size))
        position += size
    assert position == len(owner)
    return [
        (owner[min(a, len(owner) - 1)], owner[b - 1] + 1 if b > a else owner[min(a, len(owner) - 1)])
        for _, a, b in spans
    ]


def literal_segments(kind: str, text: str, bounds, ids) -> list[int]:
    found = []
    for number, (start, stop) in enumerate(spans_from_bytes(kind, text, ids)):
        place = next((i for i in range(start, stop) if not text[i].isspace()), start)
        inside = [k for k in range(len(bounds) - 1) if bounds[k] <= place < bounds[k + 1]]
        found.append(inside[0] if inside and number > 0 else NO_SEGMENT)
    return found


pieces = st.text(
    st.sampled_from("aeht Tom7.,+\n\t   é😀日 \u3000ﬁ")
    | st.characters(exclude_categories=["Cs"], max_codepoint=0x1F9FF),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(
    prompt=pieces, segments=st.lists(pieces, min_size=2, max_size=5), end=st.sampled_from(["", "<|im_end|>\n", "\n"])
)
@example(prompt="Q:", segments=[" the apples", "\n\n", "  Tom 😀", "7"], end="<|im_end|>\n")
@example(prompt="", segments=["a", "b"], end="")
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_assignment_is_the_literal_rule(kind, prompt, segments, end):
    text = prompt + "".join(segments) + end
    # ▁ itself is how these tokenizers write a space, so it cannot be told from one.
    assume("▁" not in text and text)
    bounds = tuple(int(b) for b in len(prompt) + np.concatenate(([0], np.cumsum([len(s) for s in segments]))))
    ids = TOKENIZERS[kind](text, add_special_tokens=False).input_ids
    expected = literal_segments(kind, text, bounds, ids)
    (made,) = make(kind).tokenize([RenderedSample(text, bounds)])
    empty = [k for k in range(len(segments)) if k not in expected]
    if empty:
        assert isinstance(made, Unusable)
        assert made.reason == Reason.SEGMENT_WITHOUT_TOKEN
        assert made.detail.startswith("the answer" if empty[0] == len(segments) - 1 else f"step {empty[0] + 1} ")
    else:
        assert isinstance(made, TokenizedSample)
        assert made.ids.tolist() == ids
        assert made.segment.tolist() == expected
        assert made.tokens_per_segment().sum() == sum(k >= 0 for k in expected)


def test_a_token_of_spaces_belongs_where_it_begins():
    text = "go  \n\n  Tom"
    (made,) = make("bytes").tokenize([RenderedSample("?" + text, (1, 5, 9, 12))])
    assert made.tokens_per_segment().min() >= 1


def test_added_special_tokens_belong_to_no_segment():
    (made,) = make("spaces", add_special_tokens=True).tokenize([RenderedSample("the apples Tom", (0, 4, 14))])
    assert TOKENIZERS["spaces"].convert_ids_to_tokens(made.ids.tolist())[0] == "<s>"
    assert made.segment[0] == NO_SEGMENT
    assert made.segment[1] == 0


@pytest.mark.parametrize(("include_eos", "extra"), [(False, 0), (True, 1)])
def test_end_of_turn_counts_as_answer_only_when_asked(include_eos, extra):
    text = "?ab cd<|im_end|>\n"
    (made,) = make("bytes", include_eos=include_eos).tokenize([RenderedSample(text, (1, 4, 6))])
    (without,) = make("bytes").tokenize([RenderedSample("?ab cd", (1, 4, 6))])
    assert (made.tokens_per_segment() - without.tokens_per_segment()).tolist() == [0, extra]
    assert made.segment[-1] == NO_SEGMENT


def test_too_long_says_how_long():
    (made,) = make("bytes", max_length=4).tokenize([RenderedSample("?" + "xyz" * 5, (1, 3, 16))])
    assert isinstance(made, Unusable)
    assert (made.reason, made.detail) == (Reason.TOO_LONG, "the sample has 16 tokens, at most 4 are allowed")


@pytest.mark.parametrize(("text", "changes"), [("?a\ud800b", {}), ("?abc", {"vocab_size": 5})])
def test_text_the_model_cannot_read_is_set_aside(text, changes):
    (made,) = make("bytes", **changes).tokenize([RenderedSample(text, (1, 2, 3))])
    assert isinstance(made, Unusable)
    assert made.reason == Reason.BAD_TEXT


def test_the_first_token_is_never_in_a_segment():
    (made,) = make("bytes").tokenize([RenderedSample("xy z", (0, 3, 4))])
    assert made.segment[0] == NO_SEGMENT


def test_others_padding_and_truncation_do_not_reach_us():
    tokenizer = tiny_tokenizer()
    tokenizer("a b c", truncation=True, max_length=2, padding="max_length")
    ours = SampleTokenizer(tokenizer, add_special_tokens=False, include_eos=False, max_length=99, vocab_size=999)
    (made,) = ours.tokenize([RenderedSample("?abc def ghi", (1, 5, 12))])
    assert made.num_tokens > 2
