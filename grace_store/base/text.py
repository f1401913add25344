"""Texts of values, for people and for JSON."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

RANGES_SHOWN = 20
LINE_CHARS = 60

_BARS = "▁▂▃▄▅▆▇█"


def size(num_bytes: float) -> str:
    """Return a number of bytes with a unit.

    >>> size(1_234_000)
    '1.2 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def duration(seconds: float) -> str:
    """Return a duration with units.

    >>> duration(0), duration(12_000)
    ('0 s', '3 h 20 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def last_name(place: str) -> str:
    """Return the last part of a path or URL.

    >>> last_name("data/test.jsonl"), last_name("s3://bucket/test.zarr/"), last_name("/")
    ('test.jsonl', 'test.zarr', '/')
    """
    return PurePath(place).name or place


def counted(number: int, noun: str) -> str:
    """Return a number with a noun in singular or plural.

    >>> counted(1, "problem"), counted(0, "problem")
    ('1 problem', '0 problems')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent(share: float) -> str:
    """Return a share in percent; only a share of 1 is 100 %, and only a share of 0 is 0 %.

    >>> percent(0.964), percent(0.9999), percent(0.0001), percent(1.0)
    ('96 %', 'over 99 %', 'under 1 %', '100 %')
    """
    if 0.995 <= share < 1:
        return "over 99 %"
    return "under 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def percent_between(low: float, high: float) -> str:
    """Return an interval of shares in percent, with a decimal if it is narrow.

    >>> percent_between(0.081, 0.26), percent_between(0.081, 0.092)
    ('8 to 26 %', '8.1 to 9.2 %')
    """
    digits = 0 if high - low > 0.02 else 1
    return f"{100 * low:.{digits}f} to {100 * high:.{digits}f} %"


def percent_more(ratio: float, more: str, less: str) -> str:
    """Return in percent how much more or less the numerator of a ratio is than its denominator.

    >>> percent_more(1.13, "longer", "shorter"), percent_more(0.8, "more steps", "fewer steps")
    ('13 % longer', '20 % fewer steps')
    """
    return f"{abs(100 * (ratio - 1)):.0f} % {more if ratio >= 1 else less}"


def about(number: float) -> str:
    """Return a number rounded up to two digits.

    >>> about(228), about(12_345), about(7)
    ('230', '13,000', '7')
    """
    step = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return f"{math.ceil(number / step) * step:,}"


def first_few(texts: Sequence[str], most: int) -> str:
    """Join the first few texts with commas, and add the number of the others.

    >>> first_few(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(texts[:most]) + (f" and {len(texts) - most:,} more" if len(texts) > most else "")


def enumerated(texts: Sequence[str]) -> str:
    """Join texts with commas and a final "and".

    >>> enumerated(["a", "b", "c"]), enumerated(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def ranges(numbers: Sequence[int]) -> str:
    """Return the first few ranges of consecutive numbers in ascending numbers.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:RANGES_SHOWN]]
    return ", ".join(shown) + (" and more" if len(runs) > RANGES_SHOWN else "")


def without_nan(value: Any) -> Any:
    """Return a JSON value with None for NaN and infinity.

    >>> without_nan({"low": float("nan"), "all": (1.5, float("inf"))})
    {'low': None, 'all': [1.5, None]}
    """
    if isinstance(value, Mapping):
        return {key: without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def one_line(value: object) -> str:
    """Return the text of a value on one short line.

    >>> one_line("two\\nlines")
    'two lines'
    """
    text = " ".join(str(value).split())
    return text if len(text) <= LINE_CHARS else text[:LINE_CHARS] + "..."


def sparkline(values: Sequence[float]) -> str:
    """Return values as one line of bars; with more values than bars, neighbours are averaged.

    >>> sparkline([4.0, 3.0, 2.0, 1.0])
    '█▆▃▁'
    """
    if not values:
        return ""
    width = min(LINE_CHARS, len(values))
    parts = (values[i * len(values) // width : (i + 1) * len(values) // width] for i in range(width))
    means = [sum(part) / len(part) for part in parts]
    low = min(means)
    span = max(means) - low or 1.0
    return "".join(_BARS[min(int((mean - low) / span * len(_BARS)), len(_BARS) - 1)] for mean in means)


def canonical_json(value: Any) -> bytes:
    """Return the JSON text from which digests are computed: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def json_sha256(value: Any) -> str:
    """Return the digest of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
