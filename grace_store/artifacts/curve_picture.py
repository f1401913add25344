"""Lines as a picture: panels of curves side by side, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from grace_store.artifacts.svg import svg_document

WIDTH, HEIGHT = 380, 260
"""Of one panel's plotting area, in pixels."""
LEFT, TOP, BETWEEN, BOTTOM = 64, 76, 84, 74
NUM_TICKS = 5
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by the colour-blind too (Okabe and Ito's)."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a panel; tip is shown under the pointer, the name of a mark beside it."""

    x: float
    y: float
    tip: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined in the order given."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines that share axes, and marks that belong to none of them; points that are not finite are left out."""

    x_label: str
    y_label: str
    lines: Sequence[Line]
    marks: Sequence[Point] = field(default=())


def curve_picture(panels: Sequence[Panel], title: str, note: str = "") -> str:
    """Return an SVG of panels side by side; those that show the same lines share one legend."""
    width = LEFT + len(panels) * (WIDTH + BETWEEN) - BETWEEN + 24
    height = TOP + HEIGHT + BOTTOM
    body: list[str] = []
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    for i, name in enumerate(names):
        x = 16 + 110 * i
        body.append(f'<rect x="{x}" y="40" width="14" height="4" fill="{_colour(i)}"/>')
        body.append(f'<text x="{x + 20}" y="46">{escape(name)}</text>')
    for number, panel in enumerate(panels):
        body += _drawn(panel, LEFT + number * (WIDTH + BETWEEN), names)
    body.append(f'<text x="16" y="{height - 12}" fill="#555">{escape(note)}</text>')
    return svg_document(width, height, title, body)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _drawn(panel: Panel, left: int, names: Sequence[str]) -> list[str]:
    lines = [(line.name, [point for point in line.points if _has_place(point)]) for line in panel.lines]
    marks = [point for point in panel.marks if _has_place(point)]
    points = [point for _, some in lines for point in some] + marks
    across, up = _Axis.of([point.x for point in points]), _Axis.of([point.y for point in points])

    def place(point: Point) -> tuple[float, float]:
        return left + WIDTH * across.share(point.x), TOP + HEIGHT * (1 - up.share(point.y))

    parts = [f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>']
    for value, text in across.ticks():
        x = left + WIDTH * across.share(value)
        parts.append(f'<text x="{x:.0f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{text}</text>')
        parts.append(f'<path d="M{x:.0f} {TOP}v{HEIGHT}" stroke="#eee"/>')
    for value, text in up.ticks():
        y = TOP + HEIGHT * (1 - up.share(value))
        parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{text}</text>')
        parts.append(f'<path d="M{left} {y:.0f}h{WIDTH}" stroke="#eee"/>')
    parts.append(
        f'<text x="{left + WIDTH / 2:.0f}" y="{TOP + HEIGHT + 34}" text-anchor="middle">{escape(panel.x_label)}</text>'
    )
    parts.append(f'<text x="{left}" y="{TOP - 8}">{escape(panel.y_label)}</text>')
    if not points:
        middle = f'x="{left + WIDTH / 2:.0f}" y="{TOP + HEIGHT / 2:.0f}"'
        parts.append(f'<text {middle} text-anchor="middle" fill="#555">nothing to trade</text>')
    for name, drawn in lines:
        colour = _colour(names.index(name))
        places = [place(point) for point in drawn]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts += [_dot(*where, colour, point.tip) for where, point in zip(places, drawn, strict=True)]
    for point in marks:
        x, y = place(point)
        parts.append(_dot(x, y, "#000", point.tip, hollow=True))
        side, anchor = (-10, "end") if x > left + WIDTH / 2 else (10, "start")
        parts.append(f'<text x="{x + side:.0f}" y="{y + 4:.0f}" text-anchor="{anchor}">{escape(point.name)}</text>')
    return parts


def _has_place(point: Point) -> bool:
    """Return whether a point can be drawn: what cannot be said, such as evenness over one cluster, has no place."""
    return math.isfinite(point.x) and math.isfinite(point.y)


def _dot(x: float, y: float, colour: str, tip: str, *, hollow: bool = False) -> str:
    fill = f'fill="none" stroke="{colour}"' if hollow else f'fill="{colour}"'
    # A hollow dot is hit where it is empty, too.
    look = f'cx="{x:.1f}" cy="{y:.1f}" r="{6 if hollow else 3.5}" {fill} pointer-events="all"'
    return f"<circle {look}><title>{escape(tip)}</title></circle>"


@dataclass(frozen=True, slots=True)
class _Axis:
    """What one direction of a panel shows: all values and a little room."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> _Axis:
        low, high = min(values, default=0.0), max(values, default=1.0)
        room = 0.05 * (high - low) or 0.5
        return cls(low - room, high + room)

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return round numbers on the axis, as many as fit well, and how they are written."""
        rough = (self.high - self.low) / NUM_TICKS
        power = math.floor(math.log10(rough))
        step = next(factor for factor in (1, 2, 5, 10) if factor * 10**power >= rough) * 10.0**power
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [(i * step, f"{i * step + 0.0:.{digits}f}") for i in range(first, last + 1)]
