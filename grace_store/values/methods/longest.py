"""Longest: the responses with the most tokens."""

from __future__ import annotations

from grace_store.values.gram import sum_by_sample
from grace_store.values.methods.method import Heuristic
from grace_store.values.methods.method_spec import HeuristicSpec

METHOD = Heuristic(
    name="longest",
    about="the most tokens in the response",
    spec=HeuristicSpec,
    reads="tokens",
    values=lambda _, samples: sum_by_sample(samples.num_parts, samples.num_tokens),
)
