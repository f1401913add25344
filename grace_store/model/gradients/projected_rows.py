"""Gradients on their way to projected vectors: gathered over batches, so that many rows share the making of a matrix.

Knows nothing of texts, models or batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grace_store.model.gradients.coordinates import Coordinates
from grace_store.model.gradients.projection import Projector

BUFFER_BYTES = 1 << 30
"""What gradients may take that wait for their projection; those of one backward pass may take more."""

Precondition = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class _Waiting:
    out: Tensor
    rows: Tensor
    gradients: dict[str, Tensor]


class ProjectedRows:
    """Projects gradients, parameter by parameter, into rows of matrices that were given with them."""

    def __init__(
        self,
        coordinates: list[Coordinates],
        projector: Projector,
        precondition: Precondition | None = None,
        *,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._coordinates = coordinates
        self._projector = projector
        self._precondition = precondition
        row_bytes = 4 * sum(each.size for each in coordinates)
        self._max_rows = max(1, buffer_bytes // row_bytes)
        self._waiting: list[_Waiting] = []

    def add(self, out: Tensor, rows: Tensor, gradients: dict[str, Tensor]) -> None:
        """Take the gradients of some rows of out (rows, d), which get their values by the next flush at the latest."""
        if self._num_waiting() + len(rows) > self._max_rows:
            self.flush()
        self._waiting.append(_Waiting(out, rows, gradients))

    def flush(self) -> None:
        """Project all that waits; if memory runs out, it goes on waiting."""
        if not (waiting := self._waiting):
            return
        made = waiting[0].out.new_zeros((sum(len(each.rows) for each in waiting), waiting[0].out.shape[1]))
        for each in self._coordinates:
            piece = torch.cat([one.gradients[each.name] for one in waiting])
            if self._precondition is not None:
                piece = self._precondition(each.name, piece)
            self._projector.add(made, piece, each.start)
        for one, values in zip(waiting, torch.split(made, [len(each.rows) for each in waiting]), strict=True):
            one.out.index_copy_(0, one.rows, values)
        self._waiting = []

    def forget(self, out: Tensor) -> None:
        """Drop what waits for a matrix that is given up."""
        self._waiting = [each for each in self._waiting if each.out is not out]

    def _num_waiting(self) -> int:
        return sum(len(each.rows) for each in self._waiting)
