"""How settings change what is chosen, against the default setting: the conclusion of a sweep."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from grace_store.base.finding import Estimate
from grace_store.base.text import about
from grace_store.values.agreement import jaccard_by_chance
from grace_store.values.length_bias import share_interval
from grace_store.values.ranking import budget
from grace_store.values.score_spec import ScoreSpec

AXES = ("alpha", "history", "target", "aggregation", "signals")
WITH_DEFAULT = "overlap_with_default"
VAGUE = 0.2
"""An overlap that is known less well, to either side, tells nothing of a setting."""
CLEAR = 0.1
HARDLY = 0.9
"""From this overlap on a setting hardly matters."""


Changed = tuple[str, tuple[str, ...], Estimate]
"""One setting that is not the default: its label, what differs from the default, and its overlap with that."""


def _default_parts(signals: str) -> dict[str, Any]:
    spec = ScoreSpec()
    parts = {"alpha": spec.alpha, "history": spec.history, "target": spec.target, "aggregation": spec.aggregation}
    return parts | {"signals": signals}


def conclude_sweep(summary: Sequence[Mapping[str, Any]], labels: Sequence[str], ratio: str) -> str:
    """Return which settings change the best samples most and least, and which of their parts matters."""
    default = _default_parts(summary[0]["signals"])
    is_there = not all(_differing(row, default) for row in summary)
    changed = [
        _changed(row, label, default, ratio)
        for row, label in zip(summary, labels, strict=True)
        if _differing(row, default)
    ]
    if not changed:
        return "The only setting is the default one, so there is nothing to compare it with."
    known = sorted((each for each in changed if math.isfinite(each[2].value)), key=lambda each: each[2].value)
    if not known:
        return "How settings compare with the default one is not known: no sample has a value."
    num_samples = max(row["num_with_value"] for row in summary)
    half_width = max(overlap.half_width for *_, overlap in known)
    moved = {name for _, axes, _ in known for name in axes}
    parts = " ".join(f"{name}={default[name]}" for name in AXES if name in moved)
    if half_width > VAGUE:
        return _too_few(num_samples, ratio, half_width, parts)
    beside = "" if is_there else ", scored for this though the sweep lacks it"
    told = f"Against the default ({parts}{beside}), {_extremes(known, ratio, num_samples)}."
    return " ".join([told, *_by_axis(known)])


def _differing(row: Mapping[str, Any], default: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in AXES if row[name] != default[name])


def _changed(row: Mapping[str, Any], label: str, default: Mapping[str, Any], ratio: str) -> Changed:
    overlap = math.nan if row[WITH_DEFAULT] is None else float(row[WITH_DEFAULT])
    num_chosen = budget(ratio, row["num_with_value"])
    # Of two subsets of one size, s of each in the other, the overlap (Jaccard) is s / (2 - s).
    both = 2 * overlap / (1 + overlap)
    low, high = (0.0, 1.0) if math.isnan(both) else share_interval(both * num_chosen, num_chosen)
    found = Estimate(value=overlap, low=low / (2 - low), high=high / (2 - high), num=num_chosen)
    return label, _differing(row, default), found


def _too_few(num_samples: int, ratio: str, half_width: float, default: str) -> str:
    wanted = about(num_samples * (half_width / CLEAR) ** 2)
    return (
        f"The best {ratio} are {budget(ratio, num_samples)} of {num_samples} samples, too few to say how settings "
        f"change them: overlaps with the default ({default}) are known to {half_width:.2f} to either side. "
        f"About {wanted} samples would narrow that to {CLEAR:.2f}."
    )


def _extremes(known: Sequence[Changed], ratio: str, num_samples: int) -> str:
    chance = jaccard_by_chance(num_samples, budget(ratio, num_samples))
    scale = f"1 is the same samples, {chance:.2f} is chance"
    (label, _, lowest), (other, _, highest) = known[0], known[-1]
    if len(known) == 1:
        return f"{label} has an overlap of {lowest.text(2)} in the best {ratio}, where {scale}"
    return (
        f"{label} changes the best {ratio} most, with an overlap of {lowest.text(2)}, and {other} least, with "
        f"{highest.text(2)}; {scale}"
    )


def _by_axis(known: Sequence[Changed]) -> list[str]:
    """Return what each part of a setting does where it alone differs from the default."""
    lowest: dict[str, Estimate] = {}
    for _, axes, overlap in known:  # those that change most come first
        if len(axes) == 1:
            lowest.setdefault(axes[0], overlap)
    if not lowest:
        return []
    names = list(lowest)
    hardly = [name for name in names if lowest[name].value >= HARDLY]
    if len(names) == 1:
        return [f"Changed alone, {names[0]} hardly matters."] if hardly else []
    told = ", ".join(f"{name} to {lowest[name].value:.2f}" for name in names)
    if len(hardly) == len(names):
        verdict = "hardly a change"
    elif lowest[names[0]].high < lowest[names[1]].low:
        verdict = f"{names[0]} matters most"
    else:
        verdict = f"too close to say whether {names[0]} matters more"
    return [f"Each changed alone brings the overlap down ({told}): {verdict}."]
