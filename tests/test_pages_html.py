"""A page as HTML: what datasets say goes in as inert data, and the policy names the only scripts that run."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from grace_store.pages.html import html_parts, inert_json, write_page
from grace_store.pages.plain_text import visible
from grace_store.pages.sections import Section
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
