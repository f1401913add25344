"""Keep a step or drop it: the worst share of each sample's steps, by score, weighs 0, and every other 1."""

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.values.ranking import budget
from grace_store.values.weightings.weighting import Steps, Weighting, WeightsSpec


def _weigh(spec: WeightsSpec, steps: Steps) -> FloatArray:
    assert steps.score is not None
    # Of equal scores the later step goes first: what it adds was said before.
    worst_first = np.argsort(np.where(steps.present, steps.score, np.inf)[::-1], axis=0, kind="stable")
    place = np.argsort(worst_first, axis=0, kind="stable")[::-1]
    num_steps = np.count_nonzero(steps.present, axis=0)
    num_dropped = np.array([min(budget(spec.drop_share, num), num - 1) for num in range(1, len(place) + 1)])
    weight = ((place >= num_dropped[num_steps - 1]) & steps.present).astype(np.float64)
    return np.where(np.isnan(steps.score), np.nan, weight)


WEIGHTING = Weighting(
    name="drop",
    about="0 for the worst steps by score, 1 for all others: what every trainer with masks can use",
    settings=("drop_share", "scores"),
    is_mask=True,
    weigh=_weigh,
)
