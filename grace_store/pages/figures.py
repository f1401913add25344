"""Plotly figures from arrays, as plain dictionaries: one function for each figure. Knows no store and no page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray, aranges
from grace_store.base.finding import Estimate
from grace_store.pages import figure_parts as parts
from grace_store.pages.sections import Figure, plot_label, wrapped_label

MAX_POINTS = 3000
"""Maximum number of points in a scatter. Lines and bands use all samples."""
MAX_POSITIONS = 40
FEW_POSITIONS, MANY_POSITIONS = 12, 24
"""Maximum positions with horizontal counts above the bars, and with vertical counts."""
BOXES = "Median, quartiles, and whiskers at 5 % and 95 %."
"""Caption for boxes."""

# The colours are half transparent: numbers on them are readable on a light and on a dark page.
_BLUES = [[0, "rgba(61,127,193,0.04)"], [1, "rgba(61,127,193,0.75)"]]
_BOTH_WAYS = [[0, "rgba(204,107,31,0.75)"], [0.5, "rgba(128,128,128,0.06)"], [1, "rgba(61,127,193,0.75)"]]


@dataclass(frozen=True, slots=True)
class PlottedSamples:
    """Samples of a scatter, as arrays of one length. trace is the place in the trace browser, or -1."""

    sample_id: Sequence[str]
    value: FloatArray
    chosen: BoolArray
    trace: IntArray


def thin(num: int, limit: int = MAX_POINTS) -> IntArray:
    """Return the places of at most limit of num points: all of them, or a seeded random choice.

    >>> len(thin(10)), len(thin(10**6))
    (10, 3000)
    """
    if num <= limit:
        return np.arange(num)
    return np.sort(np.random.default_rng(0).choice(num, limit, replace=False))


# ---------------------------------------------------------------- distributions


def value_histogram(value: FloatArray, chosen: BoolArray, chosen_name: str) -> Figure:
    """Draw the distribution of values, for all samples and for the chosen ones."""
    finite = np.isfinite(value)
    edges = np.histogram_bin_edges(value[finite], bins=parts.num_bins(int(finite.sum())))
    data = []
    for name, mask, colour, opacity in (
        ("all samples", finite, parts.GREY, 0.55),
        (chosen_name, finite & chosen, parts.BLUE, 0.9),
    ):
        count, _ = np.histogram(value[mask], bins=edges)
        data.append(parts.histogram_bars(count, edges, colour, "value", name=wrapped_label(name), opacity=opacity))
    return parts.figure(data, parts.axis("value V"), parts.axis("samples"), barmode="overlay", bargap=0)


def value_boxes(labels: Sequence[str], values: Sequence[FloatArray], what: str) -> Figure:
    """Draw a box of each group's values: median, quartiles, and whiskers at 5 % and 95 %."""
    names = [wrapped_label(label) for label in labels]
    box = parts.boxes([each[np.isfinite(each)] for each in values], orientation="h", y=names)
    return parts.figure(
        [box], parts.axis("value V"), parts.rows_axis(names, plot_label(what, 30)), height=parts.rows_height(names)
    )


def intervals(
    found: Mapping[str, Estimate], what: str, reference: tuple[float, str] | None, *, tickformat: str = ""
) -> Figure:
    """Draw a dot and its interval for each name, and a dashed line at the reference, with the reference's name."""
    names = [wrapped_label(name) for name in found]
    ends = ("value", "low", "high")
    value, low, high = (np.array([getattr(each, name) for each in found.values()]) for name in ends)
    spread = parts.interval_bars(value, low, high, parts.BLUE, thickness=2, width=4)
    dots = parts.dots(parts.numbers(value), names, "", error_x=spread)
    dots |= {"marker": {"color": parts.BLUE, "size": 9}, "showlegend": False}
    dots["customdata"] = [list(each) for each in zip(parts.numbers(low, 3), parts.numbers(high, 3), strict=True)]
    dots["hovertemplate"] = "%{y}<br>%{x:.3f} (%{customdata[0]} to %{customdata[1]})<extra></extra>"
    layout: dict[str, Any] = {"height": parts.rows_height(names) + parts.LINE_HEIGHT}
    if reference is not None and reference[0] == reference[0]:
        layout |= parts.guide(*reference)
    return parts.figure([dots], parts.axis(what, tickformat=tickformat), parts.rows_axis(names), **layout)


def subset_losses(found: Mapping[str, tuple[float, Sequence[float]]]) -> Figure:
    """Draw the loss of each subset and the losses of its random subsets."""
    names = [wrapped_label(name) for name in found]
    rows = [(name, loss) for name, (_, random) in zip(names, found.values(), strict=True) for loss in random]
    random = parts.dots([loss for _, loss in rows], [name for name, _ in rows], "random subsets")
    random |= {"marker": {"color": parts.GREY, "size": 8, "opacity": 0.8}}
    chosen = parts.dots([loss for loss, _ in found.values()], names, "the subset")
    chosen |= {"marker": {"color": parts.BLUE, "size": 11, "symbol": "diamond"}}
    for dots in (random, chosen):
        dots["hovertemplate"] = "%{y}<br>%{x:.4f}<extra></extra>"
    height = parts.rows_height(names) + 2 * parts.LINE_HEIGHT
    return parts.figure([random, chosen], parts.axis("held-out loss per token"), parts.rows_axis(names), height=height)


def proxy_scatter(points: Sequence[tuple[str, float, float]], what: str) -> Figure:
    """Draw named points: numbers by whole gradients against numbers by the proxy, with the line of equality."""
    proxy, true = np.array([point[1:] for point in points], dtype=np.float64).reshape(-1, 2).T
    usable = np.flatnonzero(np.isfinite(proxy) & np.isfinite(true))
    shown = usable[thin(len(usable))]
    dots = parts.dots(parts.numbers(proxy[shown]), parts.numbers(true[shown]), "", showlegend=False)
    dots |= {"marker": {"color": parts.BLUE, "size": 7, "opacity": 0.75}}
    dots["text"] = [plot_label(points[i][0]) for i in shown.tolist()]
    dots["hovertemplate"] = "%{text}<br>proxy %{x:.3f}<br>gradient %{y:.3f}<extra></extra>"
    ends = np.concatenate([proxy[shown], true[shown]])
    low, high = (float(ends.min()), float(ends.max())) if len(ends) else (0.0, 1.0)
    x, y = parts.axis(f"{what} by the proxy"), parts.axis(f"{what} by whole gradients")
    return parts.figure([dots], x, y, shapes=[parts.dashed_line(x0=low, y0=low, x1=high, y1=high)])


def alignment_scatter(answer: FloatArray, history: FloatArray, points: PlottedSamples) -> Figure:
    """Draw each sample's mean alignment with the history against its mean alignment with the answer."""
    x, y = parts.axis("mean alignment with the answer", zeroline=True), parts.axis("mean alignment with the history")
    return parts.figure(_scatter(answer, history, points, "answer %{x:.3f}<br>history %{y:.3f}"), x, y)


def _scatter(x: FloatArray, y: FloatArray, points: PlottedSamples, hover: str) -> list[dict[str, Any]]:
    usable = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    shown = usable[thin(len(usable))]
    data = []
    for name, wanted, colour, symbol in (
        ("not chosen", False, parts.GREY, "circle-open"),
        ("chosen", True, parts.BLUE, "circle"),
    ):
        mine = shown[points.chosen[shown] == wanted]
        look = {"marker": {"color": colour, "symbol": symbol, "size": 6, "opacity": 0.75}}
        dots = parts.dots(
            parts.numbers(x[mine]), parts.numbers(y[mine]), name, hovertemplate=f"%{{text}}<br>{hover}", **look
        )
        dots["text"] = [plot_label(points.sample_id[i]) for i in mine.tolist()]
        data.append(dots | {"customdata": points.trace[mine].tolist()})
    return data


# ---------------------------------------------------------------- length


def length_scatter(length: FloatArray, points: PlottedSamples, title: str) -> Figure:
    """Draw values against a length, with the median and the middle 80 % of the samples of similar length."""
    data = _scatter(length, points.value, points, f"{title} %{{x:.4g}}<br>value %{{y:.3f}}")
    ticks = _log_ticks(length[np.isfinite(points.value) & (length > 0)])
    x = parts.axis(title, type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    return parts.figure(_running(length, points.value) + data, x, parts.axis("value V"))


def _log_ticks(length: FloatArray) -> list[float]:
    """Return round numbers in the range of the lengths, at most about as many as fit on an axis."""
    if not len(length):
        return []
    low, high = float(length.min()), float(length.max())
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1,)):
        ticks = [float(step * power) for power in powers for step in steps if low * 0.95 <= step * power <= high * 1.05]
        if len(ticks) <= 8:
            break
    return ticks or [float(f"{low:.2g}"), float(f"{high:.2g}")]


def _running(length: FloatArray, value: FloatArray) -> list[dict[str, Any]]:
    usable = np.isfinite(value) & (length > 0)
    x, y = length[usable], value[usable]
    num_bins = min(16, len(x) // 20)
    if num_bins < 3 or x.min() == x.max():
        return []
    edges = np.unique(np.quantile(x, np.linspace(0, 1, num_bins + 1)))
    place = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 2)
    groups = [y[place == i] for i in range(len(edges) - 1)]
    kept = [i for i, group in enumerate(groups) if len(group) >= 4]
    centre = np.array([np.median(x[place == i]) for i in kept])
    low, median, high = np.array([np.quantile(groups[i], (0.1, 0.5, 0.9)) for i in kept]).reshape(-1, 3).T
    return [
        *parts.band(centre, low, high, "middle 80 %", 0.16),
        parts.line(centre, median, "median", parts.ORANGE, "solid"),
    ]


def value_by_num_steps(num_steps: IntArray, value: FloatArray) -> Figure:
    """Draw a box of values for each number of steps. The largest numbers share the last box."""
    usable = np.isfinite(value)
    steps = num_steps[usable]
    counts = np.bincount(steps) if len(steps) else np.zeros(1, np.int64)
    most = int(np.flatnonzero(counts)[:MAX_POSITIONS][-1]) if counts.any() else 0
    capped = np.minimum(steps, most)
    kinds = np.unique(capped)
    labels = [f"{kind}{'+' if kind == most and steps.max() > most else ''}" for kind in kinds.tolist()]
    box = parts.boxes([value[usable][capped == kind] for kind in kinds], x=labels)
    return parts.figure([box], parts.axis("steps K", type="category"), parts.axis("value V"))


# ---------------------------------------------------------------- steps


def step_profile(step_score: FloatArray, offsets: IntArray, chosen: BoolArray) -> Figure:
    """Draw step scores by position: median, middle half and middle 80 %, and the median of the chosen traces.

    Bars below show the number of traces that have a step at the position.
    """
    groups, best = _by_position(step_score, offsets, np.ones_like(chosen)), _by_position(step_score, offsets, chosen)
    last = len(groups)
    x = np.arange(1, last + 1, dtype=np.float64)
    data: list[dict[str, Any]] = []
    for low, high, strength in ((0.1, 0.9, 0.14), (0.25, 0.75, 0.22)):
        name = f"middle {round(100 * (high - low))} %"
        data += parts.band(x, _quantiles(groups, low), _quantiles(groups, high), name, strength)
    for name, some, colour, dash in (
        ("median", groups, parts.BLUE, "solid"),
        ("median of the chosen", best, parts.ORANGE, "dash"),
    ):
        line = parts.line(x, _quantiles(some, 0.5), name, colour, dash)
        line["customdata"] = [len(group) for group in some]
        data.append(line | {"hovertemplate": "step %{x}: %{y:.3f}<br>%{customdata:,} traces have it"})
    counts = [len(group) for group in groups]
    hover = "step %{x}<br>%{y:,} traces have it<extra></extra>"
    look = {"name": "traces", "yaxis": "y2", "showlegend": False, "hovertemplate": hover, "cliponaxis": False}
    bars = parts.bars(parts.numbers(x), counts, "rgba(138,143,152,0.6)", **look)
    if last <= MANY_POSITIONS:
        turned = 0 if last <= FEW_POSITIONS else -90
        bars |= {"text": [_short_count(count) for count in counts], "textposition": "outside", "textangle": turned}
        bars |= {"textfont": {"size": 10}, "constraintext": "none"}
    data.append(bars)
    return parts.figure(
        data,
        parts.axis("position of the step", dtick=1 if last <= FEW_POSITIONS else 5, anchor="y2"),
        parts.axis("step score", domain=[0.34, 1]),
        yaxis2=parts.axis("traces", domain=[0, 0.22], rangemode="tozero", nticks=3, showgrid=False),
        height=460,
    )


def _by_position(step_score: FloatArray, offsets: IntArray, among: BoolArray) -> list[FloatArray]:
    """Return the finite scores at each position, for some samples; empty if no sample has a score there."""
    num_steps = np.diff(offsets)
    position = aranges(num_steps)
    kept = np.repeat(among, num_steps) & np.isfinite(step_score)
    last = min(int(num_steps.max(initial=0)), MAX_POSITIONS)
    return [step_score[kept & (position == k)] for k in range(last)]


def _short_count(count: int) -> str:
    """Return a count below a hundred million in at most five characters.

    >>> _short_count(9_999), _short_count(123_456)
    ('9,999', '123k')
    """
    return f"{count:,}" if count < 10_000 else f"{count // 1000}k"


def _quantiles(groups: Sequence[FloatArray], share: float) -> FloatArray:
    return np.array([np.quantile(group, share) if len(group) else np.nan for group in groups])


# ---------------------------------------------------------------- curves


def line_chart(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: dict[str, Any], y: dict[str, Any]
) -> Figure:
    """Draw a line through the points of each name. Long lines have no marks."""
    data = []
    for (name, points), look in zip(lines.items(), parts.line_looks(), strict=False):
        along, up = (np.asarray(each, dtype=np.float64) for each in points)
        line = parts.line(along, up, plot_label(name, 44), *look)
        line["hovertemplate"] = "%{x:.4~g}: %{y:.4~g}"
        data.append(line | ({"mode": "lines"} if len(along) > 60 else {}))
    return parts.figure(data, x, y)


# ---------------------------------------------------------------- pairs


def matrix_map(matrix: FloatArray, labels: Sequence[str], what: str, *, lowest: float = 0.0) -> Figure:
    """Draw a square matrix of numbers up to 1. A small matrix has its numbers in the cells."""
    names = [plot_label(label, 44) for label in labels]
    cells: dict[str, Any] = {"type": "heatmap", "z": [parts.numbers(row, 4) for row in matrix], "x": names, "y": names}
    cells |= {"zmin": lowest, "zmax": 1, "colorscale": _BOTH_WAYS if lowest < 0 else _BLUES, "xgap": 1, "ygap": 1}
    cells["colorbar"] = {"title": {"text": what}, "thickness": 12, "outlinewidth": 0}
    cells["hovertemplate"] = f"%{{y}}<br>%{{x}}<br>{what} %{{z:.3f}}<extra></extra>"
    # The cells of a larger matrix are too small for numbers in a file. A page scrolls, so it has more room.
    cells |= {"texttemplate": "%{z:.2f}" if len(names) <= 20 else "", "textfont": {"size": 10}}
    x = parts.axis("", tickangle=-40, type="category", showgrid=False)
    y = parts.axis("", autorange="reversed", type="category", showgrid=False)
    return parts.figure([cells], x, y, height=int(np.clip(150 + 30 * len(names), 260, 760)))


TradePlace = tuple[str, float, float]
"""A point on the curve of coverage and its cost: name, value lost and coverage."""


def similarity_histogram(similarity: FloatArray, threshold: float) -> Figure:
    """Draw the distribution of cosines with the nearest other sample, and the threshold of similar samples."""
    low = min(float(similarity.min(initial=0.9)), 0.9)
    count, edges = np.histogram(similarity, bins=parts.num_bins(len(similarity)), range=(low, 1.0))
    bars = parts.histogram_bars(count, edges, parts.BLUE, "cosine", name="")
    x, y = parts.axis("cosine with the nearest other sample"), parts.axis("samples")
    return parts.figure([bars], x, y, bargap=0, showlegend=False, **parts.guide(threshold, "similar from here"))


def coverage_bars(names: Sequence[str], share: FloatArray, random: FloatArray) -> Figure:
    """Draw the share of clusters that subsets touch.

    random, shape (subsets, 3), has the mean, 5 % and 95 % quantiles of random subsets.
    """
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
    """Draw each cluster: its share of the subset over its share of the pool, against its mean value."""
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
    """Draw coverage against the value that it costs: a line for each method, with the name at its end."""
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
    """Return labels beside their points, moved down until no label covers another."""
    finite = [each for each in labels if np.isfinite(each[0][1:]).all()]
    if not finite:
        return []
    lost, gained = _columns([place for place, _, _ in finite])
    middle = (lost.min() + lost.max()) / 2
    height = np.ptp(gained) or 1.0
    # Pixels from the top, for a plot area that is about 270 pixels high.
    wanted = (gained.max() - gained) / height * 270
    found, taken = [], -np.inf
    for i in np.argsort(wanted, kind="stable").tolist():
        taken = max(wanted[i], taken + parts.LINE_HEIGHT + 3)
        is_left = lost[i] <= middle
        look = {"font": {"size": 12, **({"color": finite[i][2]} if finite[i][2] else {})}, "showarrow": True}
        look |= {"ax": 26 if is_left else -26, "ay": float(round(taken - wanted[i], 1)), "arrowhead": 0}
        look |= {"arrowwidth": 1, "arrowcolor": parts.GREY, "standoff": 4, "xanchor": "left" if is_left else "right"}
        found.append({"x": float(lost[i]), "y": float(gained[i]), "text": plot_label(finite[i][1], 24)} | look)
    return found
