"""Passages in texts, held against a matcher that compares every run of words with every other."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.data.passages import (
    COMMON_PASSAGES,
    COMMON_SHARE,
    PassageIndex,
    TextRuns,
    Threshold,
)
from grace_store.data.words import words_of

Words = list[str]


def naive_runs(words: Words, length: int) -> set[tuple[str, ...]]:
    return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}


def naive_candidates(passages: list[Words], texts: list[list[Words]], threshold: Threshold) -> list[tuple[int, int]]:
    """Return what is in the texts, one pair after the other."""
    length = threshold.length
    distinct = {tuple(passage) for passage in passages}
    counts = Counter(run for passage in distinct for run in naive_runs(list(passage), length))
    common = {run for run, count in counts.items() if count > max(COMMON_PASSAGES, COMMON_SHARE * len(distinct))}
    found = []
    for text, parts in enumerate(texts):
        there = {run for part in parts for run in naive_runs(part, length)}
        for number, passage in enumerate(passages):
            wanted = naive_runs(passage, length) - common
            if not wanted:
                if passage and passage in parts:
                    found.append((text, number))
                continue
            least = max(math.ceil(threshold.share * len(wanted) - 1e-9), length)
            if len(wanted & there) >= min(least, len(wanted)):
                found.append((text, number))
    return found


words = st.lists(st.sampled_from(["a", "b", "c", "1", "2"]), max_size=9)
thresholds = st.builds(Threshold, st.integers(2, 4), st.sampled_from([0.1, 0.3, 0.5, 1.0]))


@settings(max_examples=150, deadline=None)
@given(st.lists(words, min_size=1, max_size=30), st.lists(st.lists(words, max_size=3), max_size=6), thresholds)
def test_it_finds_what_a_comparison_of_all_with_all_finds(passages, texts, threshold):
    found = list(PassageIndex(passages, threshold).candidates(texts))
    assert found == naive_candidates(passages, texts, threshold)


@settings(max_examples=100, deadline=None)
@given(words, st.lists(words, min_size=1, max_size=3), st.integers(2, 4))
def test_the_share_is_that_of_different_runs(passage, text, length):
    wanted, there = naive_runs(passage, length), {run for part in text for run in naive_runs(part, length)}
    found = TextRuns(text, length).overlap(passage)
    if not wanted:
        assert (found is not None) == (bool(passage) and passage in text)
    elif not wanted & there:
        assert found is None
    else:
        assert found is not None
        assert found.share == len(wanted & there) / len(wanted)
        there_first = tuple(text[found.part][found.start : found.start + length])
        there_last = tuple(text[found.part][found.stop - length : found.stop])
        assert {there_first, there_last} <= wanted


def test_no_run_crosses_from_one_part_into_the_next():
    index = PassageIndex([words_of("a b c d")], Threshold(2, 1.0))
    assert not list(index.candidates([[words_of("a b"), words_of("c d")]]))
    assert list(index.candidates([[words_of("x a b c d")]])) == [(0, 0)]


def test_a_run_that_most_passages_share_tells_none_of_them():
    passages = [["answer", "this", "question", f"w{number}", f"v{number}"] for number in range(COMMON_PASSAGES + 1)]
    index = PassageIndex(passages, Threshold(3, 0.3))
    assert index.num_runs.tolist() == [2] * len(passages)
    assert not list(index.candidates([[["answer", "this", "question"]]]))
    assert list(index.candidates([[passages[4][1:]]])) == [(0, 4)]


def test_a_passage_that_is_there_many_times_is_not_common():
    passages = [words_of("what did the old man say then")] * (COMMON_PASSAGES + 5)
    index = PassageIndex(passages, Threshold(3, 0.3))
    assert index.num_runs.tolist() == [5] * len(passages)
    found = index.candidates([[words_of("tell me what did the old man say then")]])
    assert [each[1] for each in found] == list(range(len(passages)))


@pytest.mark.parametrize(
    ("num_runs", "least"),
    [(1, 1), (4, 4), (5, 5), (10, 5), (17, 6), (20, 6), (100, 30)],
)
def test_a_short_passage_must_be_there_whole_and_a_long_one_in_part(num_runs, least):
    assert Threshold(5, 0.3).least(num_runs) == least


TOLD = words_of("ann has 16 ducks and they lay 4 eggs on every single day of the year")


@pytest.mark.parametrize(
    ("text", "others"),
    [
        (TOLD, 0),
        ([word.replace("16", "17") for word in TOLD], 1),
        ([{"16": "7", "4": "9"}.get(word, word) for word in TOLD], 2),
        (TOLD[:5], 0),
        (TOLD[5:], 0),
        (["bob", *TOLD[1:]], 0),
        # The other half tells of another number in the same words: that is the passage's own.
        (["x", "y", *TOLD[3:]], 0),
    ],
)
def test_other_numbers_between_the_same_words_are_counted(text, others):
    found = TextRuns([text], 3).overlap(TOLD)
    assert found is not None
    assert found.num_other_numbers == others


def test_a_half_that_repeats_the_words_of_the_other_is_no_template():
    passage = words_of("he drives at a speed of 60 and then she drives at a speed of 30 home")
    found = TextRuns([words_of("so then she drives at a speed of 30 home")], 4).overlap(passage)
    assert found is not None
    assert found.num_other_numbers == 0


def test_there_may_be_nothing_to_look_for_or_in():
    assert not list(PassageIndex([], Threshold()).candidates([[["a"]]]))
    assert not list(PassageIndex([[]], Threshold()).candidates([[[]], []]))
    assert not list(PassageIndex([["a"] * 9], Threshold()).candidates([]))
