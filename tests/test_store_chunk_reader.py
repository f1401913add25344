"""Whole chunks: the same as zarr reads, each held against its commit, and read once."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from numcodecs import zstd

from grace_store.base.errors import Corrupt, UnknownName
from grace_store.base.settings import Storage
from grace_store.store.array_group import decode_chunk
from grace_store.store.backend import commit_key
from grace_store.store.digested_json import seal, to_bytes
from grace_store.store.layout import sample_arrays
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import UnitWriter, complete_signal, digest_of
from tests.stores import STORAGES, add_signal, random_vectors, spans_for, write_plan, write_store

NUM_STEPS = [60, 90, 3, 1, 100, 7, 20]
"""Units of 152, 6, 109 and 21 rows, in chunks of 256: two inner chunks each, the second often all zeros."""


def by_zarr(view: SignalView, name: str, unit: int) -> Any:
    length = view.array_spec(name).chunks[0]
    return view.array(name)[unit * length : (unit + 1) * length]


@pytest.mark.parametrize("storage", STORAGES)
def test_chunks_are_what_zarr_reads(tmp_path: Path, storage: Storage) -> None:
    view = write_store(tmp_path / "s", NUM_STEPS, 2, storage, 45)
    for array in view.arrays:
        for unit in view.store.plan.units if array.is_per_unit else ():
            found = view.unit_array(array.name, unit)
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, by_zarr(view, array.name, unit))


@pytest.mark.parametrize("storage", STORAGES)
def test_those_of_samples_end_with_the_last_one(tmp_path: Path, storage: Storage) -> None:
    write_plan(tmp_path / "s", [1] * 300, 256)
    view = add_signal(Store.open(tmp_path / "s"), storage, 7, per="sample")
    for unit in view.store.plan.units:
        UnitWriter(view).write(unit, random_vectors(view, unit), spans_for(view, unit))
    for array in view.arrays:
        if array.is_per_unit:
            assert [len(view.unit_array(array.name, unit)) for unit in (0, 1)] == [256, 44]
            np.testing.assert_array_equal(view.unit_array(array.name, 1), by_zarr(view, array.name, 1))


def test_inner_chunks_of_zeros_may_be_left_out_of_a_shard(tmp_path: Path) -> None:
    view = write_store(tmp_path / "s", NUM_STEPS, 2, "int8", 45)
    key = f"{view.key}/segment_vector/c/1/0"
    whole = view.unit_array("segment_vector", 1)
    raw = view.store.backend.read(key) or b""
    first, _ = np.frombuffer(raw[-36:-4], "<u8").reshape(2, 2).tolist()
    index = np.array([first, [2**64 - 1] * 2], "<u8").tobytes()
    put_chunk(view, "segment_vector/c/1/0", raw[: sum(first)] + with_checksum(index))
    np.testing.assert_array_equal(Store.open(view.store.location).signal().unit_array("segment_vector", 1), whole)
    np.testing.assert_array_equal(by_zarr(view, "segment_vector", 1), whole)


OTHER_COMPRESSION = r'"zstd",\s*"configuration": \{[^}]*\}', '"gzip", "configuration": {"level": 3}'
HIGH_BYTE_FIRST = '"endian": "little"', '"endian": "big"'
INDEX_FIRST = '"index_location": "end"', '"index_location": "start"'


@pytest.mark.parametrize(
    ("storage", "name", "change"),
    [
        ("int8", "segment_vector", OTHER_COMPRESSION),
        ("int8", "sample_gram", OTHER_COMPRESSION),
        ("int8", "segment_span", OTHER_COMPRESSION),
        ("float32", "segment_vector", HIGH_BYTE_FIRST),
        ("int8", "segment_vector", HIGH_BYTE_FIRST),  # of the index: its numbers are a byte each
        ("int8", "sample_gram", HIGH_BYTE_FIRST),
        ("int8", "segment_vector", INDEX_FIRST),
    ],
)
def test_other_codecs_than_the_formats_are_refused(
    tmp_path: Path, storage: Storage, name: str, change: tuple[str, str]
) -> None:
    view = write_store(tmp_path / "s", NUM_STEPS, 2, storage, 45)
    metadata = tmp_path / "s" / view.key / name / "zarr.json"
    changed, num_changes = re.subn(*change, metadata.read_text())
    assert num_changes
    metadata.write_text(changed)
    with pytest.raises(Corrupt, match=f"{name} has codecs that this format does not allow"):
        view.unit_array(name, 0)


def test_a_chunk_is_read_once_and_the_commit_once_for_all_of_a_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = write_store(tmp_path / "s", NUM_STEPS, 2, "int4", 45)
    names = ["segment_vector", "segment_scale", "sample_state"]
    for name in names:
        view.array(name)
    seen: list[str] = []
    real = view.store.backend.read
    monkeypatch.setattr(view.store.backend, "read", lambda key: seen.append(key) or real(key))
    view.unit_arrays(2, names)
    assert seen == [
        "ledger/commits/base/00000002.json",
        "signals/base/segment_vector/c/2/0",
        "signals/base/segment_scale/c/2",
        "signals/base/sample_state/c/2",
    ]


# ---------------------------------------------------------------- damage


def with_checksum(body: bytes) -> bytes:
    return body + google_crc32c.value(body).to_bytes(4, "little")


def put_chunk(view: SignalView, key: str, raw: bytes) -> None:
    """Write a chunk and let the commit vouch for it."""
    unit = int(key.split("/")[2])
    view.store.backend.write(f"{view.key}/{key}", raw)
    commit = view.commit(unit)
    commit = commit.model_copy(update={"chunks": {**commit.chunks, key: digest_of(raw)}})
    view.store.backend.write(commit_key(view.name, unit), to_bytes(seal(commit)))
    complete_signal(view)


DAMAGE = {
    "flipped": (lambda raw: bytes([raw[0] ^ 1]) + raw[1:], "the checksum of the chunk is wrong"),
    "empty": (lambda raw: b"", "the checksum of the chunk is wrong"),
    "cut inside the checksum": (lambda raw: raw[:3], "the checksum of the chunk is wrong"),
    "a checksum of nothing": (lambda raw: bytes(4), "the checksum of the chunk is wrong"),
    "no zstd": (lambda raw: with_checksum(b"no zstd"), ""),
    "cut before the checksum": (lambda raw: with_checksum(raw[:-10]), ""),
    "half a number": (lambda raw: with_checksum(zstd.compress(b"123")), ""),
    "one number": (lambda raw: with_checksum(zstd.compress(b"1234")), "the chunk holds 4 bytes instead of"),
}


@pytest.mark.parametrize(("change", "why"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_never_data_whether_or_not_the_commit_vouches_for_it(tmp_path: Path, change: Any, why: str) -> None:
    view = write_store(tmp_path / "s", NUM_STEPS, 2, "int8", 45)
    for key in ("sample_gram/c/1", "segment_span/c/1/0"):
        damaged = change(view.store.backend.read(f"{view.key}/{key}"))
        view.store.backend.write(f"{view.key}/{key}", damaged)
        with pytest.raises(Corrupt, match=rf"{key} is not the chunk that was committed\. Run `grace-store verify"):
            view.unit_array(key.partition("/")[0], 1)
        put_chunk(view, key, damaged)
        with pytest.raises(
            Corrupt, match=rf"{key} cannot be decoded \(.*{why}.*\)\. Run `grace-store verify --repair`"
        ):
            view.unit_array(key.partition("/")[0], 1)


SHARDS = {
    "nothing": lambda raw: b"",
    "flipped inner chunk": lambda raw: bytes([raw[0] ^ 1]) + raw[1:],
    "flipped index": lambda raw: raw[:-20] + bytes([raw[-20] ^ 1]) + raw[-19:],
    "index that points behind the end": lambda raw: (
        raw[:-36] + with_checksum(np.array([len(raw), 50, 0, 50], "<u8").tobytes())
    ),
    "index that points at itself": lambda raw: (
        raw[:-36] + with_checksum(np.array([0, len(raw), 0, 2**60], "<u8").tobytes())
    ),
    "half an index": lambda raw: with_checksum(bytes(16)),
}


@pytest.mark.parametrize("change", SHARDS.values(), ids=SHARDS)
def test_damaged_shards_are_never_data_either(tmp_path: Path, change: Any) -> None:
    view = write_store(tmp_path / "s", NUM_STEPS, 2, "int8", 45)
    key = "segment_vector/c/1/0"
    put_chunk(view, key, change(view.store.backend.read(f"{view.key}/{key}")))
    with pytest.raises(Corrupt, match=rf"{key} cannot be decoded \(.*\)\. Run `grace-store verify --repair`"):
        view.unit_array("segment_vector", 1)


def test_no_room_is_made_for_texts_that_bytes_only_claim() -> None:
    spec = sample_arrays(16, 0)[0]
    raw = with_checksum(zstd.compress((2**22).to_bytes(4, "little") + bytes(16)))
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"the chunk holds {2**22} texts instead of {spec.chunks[0]}"):
        decode_chunk(raw, spec)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**20


def test_missing_chunks_and_damaged_commits_are_said_by_name(tmp_path: Path) -> None:
    view = write_store(tmp_path / "s", NUM_STEPS, 2, "int8", 45)
    backend = view.store.backend
    backend.delete(f"{view.key}/sample_gram/c/1")
    with pytest.raises(Corrupt, match=r"signals/base/sample_gram/c/1 is missing\. Run `grace-store verify --repair`"):
        view.unit_array("sample_gram", 1)
    backend.write(f"{view.key}/sample_state/c/3", backend.read(f"{view.key}/sample_state/c/1") or b"")
    backend.write(f"{view.key}/segment_loss/c/3", backend.read(f"{view.key}/segment_loss/c/1") or b"")
    with pytest.raises(Corrupt, match="segment_loss/c/3 is not the chunk that was committed"):
        view.unit_array("segment_loss", 3)
    key = commit_key("base", 2)
    for raw in (None, b"{", b"{}", (backend.read(key) or b"")[:-30]):
        backend.delete(key) if raw is None else backend.write(key, raw)
        with pytest.raises(Corrupt, match=r"00000002.json cannot be read\. Run `grace-store verify --repair`"):
            view.unit_array("sample_state", 2)


def test_an_array_that_the_signal_does_not_have_is_said_so(tmp_path: Path) -> None:
    view = write_store(tmp_path / "s", NUM_STEPS, 2, "float32", 45)
    with pytest.raises(UnknownName, match="has vectors per segment, and no sample_norm"):
        view.unit_array("sample_norm", 0)
