"""What a benchmark found: ratios with their goals, and curves; as JSON, as tables, as one page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Literal

from grace_store.artifacts.pictures.panels import Axis, Panel, Point, Series, draw_panels
from jobs.bench.measuring import Cost, exponent

_STYLE = (
    "body{font-family:sans-serif;margin:2em auto;max-width:70em;padding:0 1em}table{border-collapse:collapse}"
    "td,th{border:1px solid #ccc;padding:.3em .6em;text-align:left}svg{display:block;margin:1em 0;max-width:100%}"
)


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

    def panel(self) -> Panel:
        series = [
            Series(
                name,
                [
                    Point(math.log10(size), math.log10(cost), f"{name}: {shown(cost)} {self.unit} at {shown(size)}")
                    for size, cost in zip(self.sizes, costs, strict=True)
                    if cost > 0
                ],
            )
            for name, costs in self.lines.items()
        ]
        return Panel(Axis(f"log10 of {self.size}"), Axis(f"log10 of {self.unit}"), series)


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


def page(families: Mapping[str, Findings], environment: Mapping[str, str]) -> str:
    """Return everything as one HTML file, with the curves drawn."""
    ratios = [ratio.cells() for found in families.values() for ratio in found.ratios]
    parts = ["<h1>What grace-store costs</h1>", _html_table(RATIO_HEADINGS, ratios)]
    for curve in (curve for found in families.values() for curve in found.curves):
        exponents = "; ".join(f"{name}: exponent {value:.2f}" for name, value in curve.exponents().items())
        parts.append(draw_panels([curve.panel()], curve.what, exponents))
    parts += [f"<p>{escape(note)}</p>" for found in families.values() for note in found.notes]
    parts.append(_html_table(("what", "is"), [[name, value] for name, value in environment.items()]))
    head = f'<meta charset="utf-8"><title>What grace-store costs</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _curve_table(curve: Curve) -> str:
    return markdown((curve.size, *map(shown, curve.sizes), "exponent"), curve.rows())


def _html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line('th', headings)}{''.join(line('td', row) for row in rows)}</table>"


def _without(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != name}
