"""Perplexity: ranks responses as loss does, on another scale."""

import numpy as np

from grace_store.base.arrays import FloatArray, Numbers
from grace_store.values.methods.loss import loss_values
from grace_store.values.methods.method import Heuristic


def perplexity_values(num_parts: Numbers, num_tokens: Numbers, loss: Numbers) -> FloatArray:
    """Return the perplexity of each response, exp of its mean loss; infinite if it is too large for a float."""
    with np.errstate(over="ignore"):
        return np.exp(loss_values(num_parts, num_tokens, loss))


METHOD = Heuristic(
    name="perplexity",
    about="the largest perplexity of the response",
    reads="losses",
    values=lambda _, samples: perplexity_values(samples.num_parts, samples.num_tokens, samples.loss),
)
