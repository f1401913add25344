"""Figures from arrays: what they show is what brute force finds, and plotly itself accepts them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from grace_store.base.finding import Estimate
from grace_store.pages import figure_parts, figures
from grace_store.pages.figures import MAX_POINTS, PlottedSamples
from grace_store.pages.sections import Figure

RNG = np.random.default_rng(5)
NUM = 400
VALUE = np.where(RNG.random(NUM) < 0.05, np.nan, RNG.normal(size=NUM))
CHOSEN = VALUE > 0.8
STEPS = RNG.integers(1, 9, NUM)
LENGTH = RNG.lognormal(4, 1, NUM)
OFFSETS = np.concatenate([[0], np.cumsum(STEPS)])
STEP_SCORE = RNG.normal(size=OFFSETS[-1])
POINTS = PlottedSamples([f"<b>{i}</b>" for i in range(NUM)], VALUE, CHOSEN, np.arange(NUM))
MATRIX = np.array([[1.0, 0.25, np.nan], [0.25, 1.0, -0.5], [np.nan, -0.5, 1.0]])
NAMES = ["<script>a", "b & c", "d"]
RANDOM = np.array([[0.5, 0.4, 0.6], [0.2, 0.1, 0.3], [np.nan] * 3])
INTERVALS = {name: Estimate(value=0.5, low=0.25) for name in NAMES}
PAIRS = list(zip(POINTS.sample_id, VALUE.tolist(), (VALUE**2).tolist(), strict=True))
STEP, LOSS = figure_parts.axis("step"), figure_parts.axis("loss")
CURVE = [(f"<{lost}>", lost, 0.5 + lost) for lost in (0.0, 0.25, np.nan, 1.0)]

EVERY: dict[str, Callable[[], Figure]] = {
    "histogram": lambda: figures.value_histogram(VALUE, CHOSEN, "<i>subset"),
    "boxes": lambda: figures.value_boxes(NAMES, [VALUE, VALUE * 2, np.full(3, np.nan)], "setting"),
    "alignment": lambda: figures.alignment_scatter(VALUE, VALUE**2, POINTS),
    "length": lambda: figures.length_scatter(LENGTH, POINTS, "tokens"),
    "steps": lambda: figures.value_by_num_steps(STEPS, VALUE),
    "profile": lambda: figures.step_profile(STEP_SCORE, OFFSETS, CHOSEN),
    "overlap": lambda: figures.matrix_map(MATRIX, NAMES, "Jaccard"),
    "correlation": lambda: figures.matrix_map(MATRIX, NAMES, "Spearman", lowest=-1.0),
    "similarity": lambda: figures.similarity_histogram(np.abs(np.tanh(STEP_SCORE)), 0.95),
    "coverage": lambda: figures.coverage_bars(NAMES, MATRIX[0], RANDOM),
    "clusters": lambda: figures.cluster_map(VALUE[:3], LENGTH[:3], STEPS[:3], NAMES),
    "intervals": lambda: figures.intervals(INTERVALS, "share", (0.5, "<chance>")),
    "proxy": lambda: figures.proxy_scatter(PAIRS, "value"),
    "lines": lambda: figures.line_chart(dict.fromkeys(NAMES, (LENGTH, VALUE)), STEP, LOSS),
    "trade": lambda: figures.trade_lines({"<mmr>": CURVE, "b": CURVE}, CURVE[:2], "share"),
}  # fmt: skip


def texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in texts(each)]


@pytest.mark.parametrize("name", EVERY)
def test_plotly_knows_every_property_and_no_label_is_markup(name: str) -> None:
    figure = EVERY[name]()
    go.Figure(figure)  # raises for a property or value that is none of plotly's
    for text in texts(figure):
        for tag in ("<br>", "<extra></extra>"):
            text = text.replace(tag, "")
        assert "<" not in text


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_drawn_of_nothing_without_complaint(name: str) -> None:
    none, zero = np.zeros(0), np.zeros(0, dtype=np.int64)
    points = PlottedSamples([], none, np.zeros(0, dtype=np.bool_), zero)
    empty: dict[str, Callable[[], Figure]] = {
        "histogram": lambda: figures.value_histogram(none, points.chosen, "x"),
        "boxes": lambda: figures.value_boxes([], [], "setting"),
        "alignment": lambda: figures.alignment_scatter(none, none, points),
        "length": lambda: figures.length_scatter(none, points, "tokens"),
        "steps": lambda: figures.value_by_num_steps(zero, none),
        "profile": lambda: figures.step_profile(none, np.zeros(1, dtype=np.int64), points.chosen),
        "overlap": lambda: figures.matrix_map(np.zeros((0, 0)), [], "Jaccard"),
        "correlation": lambda: figures.matrix_map(np.zeros((0, 0)), [], "Spearman", lowest=-1.0),
        "similarity": lambda: figures.similarity_histogram(none, 0.95),
        "coverage": lambda: figures.coverage_bars([], none, np.zeros((0, 3))),
        "clusters": lambda: figures.cluster_map(none, none, zero, []),
        "intervals": lambda: figures.intervals({}, "share", (np.nan, "chance")),
        "proxy": lambda: figures.proxy_scatter([], "value"),
        "lines": lambda: figures.line_chart({"none": ([], [])}, STEP, LOSS),
        "trade": lambda: figures.trade_lines({"mmr": []}, [], "share"),
    }
    go.Figure(empty[name]())


def test_a_histogram_counts_every_sample_with_a_value() -> None:
    every, chosen = EVERY["histogram"]()["data"]
    assert sum(every["y"]) == np.isfinite(VALUE).sum()
    assert sum(chosen["y"]) == CHOSEN.sum()
    assert all(a >= b for a, b in zip(every["y"], chosen["y"], strict=True))


def test_boxes_have_the_quantiles() -> None:
    box = EVERY["boxes"]()["data"][0]
    expected = np.nanquantile(VALUE, [0.05, 0.25, 0.5, 0.75, 0.95])
    found = [box[name][0] for name in ("lowerfence", "q1", "median", "q3", "upperfence")]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert box["median"][2] is None  # a group without values


def test_the_step_profile_is_the_median_of_each_position() -> None:
    figure = EVERY["profile"]()
    lines = {trace["name"]: trace for trace in figure["data"] if trace.get("mode") == "lines+markers"}
    for k in range(8):
        scores = [STEP_SCORE[OFFSETS[i] + k] for i in range(NUM) if STEPS[i] > k]
        assert lines["median"]["y"][k] == pytest.approx(np.median(scores), rel=1e-4)
        assert lines["median"]["customdata"][k] == len(scores)
        best = [STEP_SCORE[OFFSETS[i] + k] for i in range(NUM) if STEPS[i] > k and CHOSEN[i]]
        assert lines["median of the chosen"]["y"][k] == pytest.approx(np.median(best), rel=1e-4)
        assert lines["median of the chosen"]["customdata"][k] == len(best)
    (bars,) = (trace for trace in figure["data"] if trace["type"] == "bar")
    assert bars["y"] == lines["median"]["customdata"]
    assert bars["text"] == [str(count) for count in bars["y"]]


def test_every_line_has_all_its_points_and_a_look_of_its_own() -> None:
    lines = {f"line {i}": ([1.0, 2.0, 3.0], [float(i), np.nan, 2.0 * i]) for i in range(20)}
    data = figures.line_chart(lines, STEP, LOSS)["data"]
    assert [(each["name"], each["x"], each["y"]) for each in data] == [
        (f"line {i}", [1, 2, 3], [i, None, 2 * i]) for i in range(20)
    ]
    assert len({(each["line"]["color"], each["line"]["dash"]) for each in data}) == len(lines)
    (long,) = figures.line_chart({"long": (range(1000), range(1000))}, STEP, LOSS)["data"]
    assert (long["mode"], len(long["x"])) == ("lines", 1000)


def test_the_proxy_is_drawn_against_gradients_with_a_line_where_both_are_equal() -> None:
    figure = figures.proxy_scatter([("a", 0.25, 0.5), ("b", np.nan, 0.1), ("<c>", -1.0, 2.0)], "value")
    (dots,) = figure["data"]
    assert (dots["x"], dots["y"], dots["text"]) == ([0.25, -1.0], [0.5, 2.0], ["a", "&lt;c&gt;"])
    (line,) = figure["layout"]["shapes"]
    assert (line["x0"], line["y0"], line["x1"], line["y1"]) == (-1.0, -1.0, 2.0, 2.0)


def test_names_on_a_curve_are_beside_their_lines_and_apart() -> None:
    figure = figures.trade_lines({"one": CURVE, "two": CURVE}, [("random", 1.0, 1.5)], "share")
    labels = figure["layout"]["annotations"]
    assert sorted(label["text"] for label in labels) == ["one", "random", "two"]
    assert {(label["x"], label["y"]) for label in labels} == {(1.0, 1.5)}
    heights = sorted(label["ay"] for label in labels)
    assert all(high - low >= figure_parts.LINE_HEIGHT for low, high in itertools.pairwise(heights))


def test_a_scatter_of_many_is_thinned_and_its_line_is_not() -> None:
    num = 3 * MAX_POINTS
    value, length = RNG.normal(size=num), RNG.lognormal(4, 1, num)
    points = PlottedSamples(list(map(str, range(num))), value, value > 1, np.arange(num))
    data = figures.length_scatter(length, points, "tokens")["data"]
    shown = [trace for trace in data if trace["mode"] == "markers"]
    assert sum(len(trace["x"]) for trace in shown) == MAX_POINTS
    for trace in shown:
        for x, y, i in zip(trace["x"], trace["y"], trace["customdata"], strict=True):
            assert (x, y) == (pytest.approx(length[i], rel=1e-4), pytest.approx(value[i], rel=1e-4))
    median = next(trace for trace in data if trace.get("name") == "median")
    lowest = length <= np.quantile(length, 1 / 16)
    assert median["y"][0] == pytest.approx(np.median(value[lowest]), abs=0.02)


def test_the_value_of_each_number_of_steps_is_boxed_and_the_longest_share_one() -> None:
    steps = np.arange(1, 61)
    box = figures.value_by_num_steps(steps, steps.astype(np.float64))["data"][0]
    assert len(box["x"]) == 40
    assert box["x"][-1] == "40+"
    assert box["median"][:3] == [1, 2, 3]
    assert box["median"][-1] == 50  # of 40 to 60


@pytest.mark.parametrize(("low", "high"), [(3.0, 9.0), (40.0, 900.0), (1.0, 100_000.0), (26.0, 27.0)])
def test_a_log_axis_has_a_few_round_ticks(low: float, high: float) -> None:
    value = np.zeros(2)
    points = PlottedSamples(["a", "b"], value, value > 0, np.arange(2))
    axis = figures.length_scatter(np.array([low, high]), points, "tokens")["layout"]["xaxis"]
    assert 2 <= len(axis["tickvals"]) <= 8
    assert all(low * 0.9 <= tick <= high * 1.1 for tick in axis["tickvals"])
