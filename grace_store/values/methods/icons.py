"""ICONS: subtasks vote for the samples with most influence on them; the value of a sample is its number of votes.

I_k(z) = mean_v cos(g(z), g(v)) over the samples v of subtask k, and votes(z) counts the k with I_k(z) >= tau_k, the
(100 - p) percentile of I_k. Many samples have the same number of votes, so the mean rank of the I_k breaks ties:
value = votes + mean over k of rank_k / N, with ranks from 0. This mean is below 1, so votes are the value's whole part.

Percentiles and ranks need all samples, so memory holds the influences of all samples: 4 bytes for each of N J numbers.
"""

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray, Numbers
from grace_store.values.length_bias import mean_ranks
from grace_store.values.methods.method import InfluenceMethod, InfluenceSpec, Valued


def vote_thresholds(influence: Numbers, vote_percent: float) -> FloatArray:
    """Return tau_k of every subtask from influences (N, J): a percentile, interpolated between neighbours.

    Samples without influences (NaN) do not count; if no sample has influences, all thresholds are NaN.

    >>> vote_thresholds(np.arange(11.0)[:, None], 20)
    array([8.])
    """
    usable = _usable(influence)
    if not usable.any():
        return np.full(influence.shape[1], np.nan)
    columns = (influence[usable, k].astype(np.float64) for k in range(influence.shape[1]))
    return np.array([np.percentile(column, 100 - vote_percent) for column in columns])


def count_votes(influence: Numbers, thresholds: FloatArray) -> IntArray:
    """Return the number of thresholds that each sample of (N, J) reaches; NaN reaches none.

    >>> count_votes(np.array([[1.0, 5.0], [2.0, 1.0]]), np.array([2.0, 5.0]))
    array([1, 1])
    """
    votes = np.zeros(len(influence), dtype=np.int64)
    for k, threshold in enumerate(thresholds.tolist()):
        votes += influence[:, k].astype(np.float64) >= threshold
    return votes


def mean_rank_shares(influence: Numbers) -> FloatArray:
    """Return each sample's rank by influence, from 0, divided by N, as a mean over subtasks.

    Equal influences share their mean rank; a sample without influences has NaN.

    >>> mean_rank_shares(np.array([[1.0, 9.0], [2.0, 5.0]]))
    array([0.25, 0.25])
    """
    usable = _usable(influence)
    total = np.zeros(int(usable.sum()))
    for k in range(influence.shape[1]):
        total += mean_ranks(influence[usable, k].astype(np.float64))
    shares = np.full(len(influence), np.nan)
    shares[usable] = total / max(influence.shape[1] * len(total), 1)
    return shares


def _usable(influence: Numbers) -> BoolArray:
    return np.asarray(np.isfinite(influence).all(axis=1))


def _values(spec: InfluenceSpec, influence: Numbers, slope: FloatArray) -> Valued:
    thresholds = vote_thresholds(influence, spec.vote_percent)
    votes = count_votes(influence, thresholds)
    return votes + mean_rank_shares(influence), {"votes": votes}, thresholds


METHOD = InfluenceMethod(
    name="icons",
    about="the most votes of the subtasks of --targets",
    settings=("vote_percent",),
    columns={"influence": "list<float32>", "votes": "int32"},
    values=_values,
    needs_whole_pool=True,
    max_checkpoints=1,
    takes_preconditioned=False,
)
