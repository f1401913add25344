"""The tables of schemas/FORMAT.md, for tests that hold code and schemas against them."""

from __future__ import annotations

import re
from pathlib import Path

SCHEMAS = Path(__file__).parent.parent / "schemas"
TEXT = (SCHEMAS / "FORMAT.md").read_text(encoding="utf-8")


def tables() -> list[list[dict[str, str]]]:
    """Return every table, each row as {heading: cell}."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", TEXT, re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in block.splitlines()]
        found.append([dict(zip(lines[0], cells, strict=True)) for cells in lines[2:]])
    return found


def table(heading: str) -> list[dict[str, str]]:
    """Return the first table with a column of that heading."""
    return next(rows for rows in tables() if rows and heading in rows[0])


def names_in(cell: str) -> list[str]:
    """Return the names in code font in a cell."""
    return re.findall(r"`(\w+)`", cell)
