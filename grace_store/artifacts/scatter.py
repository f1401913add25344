"""Pairs of numbers as pictures: panels of points side by side, SVG made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from grace_store.artifacts.svg import svg_document
from grace_store.base.arrays import FloatArray

SIDE = 260
LEFT, TOP, BOTTOM, GAP = 56, 66, 48, 34
MAX_POINTS = 4000


@dataclass(frozen=True, slots=True)
class Panel:
    """One square of points."""

    title: str
    note: str
    x: FloatArray
    y: FloatArray


def scatter(panels: Sequence[Panel], title: str, x_label: str, y_label: str) -> str:
    """Return an SVG of panels, each with its own range on both axes and the line where both are equal."""
    width = LEFT + len(panels) * (SIDE + GAP + LEFT) - LEFT
    height = TOP + SIDE + BOTTOM
    body: list[str] = []
    for number, panel in enumerate(panels):
        body += _panel(panel, LEFT + number * (SIDE + GAP + LEFT), x_label, y_label)
    return svg_document(width, height, title, body)


def _panel(panel: Panel, left: int, x_label: str, y_label: str) -> list[str]:
    both = np.flatnonzero(np.isfinite(panel.x) & np.isfinite(panel.y))
    both = both[:: -(-len(both) // MAX_POINTS) or 1]
    x, y = panel.x[both], panel.y[both]
    low, high = (float(min(x.min(), y.min())), float(max(x.max(), y.max()))) if len(both) else (-1.0, 1.0)
    margin = 0.05 * (high - low) or 0.5
    low, high = low - margin, high + margin

    def across(value: float) -> float:
        return left + SIDE * (value - low) / (high - low)

    def up(value: float) -> float:
        return TOP + SIDE * (high - value) / (high - low)

    parts = [
        f'<text x="{left}" y="{TOP - 22}" font-weight="bold">{escape(panel.title)}</text>',
        f'<text x="{left}" y="{TOP - 7}" fill="#555">{escape(panel.note)}</text>',
        f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#bbb"/>',
        f'<line x1="{left}" y1="{TOP + SIDE}" x2="{left + SIDE}" y2="{TOP}" stroke="#bbb" stroke-dasharray="4 4"/>',
        f'<text x="{left + SIDE / 2}" y="{TOP + SIDE + 36}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate({left - 40} {TOP + SIDE / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>",
    ]
    for tick in np.linspace(low + margin, high - margin, 3).tolist():
        parts.append(f'<text x="{across(tick):.1f}" y="{TOP + SIDE + 16}" text-anchor="middle">{tick:.2f}</text>')
        parts.append(f'<text x="{left - 6}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:.2f}</text>')
    opacity = 0.7 if len(x) < 300 else 0.3
    points = (
        f'<circle cx="{across(a):.1f}" cy="{up(b):.1f}" r="2.2"/>' for a, b in zip(x.tolist(), y.tolist(), strict=True)
    )
    return [*parts, f'<g fill="#2171b5" fill-opacity="{opacity}">', *points, "</g>"]
