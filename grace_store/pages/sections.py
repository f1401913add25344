"""The contents of a page as plain values: sections with text, tables and figures. Knows no HTML."""

import html
import re
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Figure = dict[str, Any]
"""A plotly figure: {"data": [...], "layout": {...}}."""
Cell = str | int | float | None
Cells = Sequence[Cell]

MAX_HALF_MATRIX, MAX_TABLE_MATRIX = 10, 40
"""Maximum rows of a matrix that is drawn at half the page's width, and of one that is shown as a table."""


@dataclass(slots=True)
class Section:
    """One part of the page, with its blocks in the order of reading."""

    key: str
    title: str
    lead: str = ""
    blocks: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)

    def text(self, text: str, *, kind: str = "text") -> None:
        """Add a sentence or two. The kind "note" highlights them, and so does "conclusion"."""
        self.blocks.append({"kind": kind, "text": text})

    def verdict(self, sentences: Sequence[Mapping[str, str]]) -> None:
        """Add the sentences of a verdict, each with its level, in the order of reading. Add nothing without any."""
        if sentences:
            self.blocks.append({"kind": "verdict", "rows": [[each["level"], each["sentence"]] for each in sentences]})

    def stats(self, rows: Sequence[tuple[str, str]]) -> None:
        """Add a few numbers side by side."""
        self.blocks.append({"kind": "stats", "rows": [list(row) for row in rows]})

    def counts(self, parts: Sequence[tuple[str, int]], total: str) -> None:
        """Add numbers that add up to a total, shown as parts of one bar."""
        self.blocks.append({"kind": "counts", "total": total, "parts": [list(part) for part in parts]})

    def facts(self, title: str, rows: Sequence[tuple[str, Cell]]) -> None:
        """Add a list of names with their values."""
        self.blocks.append({"kind": "facts", "title": title, "rows": [list(row) for row in rows if row[1] is not None]})

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Cells], caption: str = "", *, bar: int | None = None
    ) -> None:
        """Add a table. bar is the column of numbers that are also drawn as bars."""
        shown = {"columns": list(columns), "rows": [list(row) for row in rows], "caption": caption, "bar": bar}
        self.blocks.append({"kind": "table", "title": title, **shown})

    def records(self, title: str, rows: Sequence[Mapping[str, Cell]], caption: str = "") -> None:
        """Add a table of rows by column name, all with the same columns. Add nothing without rows."""
        if rows:
            self.table(title, list(rows[0]), [list(row.values()) for row in rows], caption)

    def matrix(self, name: str, title: str, figure: Figure, labels: Sequence[str], caption: str = "") -> None:
        """Add a matrix of numbers. The page shows it as a table, or as a figure if it has too many rows."""
        self.figure(name, title, figure, caption, wide=len(labels) > MAX_HALF_MATRIX)
        if len(labels) <= MAX_TABLE_MATRIX:
            self.blocks[-1] |= {"kind": "matrix", "labels": list(labels)}

    def figure(self, name: str, title: str, figure: Figure, caption: str = "", *, wide: bool = False) -> None:
        """Add a figure. Its files have the same name."""
        self.figures[name] = figure
        height = figure["layout"].setdefault("height", 380)
        self.blocks.append(
            {"kind": "figure", "figure": name, "title": title, "caption": caption, "wide": wide, "height": height}
        )

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "title": self.title, "lead": self.lead, "blocks": self.blocks}


MAX_CHARS = 20_000
"""Maximum length of a segment's or turn's text in a page."""

_JOINERS = "\u200c\u200d\u00ad"
"""Format characters that some scripts and emoji need. They do not change the direction of text."""
_SUSPECT = re.compile(
    r"[^\n\t\x20-\x7e\xa0-\xac\xae-\u02ff\u0370-\u05ff\u2010-\u2027\u2030-\u205f\u2070-\u2fff\u3000-\ud7ff]"
)


def visible(text: str) -> str:
    r"""Return text with control, bidirectional, invisible and broken characters escaped. Line ends become \n.

    >>> visible("a\x1b[2J \u202eb\r\nc")
    'a\\x1b[2J \\u202eb\nc'
    """
    text = text.replace("\r\n", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    return _SUSPECT.sub(lambda match: _spelled(match[0]), text)


def _spelled(character: str) -> str:
    if character in _JOINERS or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return character.encode("unicode_escape").decode()


def shortened(text: str, limit: int = MAX_CHARS) -> str:
    """Return text cut to a limit, with the number of missing characters.

    >>> shortened("abcdef", 4)
    'abcd … (2 characters more)'
    """
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} characters more)"


def plot_label(text: str, limit: int = 72) -> str:
    """Return one line of text for a plot. HTML is escaped, because plotly reads some HTML in labels.

    >>> plot_label("<b>no tag</b>")
    '&lt;b&gt;no tag&lt;/b&gt;'
    """
    line = " ".join(visible(text).split())
    return html.escape(line if len(line) <= limit else f"{line[: limit - 1]}…", quote=False)


def wrapped_label(text: str, width: int = 20, max_lines: int = 3) -> str:
    """Return text for a plot in a few short lines, to leave room for the plot on a narrow screen.

    >>> wrapped_label("a name that is longer than one line")
    'a name that is<br>longer than one line'
    """
    lines = textwrap.wrap(" ".join(visible(text).split()), width, max_lines=max_lines, placeholder=" …")
    return "<br>".join(html.escape(line, quote=False) for line in lines)
