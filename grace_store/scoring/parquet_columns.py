"""Parquet tables with a note in their metadata; a file may come from another program."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace_store.base.arrays import IntArray
from grace_store.base.documents import METADATA_KEY, Document, document_metadata, metadata_document
from grace_store.base.errors import DataError, SettingError
from grace_store.base.files import PARQUET, whole_file
from grace_store.base.text import one_line
from grace_store.pool.arrow_arrays import numpy_numbers

NoteT = TypeVar("NoteT", bound=Document)


@dataclass(frozen=True, slots=True, repr=False)
class NotedTable(Generic[NoteT]):
    """A table in memory: its columns as Arrow, and its note."""

    table: pa.Table
    note: NoteT
    path: Path | None = None
    """The file of the table; None for a table that was never written."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def what(self) -> str:
        """The kind and file of the table, for a sentence."""
        kind = self.note.words.partition(" ")[2]
        return kind if self.path is None else f"{kind} {self.path}"

    @property
    def row(self) -> IntArray:
        """Row of every sample's record in the dataset."""
        return np.asarray(numpy_numbers(self.table["row"]), dtype=np.int64)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame; pandas must be installed."""
        return self.table.to_pandas()


def read_note(path: Path, kind: type[NoteT]) -> NoteT:
    """Return the note in a table's metadata without reading the table; raise DataError if there is none."""
    return metadata_document(read_header(path, kind.maker).metadata, kind, str(path))


def write_whole(path: Path, table: pa.Table, note: Document) -> None:
    """Write a table with its note; the file gets its name only when it is complete."""
    refuse_other_kind(path, note)
    with whole_file(path, PARQUET) as partial:
        pq.write_table(table.replace_schema_metadata(document_metadata(note)), partial, compression="zstd")


@contextmanager
def write_blocks(path: Path, schema: pa.Schema, note: Document) -> Iterator[pq.ParquetWriter]:
    """Open a table for writing block by block; the schema has the note. The file gets its name when it is complete."""
    refuse_other_kind(path, note)
    # Hardly two numbers are equal, so building a dictionary takes longer than all other work.
    with (
        whole_file(path, PARQUET) as partial,
        pq.ParquetWriter(partial, schema, compression="zstd", use_dictionary=False) as writer,
    ):
        yield writer


def refuse_other_kind(path: Path, note: Document) -> None:
    """Raise SettingError if a table would replace a table of another kind, such as weights a table of scores."""
    try:
        found = json.loads((pq.read_schema(path).metadata or {})[METADATA_KEY])["kind"]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return
    if found != note.kind:
        raise SettingError(
            f"{path} has a table of the kind {one_line(str(found))!r}, and {note.words} would replace it. Choose "
            "another --out, or delete the file. Nothing was written."
        )


def read_header(path: Path, maker: str) -> pa.Schema:
    """Return the schema of a file with its metadata, or raise DataError; maker is the command that writes the file."""
    try:
        return pq.read_schema(path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; `grace-store {maker}` makes it.") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} is not a Parquet file ({arrow_words(error)}).") from None


def read_columns(path: Path, kinds: Mapping[str, pa.DataType], maker: str) -> pa.Table:
    """Return columns of a file, cast to these types, or raise DataError."""
    there = set(read_header(path, maker).names)
    if missing := [name for name in kinds if name not in there]:
        raise not_made_by(path, maker, f"the table has no column {', '.join(missing)}")
    try:
        # Unlike pq.read_table, ParquetFile adds no columns from the path, and does not import pandas.
        with pq.ParquetFile(path) as file:
            table = file.read(columns=list(kinds))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"{path} is damaged ({arrow_words(error)}). Make the file again with `grace-store {maker}`."
        ) from None
    columns = []
    for name, kind in kinds.items():
        try:
            columns.append(table[name].cast(kind))
            columns[-1].validate(full=True)
        except (pa.ArrowException, KeyError) as error:  # KeyError: two columns have this name
            raise not_made_by(path, maker, f"column {name} cannot be read ({arrow_words(error)})") from None
    return pa.table(columns, schema=pa.schema(list(kinds.items()), metadata=table.schema.metadata))


def arrow_words(error: Exception) -> str:
    """Return the message of an Arrow error, for a sentence."""
    return " ".join(str(error).split()).removesuffix(".")


def not_made_by(path: Path, maker: str, why: str) -> DataError:
    """Return the error for a file that is not what a command writes."""
    return DataError(f"{path} is not a table that `grace-store {maker}` made: {why}.")
