"""The study's figures: relative averages with their intervals, and what subsets are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from grace_store.base.finding import Estimate
from grace_store.pages import figure_parts as parts
from grace_store.pages.figures import intervals, line_chart
from grace_store.pages.sections import Figure, plot_label, wrapped_label

RELATIVE = "relative average (100: the full pool)"


def interval_plot(estimates: Mapping[str, Estimate]) -> Figure:
    """Return a row for each name: a point, its interval, and a line at 100, the full pool."""
    known = {name: each for name, each in estimates.items() if math.isfinite(each.value)}
    return intervals(known, RELATIVE, (100.0, "the full pool"))


def curve_plot(shares: Sequence[float], curves: Mapping[str, Sequence[Estimate]]) -> Figure:
    """Return relative averages over shares of the pool, a line for each name, with its intervals."""
    known = {name: curve for name, curve in curves.items() if all(math.isfinite(each.value) for each in curve)}
    # Side by side, or the intervals of different names would hide one another.
    apart = 0.007 * (max(shares) - min(shares))
    aside = [apart * (number - (len(known) - 1) / 2) for number in range(len(known))]
    lines = {
        name: ([share + by for share in shares], [each.value for each in curve])
        for (name, curve), by in zip(known.items(), aside, strict=True)
    }
    ticks = {"tickvals": list(shares), "ticktext": [f"{share:.0%}" for share in shares]}
    figure = line_chart(lines, parts.axis("share of the pool", **ticks), parts.axis(RELATIVE))
    for line, curve in zip(figure["data"], known.values(), strict=True):
        value, low, high = np.array([[each.value, each.low, each.high] for each in curve]).T
        line["error_y"] = parts.interval_bars(value, low, high, line["line"]["color"], thickness=1.5)
    figure["layout"]["shapes"] = [parts.dashed_line(xref="paper", x0=0, x1=1, y0=100, y1=100)]
    return figure


def stacked_plot(shares: Mapping[str, Mapping[str, float]]) -> Figure:
    """Return a bar for each name, cut into shares that add up to 1."""
    names = [wrapped_label(name) for name in shares]
    data = []
    for number, part in enumerate(dict.fromkeys(part for each in shares.values() for part in each)):
        colour = parts.COLOURS[number % len(parts.COLOURS)]
        bar = parts.bars([each.get(part, 0.0) for each in shares.values()], names, colour, orientation="h")
        bar["marker"]["pattern"] = {"shape": "/" if number >= len(parts.COLOURS) else ""}
        data.append(bar | {"name": plot_label(part), "hovertemplate": "%{y}<br>%{x:.1%}"})
    x = parts.axis("", range=[0, 1], tickformat=".0%")
    layout = {"barmode": "stack", "height": parts.rows_height(names) + 2 * parts.LINE_HEIGHT}
    return parts.figure(data, x, parts.rows_axis(names), **layout)
