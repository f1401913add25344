"""Random projections of long gradients, a run of coordinates at a time; the matrix is never held whole.

Each entry of the matrix is a function of the seed and of its place alone, written down in schemas/FORMAT.md: the same
for every checkpoint, dataset, machine and device. Knows nothing of models.
"""

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from grace_store.base.errors import ModelError, SettingError
from grace_store.base.settings import SPARSE_ENTRIES, GradientSpec
from grace_store.base.text import canonical_json
from grace_store.model.load.adapter_folder import MOMENTS, OPTIMIZER
from grace_store.model.load.adapters import ADAPTER, Adapter, tensor_names


@dataclass(frozen=True, slots=True)
class Coordinates:
    """One parameter's place in the gradient."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return int(torch.Size(self.shape).numel())


def coordinates_of(adapter: Adapter) -> list[Coordinates]:
    """Return the places of an adapter's LoRA parameters; those trained whole (modules_to_save) have none."""
    shapes = {f"{module}.{part}": each.shape for module, parts in adapter.lora.items() for part, each in parts.items()}
    starts = itertools.accumulate((shapes[name].numel() for name in sorted(shapes)), initial=0)
    return [Coordinates(name, tuple(shapes[name]), start) for name, start in zip(sorted(shapes), starts, strict=False)]


def coordinates_sha256(coordinates: list[Coordinates]) -> str:
    """Return the digest over names and shapes, in order."""
    return hashlib.sha256(canonical_json([[each.name, list(each.shape)] for each in coordinates])).hexdigest()


def parameters_of(coordinates: list[Coordinates], layers: dict[str, LoraLayer]) -> dict[str, nn.Parameter]:
    """Return the parameters themselves, from layers by their modules' names in the adapter."""
    places = {each.name: each.name.rpartition(".") for each in coordinates}
    return {name: getattr(layers[module], part)[ADAPTER].weight for name, (module, _, part) in places.items()}


@dataclass(frozen=True, slots=True)
class Moments:
    """AdamW's state after some steps, as it was when the checkpoint was written."""

    exp_avg: dict[str, Tensor]
    exp_avg_sq: dict[str, Tensor]
    beta1: float
    beta2: float
    epsilon: float
    step: int

    def digest(self) -> str:
        """Return the digest of all that a preconditioned gradient depends on."""
        tensors = {
            f"{moment}.{name}": hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
            for moment, members in zip(MOMENTS, (self.exp_avg, self.exp_avg_sq), strict=True)
            for name, tensor in members.items()
        }
        settings = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon, "step": self.step}
        return hashlib.sha256(canonical_json({"tensors": tensors, **settings})).hexdigest()


def read_moments(adapter: Adapter, coordinates: list[Coordinates]) -> Moments:
    """Read the moments beside a checkpoint as float32, or raise an error that says what is wrong with them."""
    path = adapter.folder.path / OPTIMIZER
    if not path.is_file():
        pickled = (adapter.folder.path / "optimizer.pt").is_file()
        raise SettingError(
            f"--preconditioner adam needs the optimiser's moments, and {adapter.folder.path} has no {OPTIMIZER}"
            + (" (its optimizer.pt is a pickle, which could run any code and is not opened)" if pickled else "")
            + ". A checkpoint of `grace-store warmup` has it; --preconditioner none does without."
        )
    try:
        with safe_open(path, framework="pt") as stored:
            adamw = json.loads((stored.metadata() or {})["adamw"])
            tensors = {key: stored.get_tensor(key).float() for key in stored.keys()}  # noqa: SIM118 - it is no mapping
        (beta1, beta2), epsilon, step = adamw["betas"], adamw["eps"], adamw["step"]
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ModelError(f"{path} is no optimiser state of a warm-up ({error}). Run `grace-store warmup`.") from error
    found = [_moment(path, moment, tensors, coordinates) for moment in MOMENTS]
    return Moments(found[0], found[1], float(beta1), float(beta2), float(epsilon), int(step))


def _moment(path: Path, moment: str, tensors: dict[str, Tensor], coordinates: list[Coordinates]) -> dict[str, Tensor]:
    prefix = f"{moment}."
    own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    found = {name: own[key] for key, name in tensor_names(own).items()}
    if wrong := [each.name for each in coordinates if each.name not in found or found[each.name].shape != each.shape]:
        raise ModelError(f"{path} has no {moment} of {wrong[0]} in its shape: it belongs to another adapter.")
    return {each.name: found[each.name] for each in coordinates}


class AdamStep:
    """Preconditions gradients with the moments of a checkpoint, which stay as they are: LESS's feature of a sample.

        m' = b1 m + (1 - b1) g      v' = b2 v + (1 - b2) g^2      G = m' / sqrt(v' + eps)

    Epsilon inside the root and no bias correction, as in the authors' code; their text divides m' and v' by 1 - b^t
    first, t counting the step to be taken.
    """

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


class RademacherProjector:
    """Every entry is +1 or -1, over sqrt(d)."""

    def __init__(self, dimension: int, seed: int) -> None:
        self._dimension = dimension
        self._seed = seed

    def add(self, out: Tensor, piece: Tensor, start: int) -> None:
        device = piece.device
        num_entries = CPU_ENTRIES if device.type == "cpu" else DEVICE_ENTRIES
        step = max(1, num_entries // self._dimension)
        columns = torch.arange(-(-self._dimension // BLOCK_BITS), device=device).unsqueeze(0)
        for first in range(0, piece.shape[1], step):
            part = piece[:, first : first + step]
            coordinates = torch.arange(start + first, start + first + part.shape[1], device=device).unsqueeze(1)
            matrix = signs(blocks(self._seed, coordinates, columns)).flatten(1)
            out.addmm_(part, matrix[:, : self._dimension], alpha=self._dimension**-0.5)


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
        self._waiting: list[tuple[Tensor, Tensor, dict[str, Tensor]]] = []
        """What is given to add, in its order."""

    def add(self, out: Tensor, rows: Tensor, gradients: dict[str, Tensor]) -> None:
        """Take the gradients of some rows of out (rows, d), which get their values by the next flush at the latest."""
        if sum(len(waiting) for _, waiting, _ in self._waiting) + len(rows) > self._max_rows:
            self.flush()
        self._waiting.append((out, rows, gradients))

    def flush(self) -> None:
        """Project all that waits; if memory runs out, it goes on waiting."""
        if not (waiting := self._waiting):
            return
        sizes = [len(rows) for _, rows, _ in waiting]
        made = waiting[0][0].new_zeros((sum(sizes), waiting[0][0].shape[1]))
        for each in self._coordinates:
            piece = torch.cat([gradients[each.name] for _, _, gradients in waiting])
            if self._precondition is not None:
                piece = self._precondition(each.name, piece)
            self._projector.add(made, piece, each.start)
        for (out, rows, _), values in zip(waiting, torch.split(made, sizes), strict=True):
            out.index_copy_(0, rows, values)
        self._waiting = []

    def forget(self, out: Tensor) -> None:
        """Drop what waits for a matrix that is given up."""
        self._waiting = [each for each in self._waiting if each[0] is not out]


# ---------------------------------------------------------------- random bits as a function of a seed and a counter
# Philox4x32-10, in integer operations that every device does alike: Salmon, Moraes, Dror and Shaw, "Parallel random
# numbers: as easy as 1, 2, 3" (2011). What was drawn years ago, on whatever device, can be drawn again.


WORDS = 4
"""32-bit words in a block."""
BLOCK_BITS = 32 * WORDS

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_TABLE_BITS = 16


def philox(seed: int, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the four words of each block, int64 tensors of 0..2^32 - 1; the counters' shapes are broadcast."""
    key0, key1 = seed & _MASK, seed >> 32 & _MASK
    for _ in range(_ROUNDS):
        # Products of 64 bits wrap around in int64, whose bits are all that is used.
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (_high(right) ^ c1).bitwise_xor_(key0)
        c2 = (_high(left) ^ c3).bitwise_xor_(key1)
        c1, c3 = right.bitwise_and_(_MASK), left.bitwise_and_(_MASK)
        key0, key1 = key0 + _KEY_STEPS[0] & _MASK, key1 + _KEY_STEPS[1] & _MASK
    return c0, c1, c2, c3


def blocks(seed: int, index: Tensor, *rest: Tensor | int) -> tuple[Tensor, ...]:
    """Return the words of the blocks numbered index, a 64-bit number, and by up to two more numbers of 32 bits."""
    # Filled where it is needed: a number copied to a GPU makes the host wait for all that was begun there.
    c2, c3 = (value if isinstance(value, Tensor) else index.new_full((), value) for value in (*rest, 0, 0)[:2])
    return philox(seed, index & _MASK, index >> 32 & _MASK, c2, c3)


def signs(words: tuple[Tensor, ...]) -> Tensor:
    """Return the bits of blocks as float32, 0 as +1 and 1 as -1: of words (...,) each, (..., 128)."""
    halves = torch.stack([half for word in words for half in (word & 0xFFFF, word >> _TABLE_BITS)], dim=-1)
    return _sign_table(halves.device).index_select(0, halves.reshape(-1)).view(*halves.shape[:-1], BLOCK_BITS)


@cache
def _sign_table(device: torch.device) -> Tensor:
    """Return for each number of 16 bits their signs, the least significant first: (2^16, 16)."""
    numbers = torch.arange(1 << _TABLE_BITS, device=device).unsqueeze(1)
    return 1.0 - 2.0 * (numbers >> torch.arange(_TABLE_BITS, device=device) & 1).float()


def _high(product: Tensor) -> Tensor:
    return (product >> 32).bitwise_and_(_MASK)
