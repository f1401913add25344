"""Results as JSON has them: it knows no NaN and no infinity, and most readers refuse a document that holds one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def without_nan(value: Any) -> Any:
    """Return a document with null where a number is none.

    >>> without_nan({"low": float("nan"), "all": (1.5, float("inf"))})
    {'low': None, 'all': [1.5, None]}
    """
    if isinstance(value, Mapping):
        return {key: without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
