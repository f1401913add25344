"""Which samples have the same text: digests of conversation and response, so that a copy under another id is one.

Images count by their paths, or by their bytes where the record has these. Without the dataset there are only the
plan's own digests, of whole records.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from grace_store.base.arrays import IntArray
from grace_store.base.errors import DataError
from grace_store.base.events import Listener, Warned, ignore
from grace_store.base.settings import canonical_json
from grace_store.data.sample import ImageRef, Sample
from grace_store.read.records import POSITIONS_AT_ONCE, UnitLoader, open_dataset
from grace_store.store.opened import Store

DigestOf = Literal["text", "record"]


def text_digest(sample: Sample) -> bytes:
    """Return 16 bytes that samples with the same turns, images and response share."""
    return hashlib.sha256(canonical_json([_turns(sample), sample.response])).digest()[:16]


def prompt_digest(sample: Sample) -> bytes:
    """Return 16 bytes that samples with the same turns and images share, whatever the response."""
    return hashlib.sha256(canonical_json(_turns(sample))).digest()[:16]


def _turns(sample: Sample) -> list[list[Any]]:
    return [[turn.role, [_part(part) for part in turn.parts]] for turn in sample.turns]


def _part(part: str | ImageRef) -> str | list[str]:
    if isinstance(part, str):
        return part
    source = part.source
    return ["image", source if isinstance(source, str) else hashlib.sha256(source).hexdigest()]


def sample_digests(
    store: Store, samples: IntArray, data: Sequence[str | Path] | None = None, listener: Listener = ignore
) -> tuple[list[bytes], DigestOf]:
    """Return a digest for each of some samples (positions, ascending), and whether it is of the text or the record."""
    try:
        dataset = open_dataset(store, data)
    except DataError as error:
        if data:
            raise
        what = "a copy under another id is not seen as one, unless its vectors are alike"
        listener(Warned(f"{error}\nSo whole records are compared instead of texts: {what}."))
        return [digest.tobytes() for digest in store.column("sample_digest")[samples]], "record"
    with dataset:
        loader = UnitLoader(store, dataset)
        found: list[bytes] = []
        for start in range(0, store.plan.num_samples, POSITIONS_AT_ONCE):
            some = samples[(samples >= start) & (samples < start + POSITIONS_AT_ONCE)]
            found += map(text_digest, loader.read_some(some.tolist()))
    return found, "text"
