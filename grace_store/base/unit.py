"""What an extractor makes of one unit, in memory. Knows neither models nor the disk."""

from dataclasses import dataclass, field

from grace_store.base.arrays import Float32Array, Int32Array
from grace_store.base.states import SetAside


@dataclass(slots=True, kw_only=True)
class UnitOutcome:
    """What became of one unit's samples. set_aside maps a position in the unit to the reason."""

    set_aside: dict[int, SetAside] = field(default_factory=dict)
    num_tokens: int = 0
    """Tokens that went through the model, for progress only."""
    images_sha256: str | None = None
    """SHA-256 over the SHA-256 (hexadecimal, a newline after each) of the encoded images behind the vectors, in the
    order of the samples and of reading; None without images."""
    split: tuple[int, ...] | None = None
    """Samples in each pass, in their order, if one had to be split for want of memory."""


@dataclass(slots=True, kw_only=True)
class UnitSignals(UnitOutcome):
    """A vector for each segment: K_i + 1 rows a sample in order, the answer last; zeros where it was set aside."""

    segment_vector: Float32Array
    segment_num_tokens: Int32Array
    segment_loss: Float32Array
    segment_entropy: Float32Array
    segment_hit_rate: Float32Array


@dataclass(slots=True, kw_only=True)
class SampleSignals(UnitOutcome):
    """One vector for each of a unit's samples, in their order; rows of a sample that was set aside are zero."""

    sample_vector: Float32Array
    sample_norm: Float32Array
    """Length of each vector before it was normalised, if it was."""
    sample_num_tokens: Int32Array
    sample_loss: Float32Array
