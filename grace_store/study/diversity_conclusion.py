"""Are subsets more or less varied than random ones of their size? Said in a sentence or two."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from grace_store.base.finding import Estimate
from grace_store.base.text import counted, enumerated, percent

MOST_TOLD = 3
"""Subsets that have sentences of their own."""
NUMBERS_TOLD = 2
"""Measures of a subset that are told with their numbers; all stand in the table."""
FEWEST_MEASURES = 2
"""Of four measures, one may well lie outside where nine in ten random subsets lie."""

Beside = tuple[float, Estimate]
"""A measure of a subset, and where random ones lie."""


def conclude_diversity(
    measured: Sequence[tuple[str, Mapping[str, float]]],
    random: Mapping[int, Mapping[str, Estimate | float]],
    num_clusters: int,
) -> str:
    """Return what every subset is against random ones, and how many near-duplicates it holds; the pool comes first."""
    (_, pool), *subsets = measured
    if not subsets:
        samples, inside = counted(int(pool["num_samples"]), "sample"), counted(num_clusters, "cluster")
        return f"No subset is compared: the {samples} of the pool lie in {inside}. {_alike(pool, 'them')}".strip()
    told = []
    for name, each in subsets[:MOST_TOLD]:
        size = int(each["num_samples"] - each["num_without_direction"])
        is_pool = each["num_samples"] == pool["num_samples"]
        told.append(f"{_named(name)} {_of_subset(each, None if is_pool else random[size])}")
    rest = len(subsets) - MOST_TOLD
    return " ".join([*told, *([f"{counted(rest, 'more subset')} in the table."] if rest > 0 else [])])


def _of_subset(subset: Mapping[str, float], random: Mapping[str, Estimate | float] | None) -> str:
    if random is None:
        return f"is the whole pool. {_alike(subset, 'it')}".strip()
    names = {
        "clusters touched": "share_touched",
        "evenness": "entropy",
        "Vendi score": "vendi",
        "distance to the nearest": "nearest_distance",
    }
    beside = {words: (subset[name], random[name]) for words, name in names.items()}
    known = {
        words: (mine, others)
        for words, (mine, others) in beside.items()
        if mine == mine and isinstance(others, Estimate) and others.value == others.value
    }
    if not known:
        return "is too small to be compared with random subsets."
    below = {words: each for words, each in known.items() if each[0] < each[1].low}
    above = {words: each for words, each in known.items() if each[0] > each[1].high}
    return f"{_against_random(below, above)} {_alike(subset, 'it')}".strip()


def _named(name: str) -> str:
    name = Path(name).name
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
        told.append(f"{name} {_shown(value)} (random {_shown(random.low)} to {_shown(random.high)})")
    return enumerated([*told, *list(outside)[NUMBERS_TOLD:]])


def _shown(number: float) -> str:
    """Return a measure as it stands in sentences.

    >>> _shown(11.52), _shown(0.44)
    ('11.5', '0.440')
    """
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.3f}"


def _alike(subset: Mapping[str, float], where: str) -> str:
    share = subset["share_alike"]
    if share != share:
        return ""
    if not share:
        return f"No two samples in {where} are near-duplicates."
    return f"{percent(share)} of the samples in {where} have a near-duplicate there."
