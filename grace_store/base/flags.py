"""Flags: what is wrong or doubtful about a sample and needs no label to be seen. Their names, bits and meanings.

Flags of the text are found once, while planning (`data.hygiene`), and kept in the plan; all others while scoring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntFlag

import numpy as np

from grace_store.base.arrays import Array
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
    ONLY_TRACE = 64
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
    "same_direction": "Most steps' vectors point nearly the same way as those before them, as if one were repeated.",
    "only_trace": "The sample is the only trace of its question, so there is no other to compare it with.",
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


def flag_counts(flags: Array) -> dict[str, int]:
    """Return how many of some samples, given by their bits, have each flag.

    >>> flag_counts(np.array([0, 1, 3]))["zero_vector"]
    2
    """
    return {name: int(np.count_nonzero(flags & int(Flag[name.upper()]))) for name in ABOUT}


def flag_lines(flagged: Mapping[str, int] | None) -> list[str]:
    """Return a line for each flag that samples have, with what it means; and one where flags are not known.

    >>> flag_lines({"cut_off": 2, "think_blocks": 0})
    ['2 flagged cut_off: The steps or the response end in the middle of a sentence, formula or block.']
    """
    if flagged is None:
        return ["flags of texts are not known: the store was planned before there were any"]
    return [f"{flagged[name]} flagged {name}: {text}" for name, text in ABOUT.items() if flagged.get(name)]


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


def named_flags(names: Sequence[str]) -> tuple[str, ...]:
    """Return flags by their names, in the order of ABOUT, `hygiene` being all of HYGIENE_FLAGS; raise for no flag.

    >>> named_flags(["repeated_steps", "cancelling"])
    ('cancelling', 'repeated_steps')
    """
    if unknown := [name for name in names if name not in (HYGIENE, *ABOUT)]:
        of_traces, others = ", ".join(HYGIENE_FLAGS), ", ".join(name for name in ABOUT if name not in HYGIENE_FLAGS)
        known = f"Flags of traces, together {HYGIENE}, are {of_traces}; those of values are {others}"
        raise SettingError(f"there is no flag {unknown[0]!r}. {known}.")
    wanted = {each for name in names for each in (HYGIENE_FLAGS if name == HYGIENE else (name,))}
    return tuple(name for name in ABOUT if name in wanted)
