"""The frame of every picture: title, legend, what is drawn side by side, note; and SVG elements, with text escaped."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape

FONT, MARGIN, GAP, LINE = 12, 16, 28, 18
"""In pixels: letters, the space around a picture and between its blocks, and from one line of text to the next."""
TITLE_FONT = 15
MUTED = "#555"


@dataclass(frozen=True, slots=True)
class Drawing:
    """Elements in a rectangle that begins at 0, 0."""

    width: float
    height: float
    parts: list[str]


@dataclass(frozen=True, slots=True)
class Key:
    """A name in the legend beside a stroke of its colour."""

    name: str
    colour: str
    thickness: float = 11


def svg_document(title: str, drawings: Sequence[Drawing], legend: Sequence[Key] = (), note: str = "") -> str:
    """Return a document that is as large as it needs to be. Its title is also what screen readers call it."""
    inner = max(sum(each.width + GAP for each in drawings) - GAP, text_width(title, TITLE_FONT) * 1.05)
    keys = _legend(legend, inner)
    x, y = float(MARGIN), MARGIN + 30 + keys.height
    body = [text(MARGIN, MARGIN + 14, title, font_size=TITLE_FONT, font_weight="bold")]
    body.append(element("g", *keys.parts, transform=f"translate({MARGIN} {MARGIN + 24})"))
    for each in drawings:
        body.append(element("g", *each.parts, transform=f"translate({x:.1f} {y:.1f})"))
        x += each.width + GAP
    y += max((each.height for each in drawings), default=0) + 4
    for line in textwrap.wrap(note, max(20, int(inner / text_width("n")))):
        y += LINE
        body.append(text(MARGIN, y, line, fill=MUTED))
    width, height = inner + 2 * MARGIN, y + MARGIN
    document = element(
        "svg",
        element("title", escape(title)),
        element("rect", width=width, height=height, fill="#fff"),
        *body,
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        viewBox=f"0 0 {width:.1f} {height:.1f}",
        role="img",
        font_family="Helvetica, Arial, sans-serif",
        font_size=FONT,
    )
    return f"{document}\n"


def _legend(keys: Sequence[Key], width: float) -> Drawing:
    """Return names beside their colours, in as many lines as they need."""
    parts: list[str] = []
    x, y = 0.0, 12.0 if keys else 0.0
    for key in keys:
        needed = text_width(key.name) + 44
        if x and x + needed > width:
            x, y = 0.0, y + LINE
        parts.append(element("path", d=f"M{x:.0f} {y - 4:.0f}h18", stroke=key.colour, stroke_width=key.thickness))
        parts.append(text(x + 24, y, key.name))
        x += needed
    return Drawing(width, y + 8 * bool(keys), parts)


def element(name: str, *inside: str, **attributes: str | float) -> str:
    """Return an element. What is inside is markup already; attributes are escaped here."""
    said = "".join(f' {key.replace("_", "-")}="{_attribute(value)}"' for key, value in attributes.items())
    gap = "\n" if name in ("svg", "g") else ""
    return f"<{name}{said}>{gap}{gap.join(inside)}{gap}</{name}>" if inside else f"<{name}{said}/>"


@lru_cache(maxsize=4096)  # a matrix has few places and colours, and many cells
def _attribute(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{round(value, 1):g}"


def text(x: float, y: float, words: str, **attributes: str | float) -> str:
    return element("text", escape(words), x=x, y=y, **attributes)


def tip(words: str) -> list[str]:
    """Return what goes into an element to show words under the pointer."""
    return [element("title", escape(words))] if words else []


def text_width(words: str, size: float = FONT) -> float:
    """Return about how wide words are drawn: that depends on the reader's fonts."""
    return 0.58 * size * len(words)
