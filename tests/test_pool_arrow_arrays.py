"""Arrow arrays from buffers: the same as pyarrow makes them, and pandas is left alone."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from grace_store.base.errors import DataError
from grace_store.pool.arrow_arrays import (
    arrow_flags,
    arrow_floats,
    arrow_lists,
    arrow_numbers,
    arrow_texts,
    numpy_numbers,
)


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.float32(), pa.float64()])
def test_numbers_are_those_that_pyarrow_makes(kind):
    values = np.array([3, 1, 2, 7])[::2]
    assert arrow_numbers(values, kind).equals(pa.array(values.astype(kind.to_pandas_dtype())))


@pytest.mark.parametrize("values", [[0.5, np.nan, -np.inf, 2.0], [np.nan] * 9, [1.0], []])
def test_nan_becomes_null_and_null_nan(values):
    given = np.array(values)
    made = arrow_floats(given, pa.float64())
    made.validate(full=True)
    assert made.equals(pa.array(given, pa.float64(), from_pandas=True))
    column = pa.chunked_array([made, made.slice(1), made.slice(0, 2)], pa.float64())
    wanted = np.concatenate([given, given[1:], given[:2]])
    np.testing.assert_array_equal(numpy_numbers(column), wanted)
    np.testing.assert_array_equal(numpy_numbers(pa.chunked_array([made], pa.float64())), given)


@pytest.mark.parametrize("is_null", [[True, False, True], [False, False, False], [True, True, True]])
def test_numbers_and_lists_are_null_where_that_is_said(is_null):
    values, mask = np.array([1, 2, 3]), np.array(is_null)
    assert arrow_numbers(values, pa.int32(), mask).equals(pa.array(values, pa.int32(), mask=mask))
    lists = arrow_lists(np.array([0, 2, 2, 3]), arrow_numbers(values, pa.int64()), mask)
    lists.validate(full=True)
    assert lists.to_pylist() == [None if null else each for null, each in zip(is_null, [[1, 2], [], [3]], strict=True)]


@pytest.mark.parametrize("flags", [[True, False, True], [False] * 9, []])
def test_flags_are_those_that_pyarrow_makes(flags):
    assert arrow_flags(np.array(flags, dtype=np.bool_)).equals(pa.array(flags, pa.bool_()))


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_numbers_that_do_not_fit_are_refused_as_pyarrow_does(number):
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        pa.array(np.array([0, number]), pa.int32())
    with pytest.raises(DataError, match=rf"{number}.* go from -2147483648 to 2147483647\. Divide the data"):
        arrow_numbers(np.array([0, number]), pa.int32())
    assert arrow_numbers(np.array([2**31 - 1, -(2**31)]), pa.int32()).to_pylist() == [2**31 - 1, -(2**31)]


def test_lists_that_end_beyond_what_arrow_counts_are_refused():
    values = arrow_numbers(np.array([1.0]), pa.float64())
    with pytest.raises(DataError, match="offsets from 0 to 2147483653"):
        arrow_lists(np.array([0, 2**31 + 5]), values)


def test_whole_numbers_stay_whole():
    column = pa.chunked_array([arrow_numbers(np.array([3, 2**60 + 1]), pa.int64())])
    assert numpy_numbers(column).tolist() == [3, 2**60 + 1]


@pytest.mark.parametrize("texts", [["a", "", "bc"], ["é", "日本", "x"], []])
def test_texts_may_have_letters_of_several_bytes(texts):
    made = arrow_texts(texts)
    made.validate(full=True)
    assert made.to_pylist() == texts


def test_pandas_is_not_imported_for_it():
    pytest.importorskip("pandas")
    code = (
        "import sys, numpy as np, pyarrow as pa; from grace_store.pool.arrow_arrays import *; "
        "numpy_numbers(pa.chunked_array([arrow_floats(np.ones(2), pa.float64())])); arrow_texts(['a']); "
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
