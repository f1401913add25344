"""Panels side by side: lines, dots and bars over axes, with one legend."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from grace_store.artifacts.pictures.svg import (
    FONT,
    LINE,
    MUTED,
    Drawing,
    Key,
    element,
    svg_document,
    text,
    text_width,
    tip,
)

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888", "#000000")
"""Okabe and Ito's, which the colour-blind tell apart too; grey instead of yellow, which is hard to see on white."""
BAR_HEIGHT = 16
MAX_DOTS = 4000
"""A series shows at most this many dots, evenly spread over its points; its line goes through all of them."""
MAX_OPAQUE_DOTS = 300
MAX_TICK_STEPS = 6
_FRAME, _GRID = "#999", "#e8e8e8"

Range = tuple[float, float]
Look = Literal["line", "line and dots", "dots", "bars"]


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a panel. Its range, along x or y, is drawn as a line through it, or is its bar."""

    x: float
    y: float
    tip: str = ""
    name: str = ""
    """Written beside a mark, or beside a point of a series."""
    x_range: Range | None = None
    y_range: Range | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one colour; a line joins them in the order given."""

    name: str
    """Shown in the legend, unless it is empty. Series with the same name have the same colour in all panels."""
    points: Sequence[Point]
    look: Look = "line and dots"


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a panel: without ticks it shows round numbers, without limits it has room for all points."""

    label: str = ""
    ticks: Sequence[tuple[float, str]] | None = None
    limits: Range | None = None
    guide: float | None = None
    """Where a dashed line crosses the panel."""

    @classmethod
    def of_names(cls, names: Sequence[str]) -> Self:
        """Return a vertical axis that has names at 0, 1, 2, ... from the top."""
        return cls(ticks=list(enumerate(names)), limits=(len(names) - 0.5, -0.5))


@dataclass(frozen=True, slots=True)
class Panel:
    """Series that share axes, and marks that belong to none of them. Points that are not finite are left out."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    marks: Sequence[Point] = field(default=())
    title: str = ""
    note: str = ""
    width: float = 380
    height: float = 260
    equal_axes: bool = False
    """Both axes have the same limits, and a dashed line shows where x and y are equal."""
    if_empty: str = "nothing to show"


def draw_panels(panels: Sequence[Panel], title: str, note: str = "") -> str:
    """Return an SVG of panels side by side; those that show the same series share its colour and the legend."""
    every = {series.name: series for panel in panels for series in panel.series}
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(every)}
    legend = [Key(name, colours[name], 3 if "line" in each.look else 11) for name, each in every.items() if name]
    top = LINE * max((bool(panel.title) + bool(panel.note) for panel in panels), default=0)
    return svg_document(title, [_Plot.of(panel, colours, top).drawing() for panel in panels], legend, note)


@dataclass(frozen=True, slots=True)
class _Scale:
    """From an axis' numbers to pixels; the end of the axis that has the lower limit is at start."""

    low: float
    high: float
    start: float
    stop: float
    ticks: Sequence[tuple[float, str]]

    @classmethod
    def of(cls, axis: Axis, values: Sequence[float], start: float, stop: float) -> Self:
        values = values if axis.guide is None else [*values, axis.guide]
        low, high = axis.limits or _with_room(values)
        is_whole = all(value == math.floor(value) for value in values)
        ticks = _round_ticks(low, high, at_least=1.0 if is_whole else 0.0) if axis.ticks is None else axis.ticks
        return cls(low, high, start, stop, ticks)

    def __call__(self, value: float) -> float:
        return self.start + (self.stop - self.start) * (value - self.low) / (self.high - self.low)


def _with_room(values: Sequence[float]) -> Range:
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.05 * (high - low) or 0.5
    return low - room, high + room


def _round_ticks(low: float, high: float, at_least: float) -> list[tuple[float, str]]:
    """Return round numbers that lie at_least so far apart, as many as fit well, and how they are written."""
    rough = (high - low) / MAX_TICK_STEPS
    power = math.floor(math.log10(rough))
    step = max(at_least, next(factor for factor in (1, 2, 5, 10) if factor * 10**power >= rough) * 10.0**power)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step), math.floor(high / step)
    return [(i * step, f"{i * step + 0.0:,.{digits}f}") for i in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class _Plot:
    """A panel's series and marks that have a place, and the scales that give them one."""

    panel: Panel
    series: Sequence[Series]
    marks: Sequence[Point]
    colours: Mapping[str, str]
    x: _Scale
    y: _Scale

    @classmethod
    def of(cls, panel: Panel, colours: Mapping[str, str], top: float) -> Self:
        series = [Series(each.name, _finite(each.points), each.look) for each in panel.series]
        marks = _finite(panel.marks)
        points = [*marks, *(point for each in series for point in each.points)]
        x = [value for point in points for value in (point.x, *(point.x_range or ()))]
        y = [value for point in points for value in (point.y, *(point.y_range or ()))]
        x, y = (x + y, x + y) if panel.equal_axes else (x, y)
        up = _Scale.of(panel.y, y, top + panel.height, top)
        left = 8 + max((text_width(words) for _, words in up.ticks), default=0) + LINE * bool(panel.y.label)
        return cls(panel, series, marks, colours, _Scale.of(panel.x, x, left, left + panel.width), up)

    def drawing(self) -> Drawing:
        parts = [*self._frame(), *self._ticks(), *self._guides()]
        for each in self.series:
            parts += self._series(each)
        for mark in self.marks:
            # Hollow, so that what is below stays visible; its tip shows where it is empty, too.
            parts.append(self._dot(mark, r=6, fill="none", stroke="#000", stroke_width=1.5, pointer_events="all"))
        parts += self._names()
        if not self.marks and not any(each.points for each in self.series):
            middle = (self.x.start + self.x.stop) / 2, (self.y.start + self.y.stop) / 2
            parts.append(text(*middle, self.panel.if_empty, text_anchor="middle", fill=MUTED))
        right = max((self.x(value) + text_width(words) / 2 for value, words in self.x.ticks), default=0)
        return Drawing(max(self.x.stop, right), self.y.start + 20 + LINE * bool(self.panel.x.label), parts)

    def _frame(self) -> Iterator[str]:
        panel, left, top = self.panel, self.x.start, self.y.stop
        if panel.title:
            yield text(left, top - 8 - LINE * bool(panel.note), panel.title, font_weight="bold")
        if panel.note:
            yield text(left, top - 8, panel.note, fill=MUTED)
        if panel.x.label:
            yield text(left + panel.width / 2, self.y.start + 36, panel.x.label, text_anchor="middle")
        if panel.y.label:
            turned = f"translate(11 {top + panel.height / 2:.1f}) rotate(-90)"
            yield text(0, 0, panel.y.label, text_anchor="middle", transform=turned)
        yield element("rect", x=left, y=top, width=panel.width, height=panel.height, fill="none", stroke=_FRAME)

    def _ticks(self) -> Iterator[str]:
        for value, words in self.x.ticks:
            yield element("path", d=self._upright(self.x(value)), stroke=_GRID)
            yield text(self.x(value), self.y.start + 17, words, text_anchor="middle")
        for value, words in self.y.ticks:
            yield element("path", d=self._level(self.y(value)), stroke=_GRID)
            yield text(self.x.start - 8, self.y(value) + 4, words, text_anchor="end")

    def _guides(self) -> Iterator[str]:
        paths = [self._upright(self.x(at)) for at in (self.panel.x.guide,) if at is not None]
        paths += [self._level(self.y(at)) for at in (self.panel.y.guide,) if at is not None]
        if self.panel.equal_axes:
            paths.append(f"M{self.x.start:.1f} {self.y.start:.1f}L{self.x.stop:.1f} {self.y.stop:.1f}")
        return (element("path", d=path, stroke=_FRAME, stroke_dasharray="4 4") for path in paths)

    def _upright(self, x: float) -> str:
        return f"M{x:.1f} {self.y.start:.1f}V{self.y.stop:.1f}"

    def _level(self, y: float) -> str:
        return f"M{self.x.start:.1f} {y:.1f}H{self.x.stop:.1f}"

    def _series(self, series: Series) -> Iterator[str]:
        colour, points = self.colours[series.name], series.points
        if "line" in series.look and points:
            path = " ".join(f"{self.x(point.x):.1f},{self.y(point.y):.1f}" for point in points)
            yield element("polyline", points=path, fill="none", stroke=colour, stroke_width=1.8)
        ranges = list(self._ranges(points, BAR_HEIGHT if series.look == "bars" else 1.8))
        if ranges:
            yield element("g", *ranges, stroke=colour)
        if "dots" in series.look and points:
            shown = points[:: math.ceil(len(points) / MAX_DOTS)]
            radius = 2.4 if series.look == "dots" and not ranges else 3.6
            opacity = 1 if len(shown) <= MAX_OPAQUE_DOTS else 0.4
            yield element("g", *(self._dot(point, r=radius) for point in shown), fill=colour, fill_opacity=opacity)

    def _ranges(self, points: Sequence[Point], thickness: float) -> Iterator[str]:
        for point in points:
            ends = [(x, point.y) for x in point.x_range or ()] or [(point.x, y) for y in point.y_range or ()]
            if ends:
                path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in ends)
                yield element("path", *tip(point.tip), d=f"M{path}", stroke_width=thickness)

    def _dot(self, point: Point, **look: str | float) -> str:
        return element("circle", *tip(point.tip), cx=self.x(point.x), cy=self.y(point.y), **look)

    def _names(self) -> Iterator[str]:
        """Write names beside their points, each below the last one on its side that it would cover."""
        named = [(mark, "#000") for mark in self.marks if mark.name]
        named += [(point, self.colours[each.name]) for each in self.series for point in each.points if point.name]
        lowest = {"end": -math.inf, "start": -math.inf}
        for point, colour in sorted(named, key=lambda each: self.y(each[0].y)):
            x = self.x(point.x)
            x, anchor = (x - 11, "end") if x > (self.x.start + self.x.stop) / 2 else (x + 11, "start")
            lowest[anchor] = max(self.y(point.y) + 4, lowest[anchor] + FONT + 2)
            # White around the letters keeps them legible on lines.
            look = {"stroke": "#fff", "paint_order": "stroke", "fill": colour}
            yield text(x, lowest[anchor], point.name, text_anchor=anchor, stroke_width=3, **look)


def _finite(points: Sequence[Point]) -> list[Point]:
    """Return the points that have a place: what cannot be said, such as evenness over one cluster, has none."""
    return [point for point in points if math.isfinite(point.x) and math.isfinite(point.y)]
