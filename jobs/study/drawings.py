"""The study's pictures: SVG made by hand, so that a page of them needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from jobs.study.estimates import Estimate

COLOURS = ("#08306b", "#e6550d", "#31a354", "#756bb1", "#636363", "#de2d26", "#3182bd", "#8c6d31", "#ce6dbd", "#17becf")
WIDTH, ROW = 760, 24


@dataclass(frozen=True, slots=True)
class Scale:
    """From numbers to places along an axis."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        return self.start + (self.stop - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self, count: int = 5) -> list[float]:
        return [self.low + (self.high - self.low) * i / (count - 1) for i in range(count)]


def _svg(height: float, title: str, body: Sequence[str]) -> str:
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" font-family="sans-serif" font-size="12" role="img">'
    )
    return "\n".join([
        opening, f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>',
        f'<text x="12" y="22" font-size="15" font-weight="bold">{escape(title)}</text>', *body, "</svg>",
    ])  # fmt: skip


def _around(estimates: Sequence[Estimate], *, start: float, stop: float) -> Scale:
    low = min([100.0, *(each.interval.low for each in estimates)])
    high = max([100.0, *(each.interval.high for each in estimates)])
    margin = 0.05 * (high - low) or 1.0
    return Scale(low - margin, high + margin, start, stop)


def interval_plot(title: str, estimates: Mapping[str, Estimate]) -> str:
    """Return a row for each name: a point, its interval, and a line at 100, the full pool."""
    estimates = {name: each for name, each in estimates.items() if math.isfinite(each.value)}
    left, top = 190, 44
    across = _around(list(estimates.values()), start=left, stop=WIDTH - 30)
    bottom = top + ROW * len(estimates)
    body = [f'<line x1="{across(100):.1f}" x2="{across(100):.1f}" y1="{top}" y2="{bottom}" stroke="#999" '
            'stroke-dasharray="4 4"/>']  # fmt: skip
    for tick in across.ticks():
        body.append(f'<text x="{across(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick:.0f}</text>')
    for number, (name, each) in enumerate(estimates.items()):
        y = top + ROW * (number + 0.5)
        low, high = across(each.interval.low), across(each.interval.high)
        body += [
            f'<text x="{left - 10}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>',
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{COLOURS[0]}" stroke-width="2"/>',
            f'<circle cx="{across(each.value):.1f}" cy="{y:.1f}" r="4.5" fill="{COLOURS[0]}">'
            f"<title>{escape(name)}: {each.text()}</title></circle>",
        ]
    return _svg(bottom + 30, title, body)


def curve_plot(title: str, shares: Sequence[float], curves: Mapping[str, Sequence[Estimate]]) -> str:
    """Return relative averages over shares of the pool, a line for each name, with its interval as a bar."""
    curves = {name: curve for name, curve in curves.items() if all(math.isfinite(each.value) for each in curve)}
    left, top, right, height = 60, 44, 200, 330
    every = [each for curve in curves.values() for each in curve]
    up = _around(every, start=top + height, stop=top)
    across = Scale(min(shares) - 0.01, max(shares) + 0.01, left, WIDTH - right)
    body = [f'<line x1="{left}" x2="{WIDTH - right}" y1="{up(100):.1f}" y2="{up(100):.1f}" stroke="#999" '
            'stroke-dasharray="4 4"/>']  # fmt: skip
    for tick in up.ticks():
        body.append(f'<text x="{left - 8}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:.0f}</text>')
    for share in shares:
        body.append(f'<text x="{across(share):.1f}" y="{top + height + 20}" text-anchor="middle">{share:.0%}</text>')
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        # Side by side, or the bars of different names would hide one another.
        places = [across(share) + 3.5 * (number - (len(curves) - 1) / 2) for share in shares]
        points = " ".join(f"{x:.1f},{up(each.value):.1f}" for x, each in zip(places, curve, strict=True))
        body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, each in zip(places, curve, strict=True):
            body.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{up(each.interval.low):.1f}" y2="{up(each.interval.high):.1f}" '
                f'stroke="{colour}"><title>{escape(name)}: {each.text()}</title></line>'
            )
        y = top + 20 * number + 10
        body.append(f'<rect x="{WIDTH - right + 16}" y="{y - 9}" width="12" height="12" fill="{colour}"/>')
        body.append(f'<text x="{WIDTH - right + 34}" y="{y + 2}">{escape(name)}</text>')
    return _svg(top + height + 36, title, body)


def stacked_plot(title: str, parts: Mapping[str, Mapping[str, float]]) -> str:
    """Return a bar for each name, cut into shares that add up to 1."""
    left, top = 190, 74
    across = Scale(0, 1, left, WIDTH - 20)
    names = list(next(iter(parts.values())))
    body = []
    for number, name in enumerate(names):
        x = left + number * 92
        body.append(f'<rect x="{x}" y="38" width="11" height="11" fill="{COLOURS[number]}"/>')
        body.append(f'<text x="{x + 15}" y="48">{escape(name)}</text>')
    for number, (name, shares) in enumerate(parts.items()):
        y = top + ROW * number
        body.append(f'<text x="{left - 10}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        at = 0.0
        for part, (quality, share) in enumerate(shares.items()):
            body.append(
                f'<rect x="{across(at):.1f}" y="{y}" width="{across(share) - across(0):.1f}" height="{ROW - 5}" '
                f'fill="{COLOURS[part]}"><title>{escape(name)}, {escape(quality)}: {share:.1%}</title></rect>'
            )
            at += share
    return _svg(top + ROW * len(parts) + 12, title, body)
