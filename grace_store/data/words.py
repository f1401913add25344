"""Split a text into words for comparison, without case, punctuation, spacing and line breaks. Knows no samples.

A word is a run of letters without apostrophes (don't, don’t and dont are one word). A number is a word by its value:
1,000 and 1000 are the same word, and so are two and 2. In scripts without spaces (Chinese, Japanese) each character is
a word. Forms of one letter (fullwidth, ligatures) are the same letter, and invisible characters are left out.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from fractions import Fraction

_CARDINALS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen"""
_TENS_IN_ORDER = "twenty thirty forty fifty sixty seventy eighty ninety"
_NTHS_IN_ORDER = """first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth
fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"""
_TENS = dict(zip(_TENS_IN_ORDER.split(), range(20, 100, 10), strict=True))
_SMALL = {word: number for number, word in enumerate(_CARDINALS.split())} | _TENS
_UNITS = {word: number for word, number in _SMALL.items() if 0 < number < 10}
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_SCALES = {"dozen": 12, "hundred": 100, **_LARGE}
_ORDINALS = {word: number for number, word in enumerate(_NTHS_IN_ORDER.split(), start=1)}
_ORDINALS |= {f"{word[:-1]}ieth": number for word, number in _TENS.items()}
_PARTS = {word: number for word, number in _ORDINALS.items() if number > 2} | {"half": 2, "quarter": 4}
NUMERALS = frozenset({*_SMALL, *_SCALES, *_ORDINALS, "half"})
"""Words that are numbers."""


def _any(words: Iterable[str]) -> str:
    """Return a pattern for any of the words, as a tree of letters that reads each character once."""
    by_letter: dict[str, list[str]] = {}
    for word in sorted(words):
        by_letter.setdefault(word[:1], []).append(word[1:])
    ends = by_letter.pop("", None) is not None
    tree = "|".join(letter + (_any(rest) if any(rest) else "") for letter, rest in by_letter.items())
    return f"(?:{tree}){'?' if ends else ''}"


_SPACE, _HYPHEN = r"\s[\s>]{0,5}", r"[-\u2010]"
"""A space may be a line break in a quotation, with > before the next line."""
_GAP = f"(?:{_SPACE}|{_HYPHEN})"
_NO_COMPOUND = rf"(?!{_HYPHEN}\w)"
"""No compound follows, as in: fifty one-dollar bills, one fifth-grader."""
_AND_UNIT = f"(?:{_HYPHEN}{_any(_UNITS)}|{_SPACE}{_any(_UNITS)}{_NO_COMPOUND})"
_TO_99 = f"(?:{_any(_TENS)}{_AND_UNIT}?|{_any(_SMALL.keys() - _TENS.keys())})"
_TO_999 = f"{_TO_99}(?:{_GAP}hundred(?:{_GAP}(?:and{_GAP})?{_TO_99})?)?"
_A_HUNDRED = f"a{_GAP}hundred(?:{_GAP}(?:and{_GAP})?{_TO_99})?|a(?={_GAP}{_any(_LARGE)})"
_CARDINAL = f"(?:{_TO_999}|{_A_HUNDRED})(?:{_GAP}{_any(_LARGE)}(?:,?{_GAP}(?:and{_GAP})?{_TO_999})?)*"
_AND_A_HALF = f"{_SPACE}and{_SPACE}a{_GAP}half"
_MANY_PARTS = f"{_any(_PARTS.keys() - {'half', 'quarter'})}s"
_IN_WORDS = (
    rf"(?:one|a(?={_SPACE}\w+{_SPACE}of\b)){_GAP}{_any(_PARTS)}{_NO_COMPOUND}",
    f"{_any(_UNITS.keys() - {'one'})}{_GAP}{_MANY_PARTS}",
    f"(?:two|three){_GAP}quarters",
    f"{_any(_TENS)}{_GAP}{_any(word for word, number in _ORDINALS.items() if number < 10)}",
    f"{_CARDINAL}(?:{_AND_A_HALF}|{_GAP}dozen)?",
    f"(?:half{_GAP})?(?:a{_GAP})?{_any(_SCALES)}",
    _any([*_ORDINALS, "half"]),
)
_WHOLE = rf"(?:[1-9]\d{{0,3}}{_SPACE}(?!\S+{_SPACE}of\b))"
"""A whole number before a fraction, except in "... are 5. 1/4 of the ...", where the full stop is lost."""
_BETWEEN = r"\s{0,2}\}?\s{0,2}\{?\s{0,2}"
_FRACTIONS = (
    rf"{_WHOLE}?\d{{1,4}}\s{{0,3}}[/÷⁄]\s{{0,3}}\d{{1,4}}(?![\d/]|\.\d)(?:(?:rd|th)s?\b)?",
    rf"(?:\d{{1,4}}\s{{0,3}})?\\[dt]?frac{_BETWEEN}\d{{1,4}}{_BETWEEN}\d{{1,4}}(?:\s{{0,2}}\}})?",
)
_THOUSANDS = r"(?:,|\{,\}|\\,)"
_PLAIN = rf"(?:(?:\d{{1,3}}(?:{_THOUSANDS}\d{{3}})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.,])\.\d+)"
_AFTER_DIGITS = (
    f"{_GAP}{_any(_SCALES)}",
    rf"(?<=1)(?<![\d.,]1){_GAP}{_any(_PARTS)}{_NO_COMPOUND}",
    rf"(?<=[2-9])(?<![\d.,].){_GAP}{_MANY_PARTS}",
    rf"(?<=[23])(?<![\d.,].){_GAP}quarters",
    _AND_A_HALF,
    "st|nd|rd|th",
)
# Each lookahead rejects most places at once, which halves the time.
_MAYBE_IN_WORDS = rf"(?=a\s|{_any(NUMERALS)})"
_MAYBE_FRACTION = rf"(?=\d{{0,4}}+(?:{_SPACE}+\d{{1,4}}+)?+\s{{0,3}}+[/÷⁄\\])"
_MAYBE_MORE = r"(?=[-\s\u2010nrst])"
NOT_IN_NUMBERS = r"[^\w\\.]*+(?:(?:\.(?!\d)|\\(?![dt]?frac))[^\w\\.]*+)*+"
"""The characters before a word or number, skipped in one pass."""

_MAX_CHARS = 200
"""Limit for numbers in words, or with a word after the digits; a longer text stays as it is."""
_SEPARATOR = re.compile(_THOUSANDS)
_PIECE = re.compile(r"\d*\.?\d+|[a-z]+")
_FRACTION = re.compile(r"(?:(\d+)[\s>]*)??(?:\\[dt]?frac\W*(\d+?)\W*|(\d+)\s*[/÷⁄]\s*)(\d+)\W*[a-z]*")


def number_word(found: str) -> str:
    """Return the word for a number that the pattern found, in lower case.

    >>> [number_word(each) for each in ("3{,}650", "$4.00".strip("$"), "two and a half", "1/3rd", "third", "10 / 2")]
    ['3650', '4', '2.5', '1/3', '3th', '10/2']
    """
    text = _SEPARATOR.sub("", found)
    whole, _, rest = text.partition(".")
    if (whole + rest).isdigit():
        return ".".join(filter(None, (whole.lstrip("0") or "0", rest.rstrip("0"))))
    if (fraction := _FRACTION.fullmatch(text)) is not None:
        return _part_word([int(each) for each in fraction.groups() if each])
    return _phrase_word(_PIECE.findall(text)) if len(text) <= _MAX_CHARS else text


def _phrase_word(pieces: Sequence[str]) -> str:
    *before, last = pieces
    if last in ("st", "nd", "rd", "th"):
        return f"{_in_digits(_value(before))}th"
    if last in _ORDINALS and all(each in _TENS for each in before):
        return f"{sum(_SMALL[each] for each in before) + _ORDINALS[last]}th"
    part = _PARTS.get(last) or _PARTS.get(last.removesuffix("s"))
    if part is not None and len(before) == 1:
        return _part_word([1 if before[0] == "a" else int(_value(before)), part])
    return _in_digits(_value(pieces))


def _part_word(numbers: Sequence[int]) -> str:
    """Return the word for a fraction, with or without a whole number; a division stays as it is written."""
    *whole, above, below = numbers
    if above >= below:
        return " ".join([*map(str, whole), f"{above}/{below}"])
    return _in_digits(sum(whole) + Fraction(above, below))


def _value(pieces: Sequence[str]) -> Fraction:
    """Return the value of a number in words and digits."""
    total, current = Fraction(0), Fraction(0)
    for piece in pieces:
        if piece in _LARGE:
            total, current = total + (current or Fraction(1)) * _LARGE[piece], Fraction(0)
        elif piece in _SCALES:
            current = (current or Fraction(1)) * _SCALES[piece]
        elif piece == "half":
            current += Fraction(1, 2)
        elif piece not in ("a", "and"):
            current += _SMALL[piece] if piece in _SMALL else Fraction(piece)
    return total + current


def _in_digits(value: Fraction) -> str:
    """Return a number in decimal digits, or as a fraction if the decimals do not end."""
    if (places := next((n for n in range(20) if 10**n % value.denominator == 0), None)) is None:
        return f"{value.numerator}/{value.denominator}"
    digits = str(value.numerator * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits


_UNSPACED = (
    r"\u2e80-\u2fdf\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
_LETTER = rf"[^\W\d_{_UNSPACED}]"


def _pattern(letter: str, more: str = "") -> str:
    """Return a regular expression whose group is the next word, or empty if no word follows directly.

    letter matches one letter. A search reads every character of any text once.
    """
    ends = f"(?!['’]?{letter})"
    in_words = f"{_MAYBE_IN_WORDS}(?:{'|'.join(_IN_WORDS)}){ends}"
    after = f"{_MAYBE_MORE}(?:{'|'.join(_AFTER_DIGITS)}){ends}"
    in_digits = rf"{_MAYBE_FRACTION}(?<![\d/.,:])(?:{'|'.join(_FRACTIONS)})|{_PLAIN}(?:{after})?"
    words = rf"{in_words}|{letter}++(?:['’]{letter}++)*+|{in_digits}{more}"
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
"""The symbol for every number when only the words around numbers are compared."""


def plain_text(text: str) -> str:
    """Return a text with one form for each letter and digit, and without invisible characters."""
    if text.isascii():
        return text
    apart = _PART.sub(r" \g<0>", _THIN_SPACE.sub("", text))  # 2½ would become 21/2
    plain = _UNSEEN.sub("", unicodedata.normalize("NFKC", apart)).replace("٫", ".").replace("٬", ",")
    # İ is the only letter that is longer in lower case, which would shift the spans of words.
    return _OTHER_DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), plain).replace("İ", "I")


def words_of(text: str) -> list[str]:
    """Return the words of a text in order.

    >>> words_of("Don’t pay\\n $1,000.50 -- pay three!")
    ['dont', 'pay', '1000.5', 'pay', '3']
    """
    found = (_ASCII_WORD if text.isascii() else _WORD).findall(plain_text(text).lower())
    return list(filter(None, map(_FORMS.__getitem__, found)))


class _Forms(dict[str, str]):
    """A bounded cache of the form of each word: a number by its value, any other word without apostrophes."""

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
    return [match.span(1) for match in (_ASCII_WORD if plain.isascii() else _WORD).finditer(plain.lower()) if match[1]]


def is_number(word: str) -> bool:
    return word[0].isdigit() or word in _TIMES


def without_numbers(words: Sequence[str]) -> list[str]:
    """Return words with all numbers replaced by one symbol.

    >>> without_numbers(["pay", "3", "or", "12"])
    ['pay', '0', 'or', '0']
    """
    return [NUMBER if is_number(word) else word for word in words]
