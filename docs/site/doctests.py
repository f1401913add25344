"""Show the doctests of docstrings as code: in Markdown, ``>>>`` would be a quotation within a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class FencedDoctests(griffe.Extension):
    """Puts a fence around every doctest, which ends at a blank line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of any object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
