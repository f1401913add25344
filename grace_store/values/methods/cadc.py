"""CADC, a reconstruction: subtasks become capabilities, samples belong to the capability they influence most.

The method is published without code; this module follows its text. w_m are the checkpoints' shares, and g_m(v) is the
gradient, which is not normalised.

    t_s = concat_m sqrt(w_m) normalise(mean_v g_m(v))                    the trajectory of subtask s
    an edge joins s and s' where <t_s, t_s'> >= tau; Leiden's communities are the capabilities c
    Inf(z, c) = sum_m w_m <G_m(z), normalise(mean_{s in c} g_s^m)>       g_s^m the mean gradient of subtask s
    cap(z) = argmax_c Inf(z, c)                                          equal ones to the first

`select` divides its budget evenly between capabilities, the largest Inf(z, cap(z)) first in each. The slope of
|G_m(z)|^2 over the checkpoints is an order for training in stages; it does not change which samples are chosen.
"""

from collections.abc import Sequence

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray, Numbers
from grace_store.values.directions import unit_vectors
from grace_store.values.methods.less import strongest
from grace_store.values.methods.method import InfluenceMethod, InfluenceSpec, Valued


def trajectories(means: FloatArray, weights: Sequence[float]) -> FloatArray:
    """Return t_s of every subtask, (S, M D), from the mean gradients (M, S, D) of M checkpoints.

    >>> trajectories(np.array([[[2.0, 0.0]], [[0.0, 5.0]]]), [1, 3])
    array([[0.5      , 0.       , 0.       , 0.8660254]])
    """
    shares = np.asarray(weights, dtype=np.float64) / np.sum(weights)
    parts = [np.sqrt(share) * unit_vectors(each)[0] for share, each in zip(shares, means, strict=True)]
    return np.concatenate(parts, axis=1)


def joined_pairs(cosine: FloatArray, join_cosine: float) -> list[tuple[int, int]]:
    """Return the pairs (s, s') with s < s' of a symmetric (S, S) matrix that reach a threshold.

    >>> joined_pairs(np.array([[1.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 1.0]]), 0.5)
    [(0, 1)]
    """
    first, second = np.nonzero(np.triu(cosine >= join_cosine, 1))
    return list(zip(first.tolist(), second.tolist(), strict=True))


def capability_directions(means: FloatArray, capability: IntArray) -> FloatArray:
    """Return normalise(mean over the subtasks of each capability), (M, C, D), from means (M, S, D)."""
    members = [means[:, capability == c].mean(axis=1) for c in range(int(capability.max()) + 1)]
    return np.stack([unit_vectors(np.stack([each[m] for each in members]))[0] for m in range(len(means))])


def self_influence_slopes(squared_length: FloatArray) -> FloatArray:
    """Return the least-squares slope of |G_m(z)|^2 over checkpoints 0, 1, ... from (M, n); NaN for one checkpoint.

    >>> self_influence_slopes(np.array([[4.0, 1.0], [2.0, 2.0], [0.0, 3.0]]))
    array([-2.,  1.])
    """
    num_checkpoints = len(squared_length)
    if num_checkpoints < 2:
        return np.full(squared_length.shape[1], np.nan)
    place = np.arange(num_checkpoints) - (num_checkpoints - 1) / 2.0
    total = np.zeros(squared_length.shape[1])
    for at, squared in zip(place.tolist(), squared_length, strict=True):
        total += at * squared
    return total / float(place @ place)


def _values(_: InfluenceSpec, influence: Numbers, slope: FloatArray) -> Valued:
    value = strongest(influence)
    capability = np.where(np.isfinite(value)[:, None], influence, 0).argmax(axis=1)
    return value, {"capability": capability, "stage": slope}, None


METHOD = InfluenceMethod(
    name="cadc",
    about="the most influence on each capability of --targets, in equal numbers; a reconstruction",
    settings=("join_cosine", "seed"),
    columns={"influence": "list<float32>", "capability": "int32", "stage": "float64"},
    is_reconstruction=True,
    values=_values,
    restores_length=True,
    joins_subtasks=True,
)
