"""Pictures: valid SVG that names itself, everything in its place, all text escaped, nothing hidden."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_store.artifacts.pictures.heat_map import draw_heat_map
from grace_store.artifacts.pictures.panels import COLOURS, MAX_DOTS, Axis, Panel, Point, Series, draw_panels

SVG = "{http://www.w3.org/2000/svg}"


def parse(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)


def texts(picture: str) -> list[str | None]:
    return [element.text for element in parse(picture).iter(f"{SVG}text")]


def tips(picture: str, tag: str) -> list[str | None]:
    return [element.text for element in parse(picture).iterfind(f".//{SVG}{tag}/{SVG}title")]


def panel(*series: Series, **more: object) -> Panel:
    return Panel(Axis("x"), Axis("y"), series, **more)  # type: ignore[arg-type]


# ---------------------------------------------------------------- heat maps


def test_every_pair_is_told_and_labels_are_escaped():
    matrix = np.array([[1.0, -0.25], [np.nan, 0.5]])
    picture = draw_heat_map(matrix, ["a<b", "c&d"], "Overlap", "3 samples")
    assert tips(picture, "rect") == ["a<b / a<b: 1.000", "a<b / c&d: -0.250", "c&d / a<b: none", "c&d / c&d: 0.500"]
    assert {"Overlap", "3 samples", "a<b", "c&d", "1", "-.25", ".50"} <= set(texts(picture))
    assert "#ddd" in picture


@pytest.mark.parametrize(("value", "colour"), [(0.0, "#f7fbff"), (1.0, "#08306b"), (-1.0, "#b2182b")])
def test_colours_say_how_much(value, colour):
    cell = parse(draw_heat_map(np.array([[value]]), ["x"], "t")).find(f".//{SVG}g/{SVG}rect")
    assert cell is not None
    assert cell.get("fill") == colour


def test_many_settings_have_small_cells_and_a_legend_instead_of_numbers():
    num = 40
    few, many = (draw_heat_map(np.ones((n, n)), [f"s{i}" for i in range(n)], "t") for n in (2, num))
    assert len(tips(many, "rect")) == num**2
    assert texts(few).count("1") == 4
    keys = [text for text in texts(many) if text and text[0].isdigit()]
    assert keys == ["0", "0.25", "0.5", "0.75", "1"]
    falling = draw_heat_map(-np.ones((num, num)), [f"s{i}" for i in range(num)], "t")
    assert "-1" in texts(falling)


def test_no_settings_is_a_picture_too():
    assert tips(draw_heat_map(np.ones((0, 0)), [], "t"), "rect") == []


# ---------------------------------------------------------------- panels


def test_every_point_is_in_its_place_and_all_text_is_escaped():
    series = Series("a<b", [Point(0.0, 0.2, "x & y"), Point(1.0, 0.9, "end")])
    one = Panel(Axis("<lost>"), Axis("gained"), [series], [Point(0.5, 0.5, "tip", "<mark>")], "<title>", "<under>")
    picture = draw_panels([one, one], "T & t", "note <n>")
    known = {"T & t", "a<b", "<lost>", "gained", "note <n>", "<mark>", "<title>", "<under>", "0.2", "0.4", "0.6", "0.8"}
    assert known <= set(texts(picture))
    assert parse(picture).find(f"{SVG}title").text == "T & t"
    assert tips(picture, "circle") == ["x & y", "end", "tip"] * 2
    circles = list(parse(picture).iter(f"{SVG}circle"))
    x, y = ([float(circle.get(name)) for circle in circles[:3]] for name in ("cx", "cy"))
    assert x[2] == pytest.approx((x[0] + x[1]) / 2, abs=0.1)
    assert y[1] < y[2] < y[0]


def test_a_series_has_one_colour_and_one_name_in_all_panels():
    first, second = Series("first", [Point(0, 0)]), Series("second", [Point(1, 1)], "dots")
    picture = draw_panels([panel(first, second), panel(second)], "t")
    assert [texts(picture).count(name) for name in ("first", "second")] == [1, 1]
    colours = [group.get("fill") for group in parse(picture).iter(f"{SVG}g") if group.get("fill")]
    assert colours == [COLOURS[0], COLOURS[1], COLOURS[1]]


@pytest.mark.parametrize("points", [[], [Point(0.5, 1.0, "one")], [Point(math.nan, 1.0), Point(1.0, math.inf)]])
def test_next_to_nothing_is_a_picture_too(points):
    drawn = [point for point in points if point.tip]
    picture = draw_panels([panel(Series("l", points), if_empty="nothing at all")], "t")
    assert picture.count("<circle") == len(drawn)
    assert ("nothing at all" in texts(picture)) == (not drawn)


def test_no_panel_and_no_row_are_pictures_too():
    rows = Panel(Axis(guide=100), Axis.of_names([]), [Series("", [], "dots")], height=0)
    for picture in (draw_panels([], "t"), draw_panels([rows], "t")):
        assert "t" in texts(picture)


def test_names_stand_in_rows_from_the_top_beside_bars_as_long_as_their_ranges():
    bars = [Point(0, row, f"bar {row}", x_range=(0, length)) for row, length in enumerate((1.0, 0.5))]
    picture = draw_panels([Panel(Axis(limits=(0, 1)), Axis.of_names(["top", "low"]), [Series("", bars, "bars")])], "t")
    paths = [path.get("d", "") for path in parse(picture).iter(f"{SVG}path") if path.find(f"{SVG}title") is not None]
    (start, top, whole, _), (again, low, half, _) = (
        [float(each) for each in re.findall(r"[\d.]+", path)] for path in paths
    )
    assert start == again
    assert top < low
    assert half - start == pytest.approx((whole - start) / 2, abs=0.1)
    assert "<circle" not in picture


def test_ranges_have_room_and_are_told():
    point = Point(1.0, 2.0, "1 to 9", y_range=(1.0, 9.0))
    picture = draw_panels([panel(Series("", [point], "line"))], "t")
    assert tips(picture, "path") == ["1 to 9"]
    assert {"2", "4", "6", "8"} <= set(texts(picture))


def test_equal_axes_have_the_same_ticks_and_a_line_where_both_are_equal():
    one = panel(Series("", [Point(0.0, 3.0), Point(2.0, 10.0)], "dots"), equal_axes=True)
    picture = draw_panels([one], "t")
    assert [texts(picture).count(tick) for tick in ("0", "2", "10")] == [2, 2, 2]
    assert picture.count("stroke-dasharray") == 1


def test_of_many_dots_some_are_shown_and_a_line_has_all():
    points = [Point(i, i % 7) for i in range(2 * MAX_DOTS + 1)]
    assert draw_panels([panel(Series("", points, "dots"))], "t").count("<circle") == math.ceil(len(points) / 3)
    line = parse(draw_panels([panel(Series("", points, "line"))], "t")).find(f".//{SVG}polyline")
    assert line is not None
    assert len(line.get("points", "").split()) == len(points)


def test_a_legend_that_is_too_long_for_one_line_takes_more():
    names = [f"a rather long name, number {i}" for i in range(9)]
    picture = parse(draw_panels([panel(*(Series(name, [Point(i, i)]) for i, name in enumerate(names)))], "t"))
    places = [(float(t.get("x")), float(t.get("y"))) for t in picture.iter(f"{SVG}text") if t.text in names]
    assert len(set(places)) == len(names)
    assert len({y for _, y in places}) > 1
    assert max(x for x, _ in places) < float(picture.get("width"))


def test_a_long_note_is_wrapped_and_a_long_title_fits():
    note = "a word or two " * 20
    picture = draw_heat_map(np.ones((1, 1)), ["x"], "A title that is wider than the matrix", note)
    lines = [text for text in texts(picture) if text and text in note]
    assert len(lines) > 1
    assert " ".join(lines) == note.strip()
    assert float(parse(picture).get("width", "0")) > 250


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_round_numbers_inside_the_axis_and_differ(low, span):
    picture = draw_panels([panel(Series("", [Point(low, 0.0), Point(low + span, 0.0)], "dots"))], "t")
    root = parse(picture)
    frame = root.find(f".//{SVG}g/{SVG}rect")
    left, right = float(frame.get("x")), float(frame.get("x")) + float(frame.get("width"))
    below = [text for text in root.iter(f"{SVG}text") if float(text.get("y")) > float(frame.get("height"))]
    labels = [text for text in below if re.fullmatch(r"-?[\d,]+(\.\d+)?", text.text or "")]
    values = [float(text.text.replace(",", "")) for text in labels]
    assert len(labels) >= 1
    assert all(left - 0.1 <= float(text.get("x")) <= right + 0.1 for text in labels)
    assert len(set(values)) == len(values)
    steps = {round(b - a, 9) for a, b in itertools.pairwise(values)}
    assert len(steps) <= 1


def test_whole_numbers_have_whole_ticks():
    steps = draw_panels([panel(Series("", [Point(0, 0.5), Point(2, 0.75)]))], "t")
    assert [text for text in texts(steps) if text and text.isdigit()] == ["0", "1", "2"]
