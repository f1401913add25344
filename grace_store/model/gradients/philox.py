"""Random bits as a function of a seed and a counter: Philox4x32-10, in integer operations that every device does alike.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011). What was drawn years ago, on
whatever device, can be drawn again; nothing has to be kept.
"""

from functools import cache

import torch
from torch import Tensor

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
