"""Arrays to plotly figures, as plain dictionaries: one function a picture. Knows no store and no page.

The colours can be told apart by the colour-blind and seen on white and on black, and they never say anything that a
position, symbol or number does not say too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grace_store.base.arrays import Array, BoolArray, FloatArray, IntArray
from grace_store.pages.plain_text import plot_label, wrapped_label
from grace_store.pages.sections import Figure

BLUE, ORANGE, GREY = "#3d7fc1", "#cc6b1f", "#8a8f98"
MAX_POINTS = 3000
"""A scatter shows at most this many points; lines and bands are made from all samples."""
MAX_POSITIONS = 40
NUM_BINS = 60
MAX_NUMBERED = 20
"""Rows up to which the cells of a matrix have room for their numbers in a file; a page scrolls, and has more room."""
FEW_POSITIONS, MANY_POSITIONS = 12, 24
"""Up to so many positions, counts are written above their bars; beyond the first number they are turned."""
LINE_HEIGHT = 15
LABELLED_HEIGHT = 270
"""About as many pixels has the inside of a figure."""
BANDS = ((0.1, 0.9), (0.25, 0.75))
BOXES = "Median, quartiles, and whiskers at 5 % and 95 %."
"""What boxes show, for their captions."""

# Half transparent, so that numbers in the page's ink can be read on them in light and dark.
_BLUES = [[0, "rgba(61,127,193,0.04)"], [1, "rgba(61,127,193,0.75)"]]
_BOTH_WAYS = [[0, "rgba(204,107,31,0.75)"], [0.5, "rgba(128,128,128,0.06)"], [1, "rgba(61,127,193,0.75)"]]
_LINE_COLOURS, _LINE_DASHES = (BLUE, ORANGE, "#2f9e77", "#b5649a"), ("solid", "dash", "dot", "dashdot")
_TICKS = (1, 1.5, 2, 3, 4, 5, 6, 8)
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True)
class PlottedSamples:
    """What a scatter needs of samples, all of one length; trace is the place in the trace browser, -1 if not there."""

    sample_id: Sequence[str]
    value: FloatArray
    chosen: BoolArray
    trace: IntArray


@dataclass(frozen=True, slots=True)
class TradePlace:
    """One choice on a curve of what coverage costs."""

    name: str
    lost: float
    gained: float


def thin(num: int, limit: int = MAX_POINTS) -> IntArray:
    """Return the places of at most limit of num points: all of them, or a seeded random choice.

    >>> len(thin(10)), len(thin(10**6))
    (10, 3000)
    """
    if num <= limit:
        return np.arange(num)
    return np.sort(np.random.default_rng(0).choice(num, limit, replace=False))


@dataclass(frozen=True, slots=True)
class NamedInterval:
    """A number that was measured, under a name, and the interval that it lies in."""

    name: str
    value: float
    low: float
    high: float


def _axis(title: str, **more: Any) -> dict[str, Any]:
    # Only with a standoff does plotly keep a title clear of the tick labels, however long these are.
    return {"title": {"text": title, "standoff": 10} if title else {"text": ""}, "automargin": True, **more}


def _rows_axis(labels: Sequence[str], title: str = "") -> dict[str, Any]:
    """Return an axis of names from the top, each on its own row."""
    edge = max(len(labels), 1) - 0.5
    return _axis(title, range=[edge, -0.5], type="category", categoryarray=list(labels), showgrid=False)


def _rows_height(labels: Sequence[str]) -> int:
    """Return the height of a figure that has room for every name."""
    return 110 + sum(12 + LINE_HEIGHT * (1 + label.count("<br>")) for label in labels)


def _figure(data: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], **layout: Any) -> Figure:
    return {"data": data, "layout": {"xaxis": x, "yaxis": y, **layout}}


def _bars(x: list[Any], y: list[Any], colour: str, **more: Any) -> dict[str, Any]:
    return {"type": "bar", "x": x, "y": y, "marker": {"color": colour, "line": {"width": 0}}, **more}


def _boxes(values: Sequence[FloatArray], **more: Any) -> dict[str, Any]:
    """Return a box for each array of finite numbers: median, quartiles, and whiskers at 5 % and 95 %."""
    rows = [np.quantile(each, _QUANTILES) if len(each) else [np.nan] * len(_QUANTILES) for each in values]
    columns = np.array(rows).reshape(-1, len(_QUANTILES)).T
    box = dict(zip(("lowerfence", "q1", "median", "q3", "upperfence"), map(_list, columns), strict=True))
    look = {"line": {"color": BLUE, "width": 1.5}, "fillcolor": "rgba(61,127,193,0.25)"}
    return {"type": "box", "name": "", "showlegend": False, **box, **look, **more}


def _dots(x: list[Any], y: list[Any], name: str, **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "name": name, **more}


def _dashed_line(**ends: Any) -> dict[str, Any]:
    return {"type": "line", "line": {"color": ORANGE, "width": 2, "dash": "dash"}, **ends}


def _list(values: Array, digits: int = 5) -> list[Any]:
    """Return numbers for JSON, as short as a picture needs them; null where there is none."""
    if values.dtype.kind != "f":
        return list(values.tolist())
    return [None if each != each else float(f"{each:.{digits}g}") for each in values.tolist()]


# ---------------------------------------------------------------- distributions


def _num_bins(num: int) -> int:
    return int(np.clip(np.sqrt(num) * 2, 8, NUM_BINS))


def _histogram_bars(count: IntArray, edges: FloatArray, colour: str, what: str, **more: Any) -> dict[str, Any]:
    centre, width = (edges[1:] + edges[:-1]) / 2, float(edges[1] - edges[0])
    hover = f"{what} %{{x:.3f}}<br>%{{y}} samples"
    return _bars(_list(centre), count.tolist(), colour, width=width, hovertemplate=hover, **more)


def value_histogram(value: FloatArray, chosen: BoolArray, chosen_name: str) -> Figure:
    """Draw how many samples have which value, and how many of them are chosen."""
    finite = np.isfinite(value)
    edges = np.histogram_bin_edges(value[finite], bins=_num_bins(int(finite.sum())))
    data = []
    for name, mask, colour, opacity in (("all samples", finite, GREY, 0.55), (chosen_name, finite & chosen, BLUE, 0.9)):
        count, _ = np.histogram(value[mask], bins=edges)
        data.append(_histogram_bars(count, edges, colour, "value", name=wrapped_label(name), opacity=opacity))
    return _figure(data, _axis("value V"), _axis("samples"), barmode="overlay", bargap=0)


def value_boxes(labels: Sequence[str], values: Sequence[FloatArray], what: str) -> Figure:
    """Draw a box of each group's values: median, quartiles, and whiskers at 5 % and 95 %."""
    names = [wrapped_label(label) for label in labels]
    box = _boxes([each[np.isfinite(each)] for each in values], orientation="h", y=names)
    return _figure([box], _axis("value V"), _rows_axis(names, plot_label(what, 30)), height=_rows_height(names))


def intervals(
    found: Sequence[NamedInterval], what: str, reference: tuple[float, str], *, tickformat: str = ""
) -> Figure:
    """Draw a dot and its interval for each name, and a dashed line at what they are held against, with its name."""
    names = [wrapped_label(each.name) for each in found]
    value, low, high = (np.array([getattr(each, name) for each in found]) for name in ("value", "low", "high"))
    spread = {"type": "data", "symmetric": False, "array": _list(high - value), "arrayminus": _list(value - low)}
    dots = _dots(_list(value), names, "", error_x=spread | {"color": BLUE, "thickness": 2, "width": 4})
    dots |= {"marker": {"color": BLUE, "size": 9}, "showlegend": False}
    dots["customdata"] = [[one, other] for one, other in zip(_list(low, 3), _list(high, 3), strict=True)]
    dots["hovertemplate"] = "%{y}<br>%{x:.3f} (%{customdata[0]} to %{customdata[1]})<extra></extra>"
    at, words = reference
    layout: dict[str, Any] = {"height": _rows_height(names) + LINE_HEIGHT}
    if at == at:
        layout |= _guide(at, words)
    return _figure([dots], _axis(what, tickformat=tickformat), _rows_axis(names), **layout)


def subset_losses(found: Mapping[str, tuple[float, Sequence[float]]]) -> Figure:
    """Draw the loss of each subset beside those of its random ones."""
    names = [wrapped_label(name) for name in found]
    rows = [(name, loss) for name, (_, random) in zip(names, found.values(), strict=True) for loss in random]
    random = _dots([loss for _, loss in rows], [name for name, _ in rows], "random subsets")
    random |= {"marker": {"color": GREY, "size": 8, "opacity": 0.8}}
    chosen = _dots([loss for loss, _ in found.values()], names, "the subset")
    chosen |= {"marker": {"color": BLUE, "size": 11, "symbol": "diamond"}}
    for dots in (random, chosen):
        dots["hovertemplate"] = "%{y}<br>%{x:.4f}<extra></extra>"
    height = _rows_height(names) + 2 * LINE_HEIGHT
    return _figure([random, chosen], _axis("held-out loss per token"), _rows_axis(names), height=height)


def _guide(x: float, words: str) -> dict[str, Any]:
    """Return the layout of an upright dashed line that says above the plot what it is."""
    name = {"x": x, "y": 1, "yref": "paper", "yanchor": "bottom", "text": plot_label(words), "showarrow": False}
    line = _dashed_line(x0=x, x1=x, yref="paper", y0=0, y1=1)
    return {"shapes": [line], "annotations": [name | {"font": {"size": 11}}], "margin": {"t": 28}}


def proxy_scatter(proxy: FloatArray, true: FloatArray, sample_id: Sequence[str]) -> Figure:
    """Draw values by the proxy against values by whole gradients, and where both would be equal."""
    shown = np.flatnonzero(np.isfinite(proxy) & np.isfinite(true))
    dots = _dots(_list(proxy[shown]), _list(true[shown]), "", showlegend=False)
    dots |= {"marker": {"color": BLUE, "size": 7, "opacity": 0.75}}
    dots["text"] = [plot_label(sample_id[i]) for i in shown.tolist()]
    dots["hovertemplate"] = "%{text}<br>proxy %{x:.3f}<br>gradient %{y:.3f}<extra></extra>"
    ends = np.concatenate([proxy[shown], true[shown]])
    low, high = (float(ends.min()), float(ends.max())) if len(ends) else (0.0, 1.0)
    equal = _dashed_line(x0=low, y0=low, x1=high, y1=high)
    return _figure([dots], _axis("value by the proxy"), _axis("value by whole gradients"), shapes=[equal])


def alignment_scatter(answer: FloatArray, history: FloatArray, points: PlottedSamples) -> Figure:
    """Draw each sample's mean alignment with the answer against that with its history."""
    data = _scatter(answer, history, points, "answer %{x:.3f}<br>history %{y:.3f}")
    x, y = _axis("mean alignment with the answer", zeroline=True), _axis("mean alignment with the history")
    return _figure(data, x, y)


def _scatter(x: FloatArray, y: FloatArray, points: PlottedSamples, hover: str) -> list[dict[str, Any]]:
    usable = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    shown = usable[thin(len(usable))]
    data = []
    for name, wanted, colour, symbol in (("not chosen", False, GREY, "circle-open"), ("chosen", True, BLUE, "circle")):
        mine = shown[points.chosen[shown] == wanted]
        look = {"marker": {"color": colour, "symbol": symbol, "size": 6, "opacity": 0.75}}
        dots = _dots(_list(x[mine]), _list(y[mine]), name, hovertemplate=f"%{{text}}<br>{hover}", **look)
        dots["text"] = [plot_label(points.sample_id[i]) for i in mine.tolist()]
        data.append(dots | {"customdata": points.trace[mine].tolist()})
    return data


# ---------------------------------------------------------------- length


def length_scatter(length: FloatArray, points: PlottedSamples, title: str) -> Figure:
    """Draw values against a length, with the median and the middle 80 % of all samples of about that length."""
    data = _scatter(length, points.value, points, f"{title} %{{x:.4g}}<br>value %{{y:.3f}}")
    ticks = _log_ticks(length[np.isfinite(points.value) & (length > 0)])
    x = _axis(title, type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    return _figure(_running(length, points.value) + data, x, _axis("value V"))


def _log_ticks(length: FloatArray) -> list[float]:
    """Return round numbers between the ends, about as many as an axis has room for."""
    if not len(length):
        return []
    low, high = float(length.min()), float(length.max())
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for steps in (_TICKS, (1, 2, 5), (1,)):
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
    return [*_band(centre, low, high, "middle 80 %", 0.16), _line(centre, median, "median", ORANGE, "solid")]


def value_by_num_steps(num_steps: IntArray, value: FloatArray) -> Figure:
    """Draw a box of values for each number of steps; the largest numbers share the last box."""
    usable = np.isfinite(value)
    steps = num_steps[usable]
    counts = np.bincount(steps) if len(steps) else np.zeros(1, np.int64)
    most = int(np.flatnonzero(counts)[:MAX_POSITIONS][-1]) if counts.any() else 0
    capped = np.minimum(steps, most)
    kinds = np.unique(capped)
    labels = [f"{kind}{'+' if kind == most and steps.max() > most else ''}" for kind in kinds.tolist()]
    box = _boxes([value[usable][capped == kind] for kind in kinds], x=labels)
    return _figure([box], _axis("steps K", type="category"), _axis("value V"))


# ---------------------------------------------------------------- steps


def step_profile(step_score: FloatArray, offsets: IntArray, chosen: BoolArray) -> Figure:
    """Draw the scores of first, second, ... steps: median, middle half and middle 80 %, and the chosen ones' median.

    Below them stands how many traces have a step at that position, which are fewer the later it is.
    """
    groups, best = _by_position(step_score, offsets, np.ones_like(chosen)), _by_position(step_score, offsets, chosen)
    last = len(groups)
    x = np.arange(1, last + 1, dtype=np.float64)
    data: list[dict[str, Any]] = []
    for (low, high), strength in zip(BANDS, (0.14, 0.22), strict=True):
        name = f"middle {round(100 * (high - low))} %"
        data += _band(x, _quantiles(groups, low), _quantiles(groups, high), name, strength)
    for name, some, colour, dash in (
        ("median", groups, BLUE, "solid"),
        ("median of the chosen", best, ORANGE, "dash"),
    ):
        line = _line(x, _quantiles(some, 0.5), name, colour, dash)
        line["customdata"] = [len(group) for group in some]
        data.append(line | {"hovertemplate": "step %{x}: %{y:.3f}<br>%{customdata:,} traces have it"})
    data.append(_counts_below(x, [len(group) for group in groups]))
    return _figure(
        data,
        _axis("position of the step", dtick=1 if last <= FEW_POSITIONS else 5, anchor="y2"),
        _axis("step score", domain=[0.34, 1]),
        yaxis2=_axis("traces", domain=[0, 0.22], rangemode="tozero", nticks=3, showgrid=False),
        height=460,
    )


def _by_position(step_score: FloatArray, offsets: IntArray, among: BoolArray) -> list[FloatArray]:
    """Return the finite scores of first steps, of second steps, ... of some samples; empty where they have none."""
    num_steps = np.diff(offsets)
    position = np.arange(len(step_score)) - np.repeat(offsets[:-1], num_steps)
    kept = np.repeat(among, num_steps) & np.isfinite(step_score)
    last = min(int(num_steps.max(initial=0)), MAX_POSITIONS)
    return [step_score[kept & (position == k)] for k in range(last)]


def _counts_below(x: FloatArray, counts: Sequence[int]) -> dict[str, Any]:
    bars = _bars(_list(x), list(counts), "rgba(138,143,152,0.6)", name="traces", yaxis="y2", showlegend=False)
    bars |= {"hovertemplate": "step %{x}<br>%{y:,} traces have it<extra></extra>", "cliponaxis": False}
    if len(counts) <= MANY_POSITIONS:
        turned = 0 if len(counts) <= FEW_POSITIONS else -90
        bars |= {"text": [_short_count(count) for count in counts], "textposition": "outside", "textangle": turned}
        bars |= {"textfont": {"size": 10}, "constraintext": "none"}
    return bars


def _short_count(count: int) -> str:
    """Return a count in at most five characters, up to a hundred million.

    >>> _short_count(9_999), _short_count(123_456)
    ('9,999', '123k')
    """
    return f"{count:,}" if count < 10_000 else f"{count // 1000}k"


def _quantiles(groups: Sequence[FloatArray], share: float) -> FloatArray:
    return np.array([np.quantile(group, share) if len(group) else np.nan for group in groups])


def _line(x: FloatArray, y: FloatArray, name: str, colour: str, dash: str) -> dict[str, Any]:
    look = {"line": {"color": colour, "width": 2.5, "dash": dash}, "marker": {"size": 5}, "connectgaps": False}
    return _dots(_list(x), _list(y), name, hovertemplate="%{y:.3f}", **look) | {"mode": "lines+markers"}


def _band(x: FloatArray, low: FloatArray, high: FloatArray, name: str, strength: float) -> list[dict[str, Any]]:
    edge = {"type": "scatter", "mode": "lines", "x": _list(x), "line": {"width": 0}, "hoverinfo": "skip"}
    filled = {"fill": "tonexty", "fillcolor": f"rgba(61,127,193,{strength})"}
    return [edge | {"y": _list(low), "showlegend": False}, edge | filled | {"y": _list(high), "name": name}]


# ---------------------------------------------------------------- pairs, and nearness


def matrix_map(matrix: FloatArray, labels: Sequence[str], what: str, *, lowest: float = 0.0) -> Figure:
    """Draw a square matrix of numbers up to 1, with its numbers while they are few enough to be read."""
    names = [plot_label(label, 44) for label in labels]
    cells: dict[str, Any] = {"type": "heatmap", "z": [_list(row, 4) for row in matrix], "x": names, "y": names}
    cells |= {"zmin": lowest, "zmax": 1, "colorscale": _BOTH_WAYS if lowest < 0 else _BLUES, "xgap": 1, "ygap": 1}
    cells["colorbar"] = {"title": {"text": what}, "thickness": 12, "outlinewidth": 0}
    cells["hovertemplate"] = f"%{{y}}<br>%{{x}}<br>{what} %{{z:.3f}}<extra></extra>"
    cells |= {"texttemplate": "%{z:.2f}" if len(names) <= MAX_NUMBERED else "", "textfont": {"size": 10}}
    x = _axis("", tickangle=-40, type="category", showgrid=False)
    y = _axis("", autorange="reversed", type="category", showgrid=False)
    return _figure([cells], x, y, height=int(np.clip(150 + 30 * len(names), 260, 760)))


def similarity_histogram(similarity: FloatArray, threshold: float) -> Figure:
    """Draw how near the nearest other sample is, and from where on samples are alike."""
    low = min(float(similarity.min(initial=0.9)), 0.9)
    count, edges = np.histogram(similarity, bins=_num_bins(len(similarity)), range=(low, 1.0))
    bars = _histogram_bars(count, edges, BLUE, "cosine", name="")
    x, y = _axis("cosine with the nearest other sample"), _axis("samples")
    return _figure([bars], x, y, bargap=0, showlegend=False, **_guide(threshold, "alike from here"))


# ---------------------------------------------------------------- coverage


def coverage_bars(names: Sequence[str], share: FloatArray, random: FloatArray) -> Figure:
    """Draw the share of clusters that subsets touch; random, (subsets, 3), is the mean, 5 % and 95 % of random ones."""
    labels = [wrapped_label(name) for name in names]
    mean, low, high = random.T
    bars = _bars(labels, _list(share), BLUE, name="touched", width=0.5, hovertemplate="%{x}<br>%{y:.1%} of clusters")
    spread = {"type": "data", "symmetric": False, "array": _list(high - mean), "arrayminus": _list(mean - low)}
    look = {"marker": {"color": ORANGE, "symbol": "diamond", "size": 9}, "hovertemplate": "random: %{y:.1%}"}
    errors = spread | {"color": ORANGE, "thickness": 1.5}
    marks = _dots(labels, _list(mean), "random subsets, 5 % to 95 %", error_y=errors, **look)
    x, y = _axis("", type="category"), _axis("clusters touched", tickformat=".0%", rangemode="tozero")
    return _figure([bars, marks], x, y)


def cluster_map(value: FloatArray, representation: FloatArray, size: IntArray, example: Sequence[str]) -> Figure:
    """Draw each cluster: mean value of its samples against how far a subset has too much (above 1) of it."""
    width = np.clip(32 * np.sqrt(size / max(int(size.max(initial=1)), 1)), 6, 32)
    dots = _dots(_list(value), _list(representation), "")
    dots["customdata"] = [[plot_label(each), int(n)] for each, n in zip(example, size, strict=True)]
    dots["marker"] = {"color": BLUE, "opacity": 0.6, "size": width.round(1).tolist()}
    near = "%{customdata[1]} samples around %{customdata[0]}"
    dots["hovertemplate"] = f"{near}<br>mean value %{{x:.3f}}<br>%{{y:.2f}} × its share<extra></extra>"
    x, y = _axis("mean value of the cluster"), _axis("share of the subset over share of the pool")
    even = _dashed_line(xref="paper", x0=0, x1=1, y0=1, y1=1)
    return _figure([dots], x, y, shapes=[even], showlegend=False)


def trade_lines(methods: Mapping[str, Sequence[TradePlace]], marks: Sequence[TradePlace], what: str) -> Figure:
    """Draw what coverage costs: a line for each method, named at its end."""
    data: list[dict[str, Any]] = []
    labels: list[tuple[TradePlace, str, str | None]] = []
    for (name, places), colour, dash in zip(methods.items(), _LINE_COLOURS, _LINE_DASHES, strict=False):
        line = _line(*_columns(places), plot_label(name), colour, dash) | {"showlegend": False}
        line["text"] = [plot_label(place.name) for place in places]
        data.append(line | {"hovertemplate": f"%{{text}}<br>{what} %{{y:.3f}}<br>value lost %{{x:.3f}}<extra></extra>"})
        labels += [(places[-1], name, colour)] if places else []
    x, y = _columns(marks)
    dots = _dots(_list(x), _list(y), "", text=[plot_label(place.name) for place in marks], showlegend=False)
    look = {"size": 11, "symbol": "diamond-open", "color": GREY, "line": {"width": 2}}
    data.append(dots | {"marker": look, "hovertemplate": f"%{{text}}<br>{what} %{{y:.3f}}<extra></extra>"})
    labels += [(place, place.name, None) for place in marks]
    return _figure(data, _axis("value lost (1: as at random)"), _axis(what), annotations=_apart(labels))


def _columns(places: Sequence[TradePlace]) -> tuple[FloatArray, FloatArray]:
    found = np.array([[place.lost, place.gained] for place in places], dtype=np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _apart(labels: Sequence[tuple[TradePlace, str, str | None]]) -> list[dict[str, Any]]:
    """Return names beside their points, moved up or down until none covers another."""
    finite = [each for each in labels if each[0].lost == each[0].lost and each[0].gained == each[0].gained]
    if not finite:
        return []
    lost, gained = _columns([place for place, _, _ in finite])
    middle = (lost.min() + lost.max()) / 2
    height = np.ptp(gained) or 1.0
    # Pixels from the top, as far as they can be known before it is drawn.
    wanted = (gained.max() - gained) / height * LABELLED_HEIGHT
    found, taken = [], -np.inf
    for i in np.argsort(wanted, kind="stable").tolist():
        taken = max(wanted[i], taken + LINE_HEIGHT + 3)
        is_left = lost[i] <= middle
        look = {"font": {"size": 12, **({"color": finite[i][2]} if finite[i][2] else {})}, "showarrow": True}
        look |= {"ax": 26 if is_left else -26, "ay": float(round(taken - wanted[i], 1)), "arrowhead": 0}
        look |= {"arrowwidth": 1, "arrowcolor": GREY, "standoff": 4, "xanchor": "left" if is_left else "right"}
        found.append({"x": float(lost[i]), "y": float(gained[i]), "text": plot_label(finite[i][1], 24)} | look)
    return found
