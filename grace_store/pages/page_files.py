"""The files of a page: one HTML file, and its figures as SVG and PNG.

Texts of traces may be hostile. They reach the page as JSON in inert ``<script type="application/json">`` elements, and
the page's own script shows them as text. The content security policy lets a browser run only the scripts with the given
digests, and load only pictures inside the file. Styles have no digests, because plotly sets style attributes.
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from grace_store import __version__
from grace_store.base.errors import MissingExtra, how_to_install
from grace_store.base.files import whole_file
from grace_store.pages.sections import Figure, Section, visible

SCRIPTS = ("elements", "theme", "plots", "sections", "trace_list", "trace_view", "siblings", "main")
"""The page's own scripts, in the order in which they are joined."""

_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def inert_json(value: Any) -> str:
    r"""Return JSON that is safe inside a script element: no character can open or close a tag.

    >>> inert_json({"text": "</script>"})
    '{"text":"\\u003c/script\\u003e"}'
    """
    return json.dumps(_shown(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def _shown(value: Any) -> Any:
    """Return a document with all characters visible, and with null for NaN and infinity."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {visible(str(key)): _shown(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(inner) for inner in value]
    return value


def write_page(out: Path, title: str, sections: Sequence[Section], traces: Mapping[str, Any] | None = None) -> None:
    """Write sections to one HTML file that needs no network. traces are the documents of the trace browser, if any."""
    shown = [section.to_json() for section in sections]
    documents: dict[str, Any] = {"page": {"title": title, "made_by": f"grace-store {__version__}", "sections": shown}}
    for section in sections:
        documents |= {f"figure-{name}": figure for name, figure in section.figures.items()}
    plotly_js = load_plotly_js()
    with whole_file(out) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(html_parts(title, documents | dict(traces or {}), plotly_js))


def load_plotly_js() -> str:
    """Return plotly's script, which is part of every page."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError:
        raise MissingExtra(f"A report needs plotly, but plotly is not installed. {how_to_install('report')}") from None
    text: str = get_plotlyjs()
    # A closing tag ends the element, even inside a string of the script.
    return text.replace("</script", "<\\/script")


def html_parts(title: str, documents: Mapping[str, Any], plotly_js: str) -> Iterator[str]:
    """Yield the text of a page in pieces. The page's script finds each document by its name."""
    own = "\n".join(_page_file(f"{name}.js") for name in SCRIPTS)
    head, rest = _page_file("report.html").split("<!-- style -->")
    body, end = rest.split("<!-- scripts -->")
    policy = (
        f"default-src 'none'; script-src {_digest(plotly_js)} {_digest(own)}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    yield head.replace("{title}", escape(visible(title))).replace("{policy}", policy)
    yield f"<style>\n{_page_file('report.css')}</style>"
    yield body
    for name, document in documents.items():
        yield f'<script type="application/json" id="{name}">{inert_json(document)}</script>\n'
    # plotly is plain text until the first plot is drawn. The policy also allows it by its digest.
    yield f'<script type="text/plain" id="plotly">{plotly_js}</script>\n<script>{own}</script>'
    yield end


def _page_file(name: str) -> str:
    return resources.files("grace_store.pages").joinpath("page", name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


WIDTH = 800


def write_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write every figure as SVG and as PNG, and return the files."""
    try:
        import kaleido  # noqa: F401 - only to find out if it is installed
        from choreographer.errors import ChromeNotFoundError
    except ModuleNotFoundError:
        raise MissingExtra(
            f"Figures as files need kaleido, but kaleido is not installed. {how_to_install('report')}"
        ) from None
    try:
        return asyncio.run(_write(figures, folder))
    except ChromeNotFoundError:
        raise MissingExtra(
            "Figures as files need Chrome or Chromium, but neither was found. Install Chromium (on Debian: "
            "`apt-get install chromium`), or leave --figures out: the page alone does not need a browser."
        ) from None


async def _write(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    from kaleido import Kaleido

    written: list[Path] = []
    # MathJax would be loaded from the network, and no label has formulas.
    async with Kaleido(n=1, timeout=90, mathjax=False) as browser:
        for name, figure in figures.items():
            paper = for_paper(figure)
            for kind, scale in (("svg", 1), ("png", 2)):
                size = {"width": WIDTH, "height": paper["layout"]["height"], "scale": scale}
                drawn: bytes = await browser.calc_fig(paper, opts={"format": kind, **size})
                path = folder / f"{name}.{kind}"
                with whole_file(path) as partial:
                    partial.write_bytes(drawn)
                written.append(path)
    return written


def for_paper(figure: Figure) -> Figure:
    """Return a figure with black lines on white. A file does not have the page's styles."""
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
