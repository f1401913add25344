"""Items of benchmarks in samples: which kind of match, of what, and where."""

from __future__ import annotations

import pytest

from grace_store.data import passages, text_matches
from grace_store.data.parse_records import cover
from grace_store.data.passages import Threshold
from grace_store.data.sample import Sample, Turn
from grace_store.data.text_matches import PASSAGE_CHARS, Item, TextMatch, TextMatcher, excerpt

QUESTION = (
    "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes muffins for her friends "
    "every day with four. How much does she make daily at the market if an egg is $2?"
)
SOLUTION = (
    "She has 16 - 3 - 4 = <<16-3-4=9>>9 eggs left to sell.\nSo she makes 9 * 2 = $<<9*2=18>>18 on every day of it."
)
ITEM = Item("q0", 0, QUESTION, f"{SOLUTION}\n#### 18")
OTHER = "A baker has twelve loaves of bread and gives all but two of them to the neighbours. How many are left for him?"


def sample(prompt: str, *steps: str, answer: str = "#### 5", system: str | None = None) -> Sample:
    response = "\n".join([*steps, answer])
    starts = [sum(len(step) + 1 for step in steps[:number]) for number in range(len(steps) + 1)]
    turns = [Turn("system", (system,))] if system else []
    return Sample("s", (*turns, Turn("user", (prompt,))), response, cover(response, starts[:-1], starts[-1]))


def only_match(of: Sample, *items: Item, **how: float) -> TextMatch:
    ((place, match),) = TextMatcher(items or [ITEM], Threshold(**how)).matches([of])
    assert place == 0
    return match


def test_an_exact_copy_is_told_from_one_with_another_layout():
    found = only_match(sample(QUESTION.replace(" ", "\n"), "Nothing of it."))
    assert (found.kind, found.part, found.share, found.where) == ("exact", "question", 1.0, "prompt")
    upper = only_match(sample(QUESTION.upper().replace(".", " -"), "Nothing of it."))
    assert (upper.kind, upper.share, upper.where) == ("ngram", 1.0, "prompt")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_question_inside_longer_text_is_found_where_it_stands(at):
    steps = ["First a word.", "Then another one."]
    steps.insert(at, f"Here is a problem: {QUESTION} It is easy.")
    found = only_match(sample(OTHER, *steps))
    assert (found.kind, found.share, found.where) == ("ngram", 1.0, f"step {at + 1}")
    assert found.passage == QUESTION.removesuffix("?")
    in_answer = only_match(sample(OTHER, "One step.", answer=f"Answer: {QUESTION}"))
    assert in_answer.where == "answer"
    assert only_match(sample(OTHER, "One step.", system=QUESTION)).where == "prompt"


def test_half_a_question_is_found_with_its_share():
    half = QUESTION[: len(QUESTION) // 2]
    found = only_match(sample(f"{half} and then {OTHER}", "One step."))
    assert found.kind == "ngram"
    assert 0.3 <= found.share <= 0.5
    assert not list(TextMatcher([ITEM], Threshold(share=0.6)).matches([sample(f"{half} x {OTHER}", "One step.")]))


@pytest.mark.parametrize("old", ["16", "three", "$2"])
def test_the_same_words_with_another_number_are_a_template(old):
    found = only_match(sample(QUESTION.replace(old, "7"), "One step."))
    assert found.kind == "template"
    assert found.share > 0.7


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("16", "sixteen"), ("three", "3"), ("four", "4"), ("$2", "$2.00"), ("$2", "$two"), ("16", "١٦"), ("16", "१६"),
        ("16", "１６"), ("$2", "$2.0"),
    ],
)  # fmt: skip
def test_the_same_number_written_otherwise_is_a_copy_and_another_is_a_template(old, new):
    found = only_match(sample(QUESTION.replace(old, new), "One step."))
    assert (found.kind, found.share) == ("ngram", 1.0)
    assert only_match(sample(QUESTION, "One step."), ITEM._replace(question=QUESTION.replace(old, new))).kind == "ngram"
    other = {"16": "seventeen", "three": "5", "four": "9", "$2": "$2.50"}[old]
    assert only_match(sample(QUESTION.replace(old, other), "One step.")).kind == "template"


PROSE = "{} of the {} boys in the club says that no one is as fast as he is on the {} one of the {} laps that he runs."


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        (("One", "12", "first", "3"), "ngram"),
        (("1", "twelve", "1st", "three"), "ngram"),
        (("One", "12", "first", "5"), "template"),
        (("One", "thirteen", "first", "3"), "template"),
        (("Two", "12", "first", "3"), "template"),
        (("One", "12", "second", "3"), "template"),
        (("Each", "12", "first", "3"), "ngram"),
        (("One", "12", "last", "3"), "ngram"),
    ],
)
def test_one_and_first_in_prose_make_a_difference_only_where_another_number_stands(numbers, kind):
    item = Item("p", 0, PROSE.format("One", "12", "first", "3"))
    assert only_match(sample(PROSE.format(*numbers).upper(), "x"), item).kind == kind


def test_a_solution_is_found_with_or_without_calculator_notes():
    with_notes = only_match(sample(OTHER, *SOLUTION.split("\n"), answer="#### 18"))
    assert (with_notes.kind, with_notes.part, with_notes.where) == ("exact", "solution", "step 1")
    plain = SOLUTION.replace("<<16-3-4=9>>", "").replace("<<9*2=18>>", "")
    found = only_match(sample(OTHER, "Well.", *plain.split("\n"), answer="#### 18"))
    assert (found.kind, found.part, found.share, found.where) == ("ngram", "solution", 1.0, "step 2")


def test_a_copied_question_counts_more_than_a_solution_in_part():
    assert only_match(sample(QUESTION, SOLUTION.split("\n")[0])).part == "question"


SHORT = Item("q1", 1, "What is 2 + 2?", "4")


def test_short_items_are_found_only_as_a_whole_turn():
    found = only_match(sample("what is 2+2", "It is four."), SHORT)
    assert (found.kind, found.share) == ("ngram", 1.0)
    assert only_match(sample(" What is\n2 + 2? ", "It is four."), SHORT).kind == "exact"
    matcher = TextMatcher([SHORT, Item("q2", 2, "?!"), ITEM])
    assert matcher.is_short.tolist() == [True, True, False]
    assert not list(matcher.matches([sample("I ask: what is 2 + 2?", "It is what is 2 + 2 is.")]))


def test_an_answer_alone_is_no_solution():
    items = [Item("q", 0, QUESTION, "18"), Item("r", 1, QUESTION[::-1], "The answer is 18 eggs a day.")]
    assert not list(TextMatcher(items).matches([sample(OTHER, "The answer is 18 eggs a day.", answer="18")]))


def test_every_sample_and_item_is_matched_once_and_in_order():
    items = [ITEM, Item("other", 1, OTHER), ITEM._replace(item_id="twin", row=2)]
    samples = [sample(OTHER, "One step."), sample("Nothing at all here.", "x"), sample(f"{QUESTION} {OTHER}", SOLUTION)]
    found = [(place, match.item) for place, match in TextMatcher(items).matches(samples)]
    assert found == [(0, 1), (2, 0), (2, 1), (2, 2)]


HOSTILE = ["\x00\x1b[31m", "\u202e\u200b", "İ" * 50, "\ud7ff\uffff", "a" * 100_000, "1 " * 5000, "ﷺ" * 20, "<<" * 999]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_text(text):
    twice = f"{text} so he said it again {text}"
    matcher = TextMatcher([Item("h", 0, twice, twice), ITEM])
    found = dict(matcher.matches([sample(twice, "One step."), sample(f"{text} {QUESTION}", "x")]))
    assert found[0].item == 0
    assert found[1].item == 1
    assert len(found[1].passage) < 2 * PASSAGE_CHARS


def test_long_passages_are_shortened_in_the_middle():
    long = " ".join(map(str, range(1000)))
    assert excerpt(long).startswith("0 1 2")
    assert excerpt(long).endswith("998 999")
    assert len(excerpt(long)) <= PASSAGE_CHARS + 5


def test_a_text_is_gone_through_once_however_many_items_it_holds(monkeypatch):
    num_chars = 0

    def counting(step):
        def counted(given):
            nonlocal num_chars
            num_chars += len(given)
            return step(given)

        return counted

    for module in (passages, text_matches):
        for name in {"words_of", "plain_text", "word_spans", "without_numbers", "without_notes"} & set(vars(module)):
            monkeypatch.setattr(module, name, counting(getattr(module, name)))
    items = [Item(f"q{n}", n, f"Who of the {n} gave the w{n} to v{n} when u{n} was no longer here?") for n in range(40)]
    matcher = TextMatcher(items, Threshold(length=3))
    held = sample(OTHER, *(item.question for item in items))
    num_chars = 0
    assert len(list(matcher.matches([held]))) == len(items)
    assert num_chars < 10 * (len(OTHER) + len(held.response))
