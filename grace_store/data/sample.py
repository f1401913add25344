"""A sample: one parsed record. Knows nothing of files, formats, tokens or models."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class ImageRef:
    """A reference to an image: a path or data URL as written in the record, or the encoded bytes of the image."""

    source: str | bytes


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the conversation before the response: text and images in reading order."""

    role: Role
    parts: tuple[str | ImageRef, ...]

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def images(self) -> list[ImageRef]:
        return [part for part in self.parts if isinstance(part, ImageRef)]


@dataclass(frozen=True, slots=True)
class Sample:
    """A conversation and its response, cut into K steps and one answer without gaps.

    Segment i is response[bounds[i]:bounds[i+1]], and the last segment is the answer; bounds has K+2 entries.
    """

    sample_id: str
    turns: tuple[Turn, ...]
    response: str
    bounds: tuple[int, ...]

    @property
    def num_steps(self) -> int:
        return len(self.bounds) - 2

    @property
    def num_segments(self) -> int:
        return len(self.bounds) - 1

    @property
    def segments(self) -> list[str]:
        return [self.response[a:b] for a, b in pairwise(self.bounds)]

    @property
    def images(self) -> list[ImageRef]:
        return [image for turn in self.turns for image in turn.images]
