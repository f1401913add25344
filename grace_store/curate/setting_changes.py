"""How settings change what is chosen, against the default setting: the conclusion of a sweep."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grace_store.base.text import about
from grace_store.values.agreement import jaccard_by_chance
from grace_store.values.intervals import Interval, share_interval
from grace_store.values.ranking import budget
from grace_store.values.score_spec import ScoreSpec

AXES = ("alpha", "history", "target", "aggregation", "signals")
WITH_DEFAULT = "overlap_with_default"
VAGUE = 0.2
"""An overlap that is known less well, to either side, tells nothing of a setting."""
CLEAR = 0.1
HARDLY = 0.9
"""From this overlap on a setting hardly matters."""


@dataclass(frozen=True, slots=True)
class _Changed:
    """One setting that is not the default, and its overlap with that."""

    label: str
    axes: tuple[str, ...]
    """What differs from the default."""
    overlap: float
    between: Interval

    @property
    def reach(self) -> float:
        return (self.between[1] - self.between[0]) / 2

    def __str__(self) -> str:
        return f"{self.overlap:.2f} ({self.between[0]:.2f} to {self.between[1]:.2f})"


def is_default(row: Mapping[str, Any], signals: str) -> bool:
    """Return whether a row of a sweep's summary is that of the default setting, on these signals."""
    return not _differing(row, _default_parts(signals))


def _default_parts(signals: str) -> dict[str, Any]:
    spec = ScoreSpec()
    parts = {"alpha": spec.alpha, "history": spec.history, "target": spec.target, "aggregation": spec.aggregation}
    return parts | {"signals": signals}


def conclude_sweep(summary: Sequence[Mapping[str, Any]], labels: Sequence[str], ratio: str) -> str:
    """Return which settings change the best samples most and least, and which of their parts matters."""
    default = _default_parts(summary[0]["signals"])
    is_there = any(is_default(row, default["signals"]) for row in summary)
    changed = [
        _changed(row, label, default, ratio)
        for row, label in zip(summary, labels, strict=True)
        if _differing(row, default)
    ]
    if not changed:
        return "The only setting is the default one, so there is nothing to compare it with."
    known = sorted((each for each in changed if math.isfinite(each.overlap)), key=lambda each: each.overlap)
    if not known:
        return "How settings compare with the default one is not known: sweep again."
    num_samples = max(row["num_with_value"] for row in summary)
    reach = max(each.reach for each in known)
    moved = {name for each in known for name in each.axes}
    parts = " ".join(f"{name}={default[name]}" for name in AXES if name in moved)
    if reach > VAGUE:
        return _too_few(num_samples, ratio, reach, parts)
    beside = "" if is_there else ", scored for this though the sweep lacks it"
    told = f"Against the default ({parts}{beside}), {_extremes(known, ratio, num_samples)}."
    return " ".join([told, *_by_axis(known)])


def _differing(row: Mapping[str, Any], default: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in AXES if row[name] != default[name])


def _changed(row: Mapping[str, Any], label: str, default: Mapping[str, Any], ratio: str) -> _Changed:
    found = row[WITH_DEFAULT]
    overlap = math.nan if found is None else float(found)
    num_chosen = budget(ratio, row["num_with_value"])
    # Of two subsets of one size, s of each in the other, the overlap (Jaccard) is s / (2 - s).
    both = 2 * overlap / (1 + overlap)
    low, high = (0.0, 1.0) if math.isnan(both) else share_interval(both * num_chosen, num_chosen)
    return _Changed(label, _differing(row, default), overlap, (low / (2 - low), high / (2 - high)))


def _too_few(num_samples: int, ratio: str, reach: float, default: str) -> str:
    wanted = about(num_samples * (reach / CLEAR) ** 2)
    return (
        f"The best {ratio} are {budget(ratio, num_samples)} of {num_samples} samples, too few to say how settings "
        f"change them: overlaps with the default ({default}) are known to {reach:.2f} to either side. About {wanted} "
        f"samples would narrow that to {CLEAR:.2f}."
    )


def _extremes(known: Sequence[_Changed], ratio: str, num_samples: int) -> str:
    chance = jaccard_by_chance(num_samples, budget(ratio, num_samples))
    scale = f"1 is the same samples, {chance:.2f} is chance"
    most, least = known[0], known[-1]
    if len(known) == 1:
        return f"{most.label} has an overlap of {most} in the best {ratio}, where {scale}"
    return (
        f"{most.label} changes the best {ratio} most, with an overlap of {most}, and {least.label} least, with "
        f"{least}; {scale}"
    )


def _by_axis(known: Sequence[_Changed]) -> list[str]:
    """Return what each part of a setting does where it alone differs from the default."""
    lowest: dict[str, _Changed] = {}
    for each in known:  # those that change most come first
        if len(each.axes) == 1:
            lowest.setdefault(each.axes[0], each)
    if not lowest:
        return []
    axes = list(lowest)
    hardly = [name for name in axes if lowest[name].overlap >= HARDLY]
    if len(axes) == 1:
        return [f"Changed alone, {axes[0]} hardly matters."] if hardly else []
    told = ", ".join(f"{name} to {lowest[name].overlap:.2f}" for name in axes)
    if len(hardly) == len(axes):
        verdict = "hardly a change"
    elif lowest[axes[0]].between[1] < lowest[axes[1]].between[0]:
        verdict = f"{axes[0]} matters most"
    else:
        verdict = f"too close to say whether {axes[0]} matters more"
    return [f"Each changed alone brings the overlap down ({told}): {verdict}."]
