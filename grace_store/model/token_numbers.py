"""From the numbers of single tokens to statistics of segments and samples, in host memory. Knows no models."""

import numpy as np

from grace_store.base.arrays import Float32Array, IntArray, offsets_of
from grace_store.base.states import MAX_RANK, STATISTICS, Statistic

NUMBERS = ("log_probability", "rank", "entropy", "error")
"""Columns of a matrix of tokens: log p(y), 1 + the number of larger logits, entropy in nats, and |p - y|."""
NUM_NUMBERS = len(NUMBERS)
TOP_SHARE = 200
"""One of so many tokens counts in a sample's top entropy."""


def segment_statistics(numbers: Float32Array, num_tokens: IntArray) -> dict[Statistic, Float32Array]:
    """Return the statistics of consecutive segments, which have these numbers of tokens (at least 1)."""
    log_p, rank, entropy, error = numbers.T.astype(np.float64)
    starts = offsets_of(num_tokens)[:-1]
    summed = np.stack((-log_p, entropy, rank == 1, np.minimum(rank, MAX_RANK), error), axis=1)
    with np.errstate(invalid="ignore"):  # infinities, which the caller reports
        loss, mean_entropy, hit_rate, mean_rank, mean_error = np.add.reduceat(summed, starts).T / num_tokens
    means = loss, mean_entropy, hit_rate, mean_rank, -log_p[starts], mean_error
    return {name: mean.astype(np.float32) for name, mean in zip(STATISTICS, means, strict=True)}


def top_entropy(numbers: Float32Array) -> float:
    """Return the sum of the largest entropies of a sample's tokens: those of 0.5 % of the tokens, at least of one."""
    count = max(1, len(numbers) // TOP_SHARE)
    largest = np.partition(numbers[:, NUMBERS.index("entropy")], len(numbers) - count)[len(numbers) - count :]
    return float(largest.astype(np.float64).sum())
