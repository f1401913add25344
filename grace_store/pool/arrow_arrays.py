"""Numbers and texts as Arrow arrays, and back.

pyarrow's own conversions import pandas, if it is installed, which takes a quarter of a second of every command.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from grace_store.base.arrays import Array, BoolArray, Numbers, offsets_of
from grace_store.base.errors import DataError
from grace_store.base.states import flag_names


def arrow_numbers(values: Array, kind: pa.DataType, is_null: BoolArray | None = None) -> pa.Array:
    """Return an array of numbers, null where is_null; NaN stays NaN. Raise DataError if a number does not fit."""
    plain = _fitting(values, np.dtype(kind.to_pandas_dtype()))
    there = None if is_null is None or not is_null.any() else _bits(~is_null)
    return pa.Array.from_buffers(kind, len(plain), [there, pa.py_buffer(plain)])


def arrow_floats(values: Array, kind: pa.DataType) -> pa.Array:
    """Return an array of numbers with null for NaN, because databases sort NaN above all numbers."""
    return arrow_numbers(values, kind, np.isnan(values))


def arrow_lists(offsets: Numbers, values: pa.Array, is_null: BoolArray | None = None) -> pa.Array:
    """Return an array of lists; list i is values[offsets[i]:offsets[i + 1]], or null where is_null."""
    mask = None if is_null is None else arrow_flags(is_null)
    return pa.ListArray.from_arrays(arrow_numbers(offsets, pa.int32()), values, mask=mask)


def arrow_flags(flags: BoolArray) -> pa.Array:
    """Return an array of booleans."""
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, _bits(flags)])


def arrow_texts(texts: Sequence[str]) -> pa.Array:
    """Return an array of texts without nulls."""
    whole = "".join(texts).encode()
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    if lengths.sum() != len(whole):  # some letters take more than one byte
        lengths = np.fromiter((len(text.encode()) for text in texts), np.int64, len(texts))
    offsets = _fitting(offsets_of(lengths), np.dtype(np.int32))
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(whole))


def flag_lists(flags: Array) -> pa.Array:
    """Return lists with the names of flags, from bits of Flag."""
    if not flags.any():
        return arrow_lists(np.zeros(len(flags) + 1, dtype=np.int32), arrow_texts([]))
    found, place = np.unique(flags, return_inverse=True)
    names = [flag_names(each) for each in found.tolist()]
    offsets = offsets_of(np.array([len(each) for each in names], dtype=np.int64))
    return arrow_lists(offsets, arrow_texts(list(chain.from_iterable(names)))).take(arrow_numbers(place, pa.int64()))


def _fitting(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return contiguous values of this dtype; raise DataError for integers that would wrap around."""
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
    """Return a column of numbers as a NumPy array, NaN for null."""
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
