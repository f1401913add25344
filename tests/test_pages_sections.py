"""Text from datasets on a page: nothing that a browser or a terminal obeys, and ordinary writing as it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grace_store.pages.sections import plot_label, shortened, visible


@given(st.text())
def test_what_is_visible_has_nothing_to_obey_and_stays_so(text: str) -> None:
    shown = visible(text)
    assert all(c.isprintable() or c.isspace() or c in "\u200c\u200d\u00ad" or c > "\u02ff" for c in shown)
    assert not set("\x00\x1b\x7f\x9b\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\ufeff") & set(shown)
    assert visible(shown) == shown
    assert not set("<>") & set(plot_label(text))


def test_ordinary_writing_is_left_alone() -> None:
    for text in ("naïve ∑ x² → ∞", "שלום עולם", "مرحبا", "你好，世界", "क्षत्रिय", "👩‍👩‍👧 👍🏽", "a\u00a0b\tc\nd"):
        assert visible(text) == text


def test_long_texts_are_cut_and_say_so() -> None:
    assert shortened("x" * 30_000).endswith("… (10000 characters more)")
