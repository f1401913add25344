"""One field of samples' records, as the dataset has it: what samples are grouped by."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from grace_store.base.arrays import IntArray
from grace_store.read.records import open_dataset
from grace_store.store import Store

MAX_SHOWN = 60


def shown(value: object) -> str:
    """Return a field's value on one short line.

    >>> shown("two\\nlines")
    'two lines'
    """
    text = " ".join(str(value).split())
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def read_field(
    store: Store, field: str, data: Sequence[str] | None = None, positions: IntArray | None = None
) -> list[object]:
    """Return a field of the records of samples (of those at the positions given), None where a record has none.

    Dots lead inside; what is a list or an object there is returned as JSON. data says where the files are now.
    """
    columns = [store.column(f"sample_{name}") for name in ("file", "offset", "length")]
    wanted = (column.tolist() if positions is None else column[positions].tolist() for column in columns)
    found: list[object] = []
    with open_dataset(store, data) as dataset:
        for raw in dataset.read_many(zip(*wanted, strict=True)):
            value: Any = json.loads(raw)
            for key in field.split("."):
                value = value.get(key) if isinstance(value, dict) else None
            found.append(json.dumps(value) if isinstance(value, (list, dict)) else value)
    return found
