"""A matrix as a picture: coloured cells with their numbers."""

import math
from collections.abc import Sequence

import numpy as np

from grace_store.artifacts.pictures.svg import Drawing, Key, element, svg_document, text, text_width, tip
from grace_store.base.arrays import FloatArray

CELL, SMALL_CELL = 28, 14
MAX_NUMBERED_ROWS = 30
"""With more rows than this, cells are small and carry no number; the number still shows under the pointer."""

_RISING = np.array([(0.0, 247, 251, 255), (0.5, 107, 174, 214), (1.0, 8, 48, 107)])
_FALLING = np.array([(0.0, 255, 255, 255), (1.0, 178, 24, 43)])


def draw_heat_map(matrix: FloatArray, labels: Sequence[str], title: str, note: str = "") -> str:
    """Return an SVG of a square matrix of numbers between -1 and 1: white to blue, below 0 towards red."""
    numbered = len(labels) <= MAX_NUMBERED_ROWS
    cell = CELL if numbered else SMALL_CELL
    left = 8 + max(map(text_width, labels), default=0)
    top = 8 + left * 0.9  # the columns' labels are turned
    parts: list[str] = []
    colours = _colours(matrix)
    for i, row in enumerate(labels):
        middle = cell * (i + 0.5) + 4
        parts.append(text(left - 8, top + middle, row, text_anchor="end"))
        parts.append(text(0, 0, row, transform=f"translate({left + middle:.0f} {top - 6:.0f}) rotate(-65)"))
        for j, column in enumerate(labels):
            value = float(matrix[i, j])
            shown = "none" if math.isnan(value) else f"{value:.3f}"
            place = {"x": left + cell * j, "y": top + cell * i, "width": cell - 1, "height": cell - 1}
            parts.append(element("rect", *tip(f"{row} / {column}: {shown}"), **place, fill=colours[i][j]))
            if numbered and not math.isnan(value):
                parts.append(_number(left + cell * (j + 0.5), top + middle, value))
    side = cell * len(labels)
    keys = [-1.0, -0.5] if (matrix < 0).any() else []
    scale = [*keys, 0.0, 0.25, 0.5, 0.75, 1.0]
    legend = (
        []
        if numbered
        else [Key(f"{value:g}", colour) for value, colour in zip(scale, _colours(np.array([scale]))[0], strict=True)]
    )
    return svg_document(title, [Drawing(left * 1.45 + side, top + side, parts)], legend, note)


def _number(x: float, y: float, value: float) -> str:
    words = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.0f}"
    ink = "#fff" if abs(value) > 0.6 else "#000"
    return text(x, y, words, text_anchor="middle", font_size=10, fill=ink, pointer_events="none")


def _colours(matrix: FloatArray) -> list[list[str]]:
    """Return the colour of every number."""
    levels = []
    for part in (1, 2, 3):
        rising, falling = (np.interp(np.abs(matrix), stops[:, 0], stops[:, part]) for stops in (_RISING, _FALLING))
        levels.append(np.where(np.isnan(matrix), 0xDD, np.where(matrix >= 0, rising, falling)).round().astype(int))
    rows = np.stack(levels, axis=-1).tolist()
    return [[f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in row] for row in rows]
