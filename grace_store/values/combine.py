"""Several signals as one: the weighted mean of what each says. Knows scores, not where they come from."""

from collections.abc import Sequence

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray, Numbers
from grace_store.base.errors import SettingError
from grace_store.base.flags import Flag
from grace_store.values.methods.grace import RaggedScores


def combine_signals(values: FloatArray, weights: Sequence[float] | None = None) -> FloatArray:
    """Return the weighted mean over signals of values (signals, ...), equal weights unless given.

    A sample without a value in one signal has none.

    >>> combine_signals(np.array([[0.0, 1.0], [1.0, np.nan]]), [1, 3])
    array([0.75,  nan])
    """
    weight = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)
    if weight.shape != (len(values),):
        raise SettingError(f"{len(weight)} weights were given for {len(values)} signals: give one each, or none")
    if not (np.isfinite(weight).all() and (weight > 0).all()):
        raise SettingError(f"signal weights {weight.tolist()} are not all finite and above 0")
    total = np.zeros(values.shape[1:])
    for share, value in zip(weight / weight.sum(), values, strict=True):
        total += share * value
    return total


def placed(values: FloatArray, place: IntArray | None, num_samples: int) -> FloatArray:
    """Return values with samples on the last axis put in their places among all; NaN elsewhere. None: they are all.

    >>> placed(np.array([1.0, 2.0]), np.array([0, 2]), 3)
    array([ 1., nan,  2.])
    """
    if place is None:
        return values
    out = np.full((*values.shape[:-1], num_samples), np.nan)
    out[..., place] = values
    return out


def combine_scores(
    num_steps: Numbers, parts: Sequence[RaggedScores], places: Sequence[IntArray | None], weights: Sequence[float]
) -> RaggedScores:
    """Return the weighted mean of signals' scores; a sample that one of them lacks is flagged, and NaN throughout."""
    if len(parts) == 1 and places[0] is None:
        return parts[0]
    scores = RaggedScores.empty(num_steps)
    num_samples = len(num_steps)
    scores.flags[:] = 0
    missing = np.zeros(num_samples, dtype=np.bool_)
    steps = []
    for part, place in zip(parts, places, strict=True):
        mine = slice(None) if place is None else place
        has = np.zeros(num_samples, dtype=np.bool_)
        has[mine] = True
        missing |= ~has
        scores.flags[mine] |= part.flags
        steps.append(None if place is None else np.flatnonzero(np.repeat(has, np.diff(scores.offsets))))
    scores.flags[missing] |= np.uint8(Flag.MISSING_SIGNAL)
    total = int(scores.offsets[-1])
    for name in ("step_score", "answer_alignment", "history_alignment"):
        each = [placed(getattr(part, name), step, total) for part, step in zip(parts, steps, strict=True)]
        getattr(scores, name)[:] = combine_signals(np.stack(each), weights)
    values = [placed(part.value, place, num_samples) for part, place in zip(parts, places, strict=True)]
    scores.value[:] = combine_signals(np.stack(values), weights)
    return scores
