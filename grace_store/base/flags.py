"""Flags: what is wrong or doubtful about a sample and needs no label to be seen. Their names, bits and meanings.

Flags of the text are found once, while planning (`data.hygiene`), and kept in the plan; all others while scoring.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntFlag

from grace_store.base.errors import SettingError

TEXT_SHIFT = 8
"""The plan's bits are those of this enumeration, this much lower."""


class Flag(IntFlag):
    """Every flag there is; ABOUT says what each means. The lowest eight are found while scoring."""

    ZERO_VECTOR = 1
    NOT_FINITE = 2
    NO_VALUE = 4
    MISSING_SIGNAL = 8
    CANCELLING = 16
    SAME_DIRECTION = 32
    REPEATED_STEPS = 1 << TEXT_SHIFT
    CUT_OFF = 2 << TEXT_SHIFT
    UNSUPPORTED_ANSWER = 4 << TEXT_SHIFT
    TEXT_AFTER_ANSWER = 8 << TEXT_SHIFT
    THINK_BLOCKS = 16 << TEXT_SHIFT
    RESTATES_QUESTION = 32 << TEXT_SHIFT


ABOUT = {
    "zero_vector": "A segment, target or history has no direction, so cosines with it count as 0.",
    "not_finite": "The Gram holds NaN or infinity, so the sample has no value.",
    "no_value": "The settings define no value for the sample: it has no step, or no token, that they count.",
    "missing_signal": "One of the signals that are scored together does not have the sample, so it has no value.",
    "cancelling": "The vectors of a target or history nearly cancel: cosines with it are good to 3 digits, not to 6.",
    "same_direction": "The vectors of all steps point nearly the same way, as if one step were repeated.",
    "repeated_steps": "A step or a sentence is there again, word for word.",
    "cut_off": "The steps or the response end in the middle of a sentence, formula or block.",
    "unsupported_answer": "The answer is a number, formula or option that no step comes to.",
    "text_after_answer": "After the answer the text goes on, often with another question.",
    "think_blocks": "The think tags are empty, not closed, nested or more than one pair.",
    "restates_question": "A step only repeats the words of the question.",
}
"""What each flag means, in a sentence."""

TEXT_FLAGS = tuple(name for name in ABOUT if Flag[name.upper()] >= 1 << TEXT_SHIFT)
"""Those that the plan holds, in the order of their bits."""
HYGIENE_FLAGS = (*TEXT_FLAGS, "same_direction")
"""Those that say something of the trace; the others are of its value under certain settings."""
HYGIENE = "hygiene"
"""Stands for all of them where flags are named."""


def flag_names(flags: int) -> list[str]:
    """Return the names of the bits that are set.

    >>> flag_names(3)
    ['zero_vector', 'not_finite']
    """
    return [name for name in ABOUT if flags & Flag[name.upper()]]


def text_mask(name: str) -> int:
    """Return the bit of a flag of the text as the plan holds it.

    >>> text_mask("cut_off")
    2
    """
    return int(Flag[name.upper()]) >> TEXT_SHIFT


def text_flag_names(mask: int) -> list[str]:
    """Return the names of the flags in a mask of the plan.

    >>> text_flag_names(3)
    ['repeated_steps', 'cut_off']
    """
    return flag_names(mask << TEXT_SHIFT)


def named_flags(names: Sequence[str], known: Iterable[str] = ABOUT) -> tuple[str, ...]:
    """Return flags by their names, in the order of ABOUT, `hygiene` being all of HYGIENE_FLAGS.

    Raises SettingError for a name that is none, or for a flag that is not known of the samples.

    >>> named_flags(["hygiene"], HYGIENE_FLAGS) == tuple(name for name in ABOUT if name in HYGIENE_FLAGS)
    True
    """
    if unknown := [name for name in names if name not in (HYGIENE, *ABOUT)]:
        raise SettingError(f"there is no flag {unknown[0]!r}. The flags are {', '.join(ABOUT)}; {HYGIENE} is {_HYGIENE}")
    wanted = {each for name in names for each in (HYGIENE_FLAGS if name == HYGIENE else (name,))}
    if missing := [name for name in ABOUT if name in wanted and name not in set(known)]:
        known_here = [name for name in HYGIENE_FLAGS if name in set(known)]
        instead = f" {', '.join(known_here)} can be named." if known_here else ""
        raise SettingError(f"it is not known which samples are flagged {', '.join(missing)}.{instead}")
    return tuple(name for name in ABOUT if name in wanted)


_HYGIENE = f"all of {', '.join(HYGIENE_FLAGS)}"
