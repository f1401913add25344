"""Step weights as weights of tokens, for whatever trains with them. Knows tokens, no model."""

import numpy as np

from grace_store.base.arrays import FloatArray, Numbers
from grace_store.model.inputs.tokens import NO_SEGMENT, TokenizedSample


def token_weights(tokens: TokenizedSample, segment_weights: Numbers | None, *, others: float = 0.0) -> FloatArray:
    """Return how much the loss of each token of a sample counts, (tokens,); others is that of tokens in no segment.

    segment_weights, as ``WeightTable.segment_weights`` yields them, has one weight for each step and the answer's last;
    None counts every token of the response as 1. A trainer's loss is then the sum of weight times loss over tokens,
    divided by the number of tokens in segments, whose weights have a mean of 1.
    """
    weights = np.ones(tokens.num_segments) if segment_weights is None else np.asarray(segment_weights, np.float64)
    if weights.shape != (tokens.num_segments,):
        raise ValueError(f"{tokens.num_segments} segments have {weights.shape} weights: give one each")
    return np.where(tokens.segment == NO_SEGMENT, others, weights[tokens.segment])
