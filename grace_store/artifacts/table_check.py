"""Is a table of scores, perhaps a stranger's, built as it says? Its structure only: values need the store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from grace_store.base.errors import DataError

NOTE_FIELDS: dict[str, type] = {"kind": str, "spec": dict, "store": str, "plan_sha256": str, "signals": dict}
"""What every command that reads a table asks of the note in it."""
_NEVER_NULL = ("sample_id", "row", "num_steps", "num_tokens")


def parse_note(raw: bytes, path: Path) -> dict[str, Any]:
    """Return the note that a table carries of its making, or raise a sentence."""
    try:
        note = json.loads(raw.decode())
        json.dumps(note, ensure_ascii=False, allow_nan=False).encode()  # it is written again into what is made of it
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} carries a damaged note of what made it ({error}). Score again.") from None
    wrong = wrong_fields(note, NOTE_FIELDS) or ("place" if "\0" in note["store"] else "")
    if wrong or not isinstance(note["spec"].get("method"), str):
        raise DataError(f"{path} is not a table that `grace-store score` made (its note has no {wrong or 'method'}).")
    return dict(note)


def wrong_fields(note: Any, wanted: Mapping[str, type]) -> str:
    """Return the names of fields that a note lacks or has of another type; empty if there are none."""
    if not isinstance(note, dict):
        return "fields"
    return ", ".join(name for name, kind in wanted.items() if not isinstance(note.get(name), kind))


def check_columns(table: pa.Table, schema: pa.Schema, lists: Sequence[str], path: Path) -> pa.Table:
    """Return a table with the columns' own types, or raise a sentence; lists are those with one entry a step."""
    try:
        wanted = pa.schema([schema.field(name) for name in table.column_names], metadata=table.schema.metadata)
        table = table if table.schema.equals(wanted) else table.cast(wanted)
        table.validate(full=True)
    except (pa.ArrowException, KeyError) as error:
        raise DataError(f"{path} is not a table that `grace-store score` made: {error}") from None
    nulls = [name for name in _NEVER_NULL if table[name].null_count]
    if nulls:
        raise DataError(f"{path} is not a table that `grace-store score` made: {nulls[0]} is empty in some rows.")
    for name in ("row", "num_steps", "num_tokens"):
        if len(table) and pc.min(table[name]).as_py() < 0:
            raise DataError(f"{path} is not a table that `grace-store score` made: {name} is negative in some rows.")
    for name in lists:
        if name in table.column_names:
            lengths = pc.list_value_length(table[name])
            if pc.any(pc.not_equal(lengths, table["num_steps"])).as_py():
                raise DataError(
                    f"{path} is not a table that `grace-store score` made: {name} has other than num_steps."
                )
    return table
