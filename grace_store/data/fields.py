"""Fields of a record by name, those inside others with dots."""

import json
from collections.abc import Iterator
from typing import Any

FIELD_DEPTH = 3
"""How far inside records the names of fields are looked for."""


def fields_in(record: Any, prefix: str = "", depth: int = FIELD_DEPTH) -> Iterator[tuple[str, object]]:
    """Yield the name and value of each field of a record, of those inside others with dots; lists are one value."""
    for key, value in record.items() if isinstance(record, dict) else ():
        if isinstance(value, dict) and value and depth > 1:
            yield from fields_in(value, f"{prefix}{key}.", depth - 1)
        else:
            yield f"{prefix}{key}", value


def value_of(record: Any, field: str, missing: object = None) -> object:
    """Return a field of a record, lists and objects as JSON. Dots lead inside, unless a field's own name has them.

    $. at the beginning stands for the record, which tells its fields from names that have a meaning of their own.

    >>> value_of({"meta": {"level": 3}, "num_steps": 5, "a.b": 1}, "meta.level")
    3
    >>> value_of({"num_steps": 5}, "$.num_steps")
    5
    """
    if not isinstance(record, dict) or field not in record:
        *outer, field = field.removeprefix("$.").split(".")
        for key in outer:
            record = record.get(key) if isinstance(record, dict) else None
    found = record.get(field, missing) if isinstance(record, dict) else missing
    return json.dumps(found) if isinstance(found, (list, dict)) else found
