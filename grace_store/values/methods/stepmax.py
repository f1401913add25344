"""Stepmax: the traces with the most steps."""

import numpy as np

from grace_store.values.methods.method import Heuristic

METHOD = Heuristic(
    name="stepmax", about="the most steps", reads="plan", values=lambda _, samples: samples.num_steps.astype(np.float64)
)
