"""Understand the records of a dataset block by block, here or in several processes; their order stays."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from grace_store.base.child_process import die_with_parent
from grace_store.base.errors import GraceStoreError
from grace_store.base.settings import DataSpec, default_threads
from grace_store.base.states import SetAside, Unusable
from grace_store.data.fields import value_of
from grace_store.data.hygiene import text_flags
from grace_store.data.images import is_missing
from grace_store.data.record import Record
from grace_store.data.sample import Sample
from grace_store.data.sample_digests import QUESTION_BYTES, field_digest, prompt_digest
from grace_store.data.understand import understand
from grace_store.store.plan_writer import PlannedSample

RECORDS_PER_BLOCK = 4096
BYTES_PER_BLOCK = 2**23
"""A block of records ends when it holds this number of records, or of bytes."""
BYTES_PER_PROCESS = 2**25
"""How much data is worth another process: each takes about a second to start."""


class Understood(NamedTuple):
    """A record that is a sample."""

    sample: PlannedSample
    num_images_missing: int
    group: bytes = b""
    """What traces of one question share, if they are gathered; empty if the record has no value in the field asked."""


RecordOutcome = Understood | SetAside


@dataclass(frozen=True, slots=True)
class Understanding:
    """How the records of a dataset become samples. Sent to other processes, so it holds nothing large."""

    names: tuple[str, ...]
    """Of the dataset's files, as ids have them."""
    spec: DataSpec
    images: str | None = None
    """The folder in which the records' images are looked for, if at all."""
    sets_unread_aside: bool = True
    """Whether a record with keys that no reader understands is set aside, as it is since version 1.5 of the format."""

    def __call__(self, records: Sequence[Record]) -> list[RecordOutcome]:
        return [self._outcome(record) for record in records]

    def _outcome(self, record: Record) -> RecordOutcome:
        try:
            return self.planned(record, self.sample(record))
        except Unusable as why:
            return why.why

    def sample(self, record: Record) -> Sample:
        """Return the sample that a record is, or raise Unusable."""
        name, checks = self.names[record.file], self.sets_unread_aside
        return understand(record, self.spec, name, record.row_in_file, checks_keys=checks)

    def planned(self, record: Record, sample: Sample) -> Understood:
        """Return what a plan holds of a sample."""
        images = [] if self.images is None else sample.images
        num_missing = sum(is_missing(ref, Path(self.images or "")) for ref in images)
        place = record.row, record.file, record.offset, record.length
        known = sample.sample_id, *place, record.digest, sample.num_steps
        return Understood(PlannedSample(*known, text_flags(sample)), num_missing, self._group(record, sample))

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
