"""Problems that a small model can learn, each with the steps that solve it. Knows nothing of flaws, files or models.

sum      sum 3 9 4                                  3 + 9 = 12 / 12 + 4 = 16
assign   let a = 4 , b = a + 3 , c = b - 2 find c   b = 4 + 3 = 7 / c = 7 - 2 = 5
max      max 14 3 22                                max 14 3 = 14 / max 14 22 = 22
count    count above 7 : 3 9 12                     3 > 7 no = 0 / 9 > 7 yes = 1 / 12 > 7 yes = 2
mod      mod 7 : 3 * 2 + 5                          3 * 2 mod 7 = 6 / 6 + 5 mod 7 = 4
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random

LARGEST = 99
"""Every number from 0 to this is a token of its own."""
VARIABLES = "abcdefghijkl"
MODULI = (5, 7, 9)
SMALL = range(1, 10)
"""What is added or taken away at a time."""
LARGE = range(51)
"""What is compared."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what stands before its last equals sign, what comes after it, and what else one might think it is."""

    work: str
    result: int
    slips: tuple[int, ...]
    """Wrong results that look right."""

    def text(self, result: int | None = None) -> str:
        return f"{self.work} = {self.result if result is None else result}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and the steps that lead to its answer, the last step's result."""

    kind: str
    prompt: str
    steps: tuple[Step, ...]

    @property
    def answer(self) -> int:
        return self.steps[-1].result


def _near(result: int) -> tuple[int, ...]:
    """Return the numbers around a result, without it."""
    return tuple(n for n in range(result - 3, result + 4) if n != result and 0 <= n <= LARGEST)


def _sum(rng: Random, num_steps: int) -> Problem:
    # A problem of one step starts anywhere, so that the easy material has all that longer ones come to.
    total = rng.randint(1, 80) if num_steps == 1 else rng.choice(SMALL)
    numbers, steps = [total], []
    for _ in range(num_steps):
        term = rng.choice(SMALL)
        numbers.append(term)
        steps.append(Step(f"{total} + {term}", total + term, _near(total + term)))
        total += term
    return Problem("sum", f"sum {' '.join(map(str, numbers))}", tuple(steps))


def _assign(rng: Random, num_steps: int) -> Problem:
    value = rng.randint(1, 60)
    said, steps = [f"a = {value}"], []
    for before, name in pairwise(VARIABLES[: num_steps + 1]):
        term = rng.choice(SMALL)
        sign = "-" if value > 9 and (value > 80 or rng.random() < 0.5) else "+"
        result = value + term if sign == "+" else value - term
        said.append(f"{name} = {before} {sign} {term}")
        steps.append(Step(f"{name} = {value} {sign} {term}", result, _near(result)))
        value = result
    return Problem("assign", f"let {' , '.join(said)} find {VARIABLES[num_steps]}", tuple(steps))


def _max(rng: Random, num_steps: int) -> Problem:
    numbers = rng.sample(LARGE, num_steps + 1)
    best, steps = numbers[0], []
    for other in numbers[1:]:
        largest = max(best, other)
        steps.append(Step(f"max {best} {other}", largest, (min(best, other),)))
        best = largest
    return Problem("max", f"max {' '.join(map(str, numbers))}", tuple(steps))


def _count(rng: Random, num_steps: int) -> Problem:
    bound = rng.randint(5, 25)
    numbers = [rng.choice([n for n in range(31) if n != bound]) for _ in range(num_steps)]
    found, steps = 0, []
    for number in numbers:
        found += number > bound
        word = "yes" if number > bound else "no"
        steps.append(Step(f"{number} > {bound} {word}", found, tuple(n for n in (found - 1, found + 1) if n >= 0)))
    return Problem("count", f"count above {bound} : {' '.join(map(str, numbers))}", tuple(steps))


def _mod(rng: Random, num_steps: int) -> Problem:
    modulus = rng.choice(MODULI)
    value = rng.randrange(modulus)
    said, steps = [str(value)], []
    for _ in range(num_steps):
        sign, term = rng.choice("+*"), rng.randrange(1, modulus)
        result = (value + term if sign == "+" else value * term) % modulus
        said.append(f"{sign} {term}")
        slips = tuple(n for n in range(modulus) if n != result)
        steps.append(Step(f"{value} {sign} {term} mod {modulus}", result, slips))
        value = result
    return Problem("mod", f"mod {modulus} : {' '.join(said)}", tuple(steps))


KINDS: dict[str, Callable[[Random, int], Problem]] = {
    "sum": _sum,
    "assign": _assign,
    "max": _max,
    "count": _count,
    "mod": _mod,
}
"""Every kind of problem: from a random generator and a number of steps to a problem."""

WORDS = (
    "sum",
    "let",
    "find",
    "max",
    "count",
    "above",
    "yes",
    "no",
    "mod",
    ",",
    ":",
    "=",
    "+",
    "-",
    "*",
    ">",
    *VARIABLES,
)
"""All that problems are written with, besides numbers."""
