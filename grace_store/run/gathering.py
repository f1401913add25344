"""Bring the traces of a question together while planning: samples wait in a file until all questions are known.

Of each sample 16 bytes stay in memory, and about 40 while the order is found.
"""

from __future__ import annotations

import os
import struct
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import IntArray
from grace_store.base.errors import SettingError
from grace_store.base.settings import DataSpec
from grace_store.base.text import one_line
from grace_store.data.sample_digests import field_digest
from grace_store.store.plan_writer import PlannedSample, PlanWriter

_NUMBERS = struct.Struct("<qiqq16siH")
"""All of a sample but its id, in the order of PlannedSample."""


class PlannedOrder(Protocol):
    """Takes samples in the order of the dataset and gives them to a writer in that of the plan."""

    num_questions: int | None
    """Those that were gathered, once all samples are written; None if none were."""

    def add(self, sample: PlannedSample, group: bytes) -> None: ...


@contextmanager
def planned_order(spec: DataSpec, writer: PlanWriter | None) -> Iterator[PlannedOrder]:
    """Yield what orders samples; when it ends, the writer, if there is one, has all of them."""
    if not spec.gather:
        yield _AsTheyCome(writer)
        return
    with tempfile.TemporaryFile(prefix="grace-store-plan-") as stream:
        waiting = _WaitingSamples(stream.fileno())
        yield waiting
        waiting.check(spec)
        order = waiting.find_order()
        if writer is not None:
            for place in order:  # not as a list, whose numbers would take more memory than all else here
                writer.add(waiting.sample(int(place)))


@dataclass(slots=True)
class _AsTheyCome:
    """Samples stay where they are."""

    writer: PlanWriter | None
    num_questions: int | None = None

    def add(self, sample: PlannedSample, group: bytes) -> None:
        if self.writer is not None:
            self.writer.add(sample)


class _WaitingSamples:
    """Samples in a file, each with what it shares with others of its question."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._group = array("Q")
        self._end = array("q", [0])
        self._block = bytearray()
        self._has_groups = False
        self.num_questions: int | None = None

    def add(self, sample: PlannedSample, group: bytes) -> None:
        """Add a sample and what it shares with others of its question; nothing if it is alone."""
        self._has_groups |= bool(group)
        self._group.append(int.from_bytes(group or field_digest(None, sample.row)))
        sample_id, *numbers = sample
        packed = _NUMBERS.pack(*numbers) + sample_id.encode()
        self._end.append(self._end[-1] + len(packed))
        self._block += packed
        if len(self._block) >= 1 << 20:
            self._flush()

    def check(self, spec: DataSpec) -> None:
        """Raise SettingError if no record has the field that says which question it belongs to."""
        if self._group and not self._has_groups:
            raise SettingError(
                f"No record that can be used has a field {one_line(spec.group_by)!r}, which --group-by names. Leave it "
                "out to go by prompts and images."
            )

    def find_order(self) -> IntArray:
        """Return the order in which the samples of a question come after its first one, and count the questions."""
        self._flush()
        group = np.frombuffer(self._group, dtype=np.uint64)
        order = gathered_order(group)
        self.num_questions = int(np.count_nonzero(group[order[1:]] != group[order[:-1]])) + bool(len(order))
        return order

    def sample(self, place: int) -> PlannedSample:
        """Return a sample by its place among all."""
        start, stop = self._end[place : place + 2]
        packed = os.pread(self._file, stop - start, start)
        return PlannedSample(packed[_NUMBERS.size :].decode(), *_NUMBERS.unpack_from(packed))

    def _flush(self) -> None:
        view = memoryview(self._block)
        while view:
            view = view[os.write(self._file, view) :]
        self._block = bytearray()


def gathered_order(group: npt.NDArray[np.uint64]) -> IntArray:
    """Return an order in which what is of one group comes after its first, else as it was.

    >>> gathered_order(np.array([9, 4, 9, 1, 4], dtype=np.uint64))
    array([0, 2, 1, 4, 3])
    """
    by_group = np.argsort(group, kind="stable")
    opens = np.ones(len(group), dtype=np.bool_)
    np.not_equal(group[by_group[1:]], group[by_group[:-1]], out=opens[1:])
    first = np.empty(len(group), dtype=np.int64)
    first[by_group] = np.repeat(by_group[opens], np.diff(np.flatnonzero(np.append(opens, True))))
    return np.argsort(first, kind="stable")
