"""Step scores as weights, those below 0 counting as 0."""

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.values.weightings.weighting import Steps, Weighting, WeightsSpec


def _weigh(_: WeightsSpec, steps: Steps) -> FloatArray:
    assert steps.score is not None
    # NaN stays NaN: such a sample has no scores, and no weights either.
    return np.maximum(steps.score, 0.0)


WEIGHTING = Weighting(
    name="scores", about="step scores, those below 0 counting as 0", settings=("scores",), weigh=_weigh
)
