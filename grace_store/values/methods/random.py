"""Random: a seeded draw, the same for a sample whatever else is in the store."""

from __future__ import annotations

from grace_store.values.methods.heuristic_spec import HeuristicSpec
from grace_store.values.methods.method import Heuristic
from grace_store.values.random_values import random_values

METHOD = Heuristic(
    name="random",
    about="a seeded random draw",
    spec=HeuristicSpec,
    settings=("seed",),
    reads="plan",
    values=lambda spec, samples: random_values(spec.seed, samples.row),
)
