"""What a demo problem is and how its wording is read. Knows no topic, flaw or file format.

A wording is text of which every line says by its first character what it is; indented lines continue the one above:

    ?   a question; one of them is chosen
    -   a step            ~   a step that may be left out
    |   another way to say the step above; one of them is chosen
    !   the answer

``{price}`` stands for a value. ``[price]`` does too, and marks it as the number this step works out, which a flaw may
get wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from random import Random

Values = dict[str, str | int]

RESULT = "@"


@dataclass(frozen=True)
class Step:
    """A sentence or two; RESULT in the text is where the number worked out goes, if there is one."""

    text: str
    result: str = ""
    optional: bool = False

    def render(self, result: str | None = None) -> str:
        """Return the text with its own number, or with another one in its place."""
        return self.text.replace(RESULT, self.result if result is None else result)


@dataclass(frozen=True)
class Drawing:
    """What a figure shows: numbers and labels that the question states too."""

    shape: str
    numbers: tuple[int, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """A question with its right solution."""

    instruction: str
    steps: tuple[Step, ...]
    answer: Step
    drawing: Drawing | None = None


def compose(wording: str, values: Values, rng: Random, drawing: Drawing | None = None) -> Problem:
    """Choose among the ways of saying each part and fill in the values."""
    parts: list[tuple[str, list[str]]] = []
    for line in re.sub(r"\n\s+", " ", wording.strip()).splitlines():
        mark, text = line[0], line[1:].strip()
        if mark == "|" or (mark == "?" and parts):
            parts[-1][1].append(text)
        else:
            parts.append((mark, [text]))
    chosen = [(mark, _fill(rng.choice(texts), values, optional=mark == "~")) for mark, texts in parts]
    return Problem(
        instruction=chosen[0][1].render(),
        steps=tuple(step for mark, step in chosen if mark in "-~"),
        answer=chosen[-1][1],
        drawing=drawing,
    )


def _fill(text: str, values: Values, *, optional: bool) -> Step:
    names = set(re.findall(r"\[(\w+)\]", text))
    result = str(values[names.pop()]) if names else ""
    return Step(re.sub(r"\[\w+\]", RESULT, text).format_map(values), result, optional)


def plain(number: int | Fraction) -> str:
    """Write a number that ends as a decimal, without trailing zeros.

    >>> plain(12), plain(Fraction(5, 2)), plain(Fraction(1, 8))
    ('12', '2.5', '0.125')
    """
    number = Fraction(number)
    places = next((n for n in range(9) if (number * 10**n).denominator == 1), None)
    if places is None:
        raise ValueError(f"{number} does not end as a decimal: choose other numbers for the problem.")
    return f"{float(number):.{places}f}"


def money(amount: int | Fraction) -> str:
    """Write an amount with two decimals, or none if it is whole.

    >>> money(12), money(Fraction(25, 2))
    ('12', '12.50')
    """
    return str(amount) if Fraction(amount).denominator == 1 else f"{float(amount):.2f}"
