"""Numbers in texts by value: ways to write one number are one word, and other numbers and other words stay apart."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_store.data.words import is_number, plain_text, word_spans, words_of
from jobs.planted_copies import in_words

SAME = [
    ["2", "two", "Two", "TWO", "02", "2.0", "٢", "२", "２", "২"],
    ["10", "ten", "10.00", "١٠", "１０"],
    ["1", "one", "1.0"],
    ["0", "zero", "0.00", "000"],
    ["$4", "$4.0", "$4.00", "$4 .", "four"],
    ["$4.5", "$4.50", "4.500", "٤٫٥", "4 1/2", "4½", "four and a half", "4 and a half"],
    ["3650", "3,650", "3{,}650", r"3\,650", "3\u202f650", "3\u2009650", "3٬650", "3,650.0", "٣٬٦٥٠",
     "three thousand six hundred fifty", "three thousand, six hundred and fifty", "Three Thousand Six Hundred-Fifty"],
    ["1000000", "1,000,000", "1 million", "one million", "a million", "1.0 million"],
    ["1500000", "1.5 million", "1,500 thousand", "a million five hundred thousand"],
    ["25", "twenty-five", "twenty five", "Twenty\nFive", "twenty\u2011five", "twenty\r\n  > five"],
    ["105", "one hundred five", "one hundred and five", "a hundred and five"],
    ["100", "hundred", "a hundred", "one hundred", "1 hundred"],
    ["12", "twelve", "dozen", "a dozen", "one dozen"],
    ["24", "two dozen", "2 dozen", "twenty-four"],
    ["6", "half a dozen", "half dozen"],
    ["0.5", ".5", "0.50", "1/2", "1 / 2", "½", "half", "one half", "one-half", r"\frac{1}{2}", r"\dfrac12", "2/4"],
    ["2.5", "2 1/2", "2½", "two and a half", r"2\frac{1}{2}", "2 ½"],
    ["1/3", "one third", "one-third", "1/3rd", "⅓", "2/6", r"\frac 1 3", "1 third"],
    ["2/3", "two thirds", "two-thirds", "2/3rds", "2 thirds"],
    ["0.75", "3/4", "three quarters", "three-fourths", "3 quarters", "¾", ".75", "3/4ths"],
    ["10/2", "10 / 2", "10÷2", r"\frac{10}{2}", "１０/２"],
    ["3rd", "third", "Third", "3RD"],
    ["21st", "twenty-first", "twenty first"],
    ["2nd", "second"],
    ["30th", "thirtieth"],
]  # fmt: skip


@pytest.mark.parametrize("written", SAME, ids=lambda written: written[0])
def test_ways_to_write_one_number_are_one_word(written: list[str]) -> None:
    for text in written:
        (word,) = words_of(text)
        assert [word] == words_of(written[0]), text
        assert is_number(word)


def test_other_numbers_are_other_words() -> None:
    for one, other in combinations([written[0] for written in SAME], 2):
        assert words_of(one) != words_of(other), (one, other)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # Words that only look like numbers, or are more than one.
        ("tenant ones one's twos hundreds dozens seconds", "tenant ones ones twos hundreds dozens seconds"),
        ("no one, one of the, someone", "no 1 1 of the someone"),
        ("one two three", "1 2 3"),
        ("first two of the second-best", "1th 2 of the 2th best"),
        ("two three-packs", "2 3 packs"),
        ("twenty fives", "20 fives"),
        ("fifty one-dollar bills", "50 1 dollar bills"),
        ("a twenty-four-hour stay", "a 24 hour stay"),
        ("4 third graders, one fifth-grader", "4 3th graders 1 5th grader"),
        ("five quarters and 7 quarters", "5 quarters and 7 quarters"),
        ("a quarter, a third of it", "a quarter 1/3 of it"),
        ("one hundred, two of them", "100 2 of them"),
        ("twenty - five = 15", "20 5 15"),
        ("she sold five and half of them", "she sold 5 and 0.5 of them"),
        # Digits that are not one number.
        ("5/6/2020 at 16:00 2/3", "5 6 2020 at 16 0 2/3"),
        ("1,2,3 and 10,20", "1 2 3 and 10 20"),
        ("1,0000 and 12,34", "1 0 and 12 34"),
        ("x2+y_3, x² + 4x^2", "x 2 y 3 x 2 4 x 2"),
        ("20/4 is not 10/2", "20/4 is not 10/2"),
        ("version 1.2.3", "version 1.2 3"),
        ("end.5 and 3.", "end 5 and 3"),
        ("2.5/3", "2.5 3"),
        ("mp3s, 5kg, 3rds", "mp 3 s 5 kg 3 rds"),
        (r"\fracture \frac{a}{2}", "fracture frac a 2"),
        ("once, twice, thrice", "once twice thrice"),
    ],
)
def test_what_is_more_or_less_than_a_number_stays_apart(text: str, words: str) -> None:
    assert words_of(text) == words.split()


@given(st.integers(0, 9999))
def test_numbers_in_words_are_those_in_digits(number: int) -> None:
    assert words_of(in_words(number)) == words_of(f"{number:,}.00") == [str(number)]
    assert words_of(f"He had {in_words(number)} of them.") == ["he", "had", str(number), "of", "them"]


@given(st.fractions(min_value=0, max_value=9999, max_denominator=9999))
def test_a_part_of_one_has_the_value_of_its_fraction(number: Fraction) -> None:
    whole, part = divmod(number, 1)
    text = f"{whole} {part.numerator}/{part.denominator}" if whole and part else f"{part.numerator}/{part.denominator}"
    (word,) = words_of(text)
    assert Fraction(word) == (number if part else 0)


@given(st.from_regex(r"0*[0-9]{1,12}(\.[0-9]{1,12})?", fullmatch=True))
def test_digits_keep_their_value_and_lose_needless_zeros(text: str) -> None:
    (word,) = words_of(text)
    assert Fraction(word) == Fraction(text)
    assert word == "0" or not word.startswith("00")
    assert "." not in word or not word.endswith("0")


_PIECES = r"""1 2 10 007 1,000 2.5 .5 1/2 3/0 10/2 half quarter third thirds one two twenty hundred million dozen a
and of th rd st \frac{1}{2} \frac12 \frac ½ ٣ first tenth zero x 1'"""
PIECES, GAPS = _PIECES.split(), ["", " ", "-", "\n> ", ",", ". ", "/"]


@given(st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(GAPS)), max_size=9))
def test_any_mix_of_pieces_is_read_and_every_word_has_its_place(pieces: list[tuple[str, str]]) -> None:
    text = plain_text("".join(piece + gap for piece, gap in pieces))
    words = words_of(text)
    assert len(words) == len(word_spans(text))
    assert all(words)
    assert words_of(text.upper()) == words_of(text.replace("-", "\u2011")) == words


HOSTILE = [
    "1" * 100_000, "1" * 5000 + " million", "1" * 5000 + "th", "9," * 50_000, "000," * 50_000, "twenty " * 20_000,
    "one hundred and " * 9999, "a " * 50_000, r"\frac" * 20_000, r"\frac1" + " " * 100_000, "1/" * 50_000,
    "1 " * 50_000, "half a " * 20_000, "million " * 20_000, "." * 100_000, "1" + " " * 100_000 + "/2", "৴৵ ৻",
    "five" + " >" * 50_000, "_" * 100_000, "* " * 50_000 + "_", "\\" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: f"{text[:8]}...{len(text)}")
def test_hostile_numbers_are_only_text(text: str) -> None:
    words = words_of(text)
    assert len(words) == len(word_spans(text))
    assert all(isinstance(word, str) and word for word in words)
