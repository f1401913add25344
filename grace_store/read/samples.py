"""The samples of a store one by one, for studies in Python: ids, Grams, token counts. No vector is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grace_store.base.arrays import FloatArray, IntArray
from grace_store.read.blocks import BlockReader
from grace_store.store.opened import Store
from grace_store.values.gram import num_entries, unpack


@dataclass(frozen=True, slots=True)
class StoredSample:
    """One done sample of a signal."""

    sample_id: str
    row: int
    """Where its record stands in the dataset."""
    num_steps: int
    gram: FloatArray
    """(K + 1, K + 1) inner products of its vectors, the answer last."""
    num_tokens: IntArray
    """(K + 1,) tokens in each segment."""


def open_store(location: str | Path) -> Store:
    """Open a store for reading. ``store.signal_names`` says what is in it, ``store.plan`` what it was made from."""
    return Store.open(location)


def iter_samples(
    store: Store | str | Path, signal: str | None = None, *, partial: bool = False
) -> Iterator[StoredSample]:
    """Yield every done sample of a signal (of the only one, if none is named) in the order of the records."""
    opened = store if isinstance(store, Store) else Store.open(store)
    reader = BlockReader(opened, (opened.signal(signal).name,))
    reader.check_complete(partial=partial)
    for start in reader.starts():
        block = reader.read(start)
        found, ids = block.signals[0], reader.ids(block).tolist()
        entry = segment = 0
        for i, num_steps in enumerate(found.num_steps.tolist()):
            size = num_entries(num_steps + 1)
            yield StoredSample(
                sample_id=ids[i],
                row=int(block.row[i]),
                num_steps=num_steps,
                gram=unpack(found.gram[None, entry : entry + size])[0],
                num_tokens=found.num_tokens[segment : segment + num_steps + 1].astype(np.int64),
            )
            entry += size
            segment += num_steps + 1
