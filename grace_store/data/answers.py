"""Find where the answer of a response begins, and read the result as text and as a number. Knows no samples."""

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache

from grace_store.base.errors import SettingError
from grace_store.data.splitters import STEP_MARKER, compile_marker, paragraph_starts
from grace_store.data.words import is_number, words_of

AnswerFinder = Callable[[str], int | None]

# Each optional part before a marker is bound to the start of a line, so these patterns take linear time.
_DAGGER = re.compile(r"(?:^[ \t]*[*#]+[ \t]*)?†[ \t]?Answer\**[ \t]?:", re.MULTILINE)
_HASHES = re.compile(r"^[ \t]*####(?!#)", re.MULTILINE)
_THOUGHT_ENDS = ("</think>", "</thinking>", "</thought>", "</Thought>", "<|end_of_thought|>")
_CONCLUSION = re.compile(r"<CONCLUSION>")
_ANSWER_LINE = re.compile(
    r"^[ \t]*(?:[*#]+[ \t]*)?(?:(?:therefore|thus|so|hence),?[ \t]+)?"
    r"(?:the[ \t]+)?(?:final[ \t]+)?answer\**[ \t]*(?::|is\b)",
    re.MULTILINE | re.IGNORECASE,
)
MARKED_ANSWERS = (_DAGGER, _HASHES, _CONCLUSION, _ANSWER_LINE)
"""Markers at the beginning of an answer."""
_MARKUP = " \t\r\n*#_:."
_BOXED = r"\boxed{"
_MAX_BOXED_TRIED = 64  # each attempt may read the response to its end
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)


def dagger_answer(response: str) -> int | None:
    """Return the start of the last ``†Answer:``, anywhere in a line."""
    return _last_with(_DAGGER, "†", response)


def hashes_answer(response: str) -> int | None:
    """Return the start of the last line that begins with ``####``, as in GSM8K."""
    return _last_with(_HASHES, "####", response)


def conclusion_answer(response: str) -> int | None:
    """Return the start of the last ``<CONCLUSION>``, as in LLaVA-CoT."""
    return _last(_CONCLUSION, response)


def answer_line(response: str) -> int | None:
    """Return the start of the last line that begins with ``Answer:``, ``The answer is`` or similar."""
    return _last(_ANSWER_LINE, response)


def after_think(response: str) -> int | None:
    """Return where the text after the last closing tag of a thought begins; the tag belongs to the last step."""
    stop = max((response.rfind(tag) + len(tag) for tag in _THOUGHT_ENDS if tag in response), default=len(response))
    after = response[stop:].lstrip()
    return len(response) - len(after) if after else None


def boxed_answer(response: str, *, by_paragraph: bool = False) -> int | None:
    r"""Return the start of the line, or paragraph, with the last ``\boxed{...}`` that is closed and not empty.

    A line before it that only opens a formula (``\[`` or ``$$``) is included. If the paragraph is the whole response,
    the start of the line is returned.
    """
    if (span := boxed_span(response)) is None:
        return None
    at = span[0] - len(_BOXED)
    if by_paragraph:
        paragraph = max((start for start in paragraph_starts(response) if start <= at), default=0)
        if response[:paragraph].strip():
            return paragraph
    line = response.rfind("\n", 0, at) + 1
    opener = response.rfind("\n", 0, max(line - 1, 0)) + 1
    return opener if response[opener:line].strip() in (r"\[", "$$") else line


def boxed_span(response: str) -> tuple[int, int] | None:
    r"""Return where the content of the last ``\boxed{...}`` that is closed and not empty begins and ends."""
    at = len(response)
    for _ in range(_MAX_BOXED_TRIED):
        if (at := response.rfind(_BOXED, 0, at)) < 0:
            return None
        start, depth = at + len(_BOXED), 0
        for match in _BRACES.finditer(response, start - 1):
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if depth == 0:
                if response[start : match.start()].strip():
                    return start, match.start()
                break
    return None


def natural_answer(response: str) -> int | None:
    r"""Return the index at which the answer begins in a response of unknown format; None without an answer.

    The first match counts, in this order: the last ``†Answer:``; ``####`` at the start of the last line; the text after
    a thought; ``<CONCLUSION>``; the last ``\boxed{}``; a line that begins with "Answer:" or similar.
    """
    if (start := dagger_answer(response)) is not None:
        return start
    # "#### Solution" is also a heading of the fourth level; GSM8K has its marker on the last line.
    if (start := hashes_answer(response)) is not None and "\n" not in response[start:].strip():
        return start
    for find in (after_think, conclusion_answer):
        if (start := find(response)) is not None:
            return start
    start = boxed_answer(response, by_paragraph=STEP_MARKER.search(response) is None)
    return answer_line(response) if start is None else start


@lru_cache(maxsize=64)
def named_answer(name: str, *, by_paragraph: bool) -> AnswerFinder:
    """Return the finder for a setting: boxed, or marker:REGEX (the last match anywhere in the response)."""
    if name == "boxed":
        return lambda response: boxed_answer(response, by_paragraph=by_paragraph)
    kind, _, expression = name.partition(":")
    if kind == "marker" and expression:
        pattern = compile_marker("--answer", expression)
        return lambda response: _last(pattern, response, may_end=True)
    raise SettingError(f"unknown value {name!r} of --answer: use format, last, boxed or marker:REGEX.")


def _last_with(pattern: re.Pattern[str], literal: str, response: str) -> int | None:
    """Return the same as _last, but faster: skip all lines before the first that contains the literal."""
    first = response.find(literal)
    return None if first < 0 else _last(pattern, response, response.rfind("\n", 0, first) + 1)


def _last(pattern: re.Pattern[str], response: str, start: int = 0, *, may_end: bool = False) -> int | None:
    last = None
    for last in pattern.finditer(response, start):  # noqa: B007 - only the last match is used
        pass
    if last is None or not last[0].strip():
        return None
    is_empty = response[last.end() :].strip(_MARKUP) in ("", "</CONCLUSION>")
    return None if is_empty and not may_end else last.start()


# ---------------------------------------------------------------- the result, as text and as a number
# `#### 7`, `\boxed{7}`, `The answer is 7.`

MAX_BARE_CHARS = 60
"""The greatest length of an answer without a marker; in a longer one the place of the result is unknown."""

_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
# A comma is part of a number only before groups of digits as in 1,080 or 1,00,000. 10,8 may be a list.
_WHOLE = r"(?:\d{1,3}(?:,\d{2,3}){0,8},\d{3}(?![\d,])|\d+)"
_NUMBER = re.compile(rf"\d{{1,3}}(?:[ \u202f]\d{{3}})+(?!\d)|{_WHOLE}(?:\.\d+)?|\.\d+")
_DECIMAL_COMMA = re.compile(r"(?<![\d,])\d+,\d{1,2}(?![\d,])")
_FRACTION = re.compile(rf"\\[dt]?frac\s*\{{?\s*(\d+)\s*\}}?\s*\{{?\s*(\d+)\s*\}}?|({_WHOLE})\s*/\s*({_WHOLE})")
_ALONE = re.compile(rf"[-+]?\s*(?:(?P<number>{_WHOLE}(?:\.\d+)?|\.\d+)|(?P<fraction>\S.*/.*|\\[dt]?frac.*))\s*%?")
_NUMERAL = re.compile(r"[A-Za-z][A-Za-z -]*|\d+ \d+/\d+")
"""A text that may be a number in words, such as twenty-five, or a mixed number."""
_TIMES = {"once": "1", "twice": "2", "thrice": "3"}
_SEPARATORS = str.maketrans("", "", ", \u202f")
_AROUND = " \t\r\n*_.,;:!$。！？，"
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}")
_LAYOUT = re.compile(r"\\(?:left|right|displaystyle|[,;!: ])|\\[()\[\]]|[\s$]|(?<=\\)[dt](?=frac)")


def final_value(answer: str) -> tuple[str, int] | None:
    """Return the result in an answer and where the result begins; None if the result is unclear."""
    if (span := boxed_span(answer)) is not None:
        return answer[span[0] : span[1]], span[0]
    for mark in MARKED_ANSWERS:
        if (found := mark.search(answer)) is not None:
            after = answer[found.end() :].lstrip(_AROUND)
            line = after.partition("\n")[0].partition("<")[0]
            return (line, len(answer) - len(after)) if line.strip() and len(line) <= MAX_BARE_CHARS else None
    return (answer, 0) if len(answer.strip()) <= MAX_BARE_CHARS else None


def result_of(text: str) -> str | None:
    """Return the result of a response, from its marker or its last line; None if the result is unclear.

    >>> result_of("3 + 4 = 7\\n#### 7"), result_of("So it is\\n1,080 dollars"), result_of("")
    ('7', '1,080dollars', None)
    """
    lines = [line for line in text.splitlines() if line.strip()]
    found = final_value(text)
    if lines and found in (None, (text, 0)):
        found = final_value(lines[-1])
    return None if found is None else compact(plain_value(found[0])) or None


def is_same_result(one: str, other: str) -> bool:
    r"""Return whether two results are the same text or the same number.

    >>> is_same_result("1,080", "1080.0"), is_same_result("-3", "3"), is_same_result(r"\frac{1}{2}", "0.5")
    (True, False, True)
    """
    if None in (numbers := (number_alone(one), number_alone(other))):
        return one.casefold() == other.casefold()
    return numbers[0] == numbers[1] and one.startswith("-") == other.startswith("-")


def plain_value(text: str) -> str:
    r"""Return a result without LaTeX units, dollar signs and full stops.

    >>> plain_value(r"\$1,080\text{ dollars}.")
    '1,080'
    """
    unwrapped = _WRAPPED.sub(lambda found: "" if found.start() else found[1], text.strip(_AROUND))
    return unwrapped.replace("\\$", "").replace("\\%", "%").strip(_AROUND)


def compact(text: str) -> str:
    """Return a formula without its layout commands and spaces."""
    return _LAYOUT.sub("", text)


def number_alone(text: str) -> float | None:
    r"""Return the absolute value of a result that is a number; None for any other result.

    >>> number_alone("-1,080"), number_alone(r"\frac{3}{4}"), number_alone("75%"), number_alone("thirty-one")
    (1080.0, 0.75, 75.0, 31.0)
    >>> number_alone("x = 3"), number_alone("10,8")
    (None, None)
    """
    if _NUMERAL.fullmatch(text):
        return next(_numerals(text), None) if len(words_of(text)) == 1 else None
    if (found := _ALONE.fullmatch(text)) is None:
        return None
    if found["number"]:
        return _number(found["number"])
    whole = _FRACTION.fullmatch(found["fraction"].strip())
    return None if whole is None else next(_fractions(whole[0]), None)


def numbers_in(text: str) -> Iterator[float]:
    """Yield every number in a text: in digits, as a fraction, or in words; 10,8 is read as 10, as 8 and as 10.8."""
    yield from (_number(found) for found in _NUMBER.findall(text))
    if "/" in text or "frac" in text:
        yield from _fractions(text)
    yield from (float(found.replace(",", ".")) for found in _DECIMAL_COMMA.findall(text))
    yield from _numerals(text)


def without_notes(text: str) -> str:
    """Return a text without GSM8K's calculator annotations (<<3+4=7>>)."""
    return _CALCULATOR.sub("", text) if "<<" in text else text


def _number(digits: str) -> float:
    return float(digits.translate(_SEPARATORS))


def _numerals(text: str) -> Iterator[float]:
    for word in words_of(text):
        if is_number(word) and "/0" not in word and len(word) <= MAX_BARE_CHARS:
            yield float(sum(map(Fraction, _TIMES.get(word, word).removesuffix("th").split())))


def _fractions(text: str) -> Iterator[float]:
    for found in _FRACTION.finditer(text):
        above, below = (_number(part) for part in found.groups() if part)
        if below:
            yield above / below
