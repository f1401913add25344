"""What to know of a sample's value: flags, as bits of a byte and by their names."""

from enum import IntFlag


class Flag(IntFlag):
    """What to know of a sample's value, as bits of a uint8."""

    ZERO_VECTOR = 1
    """A segment, target or history has no direction; the cosines with it count as 0."""
    NOT_FINITE = 2
    """The Gram holds NaN or infinity; everything about the sample is NaN."""
    NO_VALUE = 4
    """The settings define no value for the sample, which is NaN: it has no step, or token, that they count."""
    MISSING_SIGNAL = 8
    """One of the signals scored together does not have the sample, so it has no value."""
    CANCELLING = 16
    """The vectors of a target or history nearly cancel: cosines with it are good to about 3 digits, not to 6."""


def flag_names(flags: int) -> list[str]:
    """Return the names of the bits that are set.

    >>> flag_names(3)
    ['zero_vector', 'not_finite']
    """
    return [flag.name.lower() for flag in Flag if flags & flag and flag.name]
