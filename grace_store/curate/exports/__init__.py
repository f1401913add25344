"""Subsets as files that trainers read: one module a format."""

from __future__ import annotations

from typing import Literal, get_args

SubsetFormat = Literal["source", "ms-swift", "llama-factory", "datasets", "steps", "ids"]
FORMATS: tuple[SubsetFormat, ...] = get_args(SubsetFormat)
