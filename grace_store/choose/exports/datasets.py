"""Records as tables: a Parquet file, or a folder in the format of ``datasets.save_to_disk``, by pyarrow alone."""

import base64
import binascii
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from grace_store.base.documents import find_document
from grace_store.base.errors import DataError
from grace_store.base.files import FOLDER, sidecar_of, whole_folder
from grace_store.choose.exports.export_kind import ChosenRecords, Export, Exported
from grace_store.choose.selection import SubsetNote

Records = Callable[[], Iterator[dict[str, Any]]]
"""A function that starts a new pass over the records."""

DATA = "data-00000-of-00001.arrow"
STATE = "state.json"


def write_datasets_folder(folder: Path, records: Records, fingerprint: str) -> None:
    """Write records into an empty folder; their fields become columns.

    The first pass over the records finds the types of the columns, the second writes the values. Features are left
    out: all versions of ``datasets`` read them from the Arrow schema.
    """
    kind = _struct(records)
    num_bytes = 0
    with pa.OSFile(str(folder / DATA), "wb") as sink, pa.ipc.new_stream(sink, pa.schema(list(kind))) as writer:
        for block in _blocks(records()):
            batch = pa.RecordBatch.from_struct_array(_array(block, kind))
            writer.write_batch(batch)
            num_bytes += batch.nbytes
    info: dict[str, Any] = dict.fromkeys(("citation", "description", "features", "homepage", "license"), "")
    info |= {"features": None, "dataset_size": num_bytes}
    state: dict[str, Any] = {
        "_data_files": [{"filename": DATA}],
        "_fingerprint": fingerprint,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "dataset_info.json").write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")
    (folder / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")


def write_parquet(path: Path, records: Records) -> None:
    """Write records as a Parquet file; their fields become columns."""
    kind = _struct(records)
    try:
        with pq.ParquetWriter(path, pa.schema(list(kind))) as writer:
            for block in _blocks(records()):
                writer.write_batch(pa.RecordBatch.from_struct_array(_array(block, kind)))
    except pa.ArrowNotImplementedError as error:  # a field that is an object without any key
        raise _no_table(error) from None


def _blocks(records: Iterator[dict[str, Any]]) -> Iterator[list[Any]]:
    while block := [_with_bytes(record) for record in itertools.islice(records, 512)]:
        yield block


def _struct(records: Records) -> pa.StructType:
    """Return the type that all records fit."""
    schema = pa.schema([])
    for block in _blocks(records()):
        try:
            found = pa.schema(list(_array(block, None).type))
            schema = pa.unify_schemas([schema, found], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise _no_table(error) from None
    return pa.struct(list(schema))


def _array(block: list[Any], kind: pa.StructType | None) -> pa.StructArray:
    try:
        return pa.array(block, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise _no_table(error) from None


def _no_table(error: Exception) -> DataError:
    return DataError(
        f"The records do not fit one table, for example because a field has different types in different records "
        f"({error}). Write JSON lines: use --as source or --as ms-swift, and an --out that ends in .jsonl."
    )


def _with_bytes(value: Any) -> Any:
    """Return a record with each {"bytes_base64": text}, which stands for bytes in rows of tables, decoded."""
    if isinstance(value, dict):
        if list(value) == ["bytes_base64"] and isinstance(value["bytes_base64"], str):
            try:
                return base64.b64decode(value["bytes_base64"], validate=True)
            except (binascii.Error, ValueError):
                return value
        return {key: _with_bytes(inner) for key, inner in value.items()}
    return [_with_bytes(inner) for inner in value] if isinstance(value, list) else value


def _write(chosen: ChosenRecords, exported: Exported) -> None:
    def records() -> Iterator[dict[str, Any]]:
        return (json.loads(raw) for raw in chosen.raw(one_line=False))

    with whole_folder(exported.out, lambda _: _is_ours(exported.out)) as folder:
        write_datasets_folder(folder, records, _fingerprint(chosen.store.plan.digest()))
    exported.notes.append(
        "read the folder with datasets.load_from_disk; ms-swift cannot open it: use --as ms-swift for that"
    )


def _is_ours(out: Path) -> bool:
    """Return whether this package wrote the folder and nobody changed it since, by the note and the fingerprint."""
    note = find_document(sidecar_of(out), SubsetNote)
    if note is None or note.as_format != "datasets":
        return False
    try:
        state = json.loads((out / STATE).read_text(encoding="utf-8"))
        return bool(state["_fingerprint"] == _fingerprint(note.scores.plan_sha256))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _fingerprint(plan_sha256: str) -> str:
    return plan_sha256[:16]


EXPORT = Export(write=_write, formats=(FOLDER,))
