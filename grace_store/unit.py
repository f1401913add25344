"""What an extractor makes of one unit, in memory. Knows neither models nor the disk."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from grace_store.metadata import Reason


@dataclass(frozen=True, slots=True)
class SetAside:
    """Why one sample of a unit has no vectors."""

    reason: Reason
    detail: str = ""


@dataclass(slots=True)
class UnitSignals:
    """The signals of one unit's samples, in the samples' order.

    Rows of segment_* belong to samples in order, K_i + 1 rows each, the answer last; a sample that was set
    aside keeps its rows, all zero. set_aside maps a position in the unit to the reason.
    """

    segment_vector: npt.NDArray[np.float32]
    segment_num_tokens: npt.NDArray[np.int32]
    segment_loss: npt.NDArray[np.float32]
    segment_entropy: npt.NDArray[np.float32]
    segment_hit_rate: npt.NDArray[np.float32]
    set_aside: dict[int, SetAside] = field(default_factory=dict)
    num_tokens: int = 0
    """Tokens that went through the model, for progress only."""
    images_sha256: str | None = None
    """SHA-256 over the SHA-256 (hexadecimal, a newline after each) of the encoded images behind the vectors, in the
    order of the samples and of reading; None without images."""
