"""Parts of figures for plotly: axes, bars, boxes, dots, lines and bands. Knows no samples.

Colour-blind readers can distinguish the colours, on white and on black. A colour never carries information alone: a
position, symbol or number shows the same.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from grace_store.base.arrays import Array, FloatArray, IntArray
from grace_store.pages.sections import Figure, plot_label

BLUE, ORANGE, GREY = "#3d7fc1", "#cc6b1f", "#8a8f98"
COLOURS, DASHES = (BLUE, ORANGE, "#2f9e77", "#b5649a", GREY), ("solid", "dash", "dot", "dashdot")
LINE_HEIGHT = 15
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def axis(title: str, **more: Any) -> dict[str, Any]:
    # Without a standoff, plotly prints a title over long tick labels.
    return {"title": {"text": title, "standoff": 10} if title else {"text": ""}, "automargin": True, **more}


def rows_axis(labels: Sequence[str], title: str = "") -> dict[str, Any]:
    """Return an axis of names, one per row, from the top down."""
    edge = max(len(labels), 1) - 0.5
    return axis(title, range=[edge, -0.5], type="category", categoryarray=list(labels), showgrid=False)


def rows_height(labels: Sequence[str]) -> int:
    """Return the height of a figure with enough room for all names."""
    return 110 + sum(12 + LINE_HEIGHT * (1 + label.count("<br>")) for label in labels)


def figure(data: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], **layout: Any) -> Figure:
    return {"data": data, "layout": {"xaxis": x, "yaxis": y, **layout}}


def bars(x: list[Any], y: list[Any], colour: str, **more: Any) -> dict[str, Any]:
    return {"type": "bar", "x": x, "y": y, "marker": {"color": colour, "line": {"width": 0}}, **more}


def boxes(values: Sequence[FloatArray], **more: Any) -> dict[str, Any]:
    """Return a box for each array of finite numbers: median, quartiles, and whiskers at 5 % and 95 %."""
    rows = [np.quantile(each, _QUANTILES) if len(each) else [np.nan] * len(_QUANTILES) for each in values]
    columns = np.array(rows).reshape(-1, len(_QUANTILES)).T
    box = dict(zip(("lowerfence", "q1", "median", "q3", "upperfence"), map(numbers, columns), strict=True))
    look = {"line": {"color": BLUE, "width": 1.5}, "fillcolor": "rgba(61,127,193,0.25)"}
    return {"type": "box", "name": "", "showlegend": False, **box, **look, **more}


def dots(x: list[Any], y: list[Any], name: str, **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "name": name, **more}


def interval_bars(value: FloatArray, low: FloatArray, high: FloatArray, colour: str, **look: Any) -> dict[str, Any]:
    """Return the bars for the intervals of dots, to use as ``error_x`` or ``error_y``."""
    ends = {"array": numbers(high - value), "arrayminus": numbers(value - low)}
    return {"type": "data", "symmetric": False, **ends, "color": colour, **look}


def line_looks() -> Iterator[tuple[str, str]]:
    """Yield pairs of colour and dash for lines, without end. The first twenty pairs differ."""
    return zip(cycle(COLOURS), cycle(DASHES), strict=False)


def dashed_line(**ends: Any) -> dict[str, Any]:
    return {"type": "line", "line": {"color": ORANGE, "width": 2, "dash": "dash"}, **ends}


def numbers(values: Array, digits: int = 5) -> list[Any]:
    """Return numbers for JSON, rounded for a figure; None for NaN."""
    if values.dtype.kind != "f":
        return list(values.tolist())
    return [None if each != each else float(f"{each:.{digits}g}") for each in values.tolist()]


def num_bins(num: int) -> int:
    return int(np.clip(np.sqrt(num) * 2, 8, 60))


def histogram_bars(count: IntArray, edges: FloatArray, colour: str, what: str, **more: Any) -> dict[str, Any]:
    centre, width = (edges[1:] + edges[:-1]) / 2, float(edges[1] - edges[0])
    hover = f"{what} %{{x:.3f}}<br>%{{y}} samples"
    return bars(numbers(centre), count.tolist(), colour, width=width, hovertemplate=hover, **more)


def guide(x: float, words: str) -> dict[str, Any]:
    """Return the layout of a vertical dashed line with a label above the plot."""
    name = {"x": x, "y": 1, "yref": "paper", "yanchor": "bottom", "text": plot_label(words), "showarrow": False}
    line = dashed_line(x0=x, x1=x, yref="paper", y0=0, y1=1)
    return {"shapes": [line], "annotations": [name | {"font": {"size": 11}}], "margin": {"t": 28}}


def line(x: FloatArray, y: FloatArray, name: str, colour: str, dash: str) -> dict[str, Any]:
    look = {"line": {"color": colour, "width": 2.5, "dash": dash}, "marker": {"size": 5}, "connectgaps": False}
    return dots(numbers(x), numbers(y), name, hovertemplate="%{y:.3f}", **look) | {"mode": "lines+markers"}


def band(x: FloatArray, low: FloatArray, high: FloatArray, name: str, strength: float) -> list[dict[str, Any]]:
    edge = {"type": "scatter", "mode": "lines", "x": numbers(x), "line": {"width": 0}, "hoverinfo": "skip"}
    filled = {"fill": "tonexty", "fillcolor": f"rgba(61,127,193,{strength})"}
    return [edge | {"y": numbers(low), "showlegend": False}, edge | filled | {"y": numbers(high), "name": name}]
