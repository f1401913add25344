"""A table of texts, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
