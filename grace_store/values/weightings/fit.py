"""Weights whose sum of directions comes closest to the answer's: non-negative least squares, sample by sample."""

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.values.nnls import nonnegative_least_squares
from grace_store.values.weightings.weighting import Steps, Weighting, WeightsSpec


def _weigh(_: WeightsSpec, steps: Steps) -> FloatArray:
    pulls = steps.pulls
    amount = nonnegative_least_squares(pulls.cosine, pulls.answer_cosine, pulls.num_steps)
    # Of a step without a direction, no amount would help: it has none.
    return np.divide(amount, pulls.length, out=amount * 0.0, where=pulls.length > 0)


WEIGHTING = Weighting(
    name="fit",
    about="weights whose sum of the steps' directions is closest to the answer's direction",
    weigh=_weigh,
)
