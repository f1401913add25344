"""Are subsets more or less varied than random ones of their size? Said in a sentence or two."""

from collections.abc import Mapping
from pathlib import Path

from grace_store.artifacts.measures import Diversity, SubsetDiversity
from grace_store.base.text import counted, enumerated, percent
from grace_store.likeness.coverage import RandomInterval

MOST_TOLD = 3
"""Subsets that have sentences of their own."""
NUMBERS_TOLD = 2
"""Measures of a subset that are told with their numbers; all stand in the table."""
FEWEST_MEASURES = 2
"""Of four measures, one may well lie outside where nine in ten random subsets lie."""

Beside = tuple[float, RandomInterval]
"""A measure of a subset, and where random ones lie."""


def conclude_diversity(found: Diversity) -> str:
    """Return what every subset is against random ones, and how many near-duplicates it holds."""
    if not found.subsets:
        return _of_pool(found)
    told = [_of_subset(each) for each in found.subsets[:MOST_TOLD]]
    rest = len(found.subsets) - MOST_TOLD
    return " ".join([*told, *([f"{counted(rest, 'more subset')} in the table."] if rest > 0 else [])])


def _of_pool(found: Diversity) -> str:
    pool = found.pool
    told = f"No subset is compared: the {counted(pool.num_samples, 'sample')} of the pool lie in {found.num_clusters}"
    return f"{told} {'cluster' if found.num_clusters == 1 else 'clusters'}. {_alike(pool, 'them')}".strip()


def _of_subset(subset: SubsetDiversity) -> str:
    if subset.random is None:
        return f"{_named(subset)} is the whole pool. {_alike(subset, 'it')}".strip()
    random = subset.random
    measured = {
        "clusters touched": (subset.share_touched, random.share_touched),
        "evenness": (subset.entropy, random.entropy),
        "Vendi score": (subset.vendi, random.vendi),
        "distance to the nearest": (subset.nearest_distance, random.nearest_distance),
    }
    known = {name: each for name, each in measured.items() if each[0] == each[0] and each[1].mean == each[1].mean}
    if not known:
        return f"{_named(subset)} is too small to be compared with random subsets."
    below = {name: each for name, each in known.items() if each[0] < each[1].low}
    above = {name: each for name, each in known.items() if each[0] > each[1].high}
    return f"{_named(subset)} {_against_random(below, above)} {_alike(subset, 'it')}".strip()


def _named(subset: SubsetDiversity) -> str:
    name = Path(subset.name).name
    return name[:1].upper() + name[1:] if name.startswith("subset ") else f"The subset {name}"


def _against_random(below: Mapping[str, Beside], above: Mapping[str, Beside]) -> str:
    if below and above:
        return f"is less varied than random subsets of its size by {_beside(below)}, but more by {_beside(above)}."
    outside, word = (below, "less") if below else (above, "more")
    if len(outside) >= FEWEST_MEASURES:
        return f"is {word} varied than random subsets of its size: {_beside(outside)}."
    but = f", but {'less' if below else 'more'} by {_beside(outside)}" if outside else ""
    return f"is about as varied as random subsets of its size{but}."


def _beside(outside: Mapping[str, Beside]) -> str:
    """Return the first measures beside what random subsets have, and the names of others."""
    told = []
    for name, (value, random) in list(outside.items())[:NUMBERS_TOLD]:
        told.append(
            f"{name} {shown_measure(value)} (random {shown_measure(random.low)} to {shown_measure(random.high)})"
        )
    return enumerated([*told, *list(outside)[NUMBERS_TOLD:]])


def shown_measure(number: float) -> str:
    """Return a measure as it stands in tables and sentences; nothing for one that is not known.

    >>> shown_measure(11.52), shown_measure(0.44), shown_measure(float("nan"))
    ('11.5', '0.440', '')
    """
    return "" if number != number else f"{number:.1f}" if abs(number) >= 10 else f"{number:.3f}"


def _alike(subset: SubsetDiversity, where: str) -> str:
    if subset.share_alike is None:
        return ""
    if not subset.share_alike:
        return f"No two samples in {where} are near-duplicates."
    return f"{percent(subset.share_alike)} of the samples in {where} have a near-duplicate there."
