"""Words that count when texts are compared: the same whatever the layout, and never shifted by odd characters."""

from __future__ import annotations

import textwrap
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_store.data.words import is_number, plain_text, word_spans, words_of

QUESTION = "Janet's 16 ducks don't lay 1,250.50 eggs -- she \"eats\" three, daily."


@pytest.mark.parametrize(
    "layout",
    [
        QUESTION,
        textwrap.fill(QUESTION, 12),
        QUESTION.upper(),
        QUESTION.replace(" ", "\u00a0\r\n\t"),
        QUESTION.replace("'", "’").replace('"', "“"),
        QUESTION.replace("'", ""),
        QUESTION.replace(",", " ,").replace("1 ,250", "1250").replace("--", "—"),
        QUESTION.replace("e", "e\u200b").replace("d", "\u00add"),
        QUESTION.translate({code: code + 0xFEE0 for code in range(ord("a"), ord("z") + 1)}),
        "> " + QUESTION.replace("she", "**she**"),
    ],
)
def test_layout_case_punctuation_and_letter_forms_do_not_count(layout: str) -> None:
    words = ["janets", "16", "ducks", "dont", "lay", "1250.5", "eggs", "she", "eats", "3", "daily"]
    assert words_of(layout) == words


def test_scripts_without_spaces_have_a_word_for_each_character() -> None:
    assert words_of("小明有３个苹果 apples。") == ["小", "明", "有", "3", "个", "苹", "果", "apples"]
    assert words_of("ひらがなx") == ["ひ", "ら", "が", "な", "x"]


@pytest.mark.parametrize(
    ("text", "words"), [("", []), ("?!… \n", []), ("x2+y_3", ["x", "2", "y", "3"]), ("İ İi", ["i", "ii"])]
)
def test_short_and_odd_texts(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_numbers_are_digits_number_words_and_times() -> None:
    numbers = [
        word for word in words_of("one 7 twelve ducks, ٣ 1,000 half, twice the third quarter") if is_number(word)
    ]
    assert numbers == ["1", "7", "12", "3", "1000", "0.5", "twice", "3th"]


@given(st.text(max_size=60))
def test_words_and_their_places_belong_together(text: str) -> None:
    plain = plain_text(text)
    spans, words = word_spans(plain), words_of(text)
    assert len(spans) == len(words)
    assert all(start < stop <= after for (start, stop), (after, _) in pairwise([*spans, (len(plain), 0)]))
    for (start, stop), word in zip(spans, words, strict=True):
        if not is_number(word):
            assert plain[start:stop].lower().replace("'", "").replace("’", "") == word
