"""A text as the words that count when texts are compared: no case, punctuation, spacing or line breaks.

Words are runs of letters; apostrophes inside them are dropped (don't, don’t and dont are one word). Numbers are words
of their own, by value (`data.numerals`): 1,000 and 1000 are one, and so are two and 2. Characters of scripts without
spaces (Chinese, Japanese) are a word each. Letters that only look different (fullwidth, ligatures) are the same, and
what cannot be seen is left out. Knows no samples.
"""

import re
import unicodedata
from collections.abc import Sequence

from grace_store.data.numerals import NOT_IN_NUMBERS, NUMERALS, digits_pattern, number_word, words_pattern

_UNSPACED = (
    r"\u2e80-\u2fdf\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
_LETTER = rf"[^\W\d_{_UNSPACED}]"


def _pattern(letter: str, more: str = "") -> str:
    """Return a regular expression whose group is the next word, or empty where there is none at once.

    So every character is gone through once, whatever a text is made of.
    """
    words = rf"{words_pattern(letter)}|{letter}++(?:['’]{letter}++)*+|{digits_pattern(letter)}{more}"
    return rf"{NOT_IN_NUMBERS}(?:({words})|[\s\S]|\Z)"


_ASCII_WORD = re.compile(_pattern("[a-z]"), re.ASCII)
_WORD = re.compile(_pattern(_LETTER, f"|[{_UNSPACED}]"))
_THIN_SPACE = re.compile(r"[\u2009\u202f](?<=\d.)(?=\d{3}(?!\d))")
_PART = re.compile("[¼-¾⅐-⅞]")
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
_UNSEEN = re.compile(r"[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
_INSIDE = str.maketrans("", "", "'’")
_IN_NUMBERS = re.compile(r"[\d\s\-\u2010]")
_TIMES = frozenset({"once", "twice", "thrice"})
_MAX_FORMS, _MAX_FORM_CHARS = 2**16, 40
NUMBER = "0"
"""What stands for every number where only the words around them are compared."""


def plain_text(text: str) -> str:
    """Return a text with one form for each letter and digit and without characters that cannot be seen."""
    if text.isascii():
        return text
    apart = _PART.sub(r" \g<0>", _THIN_SPACE.sub("", text))  # 2½ would become 21/2
    plain = _UNSEEN.sub("", unicodedata.normalize("NFKC", apart)).replace("٫", ".").replace("٬", ",")
    # İ is the only letter that is longer in lower case, so that words would lie elsewhere there.
    return _OTHER_DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), plain).replace("İ", "I")


def words_of(text: str) -> list[str]:
    """Return the words of a text in order.

    >>> words_of("Don’t pay\\n $1,000.50 -- pay three!")
    ['dont', 'pay', '1000.5', 'pay', '3']
    """
    found = (_ASCII_WORD if text.isascii() else _WORD).findall(plain_text(text).lower())
    return list(filter(None, map(_FORMS.__getitem__, found)))


class _Forms(dict[str, str]):
    """The one form of every word, those met lately at hand: a number by its value, any other without apostrophes."""

    def __missing__(self, word: str) -> str:
        is_number = word in NUMERALS or _IN_NUMBERS.search(word) is not None
        form = number_word(word) if is_number else word.translate(_INSIDE)
        if len(self) >= _MAX_FORMS:
            self.clear()
        if len(word) <= _MAX_FORM_CHARS:
            self[word] = form
        return form


_FORMS = _Forms()


def word_spans(plain: str) -> list[tuple[int, int]]:
    """Return where each word of a plain text begins and ends."""
    found = (_ASCII_WORD if plain.isascii() else _WORD).finditer(plain.lower())
    return [match.span(1) for match in found if match[1]]


def is_number(word: str) -> bool:
    """Whether a word of a text is a number."""
    return word[0].isdigit() or word in _TIMES


def without_numbers(words: Sequence[str]) -> list[str]:
    """Return words with all numbers alike.

    >>> without_numbers(["pay", "3", "or", "12"])
    ['pay', '0', 'or', '0']
    """
    return [NUMBER if is_number(word) else word for word in words]
