"""Numbers and texts as Arrow arrays and back, by their buffers.

pyarrow's own ways to and from Python ask pandas, where it is installed, whether the data is its: importing it for that
takes half a second of every command.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from grace_store.base.arrays import Array, FloatArray
from grace_store.values.gram import offsets_of


def arrow_numbers(values: Array, kind: pa.DataType) -> pa.Array:
    """Return a number for each value, all of them there; NaN stays NaN."""
    plain = np.ascontiguousarray(values, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(plain), [None, pa.py_buffer(plain)])


def arrow_floats(values: Array, kind: pa.DataType) -> pa.Array:
    """Return a number for each value, null where it is NaN, which databases sort above all numbers."""
    is_there = ~np.isnan(values)
    if is_there.all():
        return arrow_numbers(values, kind)
    plain = np.ascontiguousarray(values, dtype=kind.to_pandas_dtype())
    bits = np.packbits(is_there, bitorder="little")
    return pa.Array.from_buffers(kind, len(plain), [pa.py_buffer(bits), pa.py_buffer(plain)])


def arrow_texts(texts: Sequence[str]) -> pa.Array:
    """Return texts, all of them there."""
    whole = "".join(texts).encode()
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    if lengths.sum() != len(whole):  # some letters take more than one byte
        lengths = np.fromiter((len(text.encode()) for text in texts), np.int64, len(texts))
    offsets = offsets_of(lengths).astype(np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(whole))


def numpy_floats(column: pa.ChunkedArray) -> FloatArray:
    """Return a column of float64, NaN where it is null."""
    parts = [np.zeros(0)]
    for chunk in column.chunks:
        bits, plain = chunk.buffers()
        stop = chunk.offset + len(chunk)
        part = np.frombuffer(plain, np.float64, stop)[chunk.offset :] if len(chunk) else parts[0]
        if chunk.null_count:
            there = np.unpackbits(np.frombuffer(bits, np.uint8), count=stop, bitorder="little")[chunk.offset :]
            part = np.where(there, part, np.nan)
        parts.append(part)
    return np.concatenate(parts) if len(parts) != 2 else parts[1]
