"""What a signal keeps of the segments of some samples, side by side: Grams, token counts, losses. No vectors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from grace_store.base.arrays import Array, BoolArray, FloatArray, IntArray
from grace_store.pool.blocks import BlockReader, SampleBlock
from grace_store.pool.parallel import Threads, map_ordered
from grace_store.store.opened import SignalView
from grace_store.store.storages import num_packed

STATISTICS = ("loss", "entropy", "hit_rate")


@dataclass(frozen=True, slots=True)
class SegmentColumns:
    """Of some done samples, in the order of the plan; segments lie flat, K + 1 to a sample, the answer last."""

    num_steps: IntArray
    gram: Array
    """Packed as in the store."""
    num_tokens: IntArray
    statistic: dict[str, FloatArray]
    """By the names in STATISTICS."""

    @classmethod
    def joined(cls, parts: "Sequence[SegmentColumns]") -> "SegmentColumns":
        """Return the samples of several parts one after the other."""
        return cls(
            np.concatenate([part.num_steps for part in parts]),
            np.concatenate([part.gram for part in parts]),
            np.concatenate([part.num_tokens for part in parts]),
            {name: np.concatenate([part.statistic[name] for part in parts]) for name in STATISTICS},
        )

    @property
    def is_step(self) -> BoolArray:
        """Whether a segment is a step, flat; the others are answers."""
        found = np.ones(int((self.num_steps + 1).sum()), dtype=np.bool_)
        found[np.cumsum(self.num_steps + 1) - 1] = False
        return found


def done_in_all(reader: BlockReader, threads: Threads = None) -> IntArray:
    """Return the positions of the samples that every one of a reader's signals has, ascending."""

    def shared(block: SampleBlock) -> IntArray:
        return reduce(np.intersect1d, [each.sample for each in block.signals])

    return np.concatenate([np.zeros(0, np.int64), *reader.map(shared, threads)])


def segment_columns(view: SignalView, positions: IntArray, threads: Threads = None) -> Iterator[SegmentColumns]:
    """Yield what a signal has of samples at some positions, ascending and all of them done, unit by unit."""
    units = np.unique(positions // view.store.plan.samples_per_unit).tolist()
    yield from map_ordered(lambda unit: _columns(view, unit, positions), units, threads)


def _columns(view: SignalView, unit: int, positions: IntArray) -> SegmentColumns:
    start, stop = view.store.plan.unit_range(unit)
    wanted = np.isin(np.arange(start, stop), positions)
    num_segments = view.store.column("sample_num_steps", start, stop).astype(np.int64) + 1
    rows, entries = np.repeat(wanted, num_segments), np.repeat(wanted, num_packed(num_segments))
    names = ["sample_gram", "segment_num_tokens", *(f"segment_{name}" for name in STATISTICS)]
    arrays = view.unit_arrays(unit, names)
    flat = {name: arrays[name][: len(rows)][rows] for name in names[1:]}
    return SegmentColumns(
        num_segments[wanted] - 1,
        arrays["sample_gram"][: len(entries)][entries],
        flat["segment_num_tokens"].astype(np.int64),
        {name: flat[f"segment_{name}"].astype(np.float64) for name in STATISTICS},
    )
