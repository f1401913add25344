"""A matrix as a picture: coloured cells with their numbers, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from grace_store.artifacts.svg import svg_document
from grace_store.base.arrays import FloatArray

CELL = 26
SMALL_CELL = 14
CHAR_WIDTH = 6.2
MAX_NUMBERED = 30
"""With more rows than this, cells are small and carry no number; the number still shows under the pointer."""

_STOPS = np.array([(0.0, 247, 251, 255), (0.5, 107, 174, 214), (1.0, 8, 48, 107)])
_BELOW = np.array([(0.0, 255, 255, 255), (1.0, 178, 24, 43)])


def heat_map(matrix: FloatArray, labels: Sequence[str], title: str, note: str = "") -> str:
    """Return an SVG of a square matrix of numbers between -1 and 1: white to blue, below 0 towards red."""
    num = len(labels)
    numbered = num <= MAX_NUMBERED
    cell = CELL if numbered else SMALL_CELL
    left = 16 + CHAR_WIDTH * max((len(label) for label in labels), default=0)
    top = 44 + left * 0.75
    width, height = left + cell * num + left * 0.75 + 16, top + cell * num + 40
    body: list[str] = []
    for i, label in enumerate(labels):
        x, y = left + cell * (i + 0.6), top + cell * (i + 0.65)
        body.append(f'<text x="{left - 6:.0f}" y="{y:.0f}" text-anchor="end">{escape(label)}</text>')
        body.append(f'<text transform="translate({x:.0f} {top - 6:.0f}) rotate(-48)">{escape(label)}</text>')
    for i in range(num):
        for j in range(num):
            body += _cell(left + cell * j, top + cell * i, cell, float(matrix[i, j]), labels[i], labels[j], numbered)
    body.append(f'<text x="16" y="{height - 14:.0f}" fill="#555">{escape(note)}</text>')
    return svg_document(width, height, title, body)


def _cell(x: float, y: float, size: int, value: float, row: str, column: str, numbered: bool) -> list[str]:
    shown = "none" if np.isnan(value) else f"{value:.3f}"
    tip = f"<title>{escape(row)} / {escape(column)}: {shown}</title>"
    parts = [
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{size - 1}" height="{size - 1}" fill="{_colour(value)}">{tip}</rect>'
    ]
    if numbered and not np.isnan(value):
        ink = "#fff" if abs(value) > 0.6 else "#000"
        text = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.0f}"
        parts.append(
            f'<text x="{x + size / 2:.0f}" y="{y + size * 0.62:.0f}" text-anchor="middle" font-size="9" '
            f'fill="{ink}" pointer-events="none">{text}</text>'
        )
    return parts


def _colour(value: float) -> str:
    if np.isnan(value):
        return "#ddd"
    stops = _STOPS if value >= 0 else _BELOW
    red, green, blue = (round(float(np.interp(abs(value), stops[:, 0], stops[:, i]))) for i in (1, 2, 3))
    return f"#{red:02x}{green:02x}{blue:02x}"
