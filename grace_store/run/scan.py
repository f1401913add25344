"""Turn records into the samples of a plan, block by block, in this process or in several.

Samples stay in the order of the records, unless the traces of each question are gathered. Repeated ids are found.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import struct
import tempfile
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import BoolArray, IntArray
from grace_store.base.errors import GraceStoreError, SettingError, StorageError
from grace_store.base.settings import DataSpec, default_threads
from grace_store.base.states import SetAside, Unusable
from grace_store.base.text import one_line
from grace_store.base.watch import die_with_parent
from grace_store.data.hygiene import text_flags
from grace_store.data.images import is_missing
from grace_store.data.parse_records import chosen_format, parse_record
from grace_store.data.record import Record, value_of
from grace_store.data.sample import Sample
from grace_store.data.sample_digests import QUESTION_BYTES, field_digest, prompt_digest
from grace_store.store.layout import PlannedSample

RECORDS_PER_BLOCK = 4096
BYTES_PER_BLOCK = 2**23
"""Limits of a block of records: the number of records, and of bytes."""
BYTES_PER_PROCESS = 2**25
"""Bytes of data for which another process is worthwhile: a process takes about a second to start."""

Understood = tuple[PlannedSample, int, bytes, str | None]
"""A sample, the number of its missing images, its group, and the options that read its record's other responses. The
group is a digest that the traces of one question share. It is empty if samples are not gathered, or if the record has
no value in the field group_by."""
RecordOutcome = Understood | SetAside


@dataclass(frozen=True, slots=True)
class Understanding:
    """The settings by which records become samples. Other processes get a copy, so it holds nothing large."""

    names: tuple[str, ...]
    """Names of the dataset's files, as used in sample ids."""
    spec: DataSpec
    images: str | None = None
    """Folder to look for the records' images in; None to skip this."""

    def __call__(self, records: Sequence[Record]) -> list[RecordOutcome]:
        outcomes: list[RecordOutcome] = []
        for record in records:
            try:
                outcomes.append(self.planned(record, self.sample(record, fields := record.parse()), fields))
            except Unusable as why:
                outcomes.append(why.why)
        return outcomes

    def sample(self, record: Record, fields: dict[str, Any] | None = None) -> Sample:
        """Parse a record, or its known fields, into a sample, or raise Unusable."""
        return parse_record(record, self.spec, self.names[record.file], record.row_in_file, fields)

    def planned(self, record: Record, sample: Sample, fields: dict[str, Any]) -> Understood:
        """Return a sample's entry in the plan, its missing images, its group, and how to read the other responses."""
        images = [] if self.images is None else sample.images
        num_missing = sum(is_missing(ref, Path(self.images or "")) for ref in images)
        group, question = b"", prompt_digest(sample)
        if self.spec.gather and self.spec.group_by is None:
            group = question[:QUESTION_BYTES]
        elif self.spec.gather and (value := value_of(fields, str(self.spec.group_by))) is not None:
            group = field_digest(value, record.row)
        place = record.row, record.file, record.offset, record.length
        known = sample.sample_id, *place, record.digest, sample.num_steps, text_flags(sample)
        num_bytes = len(sample.response.encode())
        find_others = chosen_format(self.spec).others
        others = None if find_others is None else find_others(fields)
        return PlannedSample(*known, question, len(sample.response), num_bytes), num_missing, group, others


def understood(
    records: Iterable[Record], understanding: Understanding, num_processes: int
) -> Iterator[tuple[list[Record], list[RecordOutcome]]]:
    """Yield blocks of records with their outcomes, in order; several processes work a few blocks ahead."""
    blocks = _blocks(records)
    if num_processes == 1:
        for block in blocks:
            yield block, understanding(block)
        return
    # Spawn, not fork: a fork would copy the locks of libraries' threads in any state.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, context, _begin_process, (os.getpid(),)) as pool:
        try:
            yield from _in_order(pool, blocks, understanding, num_processes)
        except BrokenProcessPool:
            raise GraceStoreError(
                "A process that read records was killed. It may have run out of memory. Plan again with fewer "
                "--workers."
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _in_order(
    pool: ProcessPoolExecutor, blocks: Iterable[list[Record]], understanding: Understanding, num_processes: int
) -> Iterator[tuple[list[Record], list[RecordOutcome]]]:
    pending: deque[tuple[list[Record], Future[list[RecordOutcome]]]] = deque()
    for block in blocks:
        pending.append((block, pool.submit(understanding, block)))
        if len(pending) > 2 * num_processes:
            oldest, future = pending.popleft()
            yield oldest, future.result()
    for oldest, future in pending:
        yield oldest, future.result()


def processes_for(num_bytes: int) -> int:
    """Return the number of processes to read data of this size with on this machine."""
    return max(1, min(default_threads(), num_bytes // BYTES_PER_PROCESS))


def _begin_process(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets the signal, too, and ends this process
    die_with_parent(parent)


def _blocks(records: Iterable[Record]) -> Iterator[list[Record]]:
    block: list[Record] = []
    num_bytes = 0
    for record in records:
        block.append(record)
        num_bytes += len(record.raw)
        if len(block) == RECORDS_PER_BLOCK or num_bytes >= BYTES_PER_BLOCK:
            yield block
            block, num_bytes = [], 0
    if block:
        yield block


_NUMBERS = struct.Struct("<qiqq16siH16sii")
"""Binary form of the fields of PlannedSample, in their order, without the id."""


@contextmanager
def planned_order(spec: DataSpec, write: Callable[[PlannedSample], None] | None) -> Iterator[SampleOrder]:
    """Yield a SampleOrder to add samples to in dataset order; write all samples in plan order by the end."""
    if not spec.gather:
        yield SampleOrder(write)
        return
    with tempfile.TemporaryFile(prefix="grace-store-plan-") as stream:
        order = SampleOrder(write, stream.fileno())
        yield order
        places = order.find_order(spec)
        if write is not None:
            for place in places:  # not places.tolist(), which would take more memory than everything else here
                write(order.sample(int(place)))


class SampleOrder:
    """Samples that are written at once, or wait in a file with their groups until the order is known.

    A waiting sample takes 16 bytes of memory, and about 40 bytes while the order is computed.
    """

    def __init__(self, write: Callable[[PlannedSample], None] | None, file: int | None = None) -> None:
        self._write = write
        self._file = file
        self._group = array("Q")
        self._end = array("q", [0])
        self._block = bytearray()
        self._has_groups = False
        self.num_questions: int | None = None
        """Number of questions whose traces were gathered, known at the end; None without --gather."""

    def add(self, sample: PlannedSample, group: bytes) -> None:
        """Add a sample with its group; a sample with an empty group is the only one of its question."""
        if self._file is None:
            if self._write is not None:
                self._write(sample)
            return
        self._has_groups |= bool(group)
        self._group.append(int.from_bytes(group or field_digest(None, sample.row)))
        sample_id, *numbers = sample
        packed = _NUMBERS.pack(*numbers) + sample_id.encode()
        self._end.append(self._end[-1] + len(packed))
        self._block += packed
        if len(self._block) >= 1 << 20:
            self._flush()

    def find_order(self, spec: DataSpec) -> IntArray:
        """Return the order that puts the samples of a question after its first sample, and count the questions.

        Raise SettingError if no record has the field group_by.
        """
        if self._group and not self._has_groups:
            raise SettingError(
                f"No usable record has the field {one_line(spec.group_by)!r} of --group-by. Give another field, or "
                "leave --group-by out to gather by prompts and images."
            )
        self._flush()
        group = np.frombuffer(self._group, dtype=np.uint64)
        order = gathered_order(group)
        self.num_questions = int(np.count_nonzero(group[order[1:]] != group[order[:-1]])) + bool(len(order))
        return order

    def sample(self, place: int) -> PlannedSample:
        """Read a waiting sample by its index."""
        start, stop = self._end[place : place + 2]
        assert self._file is not None
        packed = os.pread(self._file, stop - start, start)
        return PlannedSample(packed[_NUMBERS.size :].decode(), *_NUMBERS.unpack_from(packed))

    def _flush(self) -> None:
        assert self._file is not None
        view = memoryview(self._block)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            raise StorageError(
                f"The temporary folder {tempfile.gettempdir()} cannot be written to: {error.strerror}. Make room, or "
                "set TMPDIR to a folder with free space."
            ) from error
        self._block = bytearray()


def gathered_order(group: npt.NDArray[np.uint64]) -> IntArray:
    """Return a stable order in which the members of each group follow the group's first member.

    >>> gathered_order(np.array([9, 4, 9, 1, 4], dtype=np.uint64))
    array([0, 2, 1, 4, 3])
    """
    by_group = np.argsort(group, kind="stable")
    opens = np.ones(len(group), dtype=np.bool_)
    np.not_equal(group[by_group[1:]], group[by_group[:-1]], out=opens[1:])
    first = np.empty(len(group), dtype=np.int64)
    first[by_group] = np.repeat(by_group[opens], np.diff(np.flatnonzero(np.append(opens, True))))
    return np.argsort(first, kind="stable")


_DIGEST_BYTES = 16
_NUM_PARTS = 64
"""Digests are divided into parts by their first byte. A part is copied when it grows, one part at a time."""

Digests = npt.NDArray[np.bytes_]


class SeenIds:
    """A set of ids, held as sorted arrays of 128-bit digests: 16 bytes per id."""

    def __init__(self) -> None:
        self._parts = [_Part() for _ in range(_NUM_PARTS)]
        first_bytes = np.arange(1, _NUM_PARTS, dtype=np.uint8) * (256 // _NUM_PARTS)
        self._bounds = _as_digests(b"".join(bytes([byte]).ljust(_DIGEST_BYTES, b"\0") for byte in first_bytes.tolist()))

    def add(self, ids: Sequence[str]) -> BoolArray:
        """Add ids; return for each id whether it was added before, in this call or an earlier one."""
        raw = (hashlib.blake2b(each.encode(), digest_size=_DIGEST_BYTES).digest() for each in ids)
        unique, first = np.unique(_as_digests(b"".join(raw)), return_index=True)
        cuts = [0, *np.searchsorted(unique, self._bounds).tolist(), len(unique)]
        is_new = np.zeros(len(ids), dtype=np.bool_)
        for part, start, stop in zip(self._parts, cuts, cuts[1:], strict=False):
            if start < stop:
                is_new[first[start:stop][part.add(unique[start:stop])]] = True
        return ~is_new


class _Part:
    """A large sorted array, and a small one that is merged into the large one from time to time."""

    def __init__(self) -> None:
        self._merged = self._pending = _as_digests(b"")

    def add(self, digests: Digests) -> BoolArray:
        """Add sorted, distinct digests; return for each digest whether it is new."""
        is_new: BoolArray = ~(_are_in(digests, self._merged) | _are_in(digests, self._pending))
        self._pending = _merge(self._pending, digests[is_new])
        # At this size, growing the small array costs as much as growing the large one.
        if len(self._pending) ** 2 > len(self._merged) * len(digests):
            self._merged, self._pending = _merge(self._merged, self._pending), _as_digests(b"")
        return is_new


def _as_digests(raw: bytes) -> Digests:
    # NumPy compares fixed-length byte strings byte by byte.
    return np.frombuffer(raw, dtype=f"S{_DIGEST_BYTES}")


def _are_in(digests: Digests, known: Digests) -> BoolArray:
    if not len(known):
        return np.zeros(len(digests), dtype=np.bool_)
    return np.asarray(known[np.searchsorted(known, digests).clip(max=len(known) - 1)] == digests, dtype=np.bool_)


def _merge(known: Digests, more: Digests) -> Digests:
    return np.insert(known, np.searchsorted(known, more), more)
