"""A report's figures as SVG and PNG files for papers, drawn by plotly in a Chrome or Chromium of the system."""

import asyncio
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

from grace_store.base.errors import MissingExtra, how_to_install
from grace_store.base.files import whole_file
from grace_store.pages.sections import Figure

FIGURE_FORMATS = ("svg", "png")
WIDTH = 800
PNG_SCALE = 2


def write_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write every figure in both formats, and return the files."""
    try:
        import kaleido  # noqa: F401 - the import is the question
        from choreographer.errors import ChromeNotFoundError
    except ModuleNotFoundError:
        raise MissingExtra(f"Figures as files need kaleido, which is missing. {how_to_install('report')}") from None
    try:
        return asyncio.run(_write(figures, folder))
    except ChromeNotFoundError:
        raise MissingExtra(
            "Figures as files are drawn by Chrome or Chromium, and none was found. Install one (on Debian: "
            "`apt-get install chromium`), or leave --figures out: the page needs none to be written."
        ) from None


async def _write(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    from kaleido import Kaleido

    written: list[Path] = []
    # mathjax would be fetched from the network, and no label has formulas.
    async with Kaleido(n=1, timeout=90, mathjax=False) as browser:
        for name, figure in figures.items():
            paper = for_paper(figure)
            for kind in FIGURE_FORMATS:
                size = {"width": WIDTH, "height": paper["layout"]["height"], "scale": PNG_SCALE if kind == "png" else 1}
                drawn: bytes = await browser.calc_fig(paper, opts={"format": kind, **size})
                path = folder / f"{name}.{kind}"
                with whole_file(path) as partial:
                    partial.write_bytes(drawn)
                written.append(path)
    return written


def for_paper(figure: Figure) -> Figure:
    """Return a figure in black on white, as the page's own styles do not go with it."""
    paper = deepcopy(figure)
    line = {"showline": True, "linecolor": "#444", "gridcolor": "#e6e6e6", "zerolinecolor": "#bbb", "ticks": "outside"}
    layout = paper["layout"]
    layout |= {
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 64, "r": 24, "t": 24, "b": 56},
        "font": {"family": "Helvetica, Arial, sans-serif", "size": 14, "color": "#222"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }
    for axis in [name for name in layout if name.startswith(("xaxis", "yaxis"))]:
        layout[axis] = line | layout[axis]
    return paper
