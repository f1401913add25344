"""One HTML file from a page's parts: scripts known by their digests, data that no parser can mistake for markup.

Traces are hostile. All of their text reaches the page as JSON in inert ``<script type="application/json">`` elements,
and the page's own script puts it on the screen as text. The policy in the page's head lets a browser run nothing but
the scripts whose digests it names, and load nothing at all but pictures inside the file. Styles are the one thing not
held to digests: plotly sets style attributes.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from grace_store import __version__
from grace_store.base.errors import MissingExtra, how_to_install
from grace_store.base.files import whole_file
from grace_store.pages.plain_text import visible
from grace_store.pages.sections import Section

SCRIPTS = ("elements.js", "theme.js", "plots.js", "sections.js", "trace_list.js", "trace_view.js", "main.js")
"""The page's own scripts, in the order they are put together."""

_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def inert_json(value: Any) -> str:
    r"""Return JSON that is inside a script element what it is outside: no character of it can end or open a tag.

    >>> inert_json({"text": "</script>"})
    '{"text":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(_shown(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPES)


def _shown(value: Any) -> Any:
    """Return a document with every text visible and null for every number that is none."""
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
    """Write sections to one HTML file that needs no network; traces are the documents of the trace browser, if any."""
    shown = [section.to_json() for section in sections]
    documents: dict[str, Any] = {"page": {"title": title, "made_by": f"grace-store {__version__}", "sections": shown}}
    for section in sections:
        documents |= {f"figure-{name}": figure for name, figure in section.figures.items()}
    plotly_js = load_plotly_js()
    with whole_file(out) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(html_parts(title, documents | dict(traces or {}), plotly_js))


def load_plotly_js() -> str:
    """Return plotly's script, which every page carries with it."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError:
        raise MissingExtra(f"A report needs plotly, which is not installed. {how_to_install('report')}") from None
    text: str = get_plotlyjs()
    # An element ends at the first closing tag, wherever it stands.
    return text.replace("</script", "<\\/script")


def html_parts(title: str, documents: Mapping[str, Any], plotly_js: str) -> Iterator[str]:
    """Yield the text of a page piece by piece. documents are read by the page's script under their names."""
    own = "\n".join(_page_file(name) for name in SCRIPTS)
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
    # Plain text until the first plot is drawn; the policy knows it by its digest then too.
    yield f'<script type="text/plain" id="plotly">{plotly_js}</script>\n<script>{own}</script>'
    yield end


def _page_file(name: str) -> str:
    return resources.files("grace_store.pages").joinpath("page", name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
