"""Figures of a report as files for papers."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import MissingExtra
from grace_store.pages.figure_files import write_figures
from grace_store.pages.figures import matrix_map
from grace_store.pages.sections import Figure


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
