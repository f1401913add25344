"""How near samples are to each other, and what of a pool subsets cover: arrays to plotly figures. Knows no store."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.pages import figure_parts as parts
from grace_store.pages.plain_text import plot_label, wrapped_label
from grace_store.pages.sections import Figure

LABELLED_HEIGHT = 270
"""About as many pixels has the inside of a figure."""


TradePlace = tuple[str, float, float]
"""One choice on a curve of what coverage costs: its name, the value lost and the coverage."""


def similarity_histogram(similarity: FloatArray, threshold: float) -> Figure:
    """Draw how near the nearest other sample is, and from where on samples are alike."""
    low = min(float(similarity.min(initial=0.9)), 0.9)
    count, edges = np.histogram(similarity, bins=parts.num_bins(len(similarity)), range=(low, 1.0))
    bars = parts.histogram_bars(count, edges, parts.BLUE, "cosine", name="")
    x, y = parts.axis("cosine with the nearest other sample"), parts.axis("samples")
    return parts.figure([bars], x, y, bargap=0, showlegend=False, **parts.guide(threshold, "alike from here"))


def coverage_bars(names: Sequence[str], share: FloatArray, random: FloatArray) -> Figure:
    """Draw the share of clusters that subsets touch; random, (subsets, 3), is the mean, 5 % and 95 % of random ones."""
    labels = [wrapped_label(name) for name in names]
    mean, low, high = random.T
    bars = parts.bars(
        labels,
        parts.numbers(share),
        parts.BLUE,
        name="touched",
        width=0.5,
        hovertemplate="%{x}<br>%{y:.1%} of clusters",
    )
    look = {"marker": {"color": parts.ORANGE, "symbol": "diamond", "size": 9}, "hovertemplate": "random: %{y:.1%}"}
    errors = parts.interval_bars(mean, low, high, parts.ORANGE, thickness=1.5)
    marks = parts.dots(labels, parts.numbers(mean), "random subsets, 5 % to 95 %", error_y=errors, **look)
    x, y = parts.axis("", type="category"), parts.axis("clusters touched", tickformat=".0%", rangemode="tozero")
    return parts.figure([bars, marks], x, y)


def cluster_map(value: FloatArray, representation: FloatArray, size: IntArray, example: Sequence[str]) -> Figure:
    """Draw each cluster: mean value of its samples against how far a subset has too much (above 1) of it."""
    width = np.clip(32 * np.sqrt(size / max(int(size.max(initial=1)), 1)), 6, 32)
    dots = parts.dots(parts.numbers(value), parts.numbers(representation), "")
    dots["customdata"] = [[plot_label(each), int(n)] for each, n in zip(example, size, strict=True)]
    dots["marker"] = {"color": parts.BLUE, "opacity": 0.6, "size": width.round(1).tolist()}
    near = "%{customdata[1]} samples around %{customdata[0]}"
    dots["hovertemplate"] = f"{near}<br>mean value %{{x:.3f}}<br>%{{y:.2f}} × its share<extra></extra>"
    x, y = parts.axis("mean value of the cluster"), parts.axis("share of the subset over share of the pool")
    even = parts.dashed_line(xref="paper", x0=0, x1=1, y0=1, y1=1)
    return parts.figure([dots], x, y, shapes=[even], showlegend=False)


def trade_lines(methods: Mapping[str, Sequence[TradePlace]], marks: Sequence[TradePlace], what: str) -> Figure:
    """Draw what coverage costs: a line for each method, named at its end."""
    data: list[dict[str, Any]] = []
    labels: list[tuple[TradePlace, str, str | None]] = []
    for (name, places), (colour, dash) in zip(methods.items(), parts.line_looks(), strict=False):
        line = parts.line(*_columns(places), plot_label(name), colour, dash) | {"showlegend": False}
        line["text"] = [plot_label(each) for each, _, _ in places]
        data.append(line | {"hovertemplate": f"%{{text}}<br>{what} %{{y:.3f}}<br>value lost %{{x:.3f}}<extra></extra>"})
        labels += [(places[-1], name, colour)] if places else []
    x, y = _columns(marks)
    dots = parts.dots(
        parts.numbers(x), parts.numbers(y), "", text=[plot_label(each) for each, _, _ in marks], showlegend=False
    )
    look = {"size": 11, "symbol": "diamond-open", "color": parts.GREY, "line": {"width": 2}}
    data.append(dots | {"marker": look, "hovertemplate": f"%{{text}}<br>{what} %{{y:.3f}}<extra></extra>"})
    labels += [(place, place[0], None) for place in marks]
    return parts.figure(data, parts.axis("value lost (1: as at random)"), parts.axis(what), annotations=_apart(labels))


def _columns(places: Sequence[TradePlace]) -> tuple[FloatArray, FloatArray]:
    found = np.array([place[1:] for place in places], dtype=np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _apart(labels: Sequence[tuple[TradePlace, str, str | None]]) -> list[dict[str, Any]]:
    """Return names beside their points, moved up or down until none covers another."""
    finite = [each for each in labels if np.isfinite(each[0][1:]).all()]
    if not finite:
        return []
    lost, gained = _columns([place for place, _, _ in finite])
    middle = (lost.min() + lost.max()) / 2
    height = np.ptp(gained) or 1.0
    # Pixels from the top, as far as they can be known before it is drawn.
    wanted = (gained.max() - gained) / height * LABELLED_HEIGHT
    found, taken = [], -np.inf
    for i in np.argsort(wanted, kind="stable").tolist():
        taken = max(wanted[i], taken + parts.LINE_HEIGHT + 3)
        is_left = lost[i] <= middle
        look = {"font": {"size": 12, **({"color": finite[i][2]} if finite[i][2] else {})}, "showarrow": True}
        look |= {"ax": 26 if is_left else -26, "ay": float(round(taken - wanted[i], 1)), "arrowhead": 0}
        look |= {"arrowwidth": 1, "arrowcolor": parts.GREY, "standoff": 4, "xanchor": "left" if is_left else "right"}
        found.append({"x": float(lost[i]), "y": float(gained[i]), "text": plot_label(finite[i][1], 24)} | look)
    return found
