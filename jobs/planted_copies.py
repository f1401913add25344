"""Questions of a benchmark as they turn up in other data: copied, re-wrapped, diluted, paraphrased, with other numbers.

The paraphrases are made by rules (a list of synonyms, other names, another order), not by people: they tell what
happens when words change here and there, not what a good writer, or a model that rewrites freely, does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from grace_store.data.words import is_number

_PAIRS = """buys:purchases bought:purchased buy:purchase total:overall many:numerous each:every
    gives:hands gave:handed sells:vends sold:vended makes:produces made:produced needs:requires need:require
    money:cash costs:runs cost:price big:large small:little friends:pals children:kids kids:children
    gets:receives got:received uses:employs used:employed day:weekday house:home starts:begins started:began
    also:additionally then:afterwards after:following before:prior spends:uses spent:used earns:makes earned:made
    wants:wishes decided:chose decides:chooses takes:grabs took:grabbed left:remaining eats:consumes ate:consumed
    store:shop car:vehicle only:just twice:double class:course job:position walks:strolls runs:jogs goes:heads
    went:headed has:owns had:owned are:were were:are is:was was:is if:supposing per:for more:extra fewer:less
    collected:gathered collects:gathers another:one remaining:leftover finds:discovers found:discovered read:studied
    reads:studies long:lengthy much:considerable all:everything people:persons"""
_NEW_NAMES = "Amara Bjorn Chidi Dagny Elif Farid Greta Haruki Imani Jorge Katya Lars Mireya Nadia Otto Priya"
_DAYS_AND_BEGINNINGS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday If How What When The"
_NUMBERS = "two three four five six seven eight nine ten eleven twelve"
SYNONYMS = {word: other for word, _, other in (pair.partition(":") for pair in _PAIRS.split())}
NAMES, WORDS_OF_NUMBERS = _NEW_NAMES.split(), _NUMBERS.split()
_SENTENCE = re.compile(r"(?<=[.?!])\s+")
_CAPITALISED = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}\b|^[A-Z][a-z]{2,}(?=['’]s\b)")
_NOT_NAMES = frozenset(_DAYS_AND_BEGINNINGS.split())
_TOKEN = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|[A-Za-z]+|[^A-Za-z\d]+")

Plant = Callable[[str, Sequence[str], Random], str]


def copy(question: str, others: Sequence[str], rng: Random) -> str:
    """Leave it as it is."""
    return question


def rewrap(question: str, others: Sequence[str], rng: Random) -> str:
    """Break lines elsewhere, change spacing and case, and lose or change punctuation."""
    text = re.sub(r"(?<=\w)[,;.](?=\s)", lambda found: rng.choice(["", " -", ";", found[0]]), question)
    text = text.replace("'", rng.choice(["’", "", "'"])).replace('"', rng.choice(["“", "", "*"]))
    text = rng.choice([str.upper, str.lower, str.title, str])(text)
    spaces = ["\n", "  ", " ", " ", "\r\n  > ", "\t", "\u00a0"]
    return "".join(rng.choice(spaces) if each.isspace() else each for each in re.split(r"(\s+)", text))


def embed(question: str, others: Sequence[str], rng: Random) -> str:
    """Put it between two other questions."""
    before, after = rng.sample(list(others), 2)
    return f"Solve these problems.\n\n1. {before}\n2. {question}\n3. {after}"


def halve(question: str, others: Sequence[str], rng: Random) -> str:
    """Keep one half of its words, and go on with another question."""
    words = question.split()
    middle = len(words) // 2
    other = rng.choice(others)
    return " ".join([*words[:middle], other] if rng.random() < 0.5 else [other, *words[middle:]])


def rename(question: str, others: Sequence[str], rng: Random) -> str:
    """Give its people other names, and change no other word."""
    names = [name for name in dict.fromkeys(_CAPITALISED.findall(question)) if name not in _NOT_NAMES]
    for name, new in zip(names, rng.sample(NAMES, len(NAMES)), strict=False):
        question = re.sub(rf"\b{name}\b", new, question)
    return question


def reword(question: str, others: Sequence[str], rng: Random) -> str:
    """Change names, and every word that the list has a synonym for."""

    def changed(found: re.Match[str]) -> str:
        new = SYNONYMS.get(found[0].lower(), found[0])
        return new.capitalize() if found[0][0].isupper() else new

    return re.sub(r"[A-Za-z]+", changed, rename(question, others, rng))


def reorder(question: str, others: Sequence[str], rng: Random) -> str:
    """Ask first and tell the story after it, with other names and words."""
    *story, asked = _SENTENCE.split(reword(question, others, rng))
    return " ".join(["Work this out.", asked, "Here is what is known.", *reversed(story)])


def renumber(question: str, others: Sequence[str], rng: Random) -> str:
    """Change every number; the words stay. That is another question."""
    return "".join(_other_number(each, rng) if is_number(each.lower()) else each for each in _TOKEN.findall(question))


def change_one_number(question: str, others: Sequence[str], rng: Random) -> str:
    """Change one number alone."""
    tokens = _TOKEN.findall(question)
    places = [place for place, each in enumerate(tokens) if is_number(each.lower())]
    if places:
        at = rng.choice(places)
        tokens[at] = _other_number(tokens[at], rng)
    return "".join(tokens)


def _other_number(number: str, rng: Random) -> str:
    if not number[0].isdigit():
        return rng.choice([word for word in WORDS_OF_NUMBERS if word != number.lower()])
    value = float(number.replace(",", ""))
    other = value + rng.randrange(1, max(10, int(value)))
    return f"{other:.{len(number.partition('.')[2])}f}"


class Planted(NamedTuple):
    """One way to plant a question, and whether what comes out still is it."""

    plant: Plant
    is_copy: bool


PLANTS: dict[str, Planted] = {
    "copied as it is": Planted(copy, True),
    "re-wrapped: lines, spacing, case, punctuation": Planted(rewrap, True),
    "inside longer text": Planted(embed, True),
    "one half of it, inside other text": Planted(halve, True),
    "other names": Planted(rename, True),
    "other names and synonyms": Planted(reword, True),
    "other names, synonyms and order": Planted(reorder, True),
    "one number changed": Planted(change_one_number, False),
    "all numbers changed": Planted(renumber, False),
}


def has_number(question: str) -> bool:
    """Whether a question has a number to change."""
    return any(is_number(each.lower()) for each in _TOKEN.findall(question))
