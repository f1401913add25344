"""Digests of samples: of the prompt with its images (exact text or words), of the response, and of both.

An image counts by its bytes if the record has them, else by its path.
"""

import hashlib
import json
from json.encoder import encode_basestring as quoted

from grace_store.base.text import canonical_json
from grace_store.data.sample import ImageRef, Sample

QUESTION_BYTES = 8
"""Length of the digest that identifies a question."""


def text_digest(sample: Sample) -> bytes:
    """Return a digest (16 bytes) of the turns, images and response."""
    return hashlib.sha256(f"[{_turns(sample)},{quoted(sample.response)}]".encode()).digest()[:16]


def prompt_digest(sample: Sample) -> bytes:
    """Return a digest (16 bytes) of the turns and images, without the response."""
    return hashlib.sha256(_turns(sample).encode()).digest()[:16]


def response_digest(sample: Sample) -> bytes:
    """Return a digest (16 bytes) of the response; spacing makes no difference."""
    return hashlib.sha256(canonical_json(sample.response.split())).digest()[:16]


def wording_digest(sample: Sample) -> bytes:
    """Return a digest (16 bytes) of the words and images in the user turns.

    Case, punctuation, spaces, system prompts and the notation of numbers make no difference. Signs make none either:
    2 + 2 and 2 - 2 have the same digest.
    """
    from grace_store.data.words import words_of  # the names of numbers, which no other digest needs

    asked = [turn for turn in sample.turns if turn.role == "user"]
    words = [words_of(turn.text) or turn.text.split() for turn in asked]
    images = [["image", _source(image)] for turn in asked for image in turn.images]
    return hashlib.sha256(canonical_json([words, images])).digest()[:16]


def field_digest(value: object, place: int) -> bytes:
    """Return a digest of a field's value; if the value is missing, a digest of the place."""
    name, kind = (place, b"alone") if value is None else (value, b"value")
    return hashlib.blake2b(json.dumps(name).encode(), digest_size=QUESTION_BYTES, person=kind).digest()


def _turns(sample: Sample) -> str:
    """Return the canonical JSON of the turns, built by hand: planning needs it for every record."""
    turns = [f"[{quoted(turn.role)},[{','.join(map(_part, turn.parts))}]]" for turn in sample.turns]
    return f"[{','.join(turns)}]"


def _part(part: str | ImageRef) -> str:
    return quoted(part) if isinstance(part, str) else f'["image",{quoted(_source(part))}]'


def _source(image: ImageRef) -> str:
    source = image.source
    return source if isinstance(source, str) else hashlib.sha256(source).hexdigest()
