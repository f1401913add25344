"""What a judgement means, in a sentence or two: which signal sees what people know, or that too few labels can say."""

import math
from collections.abc import Sequence

from grace_store.artifacts.judgement import JudgedItems, JudgedMeasure
from grace_store.base.text import counted, first_few
from grace_store.values.roc import CHANCE, Area

ENOUGH_LABELS = 20
"""With fewer right or wrong ones, or fewer questions, intervals cannot be trusted."""
WIDE = 0.1
"""An interval that reaches further to either side cannot tell a useful signal from chance."""
NARROW = 0.05
SURE = 0.05
"""How likely it may be that any of the signals is called better than chance and is not."""
ENOUGH_PAIRS = 100
"""With fewer pairs of the same place and length, these are not held fixed."""
FEWEST_PAIRS = 20
"""With fewer pairs an area says nothing and is not shown."""
GRACE = "grace"


def conclude(items: JudgedItems) -> str:
    """Return the conclusion of what every measure has found."""
    stored = [each for each in items.measures if each.signal is not None and headline(items, each).is_known]
    if not stored or (short := _too_few(items, stored)):
        return short if stored else "No stored signal has a value for these labels."
    return " ".join([_areas(items, stored), *_first_errors(items)])


def headline(items: JudgedItems, measure: JudgedMeasure) -> Area:
    """Return the area that conclusions are drawn from: with place and length held fixed, if there are enough pairs."""
    return measure.across_fixed if _holds_fixed(items) else measure.across


def _holds_fixed(items: JudgedItems) -> bool:
    stored = [each for each in items.measures if each.signal is not None]
    return all(each.across_fixed.num_pairs >= ENOUGH_PAIRS for each in stored)


def _too_few(items: JudgedItems, stored: Sequence[JudgedMeasure]) -> str:
    """Return why nothing can be said yet; empty if something can."""
    areas = [headline(items, each) for each in stored]
    reach = max((area.high - area.low) / 2 for area in areas)
    fewest = min(items.num_right, items.num_wrong, items.num_questions)
    if fewest >= ENOUGH_LABELS and (reach <= WIDE or any(_is_above(each, items, stored) for each in stored)):
        return ""
    grow = max((reach / NARROW) ** 2, ENOUGH_LABELS / fewest)
    wanted = math.ceil(items.num_questions * grow / 10) * 10
    told = (
        f"{items.num_right} right and {items.num_wrong} wrong {items.of} of {counted(items.num_questions, 'question')}"
    )
    return (
        f"Too few labels to say whether a stored signal tells wrong {items.of} from right ones: {told} leave intervals "
        f"of {reach:.2f} to either side.{_seeming(items, stored)} About {wanted} questions like these would narrow "
        f"them to {NARROW:.2f}."
    )


def _seeming(items: JudgedItems, stored: Sequence[JudgedMeasure]) -> str:
    """Return why an interval of the table that lies above chance is no answer; nothing if none does."""
    best = max(stored, key=lambda each: headline(items, each).low)
    if not headline(items, best).low > CHANCE:
        return ""
    chance = f"the best of {len(stored)} may do so by chance" if len(stored) > 1 else "that may be chance"
    return f" That of {best.name} lies above 0.50 in the table, but with so few labels {chance}."


def _is_above(measure: JudgedMeasure, items: JudgedItems, stored: Sequence[JudgedMeasure]) -> bool:
    """Return whether a measure is better than chance, also if the best of several was looked for."""
    area = headline(items, measure)
    return area.low > CHANCE and area.p_value * len(stored) <= SURE


def _areas(items: JudgedItems, stored: Sequence[JudgedMeasure]) -> str:
    place = "position" if items.of == "steps" else "number of steps"
    fixed = f", with {place} and length held fixed" if _holds_fixed(items) else ""
    ordered = sorted(stored, key=lambda each: -headline(items, each).area)
    above = [each for each in ordered if _is_above(each, items, stored)]
    # The largest area of all may have so few pairs that it is not above chance.
    best = (above or ordered)[0]
    area = shown_area(headline(items, best))
    if not above:
        told = f"No stored signal tells wrong {items.of} from right ones better than chance (0.50){fixed}"
        return f"{told}; the best, {best.name}, has {area}." + _of_grace(items, ordered, above)
    told = f"{_capital(best.name)} tells wrong {items.of} from right ones better than chance (0.50){fixed}: {area}."
    others = [each.name for each in above[1:]]
    also = f" So {'do' if len(others) > 1 else 'does'} {first_few(others, 4)}." if others else ""
    return told + also + _of_grace(items, ordered, above)


def _of_grace(items: JudgedItems, ordered: Sequence[JudgedMeasure], above: Sequence[JudgedMeasure]) -> str:
    """Return a sentence about GRACE's own scores, unless one stands among those named already."""
    grace = [each for each in ordered if each.measure == GRACE]
    if not grace or any(each in above for each in grace) or (not above and ordered[0] in grace):
        return ""
    area = headline(items, grace[0])
    if area.high < CHANCE:
        return f" {_capital(grace[0].name)} puts wrong {items.of} above right ones: {shown_area(area)}."
    return f" {_capital(grace[0].name)} has {shown_area(area)}."


def _first_errors(items: JudgedItems) -> list[str]:
    found = [(each, each.first_errors) for each in items.measures if each.signal is not None and each.first_errors]
    chance = items.chance_of_first_errors
    if not found or chance is None or chance != chance:
        return []
    best, first = max(found, key=lambda each: each[1].f1)
    shown = f"{first.f1:.2f} ({first.low:.2f} to {first.high:.2f})"
    if first.low > chance:
        return [f"{_capital(best.name)} finds first errors best, with an F1 of {shown}; by chance it is {chance:.2f}."]
    return [f"None finds first errors better than chance (F1 {chance:.2f}); the best, {best.name}, has {shown}."]


def shown_area(area: Area) -> str:
    """Return an area with its interval; a dash if there are hardly any pairs."""
    if not area.is_known or area.num_pairs < FEWEST_PAIRS:
        return "-"
    return f"{area.area:.2f} ({area.low:.2f} to {area.high:.2f})"


def _capital(text: str) -> str:
    return "GRACE" + text[len(GRACE) :] if text.startswith(GRACE) else text[:1].upper() + text[1:]
