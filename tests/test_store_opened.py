"""Reading a store: what it says, and what it says when it cannot."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grace_store.base.errors import Corrupt, NotAStore, StoreError, Unfinished, UnknownName
from grace_store.base.metadata import Plan
from grace_store.base.settings import Storage
from grace_store.base.states import UnitSignals
from grace_store.base.text import canonical_json
from grace_store.data.dataset import Dataset
from grace_store.data.sample import Sample
from grace_store.pool.records import UnitLoader
from grace_store.pool.samples import token_table
from grace_store.store import layout
from grace_store.store.backend import COMMITS, chunk_key, commit_key
from grace_store.store.digested_json import BODY, SEAL, from_bytes, group_bytes, unseal
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import complete_signal, create_signal, withdraw_units
from tests.fake_model import fake_signals
from tests.stores import (
    NUM_UNITS,
    RELATIVE_ERROR,
    SAMPLES_PER_UNIT,
    SIGNAL,
    STORAGES,
    TOO_LONG,
    add_signal,
    extract_store,
    finished_store,
    write_plan,
)


def truth(store: Store) -> tuple[list[Sample], UnitSignals]:
    """Return the samples, read from the dataset again, and what the fake model says of them."""
    with Dataset.open([file.path for file in store.plan.files]) as dataset:
        samples = UnitLoader(store, dataset).read(0, store.plan.num_samples)
    return samples, fake_signals(samples, max_length=300)


@pytest.mark.parametrize("storage", STORAGES)
def test_everything_comes_back_sample_by_sample(tmp_path: Path, storage: Storage) -> None:
    store = extract_store(tmp_path, storage)
    view = store.signal()
    samples, signals = truth(store)
    row = 0
    for i, sample in enumerate(samples):
        rows = slice(row, row := row + sample.num_segments)
        vectors = signals.segment_vector[rows]
        got = view.vectors(i)
        assert np.linalg.norm(got - vectors) <= 1.5 * RELATIVE_ERROR[storage] * np.linalg.norm(vectors)
        exact = vectors.astype(np.float64) @ vectors.astype(np.float64).T
        np.testing.assert_allclose(view.gram(i), exact, rtol=1e-6, atol=1e-6)
        assert view.segments("segment_span", i).tolist() == [
            list(span) for span in zip(sample.bounds, sample.bounds[1:], strict=False)
        ]
        for name in ("num_tokens", "loss", "entropy", "hit_rate"):
            np.testing.assert_array_equal(
                view.segments(f"segment_{name}", i), getattr(signals, f"segment_{name}")[rows]
            )
        assert view.state(i) == ("too_long" if i == TOO_LONG else "done")


def test_opening_and_reading_writes_nothing(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    before = {key: store.backend.read(key) for key in store.backend.walk()}
    view = Store.open(store.location).signal()
    view.vectors(0)
    view.completion()
    assert {key: store.backend.read(key) for key in store.backend.walk()} == before


# ---------------------------------------------------------------- names


def test_samples_are_found_by_id_and_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = finished_store(tmp_path)
    for size in (layout.SAMPLES_PER_CHUNK, 3):
        monkeypatch.setattr(layout, "SAMPLES_PER_CHUNK", size)
        reading = store if size > 3 else _replanned(tmp_path)
        rows = reading.samples(0, reading.plan.num_samples)
        for i, (name, row) in enumerate(zip(rows.sample_id, rows.row, strict=True)):
            assert reading.find(name) == i
            assert reading.find(f"#{row}") == i
    with pytest.raises(UnknownName, match=r"has no sample 'nobody'. Give an id"):
        store.find("nobody")
    with pytest.raises(UnknownName, match=r"has no sample '#2'.*A record that was set aside is not a sample"):
        store.find("#2")


def _replanned(tmp_path: Path) -> Store:
    write_plan(tmp_path / "small", [2] * 8, 2)
    return Store.open(tmp_path / "small")


def test_an_unknown_signal_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    with pytest.raises(UnknownName, match=r"has no signal 'bse' \(there are: base\)"):
        store.signal("bse")
    create_signal(store, store.signal(SIGNAL).signal.model_copy(update={"name": "warm"}))
    assert store.signal_names == ["base", "warm"]
    with pytest.raises(UnknownName, match=r"has several signals \(base, warm\)"):
        store.signal()


def test_a_store_without_signals_says_how_to_get_one(tmp_path: Path) -> None:
    write_plan(tmp_path / "s", [1, 2], 2)
    store = Store.open(tmp_path / "s")
    for name in (None, "base"):
        with pytest.raises(
            UnknownName,
            match=r"has no signal( yet. `grace-store extract` writes a signal| .* \(there are: none yet)",
        ):
            store.signal(name)


# ---------------------------------------------------------------- what is no store


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match=r"nowhere is not a grace-store store: nothing is there. `grace-store plan`"):
        Store.open(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotAStore, match="file is not a grace-store store"):
        Store.open(tmp_path / "file")


def test_another_folder(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(NotAStore, match=r"has no plan, perhaps because planning was interrupted"):
        Store.open(tmp_path)


@pytest.mark.parametrize("node", [{"zarr_format": 3, "node_type": "group", "attributes": {}}, [], {"attributes": 3}])
def test_a_group_of_somebody_else(tmp_path: Path, node: Any) -> None:
    (tmp_path / "zarr.json").write_text(json.dumps(node))
    with pytest.raises(NotAStore, match="holds a Zarr group that grace-store did not make"):
        Store.open(tmp_path)


def test_a_plan_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_bytes(b'{"attributes": ')
    with pytest.raises(Corrupt, match=r"zarr.json is not valid JSON"):
        Store.open(tmp_path)


def rewrite_root(store: Store, *, seal: bool = True, node: dict[str, Any] | None = None, **changes: Any) -> None:
    found = json.loads(store.backend.read("zarr.json") or b"")
    body = found["attributes"][BODY] | changes
    digest = hashlib.sha256(canonical_json(body)).hexdigest() if seal else store.plan.digest()
    found["attributes"] = {BODY: body, SEAL: digest}
    store.backend.write("zarr.json", json.dumps(found | (node or {})).encode())


def test_an_edited_plan_is_refused(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    rewrite_root(store, seal=False, num_samples=12)
    with pytest.raises(Corrupt, match=r"zarr.json does not match its own digest: the file was damaged or edited"):
        Store.open(store.location)


def test_a_root_that_is_no_zarr_group_is_refused(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    rewrite_root(store, node={"zarr_format": 2})
    with pytest.raises(Corrupt, match="is not the metadata of a Zarr v3 group"):
        Store.open(store.location)


@pytest.mark.parametrize("version", ["1.5", "2.0", "3.0", "", "one", 2.1])
def test_other_versions_are_refused_by_name(tmp_path: Path, version: Any) -> None:
    store = finished_store(tmp_path)
    rewrite_root(store, format_version=version, something_new=1)
    with pytest.raises(
        StoreError, match=f"has version {version} of the format, but this grace-store reads only version 2.1"
    ):
        Store.open(store.location)


def test_fields_that_the_version_does_not_have_are_refused(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    rewrite_root(store, something_new=1)
    with pytest.raises(Corrupt, match=r"is not a document of this format: something_new 1: there is no such field"):
        Store.open(store.location)


# ---------------------------------------------------------------- sealed documents


@pytest.mark.parametrize("sealed", [None, [], {}, {BODY: {}}, {SEAL: ""}])
def test_what_has_no_seal_is_no_document(sealed: Any) -> None:
    with pytest.raises(Corrupt, match="here is not a document of this format"):
        unseal(sealed, Plan, "here")


@pytest.mark.parametrize("body", [{"a": float("nan")}, {"a": "\ud800"}])
def test_what_canonical_json_cannot_say_is_damage(body: Any) -> None:
    with pytest.raises(Corrupt, match="here does not match its own digest"):
        unseal({BODY: body, SEAL: "0" * 64}, Plan, "here")


NO_JSON = [b"", b"{", b"\xed\xa0\x80", b'{"a": "\xed\xb5\x9c"}', b"[" * 100_000, b"\xff\xfe{\x00"]


@pytest.mark.parametrize("raw", NO_JSON, ids=["nothing", "cut", "surrogate", "half a pair", "deep", "UTF-16"])
def test_bytes_that_are_no_json_are_damage(raw: bytes) -> None:
    with pytest.raises(Corrupt, match="here is not valid JSON"):
        from_bytes(raw, "here")


def test_missing_bytes_are_damage() -> None:
    with pytest.raises(Corrupt, match="here is missing"):
        from_bytes(None, "here")


# ---------------------------------------------------------------- damage met while reading


def read_array(view: SignalView, name: str, sample: int) -> None:
    """Read a sample in a way that needs the array."""
    if name == "sample_gram":
        view.gram(sample)
    elif name == "sample_state":
        view.state(sample)
    elif name in ("segment_vector", "segment_scale", "rotation_sign", "rotation_order", "vector_codebook"):
        view.vectors(sample)
    elif name == "sample_top_entropy":
        view.sample_value(name, sample)
    elif "token_" in name.removeprefix("segment_num_"):
        token_table(view, sample)
    else:
        view.segments(name, sample)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_missing_chunk_is_never_read_as_zeros(tmp_path: Path, storage: Storage) -> None:
    view = finished_store(tmp_path, storage).signal()
    sample = SAMPLES_PER_UNIT  # of unit 1
    for array in view.arrays:
        key = chunk_key(array.name, len(array.dims), 1 if array.is_per_unit else 0)
        value = view.store.backend.read(f"{view.key}/{key}")
        assert value is not None
        view.store.backend.delete(f"{view.key}/{key}")
        fresh = Store.open(view.store.location).signal()
        with pytest.raises(Corrupt, match=f"{key} is missing. Run `grace-store verify --repair`"):
            read_array(fresh, array.name, sample)
        if array.is_per_unit:
            with pytest.raises(Corrupt, match=f"{key} is missing"):
                fresh.unit_array(array.name, 1)
        view.store.backend.write(f"{view.key}/{key}", value)


def test_a_missing_chunk_of_the_plan_is_never_read_as_zeros(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    store.backend.delete("samples/sample_num_steps/c/0")
    with pytest.raises(Corrupt, match="samples/sample_num_steps/c/0 is missing"):
        Store.open(store.location).signal().gram(0)


def test_a_flipped_byte_in_a_chunk_is_caught_by_its_checksum(tmp_path: Path) -> None:
    view = finished_store(tmp_path).signal()
    key = f"{view.key}/segment_vector/c/0/0"
    raw = bytearray(view.store.backend.read(key) or b"")
    raw[7] ^= 1
    view.store.backend.write(key, bytes(raw))
    with pytest.raises(Corrupt, match=r"rows 0\.\.\d+ of signals/base/segment_vector cannot be read .*verify --repair"):
        view.vectors(0)


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b'{"zarr_format": 3, "node_type": "group"}', b"\x00"])
def test_metadata_that_is_none_is_damage(tmp_path: Path, raw: bytes) -> None:
    view = finished_store(tmp_path).signal()
    view.store.backend.write(f"{view.key}/sample_gram/zarr.json", raw)
    with pytest.raises(Corrupt, match="the array signals/base/sample_gram cannot be opened"):
        view.gram(0)


OTHER_METADATA = {
    "type": (b'"int8"', b'"uint8"'),
    "shape": (b'"shape": [\n    ', b'"shape": [\n    1'),
    "chunks": (b'"chunk_shape": [\n        ', b'"chunk_shape": [\n        1'),
}


@pytest.mark.parametrize(("old", "new"), OTHER_METADATA.values(), ids=OTHER_METADATA)
def test_metadata_of_another_shape_or_type_is_damage_not_other_data(tmp_path: Path, old: bytes, new: bytes) -> None:
    view = finished_store(tmp_path).signal()
    key = f"{view.key}/segment_vector/zarr.json"
    sound = view.store.backend.read(key) or b""
    assert old in sound
    view.store.backend.write(key, sound.replace(old, new, 1))
    with pytest.raises(
        Corrupt, match=r"the array signals/base/segment_vector (is .*the plan implies|cannot be opened)"
    ):
        view.vectors(0)


# ---------------------------------------------------------------- units that are not done


def test_a_unit_without_commit_is_planned_whatever_lies_there(tmp_path: Path) -> None:
    view = finished_store(tmp_path).signal()
    withdraw_units(view, [1])
    assert view.committed_units() == [0, 2]
    assert view.completion() is None
    assert [view.state(sample) for sample in (3, 4, 7, 8)] == ["too_long", "planned", "planned", "done"]
    for read in (view.vectors, view.gram):
        with pytest.raises(Unfinished, match=r"sample 5 is in unit 1 of base\. This unit is not done yet"):
            read(5)
    with pytest.raises(Corrupt, match="base has 2 of 3 units, so the signal is not complete"):
        complete_signal(view)


def test_files_that_only_look_like_commits_do_not_count(tmp_path: Path) -> None:
    view = finished_store(tmp_path).signal()
    for name in ("3.json", "00000003.json.tmp", "0000000٣.json", "note.json"):
        view.store.backend.write(f"{COMMITS}/{SIGNAL}/{name}", b"")
    assert view.committed_units() == list(range(NUM_UNITS))


def test_a_commit_of_another_unit_or_signal_is_refused(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    view = store.signal()
    backend = store.backend
    backend.write(commit_key(SIGNAL, 1), backend.read(commit_key(SIGNAL, 0)) or b"")
    with pytest.raises(Corrupt, match=r"00000001.json belongs to another unit or signal"):
        view.commit(1)
    other = add_signal(store, "int8", 24, "other")
    backend.write(commit_key("other", 0), backend.read(commit_key(SIGNAL, 0)) or b"")
    with pytest.raises(Corrupt, match="belongs to another unit or signal"):
        other.commit(0)
    with pytest.raises(Corrupt, match=r"commits/base/00000009.json is missing"):
        view.commit(9)


def test_a_signal_whose_document_is_damaged_cannot_be_opened(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    store.backend.write("signals/base/zarr.json", group_bytes())
    with pytest.raises(Corrupt, match=r"signals/base/zarr.json is not a document of this format"):
        store.signal()
