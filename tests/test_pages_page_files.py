"""A page as HTML: what datasets say goes in as inert data, and the policy names the only scripts that run."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_store.base.errors import MissingExtra
from grace_store.pages.figures import matrix_map
from grace_store.pages.page_files import html_parts, inert_json, write_figures, write_page
from grace_store.pages.sections import Figure, Section, visible
from tests.reports import PageReader, read_page


@given(st.text())
def test_json_in_a_page_comes_out_as_it_went_in(text: str) -> None:
    packed = inert_json({"text": text})
    assert not set("<>&\u2028\u2029") & set(packed)
    assert json.loads(packed)["text"] == visible(text)
    assert PageReader(f'<script id="a">{packed}</script>').document("a")["text"] == visible(text)


def test_numbers_that_are_none_are_null() -> None:
    assert json.loads(inert_json([float("nan"), float("inf"), 1.5, True, None])) == [None, None, 1.5, True, None]


def test_the_policy_names_the_scripts_by_their_digests() -> None:
    page = PageReader("".join(html_parts("<b>title", {"page": {"text": "</script>"}}, "var Plotly = 1;")))
    assert page.tags.count("script") == 3
    assert "b" not in page.tags
    assert page.document("page") == {"text": "</script>"}
    assert "default-src 'none'; script-src 'sha256-" in page.policy
    assert page.policy.count("sha256-") == 2
    for word in ("unsafe-eval", "http", "*", "connect-src", "script-src 'unsafe-inline'"):
        assert word not in page.policy


def test_a_page_of_sections_has_their_figures_and_plotly_itself(tmp_path: Path) -> None:
    section = Section("costs", "Costs <b>", "lead")
    section.figure("curve", "Curve </script>", {"data": [{"y": [1.0, float("nan")]}], "layout": {}})
    write_page(tmp_path / "page.html", "All of it", [section])
    page = read_page(tmp_path / "page.html")
    assert page.document("page")["sections"] == [section.to_json()]
    assert page.document("figure-curve") == {"data": [{"y": [1.0, None]}], "layout": {"height": 380}}
    assert "plotly.js v" in page.scripts["plotly"][:200]
    assert "trace-browser" not in page.scripts


@pytest.fixture
def figure() -> Figure:
    return matrix_map(np.array([[1.0, 0.25], [0.25, 1.0]]), ["<script>a", "b & c"], "Jaccard")


def test_figures_are_drawn_as_svg_and_png_for_papers(tmp_path: Path, figure: Figure) -> None:
    svg, png = write_figures({"overlap": figure}, tmp_path / "figures")
    text = "".join(ElementTree.parse(svg).getroot().itertext())
    assert "<script>a" in text  # as text
    assert "0.25" in text
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "font" not in figure["layout"]  # what the page shows stays as it was


def test_without_a_browser_figures_say_what_to_install(
    tmp_path: Path, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    import choreographer.browsers.chromium as browsers

    monkeypatch.setattr(browsers.Chromium, "find_browser", classmethod(lambda cls, **_: None))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    with pytest.raises(MissingExtra, match="apt-get install chromium"):
        write_figures({"overlap": figure}, tmp_path / "figures")
