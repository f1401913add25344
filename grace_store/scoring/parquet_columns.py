"""Columns of Parquet files that commands wrote; a file may come from another program."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace_store.base.arrays import Array, BoolArray, Numbers
from grace_store.base.errors import DataError
from grace_store.values.gram import offsets_of


def read_header(path: Path, maker: str) -> pa.Schema:
    """Return the schema of a file, with its metadata, or raise DataError; maker is the command that writes such."""
    try:
        return pq.read_schema(path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; `grace-store {maker}` makes it.") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} is not a Parquet file ({arrow_words(error)}).") from None


def read_columns(path: Path, kinds: Mapping[str, pa.DataType], maker: str) -> pa.Table:
    """Return columns of a file with these types, or raise DataError."""
    there = set(read_header(path, maker).names)
    if missing := [name for name in kinds if name not in there]:
        raise not_made_by(path, maker, f"it has no column {', '.join(missing)}")
    try:
        # Unlike pq.read_table, this takes a file as it is: no columns from its path, and no import of pandas.
        with pq.ParquetFile(path) as file:
            table = file.read(columns=list(kinds))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"{path} is damaged ({arrow_words(error)}). Make it again with `grace-store {maker}`."
        ) from None
    columns = []
    for name, kind in kinds.items():
        try:
            columns.append(table[name].cast(kind))
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


# ---------------------------------------------------------------- numbers and texts as Arrow arrays and back
# pyarrow's own ways to and from Python ask pandas, where it is installed, whether the data is its: importing it for
# that takes half a second of every command.


def arrow_numbers(values: Array, kind: pa.DataType, is_null: BoolArray | None = None) -> pa.Array:
    """Return a number for each value, null where it says so; NaN stays NaN. Raise DataError if one does not fit."""
    plain = _fitting(values, np.dtype(kind.to_pandas_dtype()))
    there = None if is_null is None or not is_null.any() else _bits(~is_null)
    return pa.Array.from_buffers(kind, len(plain), [there, pa.py_buffer(plain)])


def arrow_floats(values: Array, kind: pa.DataType) -> pa.Array:
    """Return a number for each value, null where it is NaN, which databases sort above all numbers."""
    return arrow_numbers(values, kind, np.isnan(values))


def arrow_lists(offsets: Numbers, values: pa.Array, is_null: BoolArray | None = None) -> pa.Array:
    """Return lists that lie flat in values, list i from offsets[i] to offsets[i + 1], null where it says so."""
    mask = None if is_null is None else arrow_flags(is_null)
    return pa.ListArray.from_arrays(arrow_numbers(offsets, pa.int32()), values, mask=mask)


def arrow_flags(flags: BoolArray) -> pa.Array:
    """Return true or false for each flag."""
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, _bits(flags)])


def arrow_texts(texts: Sequence[str]) -> pa.Array:
    """Return texts, all of them there."""
    whole = "".join(texts).encode()
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    if lengths.sum() != len(whole):  # some letters take more than one byte
        lengths = np.fromiter((len(text.encode()) for text in texts), np.int64, len(texts))
    offsets = _fitting(offsets_of(lengths), np.dtype(np.int32))
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(whole))


def _fitting(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values, side by side, as a type of numbers; whole ones that are too large for it would wrap silently."""
    is_whole = dtype.kind in "iu" and values.dtype.kind in "iu"
    if is_whole and values.size and not np.can_cast(values.dtype, dtype):
        limits, low, high = np.iinfo(dtype), values.min(), values.max()
        if low < limits.min or high > limits.max:
            raise DataError(
                f"A column has numbers or offsets from {low} to {high}, and those of {dtype} go from {limits.min} to "
                f"{limits.max}. Divide the data, and make a table of each part."
            )
    return np.ascontiguousarray(values, dtype=dtype)


def _bits(flags: BoolArray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def numpy_numbers(column: pa.ChunkedArray) -> Array:
    """Return a column of numbers, NaN where it is null."""
    dtype = np.dtype(column.type.to_pandas_dtype())
    parts = [np.zeros(0, dtype)]
    for chunk in column.chunks:
        bits, plain = chunk.buffers()
        stop = chunk.offset + len(chunk)
        part = np.frombuffer(plain, dtype, stop)[chunk.offset :] if len(chunk) else parts[0]
        if chunk.null_count:
            there = np.unpackbits(np.frombuffer(bits, np.uint8), count=stop, bitorder="little")[chunk.offset :]
            part = np.where(there, part, np.nan)
        parts.append(part)
    return np.concatenate(parts)
