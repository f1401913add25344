"""Columns of Parquet files that commands wrote; a file may come from an older release, or from another program."""

from collections.abc import Collection, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from grace_store.base.errors import DataError


def read_header(path: Path, maker: str) -> pa.Schema:
    """Return the schema of a file, with its metadata, or raise DataError; maker is the command that writes such."""
    try:
        return pq.read_schema(path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; `grace-store {maker}` makes it.") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} is not a Parquet file ({arrow_words(error)}).") from None


def read_columns(path: Path, kinds: Mapping[str, pa.DataType], needed: Collection[str], maker: str) -> pa.Table:
    """Return columns of a file with these types, or raise DataError; one that an older file lacks has nulls."""
    there = set(read_header(path, maker).names)
    if missing := [name for name in kinds if name in needed and name not in there]:
        raise not_made_by(path, maker, f"it has no column {', '.join(missing)}")
    try:
        # Unlike pq.read_table, this takes a file as it is: no columns from its path, and no import of pandas.
        with pq.ParquetFile(path) as file:
            table = file.read(columns=[name for name in kinds if name in there])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"{path} is damaged ({arrow_words(error)}). Make it again with `grace-store {maker}`."
        ) from None
    columns = []
    for name, kind in kinds.items():
        try:
            columns.append(table[name].cast(kind) if name in there else pa.nulls(len(table), kind))
            columns[-1].validate(full=True)
        except (pa.ArrowException, KeyError) as error:  # KeyError: there are two of the name
            raise not_made_by(path, maker, f"column {name} cannot be read ({arrow_words(error)})") from None
    return pa.table(columns, schema=pa.schema(list(kinds.items()), metadata=table.schema.metadata))


def arrow_words(error: Exception) -> str:
    """Return what Arrow says of a file, for a sentence."""
    return " ".join(str(error).split()).removesuffix(".")


def not_made_by(path: Path, maker: str, why: str) -> DataError:
    """Return the error for a file that is not what a command writes."""
    return DataError(f"{path} is not a table that `grace-store {maker}` made: {why}.")
