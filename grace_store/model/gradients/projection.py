"""Random projections of long gradients, block by block, so that the whole matrix is never in memory.

Each entry of the matrix depends only on the seed and the entry's indices, as schemas/FORMAT.md defines: it is the same
for every checkpoint, dataset, machine and device. Knows nothing of models.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from grace_store.base.errors import ModelError, SettingError
from grace_store.base.settings import SPARSE_ENTRIES, GradientSpec
from grace_store.base.text import json_sha256
from grace_store.model.load.adapter_folder import MOMENTS, OPTIMIZER
from grace_store.model.load.adapters import Adapter, tensor_names


def coordinates_of(adapter: Adapter) -> dict[str, torch.Size]:
    """Return the shapes of an adapter's LoRA parameters, in the order in which they follow in the flat gradient.

    Fully trained modules (modules_to_save) are left out.
    """
    shapes = {f"{module}.{part}": each.shape for module, parts in adapter.lora.items() for part, each in parts.items()}
    return dict(sorted(shapes.items()))


def coordinates_sha256(coordinates: dict[str, torch.Size]) -> str:
    """Return the digest of the names and shapes, in order."""
    return json_sha256([[name, list(shape)] for name, shape in coordinates.items()])


@dataclass(frozen=True, slots=True)
class Moments:
    """The state of AdamW at a checkpoint."""

    exp_avg: dict[str, Tensor]
    exp_avg_sq: dict[str, Tensor]
    beta1: float
    beta2: float
    epsilon: float
    step: int

    def digest(self) -> str:
        """Return the digest of everything that a preconditioned gradient depends on."""
        tensors = {
            f"{moment}.{name}": hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
            for moment, members in zip(MOMENTS, (self.exp_avg, self.exp_avg_sq), strict=True)
            for name, tensor in members.items()
        }
        settings = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon, "step": self.step}
        return json_sha256({"tensors": tensors, **settings})


def read_moments(adapter: Adapter, coordinates: dict[str, torch.Size]) -> Moments:
    """Read the moments beside a checkpoint as float32; raise if they are missing or do not fit the adapter."""
    if not (path := adapter.folder.path / OPTIMIZER).is_file():
        has_pickle = (adapter.folder.path / "optimizer.pt").is_file()
        pickled = " Its optimizer.pt is a pickle. A pickle can run any code, so grace-store does not open it."
        raise SettingError(
            f"--preconditioner adam needs the optimiser's moments, but {adapter.folder.path} has no {OPTIMIZER}."
            f"{pickled if has_pickle else ''} Give a checkpoint of `grace-store warmup`, or use --preconditioner none."
        )
    try:
        with safe_open(path, framework="pt") as stored:
            adamw = json.loads((stored.metadata() or {})["adamw"])
            tensors = {key: stored.get_tensor(key).float() for key in stored.keys()}  # noqa: SIM118 - it is no mapping
        (beta1, beta2), epsilon, step = adamw["betas"], adamw["eps"], adamw["step"]
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ModelError(
            f"{path} is not the optimiser state of a warm-up ({error}). Run `grace-store warmup`."
        ) from error
    moments = []
    for moment in MOMENTS:
        prefix = f"{moment}."
        own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        found = {name: own[key] for key, name in tensor_names(own).items()}
        if wrong := [name for name, shape in coordinates.items() if name not in found or found[name].shape != shape]:
            raise ModelError(
                f"{path} has no {moment} of the right shape for {wrong[0]}. The file belongs to another adapter."
            )
        moments.append({name: found[name] for name in coordinates})
    return Moments(moments[0], moments[1], float(beta1), float(beta2), float(epsilon), int(step))


class AdamStep:
    """A preconditioner of gradients with the unchanged moments of a checkpoint, as in LESS.

        m' = b1 m + (1 - b1) g      v' = b2 v + (1 - b2) g^2      G = m' / sqrt(v' + eps)

    Epsilon is inside the root and there is no bias correction, as in the authors' code. Their paper first divides m'
    and v' by 1 - b^t, with t the number of the next step.
    """

    def __init__(self, moments: Moments, device: torch.device, *, bias_correction: bool) -> None:
        self._beta1, self._beta2, self._epsilon = moments.beta1, moments.beta2, moments.epsilon
        next_step = moments.step + 1
        self._first = 1.0 - self._beta1**next_step if bias_correction else 1.0
        self._second = 1.0 - self._beta2**next_step if bias_correction else 1.0
        self._exp_avg = {name: tensor.flatten().to(device) for name, tensor in moments.exp_avg.items()}
        self._exp_avg_sq = {name: tensor.flatten().to(device) for name, tensor in moments.exp_avg_sq.items()}

    def __call__(self, name: str, gradient: Tensor) -> Tensor:
        """Return the preconditioned gradients of one parameter, (rows, elements) float32."""
        first = torch.lerp(gradient, self._exp_avg[name], self._beta1)
        second = torch.lerp(gradient.square(), self._exp_avg_sq[name], self._beta2)
        return first.div_(self._first) / second.div_(self._second).add_(self._epsilon).sqrt_()


BUFFER_BYTES = 1 << 30
"""Largest size of the gradients that wait for their projection. The gradients of one backward pass may be larger."""

CPU_ENTRIES = 1 << 20
"""Number of matrix entries per block on a CPU: the block stays in the cache."""
DEVICE_ENTRIES = 1 << 26
"""Number of matrix entries per block on a GPU: the work takes longer than its launch."""
_SPARSE_TILES = 64
"""Number of runs (a quarter of the dimension each) that the sparse projection adds at a time."""
_SHIFTS, _SIGNS = 1, 2
"""The last number of the counter: the use of the bits in the sparse projection. The Rademacher projection has 0."""


class RademacherProjector:
    """A projection matrix with entries +1/sqrt(d) and -1/sqrt(d)."""

    def __init__(self, dimension: int, seed: int) -> None:
        self._dimension = dimension
        self._seed = seed

    def add(self, out: Tensor, piece: Tensor, start: int) -> None:
        """Add the projection of a piece (rows, coordinates) to out (rows, d); start is the piece's first coordinate."""
        device = piece.device
        step = max(1, (CPU_ENTRIES if device.type == "cpu" else DEVICE_ENTRIES) // self._dimension)
        columns = torch.arange(-(-self._dimension // BLOCK_BITS), device=device).unsqueeze(0)
        for first in range(0, piece.shape[1], step):
            part = piece[:, first : first + step]
            coordinates = torch.arange(start + first, start + first + part.shape[1], device=device).unsqueeze(1)
            matrix = signs(blocks(self._seed, coordinates, columns)).flatten(1)
            out.addmm_(part, matrix[:, : self._dimension], alpha=self._dimension**-0.5)


class SparseProjector:
    """A projection that adds every coordinate, with a random sign, to one index in each of four parts of the vector.

    Coordinates are split into runs as long as a part. A random cyclic shift applies to a whole run, so a run is added
    at once and in a fixed order. Two coordinates of different runs collide as often as with independent random indices.
    Two coordinates of one run never collide. So inner products have at most the variance of a dense projection.
    """

    def __init__(self, dimension: int, seed: int) -> None:
        self._part = dimension // SPARSE_ENTRIES
        self._seed = seed

    def add(self, out: Tensor, piece: Tensor, start: int) -> None:
        """Add the projection of a piece (rows, coordinates) to out (rows, d); start is the piece's first coordinate."""
        first = start
        while first < start + piece.shape[1]:
            # Stop at the end of a run, so that the next piece begins with a run.
            stop = min((first // self._part + _SPARSE_TILES) * self._part, start + piece.shape[1])
            self._add_runs(out, piece[:, first - start : stop - start], first)
            first = stop

    def _add_runs(self, out: Tensor, piece: Tensor, start: int) -> None:
        """Add the coordinates from start on, padded with zeros to whole runs."""
        device, part = piece.device, self._part
        first_run, stop_run = start // part, -(-(start + piece.shape[1]) // part)
        lead = start - first_run * part
        whole = piece.new_zeros((len(piece), (stop_run - first_run) * part))
        whole[:, lead : lead + piece.shape[1]] = piece
        runs = torch.arange(first_run, stop_run, device=device)
        shifts = blocks(self._seed, runs, 0, _SHIFTS)
        places = torch.arange(part, device=device).unsqueeze(0)
        run_starts = part * torch.arange(len(runs), device=device).unsqueeze(1)
        first_block = first_run * part // BLOCK_BITS
        sign_blocks = torch.arange(first_block, -(-stop_run * part // BLOCK_BITS), device=device)
        own_bits = slice(first_run * part - first_block * BLOCK_BITS, stop_run * part - first_block * BLOCK_BITS)
        for q in range(SPARSE_ENTRIES):
            signed = whole * signs(blocks(self._seed, sign_blocks, q, _SIGNS)).flatten()[own_bits]
            # The value at an index comes from that index minus the shift.
            source = run_starts + (places - shifts[q].unsqueeze(1)) % part
            turned = signed.index_select(1, source.flatten()).view(len(piece), len(runs), part)
            out[:, q * part : (q + 1) * part].add_(turned.sum(dim=1), alpha=SPARSE_ENTRIES**-0.5)


def make_projector(spec: GradientSpec) -> RademacherProjector | SparseProjector:
    return (RademacherProjector if spec.projection == "rademacher" else SparseProjector)(spec.dimension, spec.seed)


class ProjectedRows:
    """A queue of gradients that projects many rows of several batches at once."""

    def __init__(
        self,
        coordinates: dict[str, torch.Size],
        projector: RademacherProjector | SparseProjector,
        precondition: Callable[[str, Tensor], Tensor] | None = None,
    ) -> None:
        self._coordinates = coordinates
        self._projector = projector
        self._precondition = precondition
        self._max_rows = max(1, BUFFER_BYTES // (4 * sum(shape.numel() for shape in coordinates.values())))
        self._waiting: list[tuple[Tensor, Tensor, dict[str, Tensor]]] = []
        """The arguments of the calls of add, in order."""

    def add(self, out: Tensor, rows: Tensor, gradients: dict[str, Tensor]) -> None:
        """Queue the gradients of some rows of out (rows, d). The rows get their values at the next flush or before."""
        if sum(len(waiting) for _, waiting, _ in self._waiting) + len(rows) > self._max_rows:
            self.flush()
        self._waiting.append((out, rows, gradients))

    def flush(self) -> None:
        """Project all queued gradients. They stay in the queue if memory runs out."""
        if not (waiting := self._waiting):
            return
        sizes = [len(rows) for _, rows, _ in waiting]
        made = waiting[0][0].new_zeros((sum(sizes), waiting[0][0].shape[1]))
        start = 0
        for name, shape in self._coordinates.items():
            piece = torch.cat([gradients[name] for _, _, gradients in waiting])
            if self._precondition is not None:
                piece = self._precondition(name, piece)
            self._projector.add(made, piece, start)
            start += shape.numel()
        for (out, rows, _), values in zip(waiting, torch.split(made, sizes), strict=True):
            out.index_copy_(0, rows, values)
        self._waiting = []

    def forget(self, out: Tensor) -> None:
        """Drop the queued gradients of a matrix that is not needed any more."""
        self._waiting = [each for each in self._waiting if each[0] is not out]


# ---------------------------------------------------------------- random bits as a function of a seed and a counter
# Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011) in integer
# operations that give the same result on every device. So any device can draw the same bits again years later.


BLOCK_BITS = 128
"""Number of bits in a block of four words."""

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

_TABLE_BITS = 16


def philox(seed: int, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the four words of each block, int64 tensors of 0..2^32 - 1; the counters' shapes are broadcast."""
    key0, key1 = seed & _MASK, seed >> 32 & _MASK
    for _ in range(10):
        # Products of 64 bits wrap around in int64. Only their bits are used.
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (_high(right) ^ c1).bitwise_xor_(key0)
        c2 = (_high(left) ^ c3).bitwise_xor_(key1)
        c1, c3 = right.bitwise_and_(_MASK), left.bitwise_and_(_MASK)
        key0, key1 = key0 + _KEY_STEPS[0] & _MASK, key1 + _KEY_STEPS[1] & _MASK
    return c0, c1, c2, c3


def blocks(seed: int, index: Tensor, *rest: Tensor | int) -> tuple[Tensor, ...]:
    """Return the words of blocks. A 64-bit index and up to two more 32-bit numbers identify a block."""
    # new_full fills on the device: a number copied to a GPU would make the host wait for all earlier work there.
    c2, c3 = (value if isinstance(value, Tensor) else index.new_full((), value) for value in (*rest, 0, 0)[:2])
    return philox(seed, index & _MASK, index >> 32 & _MASK, c2, c3)


def signs(words: tuple[Tensor, ...]) -> Tensor:
    """Return the bits of blocks as float32 signs (..., 128), +1 for 0 and -1 for 1; each word has shape (...,)."""
    halves = torch.stack([half for word in words for half in (word & 0xFFFF, word >> _TABLE_BITS)], dim=-1)
    return _sign_table(halves.device).index_select(0, halves.reshape(-1)).view(*halves.shape[:-1], BLOCK_BITS)


@cache
def _sign_table(device: torch.device) -> Tensor:
    """Return the signs of every 16-bit number, the least significant bit first: (2^16, 16)."""
    numbers = torch.arange(1 << _TABLE_BITS, device=device).unsqueeze(1)
    return 1.0 - 2.0 * (numbers >> torch.arange(_TABLE_BITS, device=device) & 1).float()


def _high(product: Tensor) -> Tensor:
    return (product >> 32).bitwise_and_(_MASK)
