"""Vectors unit by unit, of segments and of samples: those that were written, held against the commit."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import Corrupt
from grace_store.base.settings import Storage
from grace_store.pool import walk
from grace_store.pool.walk import SignalReader
from grace_store.store.opened import Store
from grace_store.store.storages import stored_form
from grace_store.store.unit_writer import UnitWriter
from tests.stores import (
    SIGNAL,
    STORAGES,
    add_signal,
    random_signals,
    random_vectors,
    spans_for,
    write_plan,
    write_store,
)

NUM_STEPS = [60, 90, 3, 1, 100, 7, 20]
SIZE = 45


def sample_store(location: Path, storage: Storage, units: tuple[int, ...] = (0, 1, 2, 3)) -> Store:
    """Write one vector a sample; the second sample of each unit is set aside."""
    write_plan(location, NUM_STEPS, 2)
    view = add_signal(Store.open(location), storage, SIZE, per="sample")
    for unit in units:
        aside = [1] if unit < 3 else []
        UnitWriter(view).write(unit, random_vectors(view, unit, aside), spans_for(view, unit))
    return view.store


@pytest.mark.parametrize("storage", STORAGES)
def test_vectors_of_segments(tmp_path: Path, storage: Storage) -> None:
    view = write_store(tmp_path / "s", NUM_STEPS, 2, storage, SIZE)
    reader = SignalReader(view.store, (SIGNAL,), reads=("vectors",))
    for unit in view.store.plan.units:
        found, written = reader.vectors(0, unit), random_signals(view, unit)
        assert found is not None
        expected = stored_form(written.segment_vector, storage)
        np.testing.assert_array_equal(found.decoded()[: len(expected)], expected)
        assert not found.decoded(slice(len(expected), None)).any()
        rows = np.array([len(expected) - 1, 0, 3])
        np.testing.assert_array_equal(found.decoded(rows), expected[rows])
        np.testing.assert_array_equal(found.num_tokens[: len(expected)], written.segment_num_tokens)
        assert found.done.all()


@pytest.mark.parametrize("storage", STORAGES)
def test_vectors_of_samples(tmp_path: Path, storage: Storage) -> None:
    store = sample_store(tmp_path / "s", storage, (0, 1, 3))
    reader = SignalReader(store, (SIGNAL,), reads=("vectors",))
    view = reader.views[0]
    for unit in (0, 1, 3):
        found, written = reader.vectors(0, unit), random_vectors(view, unit, [1] if unit < 3 else [])
        assert found is not None
        assert found.done.tolist() == reader.done(0, unit).tolist() == ([True, False] if unit < 3 else [True])
        np.testing.assert_array_equal(found.decoded(), stored_form(written.sample_vector, storage))
        np.testing.assert_array_equal(found.decoded(found.done), stored_form(written.sample_vector, storage)[:1])
        np.testing.assert_array_equal(found.length, written.sample_norm)
        np.testing.assert_array_equal(found.num_tokens, written.sample_num_tokens)
    assert reader.vectors(0, 2) is None
    assert reader.done(0, 2).tolist() == [False, False]


def test_blocks_of_whole_responses_have_one_part_a_sample(tmp_path: Path) -> None:
    reader = SignalReader(sample_store(tmp_path / "s", "int8", (0, 1, 3)), (SIGNAL,), reads=("responses", "loss"))
    written = [random_vectors(reader.views[0], unit, [1] if unit < 3 else []) for unit in (0, 1, 3)]
    block = reader.read(0)
    assert block.sample.tolist() == [0, 2, 6]  # unit 2 is missing
    np.testing.assert_array_equal(block.num_tokens, [each.sample_num_tokens[0] for each in written])
    np.testing.assert_array_equal(block.signals[0].statistic["loss"], [each.sample_loss[0] for each in written])


@pytest.mark.parametrize("key", ["segment_vector/c/1/0", "segment_scale/c/1", "sample_state/c/1"])
def test_a_chunk_of_another_unit_is_not_read(tmp_path: Path, key: str) -> None:
    """Its own checksum is good, so only the commit's digest tells."""
    view = write_store(tmp_path / "s", NUM_STEPS, 2, "int8", SIZE)
    chunk = tmp_path / "s" / view.key / key
    other = Path(str(chunk).replace("/c/1", "/c/3")).read_bytes()
    chunk.write_bytes(other if "state" not in key else other[::-1])
    with pytest.raises(Corrupt, match=f"{key} is not the chunk that was committed"):
        SignalReader(view.store, (SIGNAL,), reads=("vectors",)).vectors(0, 1)


def test_large_units_leave_room_for_fewer_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = {
        2 * SIZE: SignalReader(sample_store(tmp_path / "samples", "int8"), (SIGNAL,), reads=("vectors",)),
        256 * SIZE: SignalReader(
            write_store(tmp_path / "segments", NUM_STEPS, 2, "int8", SIZE).store, (SIGNAL,), reads=("vectors",)
        ),
    }
    for numbers, reader in readers.items():
        assert reader.threads(6) == 6
        monkeypatch.setattr(walk, "MAX_BYTES_AT_ONCE", numbers * 8 * 3)
        assert reader.threads(6) == 3
        monkeypatch.setattr(walk, "MAX_BYTES_AT_ONCE", 1)
        assert reader.threads(6) == 1
        monkeypatch.undo()


def test_a_reader_can_be_sent_to_another_process(tmp_path: Path) -> None:
    reader = SignalReader(write_store(tmp_path / "s", NUM_STEPS, 2, "int4", SIZE).store, (SIGNAL,), reads=("vectors",))
    sent = pickle.loads(pickle.dumps(reader))
    here, there = reader.vectors(0, 0), sent.vectors(0, 0)
    assert here is not None
    np.testing.assert_array_equal(here.decoded(), there.decoded())
