r"""What an answer comes to, as text and as a number: `#### 7`, `\boxed{7}`, `The answer is 7.` Knows no samples."""

import re
from collections.abc import Iterator

from grace_store.data.answers import MARKED_ANSWERS, boxed_span

MAX_BARE_CHARS = 60
"""An answer without a mark that is longer says more than its result, and where that is is not known."""

_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
_NUMBER = re.compile(r"\d{1,3}(?:[ \u202f]\d{3})+(?!\d)|\d[\d,]*(?:\.\d+)?|\.\d+")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{?\s*(\d+)\s*\}?\s*\{?\s*(\d+)\s*\}?|(\d[\d,]*)\s*/\s*(\d[\d,]*)")
_ALONE = re.compile(r"[-+]?\s*(?:(?P<number>\d[\d,]*(?:\.\d+)?|\.\d+)|(?P<fraction>\S.*/.*|\\[dt]?frac.*))\s*%?")
_SMALL_NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen twenty"""
_NUMBER_WORDS = {word: float(number) for number, word in enumerate(_SMALL_NUMBERS.split())}
_NUMBER_WORDS |= {"half": 0.5, "once": 1.0, "twice": 2.0, "dozen": 12.0, "hundred": 100.0, "thousand": 1000.0}
_WORD = re.compile(r"[a-z]+")
_SEPARATORS = str.maketrans("", "", ", \u202f")
_AROUND = " \t\r\n*_.,;:!$。！？，"
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}")
_LAYOUT = re.compile(r"\\(?:left|right|displaystyle|[,;!: ])|\\[()\[\]]|[\s$]|(?<=\\)[dt](?=frac)")


def final_value(answer: str) -> tuple[str, int] | None:
    """Return what an answer comes to and where it begins; None where that is not clear."""
    if (span := boxed_span(answer)) is not None:
        return answer[span[0] : span[1]], span[0]
    for mark in MARKED_ANSWERS:
        if (found := mark.search(answer)) is not None:
            after = answer[found.end() :].lstrip(_AROUND)
            line = after.partition("\n")[0].partition("<")[0]
            return (line, len(answer) - len(after)) if line.strip() and len(line) <= MAX_BARE_CHARS else None
    return (answer, 0) if len(answer.strip()) <= MAX_BARE_CHARS else None


def result_of(text: str) -> str | None:
    """Return what a whole response comes to, by its mark or by its last line; None where that is not clear.

    >>> result_of("3 + 4 = 7\\n#### 7"), result_of("So it is\\n1,080 dollars"), result_of("")
    ('7', '1,080dollars', None)
    """
    lines = [line for line in text.splitlines() if line.strip()]
    found = final_value(text)
    if lines and found in (None, (text, 0)):
        found = final_value(lines[-1])
    return None if found is None else compact(plain_value(found[0])) or None


def is_same_result(one: str, other: str) -> bool:
    r"""Return whether two results are the same text or number.

    >>> is_same_result("1,080", "1080.0"), is_same_result("-3", "3"), is_same_result(r"\frac{1}{2}", "0.5")
    (True, False, True)
    """
    numbers = number_alone(one), number_alone(other)
    if None in numbers:
        return one.casefold() == other.casefold()
    return numbers[0] == numbers[1] and one.startswith("-") == other.startswith("-")


def plain_value(text: str) -> str:
    r"""Return a result without units in LaTeX, dollars and full stops.

    >>> plain_value(r"\$1,080\text{ dollars}.")
    '1,080'
    """
    unwrapped = _WRAPPED.sub(lambda found: "" if found.start() else found[1], text.strip(_AROUND))
    return unwrapped.replace("\\$", "").replace("\\%", "%").strip(_AROUND)


def compact(text: str) -> str:
    """Return a formula without what only sets its layout."""
    return _LAYOUT.sub("", text)


def number_alone(text: str) -> float | None:
    r"""Return the number that a result is, its sign left out; None if it is something else.

    >>> number_alone("-1,080"), number_alone(r"\frac{3}{4}"), number_alone("75%"), number_alone("x = 3")
    (1080.0, 0.75, 75.0, None)
    """
    found = _ALONE.fullmatch(text)
    if found is None:
        return None
    if found["number"]:
        return _number(found["number"])
    whole = _FRACTION.fullmatch(found["fraction"].strip())
    return None if whole is None else next(_fractions(whole[0]), None)


def numbers_in(text: str) -> Iterator[float]:
    """Yield every number in a text: in digits, as a fraction, or as a word up to twenty."""
    yield from (_number(found) for found in _NUMBER.findall(text))
    if "/" in text or "frac" in text:
        yield from _fractions(text)
    yield from (_NUMBER_WORDS[word] for word in _WORD.findall(text.lower()) if word in _NUMBER_WORDS)


def without_notes(text: str) -> str:
    """Return a text without GSM8K's calculator notes."""
    return _CALCULATOR.sub("", text) if "<<" in text else text


def _number(digits: str) -> float:
    return float(digits.translate(_SEPARATORS))


def _fractions(text: str) -> Iterator[float]:
    for found in _FRACTION.finditer(text):
        above, below = (_number(part) for part in found.groups() if part)
        if below:
            yield above / below
