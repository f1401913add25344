"""A page as HTML: what datasets say goes in as inert data, and the policy names the only scripts that run."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from grace_store.pages.html import html_parts, inert_json
from grace_store.pages.plain_text import visible
from tests.reports import PageReader


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
