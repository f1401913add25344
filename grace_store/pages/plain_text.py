"""Text from datasets made harmless for pages and plots: what would be obeyed is spelled out, what is long is cut."""

import html
import re
import textwrap
import unicodedata

MAX_CHARS = 20_000
"""Longest text of a segment or turn that a page carries."""
MAX_LABEL_CHARS = 72

_JOINERS = "\u200c\u200d\u00ad"
"""Format characters that writing and emoji need and that move nothing."""
_SUSPECT = re.compile(
    r"[^\n\t\x20-\x7e\xa0-\xac\xae-\u02ff\u0370-\u05ff\u2010-\u2027\u2030-\u205f\u2070-\u2fff\u3000-\ud7ff]"
)


def visible(text: str) -> str:
    r"""Return text with control, bidirectional, invisible and broken characters spelled out; line ends become \n.

    >>> visible("a\x1b[2J \u202eb\r\nc")
    'a\\x1b[2J \\u202eb\nc'
    """
    text = text.replace("\r\n", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    return _SUSPECT.sub(lambda match: _spelled(match[0]), text)


def _spelled(character: str) -> str:
    if character in _JOINERS or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return character.encode("unicode_escape").decode()


def shortened(text: str, limit: int = MAX_CHARS) -> str:
    """Return text cut to a limit, saying how much was cut.

    >>> shortened("abcdef", 4)
    'abcd … (2 characters more)'
    """
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} characters more)"


def plot_label(text: str, limit: int = MAX_LABEL_CHARS) -> str:
    """Return text for a plot on one line. plotly reads a little HTML in its labels, so marks of HTML are escaped.

    >>> plot_label("<b>no tag</b>")
    '&lt;b&gt;no tag&lt;/b&gt;'
    """
    line = " ".join(visible(text).split())
    return html.escape(line if len(line) <= limit else f"{line[: limit - 1]}…", quote=False)


def wrapped_label(text: str, width: int = 20, max_lines: int = 3) -> str:
    """Return text for a plot in a few short lines, so that a narrow screen has room for what it names.

    >>> wrapped_label("a name that is longer than one line")
    'a name that is<br>longer than one line'
    """
    lines = textwrap.wrap(" ".join(visible(text).split()), width, max_lines=max_lines, placeholder=" …")
    return "<br>".join(html.escape(line, quote=False) for line in lines)
