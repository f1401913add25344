"""Pictures made by hand: valid SVG, a cell for every number, nothing hidden."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from grace_store.artifacts.heat_map import heat_map

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str, tag: str) -> list[str]:
    return [element.text for element in ElementTree.fromstring(picture).iter(f"{SVG}{tag}")]


def test_every_pair_is_told_and_labels_are_escaped():
    matrix = np.array([[1.0, -0.25], [np.nan, 0.5]])
    picture = heat_map(matrix, ["a<b", "c&d"], "Overlap", "3 samples")
    assert texts(picture, "title") == ["a<b / a<b: 1.000", "a<b / c&d: -0.250", "c&d / a<b: none", "c&d / c&d: 0.500"]
    assert {"Overlap", "3 samples", "a<b", "c&d", "1", "-.25", ".50"} <= set(texts(picture, "text"))
    assert "#ddd" in picture


@pytest.mark.parametrize(("value", "colour"), [(0.0, "#f7fbff"), (1.0, "#08306b"), (-1.0, "#b2182b")])
def test_colours_say_how_much(value, colour):
    assert colour in heat_map(np.array([[value]]), ["x"], "t")


def test_many_settings_have_small_cells_without_numbers():
    many = heat_map(np.ones((40, 40)), [str(i) for i in range(40)], "t")
    assert texts(many, "title")[0] == "0 / 0: 1.000"
    assert 'font-size="9"' not in many


def test_no_settings_is_a_picture_too():
    assert texts(heat_map(np.ones((0, 0)), [], "t"), "title") == []
