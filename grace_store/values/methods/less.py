"""LESS: the influence on the subtask that a sample helps most.

S[z, v] = sum_i w_i cos(G_i(z), g_i(v)) over checkpoints i, and Inf(z) = max over subtasks j of the mean over v in j of
S[z, v]. ``directions`` computes the means; this module takes the maximum.
"""

import numpy as np

from grace_store.base.arrays import FloatArray, Numbers
from grace_store.values.methods.method import InfluenceMethod


def strongest(influence: Numbers) -> FloatArray:
    """Return the largest influence of each sample from (n, J); NaN if one influence is NaN.

    >>> strongest(np.array([[0.1, 0.3], [np.nan, 0.5]]))
    array([0.3, nan])
    """
    return np.asarray(influence.max(axis=1).astype(np.float64))


METHOD = InfluenceMethod(
    name="less",
    about="the most influence on the subtask of --targets that a sample helps most",
    columns={"influence": "list<float32>"},
    values=lambda _, influence, slope: (strongest(influence), {}, None),
)
