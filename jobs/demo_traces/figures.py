"""Draw the small figures of the demo. The only importer of pillow here, and only when a figure is drawn."""

from __future__ import annotations

from math import cos, radians, sin
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.demo_traces.problem import Drawing

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

WIDTH, HEIGHT = 280, 224
SCALE = 3
"""Drawn this much larger and then made smaller, for smooth edges."""
INK, FILL, SHADE, PAPER = "#1f2933", "#cfe3f7", "#4a86c5", "#ffffff"
NUM_COLORS = 8

Point = tuple[float, float]


def draw_figure(drawing: Drawing, path: Path) -> None:
    """Write the figure as a small palette PNG."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), PAPER)
    SHAPES[drawing.shape](ImageDraw.Draw(image), drawing)
    small = image.resize((WIDTH, HEIGHT), Image.Resampling.BOX)
    palette = small.quantize(NUM_COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    palette.save(path, optimize=True)


def _at(point: Point) -> Point:
    return point[0] * SCALE, point[1] * SCALE


def _write(canvas: ImageDraw, place: Point, text: str, anchor: str = "mm") -> None:
    from PIL import ImageFont

    canvas.text(_at(place), text, fill=INK, font=ImageFont.load_default(15 * SCALE), anchor=anchor)


def _polygon(canvas: ImageDraw, points: list[Point]) -> None:
    canvas.polygon([_at(point) for point in points], fill=FILL, outline=INK, width=2 * SCALE)


def _rectangle(canvas: ImageDraw, drawing: Drawing) -> None:
    a, b, s = drawing.numbers
    unit = min(210 / a, 150 / b)
    left, top, right, bottom = 35.0, 30.0, 35 + a * unit, 30 + b * unit
    notch_x, notch_y = right - s * unit, top + s * unit
    notch = [(notch_x, top), (notch_x, notch_y), (right, notch_y)]
    _polygon(canvas, [(left, top), *notch, (right, bottom), (left, bottom)])
    _write(canvas, ((left + right) / 2, bottom + 14), f"{a} cm")
    _write(canvas, (left + 8, (top + bottom) / 2), f"{b} cm", "lm")
    _write(canvas, ((notch_x + right) / 2, notch_y + 12), f"{s} cm")
    _write(canvas, (notch_x + 6, (top + notch_y) / 2), f"{s} cm", "lm")


def _triangle(canvas: ImageDraw, drawing: Drawing) -> None:
    """Draw the right angle at the lower left, the first leg upright."""
    a, b = drawing.numbers
    unit = min(140 / a, 190 / b)
    x, y = 62.0, 185.0
    top, right = (x, y - a * unit), (x + b * unit, y)
    _polygon(canvas, [(x, y), top, right])
    canvas.line([_at((x, y - 12)), _at((x + 12, y - 12)), _at((x + 12, y))], fill=INK, width=SCALE)
    _write(canvas, (x - 6, (y + top[1]) / 2), f"{a} cm", "rm")
    _write(canvas, ((x + right[0]) / 2, y + 14), f"{b} cm")
    for label, place in zip(drawing.labels, ((x, top[1] - 12), (right[0] + 12, y), (x - 10, y + 10)), strict=True):
        _write(canvas, place, label)


def _sector(canvas: ImageDraw, drawing: Drawing) -> None:
    r, angle = drawing.numbers
    x, y, size = 140.0, 112.0, 92.0
    box = [_at((x - size, y - size)), _at((x + size, y + size))]
    canvas.ellipse(box, outline=INK, width=SCALE)
    canvas.pieslice(box, -angle, 0, fill=FILL, outline=INK, width=2 * SCALE)
    _write(canvas, (x + size / 2, y + 12), f"{r}")
    half = radians(angle / 2)
    _write(canvas, (x + 55 * cos(half), y - 55 * sin(half)), f"{angle}°")


def _chart(canvas: ImageDraw, drawing: Drawing) -> None:
    base, left, gap = 190.0, 30.0, 48.0
    unit = 145 / max(drawing.numbers)
    for n, (height, label) in enumerate(zip(drawing.numbers, drawing.labels, strict=True)):
        x = left + n * gap
        canvas.rectangle([_at((x, base - height * unit)), _at((x + 30, base))], fill=SHADE)
        _write(canvas, (x + 15, base - height * unit - 11), str(height))
        _write(canvas, (x + 15, base + 14), label[:3])
    canvas.line([_at((left - 10, base)), _at((left + 5 * gap - 8, base))], fill=INK, width=2 * SCALE)


SHAPES = {"rectangle": _rectangle, "triangle": _triangle, "sector": _sector, "chart": _chart}
