"""Chunks in memory: the same bytes every time, and those that zarr itself would write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from grace_store.base.settings import Storage
from grace_store.store import layout
from grace_store.store.array_group import ArrayEncoder
from grace_store.store.backend import chunk_key
from grace_store.store.opened import Store
from grace_store.store.unit_writer import UnitWriter
from tests.stores import STORAGES, add_signal, random_signals, spans_for, write_plan, write_store

NUM_STEPS = [3, 1, 40, 5, 150, 2, 1, 1, 9]


def files(location: Path) -> dict[str, bytes]:
    return {str(path.relative_to(location)): path.read_bytes() for path in location.rglob("*") if path.is_file()}


@pytest.mark.parametrize("storage", STORAGES)
def test_two_stores_of_the_same_signals_have_the_same_bytes(tmp_path: Path, storage: Storage) -> None:
    first = write_store(tmp_path / "a", NUM_STEPS, 4, storage, 33)
    write_store(tmp_path / "b", NUM_STEPS, 4, storage, 33)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert first.store.plan.rows_per_unit > layout.ROWS_PER_INNER_CHUNK  # so that shards have several chunks


def test_a_unit_written_again_after_others_has_the_same_bytes(tmp_path: Path) -> None:
    view = write_store(tmp_path / "a", NUM_STEPS, 4, "int4", 33)
    before = files(tmp_path / "a")
    writer = UnitWriter(view)
    for unit in (2, 0, 2):
        writer.write(unit, random_signals(view, unit), spans_for(view, unit))
    assert files(tmp_path / "a") == before


@pytest.mark.parametrize("storage", STORAGES)
def test_a_unit_without_a_single_usable_sample_writes_all_its_chunks(tmp_path: Path, storage: Storage) -> None:
    write_plan(tmp_path / "s", NUM_STEPS, 4)
    view = add_signal(Store.open(tmp_path / "s"), storage, 33)
    commit = UnitWriter(view).write(0, random_signals(view, 0, set_aside=range(4)), spans_for(view, 0))
    assert set(commit.chunks) == {chunk_key(a.name, len(a.dims), 0) for a in view.arrays if a.is_per_unit}
    assert not view.unit_vectors(0).any()


def test_what_the_encoder_makes_zarr_reads(tmp_path: Path) -> None:
    spec = layout.ArraySpec("thing", ("a", "b"), (10, 3), (4, 3), "int32", "a thing", (2, 3), {"extra": [1]})
    encoder = ArrayEncoder([spec])
    values = np.arange(12, dtype=np.int32).reshape(4, 3)
    for key, value in {**encoder.metadata, **encoder.encode({"thing": (4, values)})}.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(value)
    array = zarr.open_array(tmp_path / "thing", mode="r")
    np.testing.assert_array_equal(array[4:8], values)
    assert (array.shape, array.shards, array.chunks) == ((10, 3), (4, 3), (2, 3))
    assert array.metadata.dimension_names == ("a", "b")
    assert array.attrs.asdict() == {"about": "a thing", "extra": [1]}


def test_encoding_leaves_nothing_for_the_next_call() -> None:
    spec = layout.ArraySpec("thing", ("a",), (8,), (4,), "float32", "")
    encoder = ArrayEncoder([spec])
    assert set(encoder.encode({"thing": (0, np.ones(4, dtype=np.float32))})) == {"thing/c/0"}
    assert set(encoder.encode({"thing": (4, np.ones(4, dtype=np.float32))})) == {"thing/c/1"}


def test_signals_of_the_wrong_shape_or_not_finite_are_refused(tmp_path: Path) -> None:
    write_plan(tmp_path / "s", NUM_STEPS, 4)
    view = add_signal(Store.open(tmp_path / "s"), "int8", 33)
    writer, spans = UnitWriter(view), spans_for(view, 1)
    short = random_signals(view, 1)
    short.segment_loss = short.segment_loss[:-1]
    with pytest.raises(ValueError, match="unit 1 has 158 segments, segment_loss has 157 rows"):
        writer.write(1, short, spans)
    with pytest.raises(ValueError, match="unit 1 has 158 segments, segment_span has 3 rows"):
        writer.write(1, random_signals(view, 1), spans[:3])
    wild = random_signals(view, 1)
    wild.segment_vector[5, 7] = np.nan
    with pytest.raises(ValueError, match="unit 1 has vectors that are not finite"):
        writer.write(1, wild, spans)
    assert view.committed_units() == []
