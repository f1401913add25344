"""A table of texts, as Markdown and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under a title, with a note of what they mean."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        parts = [f"## {self.title}", ""]
        parts += [self.note, ""] if self.note else []
        parts += [line(self.columns), "|" + "---|" * len(self.columns), *map(line, self.rows)]
        return "\n".join([*parts, ""])

    def html(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        body = "\n".join(line(row, "td") for row in self.rows)
        return f"<h2>{escape(self.title)}</h2>{note}\n<table>\n{line(self.columns, 'th')}\n{body}\n</table>"
