"""Samples with segments, with and without pictures, for tests of the model."""

from __future__ import annotations

import numpy as np

from grace_store.data.sample import ImageRef, Sample, Turn
from tests.tiny_vision_models import picture, png

PICTURES = {"wide": picture(61, 30, 1), "tall": picture(24, 50, 2), "square": picture(40, 40, 3)}


def bounds_of(segments: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(np.concatenate(([0], np.cumsum([len(segment) for segment in segments]))).tolist())


def make_sample(*segments: str, prompt: str = "Tom has 3 apples and buys 4 more. How many now?") -> Sample:
    return Sample(f"id-{len(segments)}", (Turn("user", (prompt,)),), "".join(segments), bounds_of(segments))


def ask_about(*parts: str, response: tuple[str, ...], before: tuple[Turn, ...] = ()) -> Sample:
    """Return a sample; words that name a picture stand for it."""
    made = tuple(ImageRef(png(PICTURES[part])) if part in PICTURES else part for part in parts)
    return Sample(f"id-{len(parts)}", (*before, Turn("user", made)), "".join(response), bounds_of(response))


TEXTS = [
    make_sample("Tom starts with 3 apples.\n", "He buys 4 more, so 3 + 4 = 7.\n", "The answer is 7."),
    make_sample("Add.\n", "7", prompt="3 + 4?"),
    make_sample(
        "First we add the numbers,\n", "then we divide\n", "by two ", "and get é😀\n\n", "#### 3.5", prompt="Go"
    ),
]
WITH_PICTURES = [
    ask_about("wide", "How many apples?", response=("Tom starts with 3.\n", "He buys 4 more.\n", "The answer is 7.")),
    ask_about("Look:", "tall", " and then ", "square", "wide", ". Which?", response=("The first.\n", "It is 3.")),
    ask_about("No picture, 3 + 4?", response=("Add the numbers.\n", "7")),
    ask_about(
        "Again ",
        "tall",
        before=(Turn("user", (ImageRef(png(PICTURES["square"])), "This?")), Turn("assistant", ("An apple.",))),
        response=("Now ", "we divide by two\n\n", "and get the result.\n", "#### 3"),
    ),
]
