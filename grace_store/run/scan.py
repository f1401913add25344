"""From records to the samples of a plan: understood block by block, here or in several processes; gathered; told apart.

The order of the records stays, unless the traces of a question are brought together.
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

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import BoolArray, IntArray
from grace_store.base.errors import GraceStoreError, SettingError
from grace_store.base.settings import DataSpec, default_threads
from grace_store.base.states import SetAside, Unusable
from grace_store.base.text import one_line
from grace_store.base.watch import die_with_parent
from grace_store.data.hygiene import text_flags
from grace_store.data.images import is_missing
from grace_store.data.parse_records import parse_record
from grace_store.data.record import Record, value_of
from grace_store.data.sample import Sample
from grace_store.data.sample_digests import QUESTION_BYTES, field_digest, prompt_digest
from grace_store.store.layout import PlannedSample

RECORDS_PER_BLOCK = 4096
BYTES_PER_BLOCK = 2**23
"""A block of records ends when it holds this number of records, or of bytes."""
BYTES_PER_PROCESS = 2**25
"""How much data is worth another process: each takes about a second to start."""


Understood = tuple[PlannedSample, int, bytes]
"""A record that is a sample: how many of its images are missing, and what traces of one question share, if they are
gathered; nothing if the record has no value in the field asked."""
RecordOutcome = Understood | SetAside


@dataclass(frozen=True, slots=True)
class Understanding:
    """How the records of a dataset become samples. Sent to other processes, so it holds nothing large."""

    names: tuple[str, ...]
    """Of the dataset's files, as ids have them."""
    spec: DataSpec
    images: str | None = None
    """The folder in which the records' images are looked for, if at all."""

    def __call__(self, records: Sequence[Record]) -> list[RecordOutcome]:
        return [self._outcome(record) for record in records]

    def _outcome(self, record: Record) -> RecordOutcome:
        try:
            return self.planned(record, self.sample(record))
        except Unusable as why:
            return why.why

    def sample(self, record: Record) -> Sample:
        """Return the sample that a record is, or raise Unusable."""
        return parse_record(record, self.spec, self.names[record.file], record.row_in_file)

    def planned(self, record: Record, sample: Sample) -> Understood:
        """Return what a plan holds of a sample."""
        images = [] if self.images is None else sample.images
        num_missing = sum(is_missing(ref, Path(self.images or "")) for ref in images)
        place = record.row, record.file, record.offset, record.length
        known = sample.sample_id, *place, record.digest, sample.num_steps
        return PlannedSample(*known, text_flags(sample)), num_missing, self._group(record, sample)

    def _group(self, record: Record, sample: Sample) -> bytes:
        if not self.spec.gather:
            return b""
        if self.spec.group_by is None:
            return prompt_digest(sample)[:QUESTION_BYTES]
        value = value_of(record.parse(), self.spec.group_by)
        return b"" if value is None else field_digest(value, record.row)


def understood(
    records: Iterable[Record], understanding: Understanding, num_processes: int
) -> Iterator[tuple[list[Record], list[RecordOutcome]]]:
    """Yield blocks of records with what becomes of each, in the order of the records; a few blocks are under way."""
    blocks = _blocks(records)
    if num_processes == 1:
        for block in blocks:
            yield block, understanding(block)
        return
    # Not forked: a library's threads would be copied in whatever state they are in.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, context, _begin_process, (os.getpid(),)) as pool:
        try:
            yield from _in_order(pool, blocks, understanding, num_processes)
        except BrokenProcessPool:
            raise GraceStoreError(
                "A process that read records was killed; memory may have run out. Plan again, with fewer --workers."
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
    """Return how many processes pay off on this machine for data of this size."""
    return max(1, min(default_threads(), num_bytes // BYTES_PER_PROCESS))


def _begin_process(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent, which gets it too, ends this process
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


# ---------------------------------------------------------------- the traces of a question together


_NUMBERS = struct.Struct("<qiqq16siH")
"""All of a sample but its id, in the order of PlannedSample."""


@contextmanager
def planned_order(spec: DataSpec, write: Callable[[PlannedSample], None] | None) -> Iterator[SampleOrder]:
    """Yield what takes samples as the dataset orders them; when it ends, all of them were written as the plan does."""
    if not spec.gather:
        yield SampleOrder(write)
        return
    with tempfile.TemporaryFile(prefix="grace-store-plan-") as stream:
        order = SampleOrder(write, stream.fileno())
        yield order
        order.check(spec)
        places = order.find_order()
        if write is not None:
            for place in places:  # not as a list, whose numbers would take more memory than all else here
                write(order.sample(int(place)))


class SampleOrder:
    """Samples that are written as they come, or wait in a file, each with what it shares with others of its question.

    Of each sample that waits 16 bytes stay in memory, and about 40 while the order is found.
    """

    def __init__(self, write: Callable[[PlannedSample], None] | None, file: int | None = None) -> None:
        self._write = write
        self._file = file
        self._group = array("Q")
        self._end = array("q", [0])
        self._block = bytearray()
        self._has_groups = False
        self.num_questions: int | None = None
        """Those that were gathered, once all samples are written; None if none were."""

    def add(self, sample: PlannedSample, group: bytes) -> None:
        """Add a sample and what it shares with others of its question; nothing if it is alone."""
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
        assert self._file is not None
        packed = os.pread(self._file, stop - start, start)
        return PlannedSample(packed[_NUMBERS.size :].decode(), *_NUMBERS.unpack_from(packed))

    def _flush(self) -> None:
        assert self._file is not None
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


# ---------------------------------------------------------------- which ids were seen before


_DIGEST_BYTES = 16
_NUM_PARTS = 64
"""Parts by the first byte of a digest: only one of them at a time exists twice, while it grows."""

Digests = npt.NDArray[np.bytes_]


class SeenIds:
    """Remembers ids by their 128-bit digests, in sorted arrays: exact for any number of ids, at 16 bytes each."""

    def __init__(self) -> None:
        self._parts = [_Part() for _ in range(_NUM_PARTS)]
        first_bytes = np.arange(1, _NUM_PARTS, dtype=np.uint8) * (256 // _NUM_PARTS)
        self._bounds = _as_digests(b"".join(bytes([byte]).ljust(_DIGEST_BYTES, b"\0") for byte in first_bytes.tolist()))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def num_bytes(self) -> int:
        """Memory that the digests take."""
        return sum(part.num_bytes for part in self._parts)

    def add(self, ids: Sequence[str]) -> BoolArray:
        """Remember ids; return for each whether it came before, in this call or an earlier one."""
        digests = _as_digests(b"".join(map(_digest, ids)))
        unique, first = np.unique(digests, return_index=True)
        cuts = [0, *np.searchsorted(unique, self._bounds).tolist(), len(unique)]
        is_new = np.zeros(len(ids), dtype=np.bool_)
        for part, start, stop in zip(self._parts, cuts, cuts[1:], strict=False):
            if start < stop:
                is_new[first[start:stop][part.add(unique[start:stop])]] = True
        return ~is_new


class _Part:
    """A large sorted array and a small one, which is merged into it now and then."""

    def __init__(self) -> None:
        self._merged = self._pending = _as_digests(b"")

    def __len__(self) -> int:
        return len(self._merged) + len(self._pending)

    @property
    def num_bytes(self) -> int:
        return self._merged.nbytes + self._pending.nbytes

    def add(self, digests: Digests) -> BoolArray:
        """Add sorted digests, no two alike; return which of them were not there."""
        is_new: BoolArray = ~(_are_in(digests, self._merged) | _are_in(digests, self._pending))
        self._pending = _merge(self._pending, digests[is_new])
        # Where growing the small array and growing the large one cost the same.
        if len(self._pending) ** 2 > len(self._merged) * len(digests):
            self._merged, self._pending = _merge(self._merged, self._pending), _as_digests(b"")
        return is_new


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _as_digests(raw: bytes) -> Digests:
    # Fixed-length byte strings compare byte by byte, and two of the same length are equal only if all bytes are.
    return np.frombuffer(raw, dtype=f"S{_DIGEST_BYTES}")


def _are_in(digests: Digests, known: Digests) -> BoolArray:
    if not len(known):
        return np.zeros(len(digests), dtype=np.bool_)
    return np.asarray(known[np.searchsorted(known, digests).clip(max=len(known) - 1)] == digests, dtype=np.bool_)


def _merge(known: Digests, more: Digests) -> Digests:
    return np.insert(known, np.searchsorted(known, more), more)
