"""Which samples have the same text: digests of conversation and response, so that a copy under another id is one.

Without the dataset there are only the plan's own digests, of whole records.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from grace_store.base.arrays import IntArray
from grace_store.base.errors import DataError
from grace_store.base.events import Listener, Warned, ignore
from grace_store.data.sample_digests import text_digest
from grace_store.read.records import UnitLoader, open_dataset
from grace_store.store.opened import Store

DigestOf = Literal["text", "record"]


def sample_digests(
    store: Store, samples: IntArray, data: Sequence[str | Path] | None = None, listener: Listener = ignore
) -> tuple[list[bytes], DigestOf]:
    """Return a digest for each of some samples (positions in the plan), and whether it is of the text or the record."""
    try:
        dataset = open_dataset(store, data)
    except DataError as error:
        if data:
            raise
        what = "a copy under another id is not seen as one, unless its vectors are alike"
        listener(Warned(f"{error}\nSo whole records are compared instead of texts: {what}."))
        return [digest.tobytes() for digest in store.column("sample_digest")[samples]], "record"
    with dataset:
        return list(map(text_digest, UnitLoader(store, dataset).each(samples))), "text"
