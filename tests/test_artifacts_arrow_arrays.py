"""Arrow arrays from buffers: the same as pyarrow makes them, and pandas is left alone."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from grace_store.artifacts.arrow_arrays import arrow_floats, arrow_numbers, arrow_texts, numpy_floats


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
    np.testing.assert_array_equal(numpy_floats(column), wanted)
    np.testing.assert_array_equal(numpy_floats(pa.chunked_array([made], pa.float64())), given)


@pytest.mark.parametrize("texts", [["a", "", "bc"], ["é", "日本", "x"], []])
def test_texts_may_have_letters_of_several_bytes(texts):
    made = arrow_texts(texts)
    made.validate(full=True)
    assert made.to_pylist() == texts


def test_pandas_is_not_imported_for_it():
    pytest.importorskip("pandas")
    code = (
        "import sys, numpy as np, pyarrow as pa; from grace_store.artifacts.arrow_arrays import *; "
        "numpy_floats(pa.chunked_array([arrow_floats(np.ones(2), pa.float64())])); arrow_texts(['a']); "
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
