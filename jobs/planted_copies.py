"""Questions of a benchmark as they turn up in other data: copied, re-wrapped, diluted, paraphrased, renumbered.

The paraphrases are made by rules (a list of synonyms, other names, another order), not by people: they tell what
happens when words change here and there, not what a good writer, or a model that rewrites freely, does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

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
_SMALL_NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_OTHER_NUMBERS = "half once twice dozen hundred thousand"
SMALL_NUMBERS, TENS = _SMALL_NUMBERS.split(), _TENS.split()
# Not "one", which is a number in few of the places where it stands.
NUMBER_WORDS = frozenset({*SMALL_NUMBERS, "twenty", *_OTHER_NUMBERS.split()} - {"one"})
SYNONYMS = {word: other for word, _, other in (pair.partition(":") for pair in _PAIRS.split())}
NAMES, WORDS_OF_NUMBERS = _NEW_NAMES.split(), _NUMBERS.split()
_SENTENCE = re.compile(r"(?<=[.?!])\s+")
_CAPITALISED = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}\b|^[A-Z][a-z]{2,}(?=['’]s\b)")
_NOT_NAMES = frozenset(_DAYS_AND_BEGINNINGS.split())
_ALONE = re.compile(r"(?<![\w.,:/$€£%-])(?:\d{1,4}(?![\w,:/%]|[.,]\d)|[A-Za-z]+(?![\w-]))")
_AMOUNT = re.compile(r"(?<![\w./:{,])(\$?)(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?![\w/:]|[,.]\d)")
_THOUSANDS = re.compile(r"\B(?=(?:\d{3})+$)")
_SIMPLE_FRACTION = re.compile(
    r"(?<!\d )(?<![\w/.,])(\d)/(\d{1,2})(?![\w/]|\.\d)|\b(one|two|three)[ -](third|fourth|fifth)(s?)\b"
)
_PARTS = {
    2: "half",
    3: "third",
    4: "fourth",
    5: "fifth",
    6: "sixth",
    7: "seventh",
    8: "eighth",
    9: "ninth",
    10: "tenth",
}
_SCRIPTS = ("٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "০১২৩৪৫৬৭৮৯")
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


def spell(question: str, others: Sequence[str], rng: Random) -> str:
    """Write numbers of up to four digits in words, and those in words in digits."""

    def other(found: re.Match[str]) -> str:
        word = found[0]
        if word.isdigit():
            return in_words(int(word))
        low = word.lower()
        return str(SMALL_NUMBERS.index(low)) if low in SMALL_NUMBERS else word

    return _ALONE.sub(other, question)


def in_words(number: int) -> str:
    """Return a number below ten thousand in English."""
    if number < 20:
        return SMALL_NUMBERS[number]
    if number < 100:
        tens, rest = divmod(number, 10)
        return TENS[tens - 2] + (f"-{SMALL_NUMBERS[rest]}" if rest else "")
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    count, rest = divmod(number, size)
    return f"{in_words(count)} {name}" + (f" {in_words(rest)}" if rest else "")


def write_amounts(question: str, others: Sequence[str], rng: Random) -> str:
    """Write amounts of money with two decimals or fewer, and thousands with other separators or none."""

    def other(found: re.Match[str]) -> str:
        sign, whole, decimals = found[1], found[2].replace(",", ""), found[3] or ""
        if sign or decimals:
            places = f"{decimals}0" if len(decimals) == 2 else decimals.rstrip("0").rstrip(".")
            decimals = ".00" if not decimals else places
        separator = rng.choice([each for each in (",", "{,}", r"\,", "") if each != ("," if "," in found[2] else "")])
        return sign + _THOUSANDS.sub(lambda _: separator, whole) + decimals

    return _AMOUNT.sub(other, question)


def write_fractions(question: str, others: Sequence[str], rng: Random) -> str:
    """Write simple fractions in words, and those in words in digits."""

    def other(found: re.Match[str]) -> str:
        if found[3]:
            above, below = SMALL_NUMBERS.index(found[3]), next(n for n, word in _PARTS.items() if word == found[4])
            return f"{above}/{below}"
        above, below = int(found[1]), int(found[2])
        if not 0 < above < below or below not in _PARTS or (below == 2 and above > 1):
            return found[0]
        return f"{SMALL_NUMBERS[above]}{rng.choice(' -')}{_PARTS[below]}{'s' if above > 1 else ''}"

    return _SIMPLE_FRACTION.sub(other, question)


def write_digits(question: str, others: Sequence[str], rng: Random) -> str:
    """Write digits in another script."""
    return question.translate(str.maketrans("0123456789", rng.choice(_SCRIPTS)))


def renumber(question: str, others: Sequence[str], rng: Random) -> str:
    """Change every number; the words stay. That is another question."""
    return "".join(_other_number(each, rng) if _is_number(each) else each for each in _TOKEN.findall(question))


def renumber_and_spell(question: str, others: Sequence[str], rng: Random) -> str:
    """Change every number, and write it otherwise."""
    return spell(renumber(question, others, rng), others, rng)


def change_one_number(question: str, others: Sequence[str], rng: Random) -> str:
    """Change one number alone."""
    tokens = _TOKEN.findall(question)
    places = [place for place, each in enumerate(tokens) if _is_number(each)]
    if places:
        at = rng.choice(places)
        tokens[at] = _other_number(tokens[at], rng)
    return "".join(tokens)


def _is_number(token: str) -> bool:
    return token[0].isdigit() or token.lower() in NUMBER_WORDS


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
    only_changed: bool = False
    """Whether a question that stays as it is is no case of it."""


PLANTS: dict[str, Planted] = {
    "copied as it is": Planted(copy, True),
    "re-wrapped: lines, spacing, case, punctuation": Planted(rewrap, True),
    "inside longer text": Planted(embed, True),
    "one half of it, inside other text": Planted(halve, True),
    "other names": Planted(rename, True),
    "other names and synonyms": Planted(reword, True),
    "other names, synonyms and order": Planted(reorder, True),
    "numbers in words, and words in digits": Planted(spell, True, only_changed=True),
    "$4.00 for $4, 3{,}650 for 3,650": Planted(write_amounts, True, only_changed=True),
    "fractions in words, and back": Planted(write_fractions, True, only_changed=True),
    "digits of other scripts": Planted(write_digits, True, only_changed=True),
    "one number changed": Planted(change_one_number, False),
    "all numbers changed": Planted(renumber, False),
    "all numbers changed, in words or digits": Planted(renumber_and_spell, False),
}


def has_number(question: str) -> bool:
    """Whether a question has a number to change."""
    return any(map(_is_number, _TOKEN.findall(question)))
