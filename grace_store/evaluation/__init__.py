"""Benchmark results of trained models, and how subsets compare with the full data. Knows no store and no model."""

from grace_store.evaluation.relative_average import Interval, RelativeAverage, relative_average
from grace_store.evaluation.results import Entry, Results, read_results

__all__ = ["Entry", "Interval", "RelativeAverage", "Results", "read_results", "relative_average"]
