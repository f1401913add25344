"""What a run will take: bytes from the plan, seconds from a trial on the user's own samples."""

from __future__ import annotations

import time

import numpy as np

from grace_store.base.events import Rated
from grace_store.read.records import UnitLoader
from grace_store.run.model_door import Extractor
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.opened import SignalView, Store

TRIAL_SAMPLES = 8
CHUNKS_LOOKED_AT = 8


def expected_bytes(view: SignalView, num_samples: int) -> int:
    """Return about how many bytes a number of samples will take, before the compressor."""
    if num_samples == 0:
        return 0
    plan = view.store.plan
    per_unit = sum(array.chunk_bytes for array in view.arrays if array.is_per_unit)
    if view.per_sample:
        return int(per_unit * num_samples / plan.samples_per_unit)
    return int(per_unit * num_samples * _mean_segments(view.store) / plan.rows_per_unit)


def _mean_segments(store: Store) -> float:
    """Return the segments of a sample on average, from a few chunks of the plan spread over all of it."""
    starts = range(0, store.plan.num_samples, SAMPLES_PER_CHUNK)
    stride = max(1, len(starts) // CHUNKS_LOOKED_AT)
    steps = [
        store.column("sample_num_steps", at, min(at + SAMPLES_PER_CHUNK, store.plan.num_samples))
        for at in starts[::stride]
    ]
    return float(np.concatenate(steps).mean()) + 1


def trial_rate(view: SignalView, loader: UnitLoader, extractor: Extractor, unit: int) -> Rated:
    """Time the first few samples of a unit."""
    start, _ = view.store.plan.unit_range(unit)
    samples = loader.read(start, min(start + TRIAL_SAMPLES, view.store.plan.num_samples))
    began = time.perf_counter()
    signals = extractor.compute(extractor.prepare(samples)).result()
    seconds = max(time.perf_counter() - began, 1e-9)
    return Rated(samples_per_second=len(samples) / seconds, tokens_per_second=signals.num_tokens / seconds)
