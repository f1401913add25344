r"""Flags for doubtful text in a sample: repeated steps, a cut-off ending, an answer that no step supports, and others.

Pure functions from text to a boolean. In doubt a function returns False. Knows no files, models or values. The rules
handle prose, LaTeX, fenced code, GSM8K's annotations and markers, multiple choice, and Chinese punctuation.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from grace_store.base.states import TEXT_FLAGS, text_mask
from grace_store.data.answers import (
    MARKED_ANSWERS,
    MAX_BARE_CHARS,
    boxed_span,
    compact,
    final_value,
    number_alone,
    numbers_in,
    plain_value,
    without_notes,
)
from grace_store.data.passages import Run, runs_of
from grace_store.data.sample import Sample

MIN_REPEATED_CHARS = 16
"""Least length of a step, without spaces, to count as repeated; half as many in scripts other than ASCII."""
MIN_SENTENCE_CHARS = 24
MIN_SENTENCE_TIMES = 3
"""Number of occurrences from which a sentence inside steps counts as repeated."""
MIN_UNMARKED_WORDS = 8
"""Least length of an unmarked answer that needs a full stop; a shorter answer may be a phrase."""
MIN_RESTATED_WORDS = 8
SHINGLE = 4
"""Number of consecutive words that a step and the question must share to count as the same words."""
RESTATED_SHARE = 0.9
PIECE_CHARS = 12
MIN_WORDS_AFTER = 4
"""Number of words after an answer that are more than a unit or a remark."""


class _Text(NamedTuple):
    """The parts of a sample that the rules check."""

    prompt: str
    steps: list[str]
    answer: str
    response: str

    def plain_steps(self) -> list[str]:
        """Return the steps without calculator annotations."""
        return [without_notes(step) for step in self.steps]


def text_flags(sample: Sample) -> int:
    """Return the flags of a sample's text as the bits stored in a plan."""
    *steps, answer = sample.segments
    text = _Text("\n".join([turn.text for turn in sample.turns if turn.role == "user"]), steps, answer, sample.response)
    return sum(bit for bit, is_flagged in _MASKED if is_flagged(text))


_OPENING = re.compile(r"\s*(?:[*#>-]+\s*)?(?:Step\s+\d+\**\s*[:.]|\(?\d{1,2}[.)]\s)?[\s*]*", re.IGNORECASE)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[^{}]*\}|</?[a-zA-Z]+>")
_FULL_STOP = re.compile(r"[。！？]")
_CLOSING = " \t\r\n.,;:!?*_。！？，；："


def _repeats_steps(text: _Text) -> bool:
    # Most steps have different endings; the full text is compared only if two endings are equal.
    ends = [step.rstrip(_CLOSING)[-MIN_REPEATED_CHARS:] for step in text.steps]
    if len(set(ends)) < len(ends) and _has_same_steps(text):
        return True
    sentences = _sentences(text.response)
    if len(sentences) - len(set(sentences)) < MIN_SENTENCE_TIMES - 1:
        return False
    counts = Counter(_sentences("\n".join(_outside_code(text.plain_steps()))))
    often = (_comparable(sentence) for sentence, count in counts.items() if count >= MIN_SENTENCE_TIMES)
    return any(_is_sizeable(sentence, MIN_SENTENCE_CHARS) for sentence in often)


def _has_same_steps(text: _Text) -> bool:
    steps = map(_comparable, _outside_code(text.plain_steps()))
    sizeable = [step for step in steps if _is_sizeable(step, MIN_REPEATED_CHARS)]
    return len(set(sizeable)) < len(sizeable)


def _sentences(text: str) -> list[str]:
    plain = text if text.isascii() else _FULL_STOP.sub(". ", text)
    return plain.replace("\n", ". ").replace("? ", ". ").replace("! ", ". ").split(". ")


def _is_sizeable(same: str, num_chars: int) -> bool:
    return len(same) >= (num_chars if same.isascii() else num_chars // 2)


def _comparable(step: str) -> str:
    """Return a step without its number, markup and spaces."""
    opening = _OPENING.match(step)
    rest = step[opening.end() :] if opening else step
    if "\\" in rest or "<" in rest:
        rest = _ENVIRONMENT.sub("", rest)
    return "".join(rest.lower().split()).strip(_CLOSING)


def _outside_code(steps: Sequence[str]) -> Iterator[str]:
    """Yield the steps outside fenced code blocks; lines of code may repeat."""
    is_code = False
    for step in steps:
        num_fences = step.count("```")
        if not is_code and not num_fences:
            yield step
        is_code ^= num_fences % 2 == 1


_TERMINAL = ".!?:;。！？：；…\"'”’)]}）】》$`>|%"
_DANGLING_SIGNS = tuple(",，、(=+×÷·^&\\<（")
_OPEN_WORDS = """the a an of and or but with for from by into than that which because if when while where since
we his her their its my your this these those such every"""
"""Words that no sentence ends with."""
_VERBS = "is are was were be been has have had will would can could should must to equals gives so then"
"""Words that no answer ends with; a step may, if the answer follows."""
_NEVER_LAST, _LAST_BEFORE_ANSWER = frozenset(_OPEN_WORDS.split()), frozenset(_VERBS.split())
_PAIRS = (("\\[", "\\]"), ("\\(", "\\)"), ("\\begin{", "\\end{"), ("<<", ">>"), ("{", "}"))


def _is_cut_off(text: _Text) -> bool:
    response, last = text.response, text.steps[-1]
    # A code block, or a bracket of LaTeX or of a calculator annotation, that is never closed.
    if "```" in response and response.count("```") % 2:
        return True
    if any(opens in response and response.count(opens) > response.count(closes) for opens, closes in _PAIRS):
        return True
    if _ends_midway(text.answer, is_last=True) or _lacks_stop(text):
        return True
    # The answer may be in the same line as the last step, as in "so she sells \boxed{13} eggs".
    is_same_line = "\n" not in last[len(last.rstrip()) :]
    return not is_same_line and (_ends_midway(last, is_last=False) or _lacks_result(text))


def _ends_midway(segment: str, *, is_last: bool) -> bool:
    """Return whether a segment ends inside a sentence or formula; a step before the answer may end with "=" or ","."""
    end = segment.rstrip(" \t\r\n*_")
    if end.endswith((">", "}")):
        end = _ENVIRONMENT.sub("", end[-80:]).rstrip()
    if end.endswith(_DANGLING_SIGNS):
        return is_last or not end.endswith(("=", ","))
    if not end[-1:].islower():
        return False
    word = end[-16:].split()[-1]
    return (word in _NEVER_LAST or (is_last and word in _LAST_BEFORE_ANSWER)) and len(end.split()) >= 4


def _lacks_result(text: _Text) -> bool:
    """Return whether the last step ends without a full stop and without the number that is the answer."""
    last = text.steps[-1]
    if last.rstrip()[-1:] in _TERMINAL or (found := final_value(text.answer)) is None:
        return False
    value = plain_value(found[0])
    number = number_alone(value)
    return number is not None and found[1] > 0 and not _comes_to(number, value, last + text.answer[: found[1]])


def _lacks_stop(text: _Text) -> bool:
    """Return whether the answer is a sentence without a full stop, although all steps end with one."""
    answer = text.answer.rstrip()
    if not answer[-1:].isalnum() or len(answer) < 24 or len(answer.split()) < MIN_UNMARKED_WORDS:
        return False
    has_mark = boxed_span(answer) is not None or any(mark.search(answer) for mark in MARKED_ANSWERS)
    return not has_mark and all(step.rstrip()[-1:] in _TERMINAL for step in text.steps)


_OPTION = re.compile(
    r"(?i:.*\b(?:option|choice|answer|ans)\b(?:\s+is\b)?[\s:.]*)?[(\[]?([A-J]|(?<=[(\[])[a-j](?=[)\]]))[)\].:]?(?:\s.*)?"
)
_LONG_WORD = re.compile(r"[^\W\d_]{3,}|[\u4e00-\u9fff]")
_REMARK = re.compile(r"[.!]\s+(?=[A-Z]).*", re.DOTALL)
_QUANTITY = re.compile(r"(?:about |[A-Za-z]{1,3}\.? ?)?([\d.,/ ]*\d)( ?[A-Za-z][A-Za-z./ ]*)?")
"""A number with its unit or currency."""
_EQUALS = ("=", "≈", "\\approx", "\\simeq")
_APART = re.compile(r"[^\d.,]?\|(?!\d|[.,]\d)")
"""What surrounds a number, written as |, that is not part of a longer number."""
_UNITS = (60.0, 3600.0, 1000.0, 12.0, 24.0, 7.0)
"""Factors between units of measure that an answer and the steps may use for the same quantity."""
_UNIT = re.compile(
    r"\b(?:s|sec|second|min|minute|h|hr|hour|day|week|month|year|yr|dollar|cent|rupee|[mck]?m|[mk]?g|m?l|ton|tonne|foot|feet"
    r"|(?:milli|centi|kilo)?(?:meter|metre|gram|liter|litre)|inch|inche|ft|yard|mile|mph|kmp?h|dozen|thousand)s?\b",
    re.IGNORECASE,
)


def _is_unsupported(text: _Text) -> bool:
    if (found := final_value(text.answer)) is None:
        return False
    value, start = plain_value(_REMARK.sub("", found[0].strip())), found[1]
    worked = "\n".join([*text.steps, text.answer[:start]])
    if worked.removesuffix("\\boxed{").rstrip(" \t\r\n$*\\([").endswith(_EQUALS):
        return False  # the answer itself ends the calculation
    if len(value) <= MAX_BARE_CHARS and (option := _OPTION.fullmatch(value)) is not None:
        return _is_unsupported_option(option[1].upper(), text.prompt, worked)
    if start == 0 and not text.steps[-1].endswith("\n"):
        return False  # the answer ends a sentence of the last step
    return not _reaches(value, worked)


def _reaches(value: str, worked: str) -> bool:
    """Return whether the steps contain the number of a value, or else any number, any word or the whole formula."""
    value = _LEADING.sub("", value)
    number = number_alone(value)
    quantity = _QUANTITY.fullmatch(value) if number is None else None
    if quantity is not None and (number := number_alone(quantity[1])) is not None:
        has_unit = _UNIT.search(quantity[2] or "") is not None
        units = [number * factor for unit in _UNITS for factor in (unit, 1 / unit)] if has_unit else []
        return _comes_to(number, quantity[1], worked) or _contains(units, numbers_in(worked))
    if number is not None:
        return _comes_to(number, value, worked)
    if (formula := compact(value)) and formula in compact(worked):
        return True
    numbers = [each for each in numbers_in(value) if each >= 10]
    words = {word.lower() for word in set(_LONG_WORD.findall(value)) if f"\\{word}" not in value}
    if not (numbers or _NOT_DERIVED.isdisjoint(value.lower().split())) or not (words or numbers):
        return True
    lower = worked.lower()
    stems = (word[: max(4, len(word) - 3)] for word in words - _CONNECTING)
    return any(stem in lower for stem in stems) or _contains(numbers, numbers_in(worked))


def _contains(numbers: Sequence[float], known: Iterable[float]) -> bool:
    """Return whether any of the numbers is among those known, but for errors of floating-point arithmetic."""
    bounds = [(number * (1 - 1e-6), number * (1 + 1e-6)) for number in numbers]
    return any(low <= each <= high for each in known for low, high in bounds)


def _comes_to(number: float, written: str, worked: str) -> bool:
    """Return whether the steps contain a number: exactly, rounded to its written digits, or as a percentage.

    A fraction may have its two numbers in the steps. A rounded percentage needs a percent sign or word.
    """
    before, found, after = worked.rpartition(written)
    if found and _APART.match(f"{before[-1:]}|{after[:2]}"):
        return True  # the usual case, without reading every number
    if _contains((number, number * 100, number / 100), numbers_in(worked)):
        return True
    known = set(numbers_in(worked))
    if "/" in written or "frac" in written:
        return known.issuperset(map(float, re.findall(r"\d+", written)))
    unit = 10.0 ** -len(written.partition(".")[2].rstrip("% "))
    if any(abs(each - number) < unit and 10.0 ** -_num_decimals(each) < unit for each in known):
        return True
    if "%" not in written + worked and "percent" not in worked.lower():
        return False
    return any(
        abs(each * scale - number) < min(max(unit, scale * 10.0 ** -_num_decimals(each)), number / 50)
        for each in known
        for scale in (100.0, 0.01)
    )


def _num_decimals(number: float) -> int:
    text = repr(number)
    return 0 if text.endswith(".0") else len(text.partition(".")[2])


def _is_unsupported_option(letter: str, prompt: str, worked: str) -> bool:
    """Return whether the steps name neither an option's letter nor its text; False if the prompt has no such option."""
    option = re.search(rf"(?<!\w)[(\[]?{letter}[)\].:]\s*([^\n]+?)\s*(?=$|\n|\s[(\[]?[B-J][)\].:])", prompt)
    small = rf"[(\[]{letter.lower()}[)\]]|(?i:option|choice|answer|ans)\W*(?:is\W*)?{letter.lower()}(?!\w)"
    if option is None or re.search(rf"(?<![\w']){letter}(?![\w'])|{small}", worked):
        return False
    return not _reaches(plain_value(option[1]), worked)


_VERDICTS = """yes no true false none not all both neither cannot can't impossible insufficient unknown undetermined
inadequate sufficient correct incorrect equal same right exactly yay"""
_AROUND_RESULT = "thus therefore hence then the and are was were answer final value number unit units"
_NOT_DERIVED, _CONNECTING = frozenset(_VERDICTS.split()), frozenset(_AROUND_RESULT.split())
"""Words of answers that the steps need not contain, and words around a result."""
_LEADING = re.compile(rf"\A(?=\D*\d)(?:(?:{'|'.join(_NOT_DERIVED | _CONNECTING)})\s+)+", re.IGNORECASE)

_TURN = re.compile(
    r"^\s*(?:[*#]+\s*)?(?:Human|User|Assistant|Question|Problem|Instruction|Q)\s*\d*\**\s*:|<\|(?!end_of_solution)\w+\|>|\[/?INST\]",
    re.MULTILINE,
)
_WORDS = re.compile(r"(?<![\\\w])[^\W\d_]{2,}|[\u4e00-\u9fff]")
_SENTENCE_STOP = re.compile(r"[.!?](?=\s)|[。！？]|\n")


def _goes_on(text: _Text) -> bool:
    answer = text.answer.strip()
    if "\n" in answer and _TURN.search(answer, answer.find("\n")):
        return True
    if (span := boxed_span(answer)) is not None:
        # The rest of the sentence belongs to the box.
        stop = _SENTENCE_STOP.search(answer, span[1])
        return stop is not None and _num_words(answer[stop.end() :]) >= MIN_WORDS_AFTER
    if answer.startswith("####"):
        return _num_words(answer.partition("\n")[2]) > 0
    if "</CONCLUSION>" in answer:
        return _num_words(answer.partition("</CONCLUSION>")[2]) > 0
    mark = next((found for mark in MARKED_ANSWERS if (found := mark.match(answer)) is not None), None)
    # The answer may stand below its marker; text after a blank line no longer belongs to the answer.
    after = "" if mark is None else answer[mark.end() :].lstrip(" \t\n*:").partition("\n\n")[2]
    return _num_words(after) >= MIN_WORDS_AFTER


def _num_words(text: str) -> int:
    return len(_WORDS.findall(_ENVIRONMENT.sub("", text)))


_THINK = re.compile(r"<(/?)(think(?:ing)?)>", re.IGNORECASE)


def _mixes_think_blocks(text: _Text) -> bool:
    """Return whether think tags are not one pair with text inside; the opening tag may be part of the prompt."""
    if "<" not in text.response:
        return False
    tags = list(_THINK.finditer(text.response))
    if not (kinds := [(tag[1], tag[2].lower()) for tag in tags]):
        return False
    if len(kinds) == 1:
        return kinds[0][0] == "" or not text.response[: tags[0].start()].strip()
    opens, closes = kinds[0], kinds[-1]
    if len(kinds) > 2 or opens[0] or not closes[0] or opens[1] != closes[1]:
        return True
    return not text.response[tags[0].end() : tags[1].start()].strip()


_QUESTION_WORD = re.compile(r"[a-z0-9]+|[\u4e00-\u9fff]")


def _restates_question(text: _Text) -> bool:
    prompt = text.prompt.lower()
    # Few steps contain text of the question; only these steps are compared word by word.
    if not (close := [step for step in text.steps if _has_piece_of(prompt, step)]):
        return False
    shingles = set(runs_of(_QUESTION_WORD.findall(prompt), SHINGLE))
    return any(_is_restated(_QUESTION_WORD.findall(without_notes(step).lower()), shingles) for step in close)


def _has_piece_of(prompt: str, step: str) -> bool:
    """Return whether the question contains two of three pieces of a step; a copied step rarely changes two."""
    length = PIECE_CHARS if step.isascii() else PIECE_CHARS // 3
    if (quarter := len(step) // 4) * 2 < length:
        return False
    lower = step.lower()
    early, late = lower[quarter : quarter + length] in prompt, lower[3 * quarter - length : 3 * quarter] in prompt
    return (early and late) or ((early or late) and lower[2 * quarter : 2 * quarter + length] in prompt)


def _is_restated(words: Sequence[str], shingles: set[Run]) -> bool:
    if len(words) < MIN_RESTATED_WORDS:
        return False
    num_covered = reached = 0
    for place, shingle in enumerate(runs_of(words, SHINGLE)):
        if shingle in shingles:
            num_covered += place + SHINGLE - max(reached, place)
            reached = place + SHINGLE
    return num_covered >= RESTATED_SHARE * len(words)


_RULES: dict[str, Callable[[_Text], bool]] = {
    "repeated_steps": _repeats_steps,
    "cut_off": _is_cut_off,
    "unsupported_answer": _is_unsupported,
    "text_after_answer": _goes_on,
    "think_blocks": _mixes_think_blocks,
    "restates_question": _restates_question,
}
_MASKED = [(text_mask(name), _RULES[name]) for name in TEXT_FLAGS]
