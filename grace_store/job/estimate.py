"""What a run will take: bytes from the plan, seconds from a trial on the user's own samples."""

from __future__ import annotations

import time

import numpy as np

from grace_store.events import Rated
from grace_store.job.dataset import UnitLoader
from grace_store.job.extractor import Extractor
from grace_store.store import SignalView

TRIAL_SAMPLES = 8


def expected_bytes(view: SignalView, num_samples: int) -> int:
    """Return about how many bytes so many samples will take, before the compressor."""
    plan = view.store.plan
    per_unit = sum(
        int(np.prod(array.chunks)) * np.dtype(array.dtype).itemsize for array in view.arrays if array.is_per_unit
    )
    if view.per_sample:
        filled, room = plan.num_samples, plan.num_units * plan.samples_per_unit
    else:
        filled = int(view.store.column("sample_num_steps").sum(dtype=np.int64)) + plan.num_samples
        room = plan.num_units * plan.rows_per_unit
    return int(per_unit * plan.num_units * (filled / room) * (num_samples / plan.num_samples))


def trial_rate(view: SignalView, loader: UnitLoader, extractor: Extractor, unit: int) -> Rated:
    """Time the first few samples of a unit."""
    start = unit * view.store.plan.samples_per_unit
    samples = loader.read(start, min(start + TRIAL_SAMPLES, view.store.plan.num_samples))
    began = time.perf_counter()
    signals = extractor.compute(extractor.prepare(samples)).result()
    seconds = max(time.perf_counter() - began, 1e-9)
    return Rated(samples_per_second=len(samples) / seconds, tokens_per_second=signals.num_tokens / seconds)
