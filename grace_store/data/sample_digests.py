"""Digests of what samples say: of the prompt with its images, exactly or by its words, of the response, and of both.

Images count by their paths, or by their bytes where the record has these.
"""

import hashlib
import json
from typing import Any

from grace_store.base.text import canonical_json
from grace_store.data.sample import ImageRef, Sample

QUESTION_BYTES = 8
"""Length of the digest that identifies a question."""


def text_digest(sample: Sample) -> bytes:
    """Return 16 bytes that samples with the same turns, images and response share."""
    return hashlib.sha256(canonical_json([_turns(sample), sample.response])).digest()[:16]


def prompt_digest(sample: Sample) -> bytes:
    """Return 16 bytes that samples with the same turns and images share, whatever the response."""
    return hashlib.sha256(canonical_json(_turns(sample))).digest()[:16]


def response_digest(sample: Sample) -> bytes:
    """Return 16 bytes that samples share whose responses are the same text; how it is spaced makes no difference."""
    return hashlib.sha256(canonical_json(sample.response.split())).digest()[:16]


def wording_digest(sample: Sample) -> bytes:
    """Return 16 bytes that samples share whose users say the same words with the same images.

    Case, punctuation, spaces, system prompts and how a number is written make no difference. Neither do signs: 2 + 2
    and 2 - 2 are one.
    """
    from grace_store.data.words import words_of  # the names of numbers, which no other digest needs

    asked = [turn for turn in sample.turns if turn.role == "user"]
    words = [words_of(turn.text) or turn.text.split() for turn in asked]
    images = [_part(part) for turn in asked for part in turn.parts if isinstance(part, ImageRef)]
    return hashlib.sha256(canonical_json([words, images])).digest()[:16]


def field_digest(value: object, place: int) -> bytes:
    """Return a digest that records with the same value in a field share; without a value, one of the place alone."""
    name, kind = (place, b"alone") if value is None else (value, b"value")
    return hashlib.blake2b(json.dumps(name).encode(), digest_size=QUESTION_BYTES, person=kind).digest()


def _turns(sample: Sample) -> list[list[Any]]:
    return [[turn.role, [_part(part) for part in turn.parts]] for turn in sample.turns]


def _part(part: str | ImageRef) -> str | list[str]:
    if isinstance(part, str):
        return part
    source = part.source
    return ["image", source if isinstance(source, str) else hashlib.sha256(source).hexdigest()]
