"""Stepmax: the traces with the most steps."""

from __future__ import annotations

import numpy as np

from grace_store.values.methods.method import Heuristic
from grace_store.values.methods.method_spec import HeuristicSpec

METHOD = Heuristic(
    name="stepmax",
    about="the most steps",
    spec=HeuristicSpec,
    reads="plan",
    values=lambda _, samples: samples.num_steps.astype(np.float64),
)
