"""A record: one row of the user's dataset, unchanged, and its fields by name. Does not know their meaning."""

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from grace_store.base.states import Reason, Unusable

MAX_RECORD_BYTES = 32 * 2**20
"""Size limit of a record; a larger record is set aside and never held in memory as a whole."""
MAX_EXPANDED_BYTES = 8 * MAX_RECORD_BYTES
"""Size limit of all records that one record is expanded to."""
ELEMENT = 2**32
"""Factor of an element's index in the length of an expanded record; a record that is read is far smaller."""
MAX_NESTING = 64
"""Limit of nested objects and arrays. No format reads deeper, and every walk over a record must end."""

ID_KEYS = ("id", "sample_id", "uuid")
"""Fields that may hold the id of a record; the first with a string or an integer counts."""


class Record(NamedTuple):
    """One row: its place and its exact bytes (for a row of a table, the JSON from ``tables.row_json``).

    A record over MAX_RECORD_BYTES has raw b"", its true length, and its digest in large_digest.
    """

    row: int
    """Number over all files, from 0, including unusable records."""
    file: int
    """Index of the file in the dataset."""
    offset: int
    """Byte offset in the decompressed file; row number in a Parquet or Arrow file."""
    length: int
    """Length in bytes, 0 for a row of a Parquet or Arrow file; plus ELEMENT times the index, if lists are expanded."""
    raw: bytes
    row_in_file: int = 0
    """Number in its own file, from 0."""
    large_digest: bytes | None = None

    @property
    def digest(self) -> bytes:
        """The first 16 bytes of the SHA-256 of the record's bytes."""
        return digest_bytes(self.raw) if self.large_digest is None else self.large_digest

    def parse(self) -> dict[str, Any]:
        """Return the record as an object, or raise Unusable with the reason."""
        if self.large_digest is not None:
            size = f"{self.length} bytes" if self.length else "a row"
            most = f"at most {MAX_RECORD_BYTES} bytes are read, with --expand {MAX_EXPANDED_BYTES} of all its traces"
            raise Unusable(Reason.RECORD_TOO_LARGE, f"{size}, {most}")
        return parse_object(self.raw)


def digest_bytes(raw: bytes) -> bytes:
    """Return the first 16 bytes of the SHA-256 of raw."""
    return hashlib.sha256(raw).digest()[:16]


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object, or raise Unusable with BAD_JSON or NOT_AN_OBJECT.

    Stricter than the json module: the text must be UTF-8, nested at most MAX_NESTING deep, and no number may be NaN or
    infinite (as 1e999 is). As in the json module, the last of several equal keys counts.
    """
    try:
        value = _DECODER.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise Unusable(Reason.BAD_JSON, f"not UTF-8 at byte {error.start} of the record") from None
    except RecursionError:
        raise Unusable(Reason.BAD_JSON, f"nested more than {MAX_NESTING} deep") from None
    except ValueError as error:  # JSONDecodeError, or an integer with thousands of digits
        raise Unusable(Reason.BAD_JSON, str(error)) from None
    if not isinstance(value, dict):
        names = {"NoneType": "null", "bool": "boolean", "str": "string", "list": "array"}
        raise Unusable(Reason.NOT_AN_OBJECT, f"a JSON {names.get(type(value).__name__, 'number')}, not an object")
    _check_values(value)
    return value


def _check_values(fields: dict[str, Any]) -> None:
    """Raise Unusable for a record that is nested too deep or has a number too large for a float."""
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


def fields_in(record: Any, prefix: str = "", depth: int = 3) -> Iterator[tuple[str, object]]:
    """Yield the name and value of each field; names of nested fields have dots, and a list is one value."""
    for key, value in record.items() if isinstance(record, dict) else ():
        if isinstance(value, dict) and value and depth > 1:
            yield from fields_in(value, f"{prefix}{key}.", depth - 1)
        else:
            yield f"{prefix}{key}", value


def value_of(record: Any, field: str, missing: object = None) -> object:
    """Return a field of a record; lists and objects become JSON. Dots name nested fields, unless a name contains dots.

    "$." at the beginning stands for the record, to distinguish its fields from names with a special meaning.

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
