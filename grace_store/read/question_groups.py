"""Which samples are traces of one question, and which of those respond alike: a number of each sample, in flat memory.

A group is what has the same prompt and images, or the same value of a field of the records. Records are read one at a
time, and of each only 64 bits are kept.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from grace_store.base.arrays import IntArray
from grace_store.data.fields import value_of
from grace_store.data.sample import Sample
from grace_store.data.sample_digests import QUESTION_BYTES, field_digest, prompt_digest, response_digest, wording_digest
from grace_store.read.records import SampleRecords, UnitLoader, open_dataset
from grace_store.store.opened import Store


def question_groups(
    store: Store, by: str | None = None, data: Sequence[str | Path] | None = None, positions: IntArray | None = None
) -> IntArray:
    """Return the group of each sample of a plan, or of those at some positions, numbered from 0 as they first occur.

    by is a field of the records (dots lead inside), None for prompt and images; a record without a value in that field
    is alone in its group. data says where the dataset is now.
    """
    if positions is None:
        return _numbered(question_digests(store, by, data, np.arange(store.plan.num_samples)))
    known, place = np.unique(positions, return_inverse=True)
    return _numbered(question_digests(store, by, data, known))[place]


def question_digests(
    store: Store, by: str | None, data: Sequence[str | Path] | None, positions: IntArray
) -> npt.NDArray[np.uint64]:
    """Return what samples of one question share, also in another store, and others do not; positions ascend."""
    return _as_numbers(
        _of_samples(store, data, positions, prompt_digest) if by is None else _of_field(store, by, data, positions)
    )


def wording_digests(store: Store, data: Sequence[str | Path] | None, positions: IntArray) -> npt.NDArray[np.uint64]:
    """Return what samples share whose users say the same words with the same images, also in another store."""
    return _as_numbers(_of_samples(store, data, positions, wording_digest))


def response_digests(store: Store, data: Sequence[str | Path] | None, positions: IntArray) -> npt.NDArray[np.uint64]:
    """Return what samples share whose responses are the same text, however it is spaced; positions ascend."""
    return _as_numbers(_of_samples(store, data, positions, response_digest))


def _as_numbers(digests: Iterator[bytes]) -> npt.NDArray[np.uint64]:
    return np.fromiter((int.from_bytes(digest[:QUESTION_BYTES]) for digest in digests), np.uint64)


def _of_samples(
    store: Store, data: Sequence[str | Path] | None, positions: IntArray, digest: Callable[[Sample], bytes]
) -> Iterator[bytes]:
    # Each record that is read is held against its own digest in the plan, so that files need not be read twice.
    with open_dataset(store, data, by_content=False) as dataset:
        yield from map(digest, UnitLoader(store, dataset).each(positions))


def _of_field(store: Store, by: str, data: Sequence[str | Path] | None, positions: IntArray) -> Iterator[bytes]:
    records, found_any = SampleRecords(store, data, positions), False
    for position, record in zip(positions.tolist(), records, strict=True):
        value = value_of(record, by)
        found_any |= value is not None
        yield field_digest(value, position)
    if len(positions) and not found_any:
        raise records.unknown(by)


def _numbered(digests: npt.NDArray[np.uint64]) -> IntArray:
    """Return numbers from 0 in the order in which digests first occur.

    >>> _numbered(np.array([9, 4, 9, 1], dtype=np.uint64))
    array([0, 1, 0, 2])
    """
    _, first, place = np.unique(digests, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[place]
