"""Loss: the responses that the model finds hardest."""

import numpy as np

from grace_store.base.arrays import FloatArray, Numbers, sum_by_sample
from grace_store.values.methods.method import Heuristic


def loss_values(num_parts: Numbers, num_tokens: Numbers, loss: Numbers) -> FloatArray:
    """Return the mean loss over the tokens of each response, from the mean losses of its parts; NaN without tokens.

    >>> loss_values(np.array([2]), np.array([3, 1]), np.array([1.0, 5.0]))
    array([2.])
    """
    total = sum_by_sample(num_parts, num_tokens)
    weighted = sum_by_sample(num_parts, num_tokens * loss.astype(np.float64))
    return np.divide(weighted, total, out=np.full_like(total, np.nan), where=total > 0)


METHOD = Heuristic(
    name="loss",
    about="the largest mean loss of the response's tokens",
    reads="losses",
    values=lambda _, samples: loss_values(samples.num_parts, samples.num_tokens, samples.loss),
)
