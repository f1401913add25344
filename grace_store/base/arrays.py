"""Names for the arrays that signatures speak of, each written once."""

from typing import Any, NewType

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
BitArray = npt.NDArray[np.uint64]
"""64 yes or no to a number."""
BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]
FlagArray = npt.NDArray[np.uint8]
"""The flags that scoring finds: the lowest eight bits of ``base.states.Flag``."""
Float32Array = npt.NDArray[np.float32]
FloatArray = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
IntArray = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.number[Any]]

Rows = NewType("Rows", IntArray)
"""Where records stand in the dataset."""
Positions = NewType("Positions", IntArray)
"""Where samples stand in the plan of a store."""
Places = NewType("Places", IntArray)
"""Where samples stand among those of a table, a block or another array."""
