"""A record: one row of the user's dataset, untouched, and its fields by name. Knows nothing of what they mean."""

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from grace_store.base.states import Reason, Unusable

MAX_RECORD_BYTES = 32 * 2**20
"""A record longer than this is set aside, and never held in memory whole."""
MAX_NESTING = 64
"""Objects and arrays inside each other. What lies deeper no format reads, and every walk over a record must end."""


class Record(NamedTuple):
    """One row: where it lies and its exact bytes (of a table's row, the JSON that ``tables.row_json`` makes).

    A record over MAX_RECORD_BYTES has raw b"", its true length, and its digest in large_digest.
    """

    row: int
    """Number over all files, from 0, counting every record, bad ones too."""
    file: int
    """Index of the file in the dataset."""
    offset: int
    """Byte offset in the decompressed file; the row's number in a Parquet or Arrow file."""
    length: int
    """Length in bytes; 0 for a row of a Parquet or Arrow file."""
    raw: bytes
    row_in_file: int = 0
    """Number in its own file, from 0."""
    large_digest: bytes | None = None

    @property
    def digest(self) -> bytes:
        """The first 16 bytes of the SHA-256 of the record's bytes."""
        return digest_bytes(self.raw) if self.large_digest is None else self.large_digest

    def parse(self) -> dict[str, Any]:
        """Return the record as an object, or raise Unusable saying why it is none."""
        if self.large_digest is not None:
            size = f"{self.length} bytes" if self.length else "a row"
            raise Unusable(Reason.RECORD_TOO_LARGE, f"{size}, at most {MAX_RECORD_BYTES} bytes are read")
        return parse_object(self.raw)


def digest_bytes(raw: bytes) -> bytes:
    """Return the first 16 bytes of the SHA-256 of raw."""
    return hashlib.sha256(raw).digest()[:16]


def parse_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object that raw is the text of; Unusable(BAD_JSON or NOT_AN_OBJECT) otherwise.

    Stricter than the json module: the text must be UTF-8, at most MAX_NESTING deep, and no number NaN or infinite,
    as 1e999 would be. As there, the last of several equal keys counts.
    """
    try:
        value = _DECODER.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise Unusable(Reason.BAD_JSON, f"not UTF-8 at byte {error.start} of the record") from None
    except RecursionError:
        raise Unusable(Reason.BAD_JSON, f"nested more than {MAX_NESTING} deep") from None
    except ValueError as error:  # JSONDecodeError, and integers with thousands of digits
        raise Unusable(Reason.BAD_JSON, str(error)) from None
    if not isinstance(value, dict):
        names = {"NoneType": "null", "bool": "boolean", "str": "string", "list": "array"}
        found = names.get(type(value).__name__, "number")
        raise Unusable(Reason.NOT_AN_OBJECT, f"a JSON {found}, not an object")
    _check_values(value)
    return value


def _check_values(fields: dict[str, Any]) -> None:
    """Raise Unusable for a record that is nested too deep, or holds a number too large for a float."""
    level: list[Any] = [fields]
    for _ in range(MAX_NESTING):
        inside: list[Any] = []
        for container in level:
            for value in container.values() if isinstance(container, dict) else container:
                if isinstance(value, (dict, list)):
                    inside.append(value)
                elif isinstance(value, float) and math.isinf(value):
                    raise Unusable(Reason.BAD_JSON, "a number is too large")
        if not inside:
            return
        level = inside
    raise Unusable(Reason.BAD_JSON, f"nested more than {MAX_NESTING} deep")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


# ---------------------------------------------------------------- fields by name, those inside others with dots


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
