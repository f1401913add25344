"""A text as the words that count when texts are compared: no case, punctuation, spacing or line breaks.

Words are runs of letters; apostrophes inside them are dropped (don't, don’t and dont are one word). Numbers are words
of their own, with thousands written alike (1,000 and 1000). Characters of scripts without spaces (Chinese, Japanese)
are a word each. Letters that only look different (fullwidth, ligatures) are the same, and what cannot be seen is left
out. Knows no samples.
"""

import re
import unicodedata
from collections.abc import Sequence

from grace_store.data.final_answers import NUMBER_WORDS

_UNSPACED = (
    r"\u2e80-\u2fdf\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
_NUMBER = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?"
_ASCII_WORD = re.compile(rf"[a-z]+(?:'[a-z]+)*|{_NUMBER}", re.IGNORECASE | re.ASCII)
_LETTER = rf"[^\W\d_{_UNSPACED}]"
_WORD = re.compile(rf"{_LETTER}+(?:['’]{_LETTER}+)*|{_NUMBER}|[{_UNSPACED}]")
_UNSEEN = re.compile(r"[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
_INSIDE = str.maketrans("", "", "'’,")
NUMBER = "0"
"""What stands for every number where only the words around them are compared."""


def plain_text(text: str) -> str:
    """Return a text with one form for each letter and without characters that cannot be seen."""
    return text if text.isascii() else _UNSEEN.sub("", unicodedata.normalize("NFKC", text))


def words_of(text: str) -> list[str]:
    """Return the words of a text in order.

    >>> words_of("Don’t pay\\n $1,000.50 -- pay 3!")
    ['dont', 'pay', '1000.50', 'pay', '3']
    """
    if text.isascii():
        words = _ASCII_WORD.findall(text.lower())
    else:
        words = [word.lower() for word in _WORD.findall(plain_text(text))]
    if "'" in text or "," in text or not text.isascii():
        return [word.translate(_INSIDE) for word in words]
    return words


def word_spans(plain: str) -> list[tuple[int, int]]:
    """Return where each word of a plain text begins and ends."""
    return [match.span() for match in (_ASCII_WORD if plain.isascii() else _WORD).finditer(plain)]


def is_number(word: str) -> bool:
    """Whether a word is a number, in digits or, up to twenty, in English."""
    return word[0].isdigit() or (word in NUMBER_WORDS and word != "one")


def without_numbers(words: Sequence[str]) -> list[str]:
    """Return words with all numbers alike.

    >>> without_numbers(["pay", "3", "or", "twelve"])
    ['pay', '0', 'or', '0']
    """
    return [NUMBER if is_number(word) else word for word in words]
