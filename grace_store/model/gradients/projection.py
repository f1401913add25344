"""Random projections of long gradients, a run of coordinates at a time; the matrix is never held whole.

Each entry of the matrix is a function of the seed and of its place alone, written down in schemas/FORMAT.md: the same
for every checkpoint, dataset, machine and device. Knows nothing of models.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from grace_store.base.settings import SPARSE_ENTRIES, GradientSpec
from grace_store.model.gradients.coordinates import Coordinates
from grace_store.model.gradients.philox import BLOCK_BITS, blocks, signs

BUFFER_BYTES = 1 << 30
"""What gradients may take that wait for their projection; those of one backward pass may take more."""

CPU_ENTRIES = 1 << 20
"""Entries of the matrix that are made at a time on a CPU: they stay in its cache."""
DEVICE_ENTRIES = 1 << 26
"""The same on a GPU: enough that it is busy for longer than it takes to start it."""
_SPARSE_TILES = 64
"""Runs of a quarter of the dimension that the sparse projection adds at a time."""
_SHIFTS, _SIGNS = 1, 2
"""The last number of the counter: what the sparse projection's bits are for. Rademacher's have 0 there."""


class Projector(Protocol):
    """Adds up a projected gradient piece by piece."""

    def add(self, out: Tensor, piece: Tensor, start: int) -> None:
        """Add the projection of a piece (rows, coordinates), whose first coordinate is start, to out (rows, d)."""


def make_projector(spec: GradientSpec) -> Projector:
    """Return the projector that a spec asks for."""
    return (RademacherProjector if spec.projection == "rademacher" else SparseProjector)(spec.dimension, spec.seed)


@dataclass(frozen=True, slots=True)
class RademacherProjector:
    """Every entry is +1 or -1, over sqrt(d)."""

    dimension: int
    seed: int
    num_entries: int | None = None

    def add(self, out: Tensor, piece: Tensor, start: int) -> None:
        device = piece.device
        num_entries = self.num_entries or (CPU_ENTRIES if device.type == "cpu" else DEVICE_ENTRIES)
        step = max(1, num_entries // self.dimension)
        columns = torch.arange(-(-self.dimension // BLOCK_BITS), device=device).unsqueeze(0)
        for first in range(0, piece.shape[1], step):
            part = piece[:, first : first + step]
            coordinates = torch.arange(start + first, start + first + part.shape[1], device=device).unsqueeze(1)
            matrix = signs(blocks(self.seed, coordinates, columns)).flatten(1)
            out.addmm_(part, matrix[:, : self.dimension], alpha=self.dimension**-0.5)


class SparseProjector:
    """Every coordinate goes, with a random sign, to one place in each of four parts of the vector.

    Coordinates are taken in runs as long as a part, and a run is turned by a random shift, so a whole run is added at
    once and in a fixed order. Two coordinates of different runs meet with the chance of places taken at random, and
    those of one run never do: inner products have at most the variance of a dense projection.
    """

    def __init__(self, dimension: int, seed: int) -> None:
        self._part = dimension // SPARSE_ENTRIES
        self._seed = seed

    def add(self, out: Tensor, piece: Tensor, start: int) -> None:
        first = start
        while first < start + piece.shape[1]:
            # Up to the end of a run, so that all later parts begin with one.
            stop = min((first // self._part + _SPARSE_TILES) * self._part, start + piece.shape[1])
            self._add_runs(out, piece[:, first - start : stop - start], first)
            first = stop

    def _add_runs(self, out: Tensor, piece: Tensor, start: int) -> None:
        """Add coordinates from start on, with zeros around them that make the runs whole."""
        device, part = piece.device, self._part
        first_run, stop_run = start // part, -(-(start + piece.shape[1]) // part)
        lead = start - first_run * part
        whole = piece.new_zeros((len(piece), (stop_run - first_run) * part))
        whole[:, lead : lead + piece.shape[1]] = piece
        runs = torch.arange(first_run, stop_run, device=device)
        shifts = blocks(self._seed, runs, 0, _SHIFTS)
        places = torch.arange(part, device=device).unsqueeze(0)
        run_starts = part * torch.arange(len(runs), device=device).unsqueeze(1)
        for q in range(SPARSE_ENTRIES):
            signed = whole * self._signs(q, first_run * part, stop_run * part, device)
            # What ends up at a place came from that place less the shift.
            source = run_starts + (places - shifts[q].unsqueeze(1)) % part
            turned = signed.index_select(1, source.flatten()).view(len(piece), len(runs), part)
            out[:, q * part : (q + 1) * part].add_(turned.sum(dim=1), alpha=SPARSE_ENTRIES**-0.5)

    def _signs(self, q: int, start: int, stop: int, device: torch.device) -> Tensor:
        first = start // BLOCK_BITS
        index = torch.arange(first, -(-stop // BLOCK_BITS), device=device)
        bits = signs(blocks(self._seed, index, q, _SIGNS)).flatten()
        return bits[start - first * BLOCK_BITS : stop - first * BLOCK_BITS]


class _Waiting(NamedTuple):
    out: Tensor
    rows: Tensor
    gradients: dict[str, Tensor]


class ProjectedRows:
    """Projects gradients into rows of given matrices, gathered over batches so that many rows share a projection."""

    def __init__(
        self,
        coordinates: list[Coordinates],
        projector: Projector,
        precondition: Callable[[str, Tensor], Tensor] | None = None,
        *,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._coordinates = coordinates
        self._projector = projector
        self._precondition = precondition
        self._max_rows = max(1, buffer_bytes // (4 * sum(each.size for each in coordinates)))
        self._waiting: list[_Waiting] = []

    def add(self, out: Tensor, rows: Tensor, gradients: dict[str, Tensor]) -> None:
        """Take the gradients of some rows of out (rows, d), which get their values by the next flush at the latest."""
        if sum(len(each.rows) for each in self._waiting) + len(rows) > self._max_rows:
            self.flush()
        self._waiting.append(_Waiting(out, rows, gradients))

    def flush(self) -> None:
        """Project all that waits; if memory runs out, it goes on waiting."""
        if not (waiting := self._waiting):
            return
        sizes = [len(each.rows) for each in waiting]
        made = waiting[0].out.new_zeros((sum(sizes), waiting[0].out.shape[1]))
        for each in self._coordinates:
            piece = torch.cat([one.gradients[each.name] for one in waiting])
            if self._precondition is not None:
                piece = self._precondition(each.name, piece)
            self._projector.add(made, piece, each.start)
        for one, values in zip(waiting, torch.split(made, sizes), strict=True):
            one.out.index_copy_(0, one.rows, values)
        self._waiting = []

    def forget(self, out: Tensor) -> None:
        """Drop what waits for a matrix that is given up."""
        self._waiting = [each for each in self._waiting if each.out is not out]
