"""The study's pictures: relative averages with their intervals, and what subsets are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from grace_store.artifacts.pictures.panels import Axis, Panel, Point, Series, draw_panels
from jobs.study.estimates import Estimate

WIDTH, ROW = 540, 24
RELATIVE = Axis("relative average (100: the full pool)", guide=100)


def interval_plot(title: str, estimates: Mapping[str, Estimate]) -> str:
    """Return a row for each name: a point, its interval, and a line at 100, the full pool."""
    known = {name: each for name, each in estimates.items() if math.isfinite(each.value)}
    points = [
        Point(each.value, row, f"{name}: {each.text()}", x_range=(each.interval.low, each.interval.high))
        for row, (name, each) in enumerate(known.items())
    ]
    panel = Panel(
        RELATIVE, Axis.of_names(list(known)), [Series("", points, "dots")], width=WIDTH, height=ROW * len(known)
    )
    return draw_panels([panel], title)


def curve_plot(title: str, shares: Sequence[float], curves: Mapping[str, Sequence[Estimate]]) -> str:
    """Return relative averages over shares of the pool, a line for each name, with its intervals."""
    known = {name: curve for name, curve in curves.items() if all(math.isfinite(each.value) for each in curve)}
    # Side by side, or the intervals of different names would hide one another.
    apart = 0.007 * (max(shares) - min(shares))
    series = []
    for number, (name, curve) in enumerate(known.items()):
        aside = apart * (number - (len(known) - 1) / 2)
        points = [
            Point(share + aside, each.value, f"{name}: {each.text()}", y_range=(each.interval.low, each.interval.high))
            for share, each in zip(shares, curve, strict=True)
        ]
        series.append(Series(name, points, "line"))
    x = Axis("share of the pool", ticks=[(share, f"{share:.0%}") for share in shares])
    return draw_panels([Panel(x, RELATIVE, series, width=WIDTH, height=330)], title)


def stacked_plot(title: str, parts: Mapping[str, Mapping[str, float]]) -> str:
    """Return a bar for each name, cut into shares that add up to 1."""
    bars: dict[str, list[Point]] = {}
    for row, (name, shares) in enumerate(parts.items()):
        start = 0.0
        for part, share in shares.items():
            reach = (start, start + share)
            bars.setdefault(part, []).append(Point(start, row, f"{name}, {part}: {share:.1%}", x_range=reach))
            start += share
    x = Axis(limits=(0, 1), ticks=[(share / 4, f"{share / 4:.0%}") for share in range(5)])
    series = [Series(part, points, "bars") for part, points in bars.items()]
    return draw_panels([Panel(x, Axis.of_names(list(parts)), series, width=WIDTH, height=ROW * len(parts))], title)
