"""The step that Adam would take for a gradient, from moments that stay as they are: LESS's feature of a sample.

    m' = b1 m + (1 - b1) g      v' = b2 v + (1 - b2) g^2      G = m' / sqrt(v' + eps)

Epsilon inside the root and no bias correction, as in the authors' code; their text divides m' and v' by 1 - b^t
first, t counting the step to be taken.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace_store.model.gradients.coordinates import Moments


class AdamStep:
    """Preconditions gradients with the moments of a checkpoint."""

    def __init__(self, moments: Moments, device: torch.device, *, bias_correction: bool) -> None:
        self._beta1, self._beta2, self._epsilon = moments.beta1, moments.beta2, moments.epsilon
        taken = moments.step + 1
        self._first = 1.0 - self._beta1**taken if bias_correction else 1.0
        self._second = 1.0 - self._beta2**taken if bias_correction else 1.0
        self._exp_avg = {name: tensor.flatten().to(device) for name, tensor in moments.exp_avg.items()}
        self._exp_avg_sq = {name: tensor.flatten().to(device) for name, tensor in moments.exp_avg_sq.items()}

    def __call__(self, name: str, gradient: Tensor) -> Tensor:
        """Return the steps for gradients of one parameter, (rows, elements) float32."""
        first = torch.lerp(gradient, self._exp_avg[name], self._beta1)
        second = torch.lerp(gradient.square(), self._exp_avg_sq[name], self._beta2)
        return first.div_(self._first) / second.div_(self._second).add_(self._epsilon).sqrt_()
