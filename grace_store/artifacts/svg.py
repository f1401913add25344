"""The frame of a picture: an SVG document with a title on white, made by hand so that the core needs no plotting."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def svg_document(width: float, height: float, title: str, body: Iterable[str]) -> str:
    """Return a document of that size in pixels; body is drawn below the title, which takes the top 32."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="11">',
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
            f'<text x="16" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
            *body,
            "</svg>",
            "",
        ]
    )
