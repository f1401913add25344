"""What a benchmark found: ratios with their goals, and curves; as JSON, as tables, as one page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from grace_store.pages import figure_parts as parts
from grace_store.pages.figures import line_chart
from grace_store.pages.sections import Figure, Section
from jobs.bench.measuring import Cost, exponent


@dataclass(frozen=True, slots=True)
class Goal:
    """What a number should be at least or at most."""

    sense: Literal[">=", "<="]
    limit: float

    def is_met_by(self, value: float) -> bool:
        return value >= self.limit if self.sense == ">=" else value <= self.limit

    def __str__(self) -> str:
        return f"{self.sense} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Ratio:
    """One number to be held against a goal, and the two sides it was made of."""

    what: str
    against: str
    value: float
    goal: Goal | None = None
    sides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What was measured of each side, by its name."""
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        if self.goal.is_met_by(self.value):
            return "met"
        return f"missed by {abs(self.value / self.goal.limit - 1):.0%}"

    def cells(self) -> list[str]:
        return [self.what, self.against, shown(self.value), str(self.goal or ""), self.verdict, self.note]


@dataclass(frozen=True, slots=True)
class Curve:
    """How a cost grows with a size."""

    what: str
    size: str
    """What grows, in words."""
    unit: str
    sizes: Sequence[float]
    lines: Mapping[str, Sequence[float]]
    """By name, the costs at the sizes."""

    def exponents(self) -> dict[str, float]:
        """Return each line's exponent, NaN for one that touches zero."""
        return {name: exponent(self.sizes, costs) if min(costs) > 0 else math.nan for name, costs in self.lines.items()}

    def rows(self) -> list[list[str]]:
        exponents = self.exponents()
        return [[name, *map(shown, costs), f"{exponents[name]:.2f}"] for name, costs in self.lines.items()]

    def figure(self) -> Figure:
        lines = {name: (self.sizes, costs) for name, costs in self.lines.items()}
        return line_chart(lines, parts.axis(self.size, type="log"), parts.axis(self.unit, type="log"))


@dataclass(frozen=True, slots=True)
class Findings:
    """All that one family of measurements found."""

    ratios: Sequence[Ratio] = ()
    curves: Sequence[Curve] = ()
    notes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "ratios": [{**asdict(ratio), "verdict": ratio.verdict} for ratio in self.ratios],
            "curves": [{**asdict(curve), "exponents": curve.exponents()} for curve in self.curves],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Findings:
        ratios = [_without(each, "verdict") for each in document["ratios"]]
        curves = [Curve(**_without(each, "exponents")) for each in document["curves"]]
        return cls(
            [Ratio(**{**each, "goal": Goal(**each["goal"]) if each["goal"] else None}) for each in ratios],
            curves,
            document["notes"],
        )


def sides(costs: Mapping[str, Cost]) -> dict[str, dict[str, Any]]:
    return {name: asdict(cost) for name, cost in costs.items()}


def shown(value: float) -> str:
    """Return a number with three figures, and nothing lost of a whole one.

    >>> shown(0.012345), shown(1234.5), shown(200000), shown(0)
    ('0.0123', '1,234', '200,000', '0')
    """
    if value and (abs(value) < 1e-3):
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns line up, so that it reads well as plain text too."""
    table = [list(headings), *map(list, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    return "\n".join([line(headings), line(["-" * width for width in widths]), *map(line, rows)])


RATIO_HEADINGS = ("what", "against", "found", "goal", "", "note")


def report(families: Mapping[str, Findings], environment: Mapping[str, str]) -> str:
    """Return everything as Markdown."""
    parts = ["## Measured on", markdown(("what", "is"), [[name, value] for name, value in environment.items()])]
    ratios = [ratio.cells() for found in families.values() for ratio in found.ratios]
    if ratios:
        parts += ["## Ratios", markdown(RATIO_HEADINGS, ratios)]
    curves = [curve for found in families.values() for curve in found.curves]
    if curves:
        parts.append("## Growth")
    for curve in curves:
        parts += [f"{curve.what} ({curve.unit}) against {curve.size}:", _curve_table(curve)]
    notes = [note for found in families.values() for note in found.notes]
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def sections(families: Mapping[str, Findings], environment: Mapping[str, str]) -> list[Section]:
    """Return everything as sections of a page, with the curves drawn."""
    costs, about = Section("costs", "Costs"), Section("environment", "Measured on")
    costs.table("Ratios", RATIO_HEADINGS, [ratio.cells() for found in families.values() for ratio in found.ratios])
    for number, curve in enumerate(curve for found in families.values() for curve in found.curves):
        exponents = "; ".join(f"{name}: exponent {value:.2f}" for name, value in curve.exponents().items())
        costs.figure(f"curve-{number}", curve.what, curve.figure(), exponents)
    for note in (note for found in families.values() for note in found.notes):
        costs.text(note)
    about.facts("Measured on", list(environment.items()))
    return [costs, about]


def _curve_table(curve: Curve) -> str:
    return markdown((curve.size, *map(shown, curve.sizes), "exponent"), curve.rows())


def _without(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != name}
