"""Find where the steps of a response begin, by pure functions of its text. Knows no formats and no answers.

Each function takes the text of the steps (the response up to its answer) and returns where each step begins, ascending.
Every step begins at the start of a line that is not blank, so no step is empty. A line or paragraph with only tags
(``<think>``, ``</REASONING>``, ``<|end_of_thought|>``) is not a step: an opening tag belongs to the step after it, a
closing tag to the step before it.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise

from grace_store.base.errors import SettingError

Splitter = Callable[[str], list[int]]

# The marker of a step in MMathCoT: plain, bold or as a heading. Another character ends each repeat, so that matching
# takes linear time.
STEP_MARKER = re.compile(r"^[ \t]*(?:[*#]+[ \t]*)?Step[ \t]+\d+\**[ \t]*:", re.MULTILINE)

_TAGS_ONLY = re.compile(
    r"\s*(?P<tag>(?:</?(?:think|thinking|thought|summary|caption|reasoning|conclusion|solution|answer|output)>"
    r"|<\|(?:begin|end)_of_(?:thought|solution)\|>)\s*)+",
    re.IGNORECASE,
)
_SECTION = re.compile(r"<(?:SUMMARY|CAPTION|REASONING)>")
_MARKER_CHARS = 256
_REPEATED_REPEAT = re.compile(r"\((?:\?:)?(?:\\.|\[[^\]]*\]|[^()\\\[\]])[+*]\)[+*{]")


def line_starts(text: str) -> list[int]:
    """Return where every line that is not blank begins."""
    return _without_tags(text, list(_lines(text)))


def paragraph_starts(text: str) -> list[int]:
    """Return where every paragraph begins; blank lines separate paragraphs."""
    paragraphs: list[tuple[int, int]] = []
    previous_stop = -1
    for start, stop in _lines(text):
        if paragraphs and text.count("\n", previous_stop, start) < 2:
            paragraphs[-1] = (paragraphs[-1][0], stop)
        else:
            paragraphs.append((start, stop))
        previous_stop = stop
    return _without_tags(text, paragraphs)


def step_starts(text: str) -> list[int]:
    """Return the start of every line with a ``Step N:`` marker at its beginning: plain, bold or as a heading."""
    starts: list[int] = []
    at = text.find("Step")
    while at >= 0:
        line = text.rfind("\n", 0, at) + 1
        if STEP_MARKER.match(text, line):
            starts.append(line)
        stop = text.find("\n", at)
        at = text.find("Step", stop) if stop >= 0 else -1
    return starts


def section_starts(text: str) -> list[int]:
    """Return where the sections of LLaVA-CoT begin, and the paragraphs inside ``<REASONING>``."""
    starts: list[int] = []
    for start, stop in pairwise([*(match.start() for match in _SECTION.finditer(text)), len(text)]):
        starts.append(start)
        if text.startswith("<REASONING>", start):
            starts += [start + inside for inside in paragraph_starts(text[start:stop])[1:]]
    return starts


def natural_starts(text: str) -> list[int]:
    """Return where the steps begin in a response whose format is unknown.

    The first that fits counts, in this order: two or more ``Step N:`` markers, LLaVA-CoT sections, two or more
    paragraphs (inside ``<think>`` or not), lines.
    """
    if len(starts := step_starts(text)) >= 2:
        return starts
    if "<REASONING>" in text:
        return section_starts(text)
    return starts if len(starts := paragraph_starts(text)) >= 2 else line_starts(text)


def marker_splitter(pattern: re.Pattern[str]) -> Splitter:
    """Return a splitter at lines that begin with a pattern; only 256 characters are matched, to bound the cost."""

    def starts(text: str) -> list[int]:
        found = []
        for start, stop in _lines(text):
            visible = stop - len(text[start:stop].lstrip())
            end = min(stop, visible + _MARKER_CHARS)
            if pattern.match(text, visible, end) or pattern.match(text, start, end):
                found.append(start)
        return found

    return starts


@lru_cache(maxsize=64)
def compile_marker(setting: str, expression: str) -> re.Pattern[str]:
    """Compile the user's regular expression, or raise SettingError with the name of the setting.

    A repeat of a repeat such as ``(a+)+`` is refused: it can take exponential time and means the same as ``a+``. Other
    patterns of exponential time are not detected. ``^`` and ``$`` match at the ends of lines.
    """
    where = f"{setting} marker:{expression}"
    try:
        pattern = re.compile(expression, re.MULTILINE)
    except (re.error, RecursionError, OverflowError, ValueError) as error:
        raise SettingError(f"{where} is not a regular expression: {error}.") from None
    if pattern.match("") is not None:
        raise SettingError(
            f"{where} matches empty text, and so every line. Write an expression that needs at least one character."
        )
    if _REPEATED_REPEAT.search(expression):
        raise SettingError(f"{where} repeats a repeat, and such a search can take forever. Write (a+)+ as a+.")
    return pattern


@lru_cache(maxsize=64)
def named_splitter(name: str) -> Splitter:
    """Return the splitter for a setting: lines, paragraphs or marker:REGEX."""
    if name in ("lines", "paragraphs"):
        return line_starts if name == "lines" else paragraph_starts
    kind, _, expression = name.partition(":")
    if kind == "marker" and expression:
        return marker_splitter(compile_marker("--splitter", expression))
    raise SettingError(f"unknown value {name!r} of --splitter: use format, lines, paragraphs or marker:REGEX.")


def _lines(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for line in text.split("\n"):
        stop = start + len(line)
        if line and not line.isspace():
            yield start, stop
        start = stop + 1


def _without_tags(text: str, spans: list[tuple[int, int]]) -> list[int]:
    starts: list[int] = []
    opened: int | None = None
    for start, stop in spans:
        if (match := _TAGS_ONLY.fullmatch(text, start, stop)) is None:
            starts.append(start if opened is None else opened)
            opened = None
        elif opened is None and not match["tag"].startswith(("</", "<|end")):
            opened = start
    if opened is not None and not starts:
        starts.append(opened)
    return starts
