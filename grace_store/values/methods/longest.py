"""Longest: the responses with the most tokens."""

from grace_store.base.arrays import sum_by_sample
from grace_store.values.methods.method import Heuristic

METHOD = Heuristic(
    name="longest",
    about="the most tokens in the response",
    reads="tokens",
    values=lambda _, samples: sum_by_sample(samples.num_parts, samples.num_tokens),
)
