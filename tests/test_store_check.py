"""Checking a store: a sound one has no problem, every kind of damage is found, and pinned on the right unit."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grace_store.base.errors import Corrupt, GraceStoreError
from grace_store.base.metadata import Commit, Plan, SampleSetAside, Signal
from grace_store.base.settings import Storage
from grace_store.base.states import Reason
from grace_store.run.verify import verify
from grace_store.store import array_group, check, layout
from grace_store.store.array_group import ArrayEncoder
from grace_store.store.backend import (
    COMMITS,
    COMPLETIONS,
    LEDGER_GROUP,
    LOCKS,
    PLAN_COPY,
    RUNS,
    SIGNAL_COPIES,
    TMP,
    LocalBackend,
    chunk_key,
    commit_key,
    completion_key,
    signal_copy_key,
)
from grace_store.store.check import Problem, check_plan, check_signal, check_strays
from grace_store.store.digested_json import group_bytes, seal, to_bytes
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import (
    UnitWriter,
    complete_signal,
    create_signal,
    digest_of,
    withdraw_units,
    write_metadata,
)
from tests.stores import (
    NUM_UNITS,
    SIGNAL,
    STORAGES,
    add_signal,
    finished_store,
    random_signals,
    spans_for,
    write_plan,
    write_store,
)

FLIPS_PER_KIND = 100


def found(store: Store, *, deep: bool = True) -> list[Problem]:
    return list(verify(Store.open(store.location), deep=deep))


def rewrite(store: Store, key: str, change: Callable[[bytes], bytes]) -> None:
    raw = store.backend.read(key)
    assert raw is not None
    store.backend.write(key, change(raw))


def flip_middle(raw: bytes) -> bytes:
    middle = len(raw) // 2
    return raw[:middle] + bytes([raw[middle] ^ 0x10]) + raw[middle + 1 :]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the metadata that arrays should have once a test, not once a check; no store here survives a power cut."""
    made: dict[str, ArrayEncoder] = {}
    monkeypatch.setattr(
        check,
        "ArrayEncoder",
        lambda arrays: made.get(key := repr(arrays)) or made.setdefault(key, ArrayEncoder(arrays)),
    )
    monkeypatch.setattr(os, "fsync", lambda _: None)


# ---------------------------------------------------------------- sound stores


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_store_has_no_problem(tmp_path: Path, storage: Storage, deep: bool) -> None:
    assert found(finished_store(tmp_path, storage), deep=deep) == []


def test_a_sound_store_with_many_inner_chunks_and_an_odd_size_has_no_problem(tmp_path: Path) -> None:
    assert found(write_store(tmp_path / "s", [60, 90, 3, 1, 200], 4, "int4", 33).store) == []


@pytest.mark.parametrize("storage", ["float32", "int4"])
def test_a_deep_check_reads_every_chunk_of_a_signal_once(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(finished_store(tmp_path, storage).location)
    seen: list[str] = []
    real = store.backend.read
    monkeypatch.setattr(store.backend, "read", lambda key: seen.append(key) or real(key))
    assert list(check_signal(store.signal(), deep=True)) == []
    asked = Counter(key for key in seen if key.startswith(f"signals/{SIGNAL}/") and "/c/" in key)
    per_unit = [array for array in store.signal().arrays if array.is_per_unit]
    assert set(asked.values()) == {1}
    assert len(asked) >= NUM_UNITS * len(per_unit)


def test_a_planned_store_has_no_problem(tmp_path: Path) -> None:
    write_plan(tmp_path / "s", [1, 2, 3], 2)
    assert found(Store.open(tmp_path / "s")) == []


def test_locks_logs_and_files_of_live_runs_are_no_problem(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    for key in (f"{LOCKS}/warm.0-of-2.json", f"{TMP}/warm.0-of-2/half", f"{RUNS}/any thing"):
        store.backend.write(key, b"?")
    assert found(store) == []


def test_json_written_with_other_white_space_and_order_is_no_problem(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    for key in list(store.backend.walk()):
        if key.endswith(".json"):
            rewrite(store, key, lambda raw: json.dumps(json.loads(raw), indent=7).encode())
    assert found(store) == []


def test_another_level_of_compression_and_other_words_are_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the format leaves open may change from release to release; old stores stay sound."""
    monkeypatch.setattr(array_group, "COMPRESSION_LEVEL", 9)
    store = write_store(tmp_path / "s", [3, 4, 9, 1], 2, "int4", 40).store
    monkeypatch.undo()
    assert b'"level": 9' in (store.backend.read("signals/base/segment_vector/zarr.json") or b"")
    for key in list(store.backend.walk("signals")):
        if key.endswith("zarr.json"):
            rewrite(store, key, lambda raw: raw.replace(b'"about": "', b'"about": "perhaps '))
    assert found(store) == []


def test_float32_grams_may_differ_by_what_another_machine_adds_up_differently(tmp_path: Path) -> None:
    view = write_store(tmp_path / "s", [3, 4], 2, "float32", 40)
    grams = view.unit_array("sample_gram", 0)
    recommit(view, "sample_gram", np.nextafter(grams, np.float32(np.inf)))
    assert found(view.store) == []
    recommit(view, "sample_gram", grams * np.float32(1.0001))
    assert [(p.unit, p.text) for p in found(view.store)] == [(0, "the Grams do not match the vectors")]


def recommit(view: SignalView, name: str, values: Any, **changes: Any) -> None:
    """Put other values into unit 0, and make commit and totals say that they are right."""
    chunks = ArrayEncoder(view.arrays).encode({name: (0, values)})
    commit = view.commit(0)
    for key, value in chunks.items():
        view.store.backend.write(f"{view.key}/{key}", value)
    digests = {**commit.chunks, **{key: digest_of(value) for key, value in chunks.items()}}
    put_commit(view, commit.model_copy(update={"chunks": digests, **changes}))


def put_commit(view: SignalView, commit: Commit) -> None:
    view.store.backend.write(commit_key(view.name, commit.unit), to_bytes(seal(commit)))
    complete_signal(view)


# ---------------------------------------------------------------- damage of every kind


def unit_chunks() -> list[str]:
    dims = {"segment_vector": 2, "segment_span": 2}
    names = ["segment_vector", "segment_span", "segment_num_tokens", "segment_loss", "segment_entropy"]
    names += ["segment_hit_rate", "sample_gram", "sample_state", "segment_scale"]
    return [chunk_key(name, dims.get(name, 1), 1) for name in names]


CHUNKS = [("float32", "segment_vector/c/1/0"), *(("int8", chunk) for chunk in unit_chunks())]


@pytest.mark.parametrize(("storage", "chunk"), CHUNKS)
def test_damage_to_a_chunk_is_pinned_on_its_unit(tmp_path: Path, storage: Storage, chunk: str) -> None:
    store = finished_store(tmp_path, storage)
    key = f"signals/{SIGNAL}/{chunk}"
    sound = store.backend.read(key)
    assert sound is not None
    rewrite(store, key, flip_middle)
    assert found(store, deep=False) == []
    content = "the chunk has changed since it was written"
    assert found(store) == [Problem(SIGNAL, 1, key, content, "repair")]
    store.backend.write(key, sound[:-1])
    text = f"chunk has {len(sound) - 1} bytes, but {len(sound)} were written"
    assert found(store, deep=False) == found(store) == [Problem(SIGNAL, 1, key, text, "repair")]
    store.backend.write(key, b"")
    assert [p.unit for p in found(store, deep=False)] == [1]
    store.backend.delete(key)
    assert found(store, deep=False) == found(store) == [Problem(SIGNAL, 1, key, "chunk is missing", "repair")]


def test_a_missing_commit_is_work_to_do(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    key = commit_key(SIGNAL, 1)
    store.backend.delete(key)
    assert found(store) == [Problem(SIGNAL, 1, key, "unit is not committed", "extract")]


@pytest.mark.parametrize("change", [flip_middle, lambda raw: raw[: len(raw) // 2], lambda raw: b""])
def test_a_damaged_commit_is_pinned_on_its_unit(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    store = finished_store(tmp_path)
    key = commit_key(SIGNAL, 1)
    rewrite(store, key, change)
    problems = found(store, deep=False)
    assert [(p.signal, p.unit, p.where, p.remedy) for p in problems] == [(SIGNAL, 1, key, "repair")]


def test_an_edited_commit_is_noticed_even_if_it_was_sealed_again(tmp_path: Path) -> None:
    view = finished_store(tmp_path).signal()
    commit = view.commit(1)
    path = commit_key(SIGNAL, 1)
    fewer = dict(list(commit.chunks.items())[1:])
    gone = next(iter(commit.chunks))
    put_commit(view, commit.model_copy(update={"chunks": fewer}))
    text = "the commit does not list the chunks of the format"
    assert found(view.store) == [Problem(SIGNAL, 1, f"{view.key}/{gone}", text, "repair")]
    put_commit(view, commit.model_copy(update={"num_done": commit.num_done - 1}))
    assert found(view.store) == [
        Problem(SIGNAL, 1, path, "the numbers of samples done and set aside do not add up", "repair")
    ]
    put_commit(view, commit)
    assert found(view.store) == []
    aside = SampleSetAside(sample=5, reason=Reason.TOO_LONG)
    put_commit(view, commit.model_copy(update={"num_done": commit.num_done - 1, "set_aside": (aside,)}))
    states = "the states of the samples differ from the commit"
    assert [(p.unit, p.text) for p in found(view.store)] == [(1, states)]
    elsewhere = SampleSetAside(sample=500, reason=Reason.TOO_LONG)
    put_commit(view, commit.model_copy(update={"num_done": commit.num_done - 1, "set_aside": (elsewhere,)}))
    assert [p.unit for p in found(view.store)] == [1]


def test_a_commit_that_vouches_for_an_unreadable_chunk_is_noticed(tmp_path: Path) -> None:
    view = finished_store(tmp_path).signal()
    key = "segment_loss/c/1"
    view.store.backend.write(f"{view.key}/{key}", b"not a chunk")
    commit = view.commit(1)
    put_commit(view, commit.model_copy(update={"chunks": {**commit.chunks, key: digest_of(b"not a chunk")}}))
    assert [(p.unit, "cannot be decoded" in p.text) for p in found(view.store)] == [(1, True)]


def test_a_commit_of_a_unit_that_the_plan_does_not_have(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    key = commit_key(SIGNAL, NUM_UNITS)
    store.backend.write(key, store.backend.read(commit_key(SIGNAL, 0)) or b"")
    assert found(store) == [Problem(SIGNAL, NUM_UNITS, key, "the plan has no such unit", "delete")]


def test_damaged_missing_and_wrong_totals(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    view = store.signal()
    key = completion_key(SIGNAL)
    completion = view.completion()
    assert completion is not None
    rewrite(store, key, flip_middle)
    assert [(p.unit, p.where, p.remedy) for p in found(store)] == [(None, key, "repair")]
    for field, value in {"num_bytes": 1, "num_tokens": 2, "num_done": 3, "commits_sha256": "", "set_aside": {}}.items():
        store.backend.write(key, to_bytes(seal(completion.model_copy(update={field: value}))))
        text = "the totals differ from the commits"
        assert found(store, deep=False) == [Problem(SIGNAL, None, key, text, "repair")], field
    store.backend.delete(key)
    text = "all units are committed, but their totals are missing"
    assert found(store) == [Problem(SIGNAL, None, key, text, "extract")]


METADATA = ["segment_vector", "sample_gram", "rotation_sign"]


@pytest.mark.parametrize("name", METADATA)
@pytest.mark.parametrize("raw", [None, b"{", group_bytes(), b'{"shape": [3]}'])
def test_damaged_metadata_of_an_array_condemns_no_unit(tmp_path: Path, name: str, raw: bytes | None) -> None:
    """It can be written again from the signal; computing all units again for it would be a night lost."""
    view = finished_store(tmp_path, "int4").signal()
    key = f"{view.key}/{name}/zarr.json"
    sound = view.store.backend.read(key)
    if raw is None:
        view.store.backend.delete(key)
    else:
        view.store.backend.write(key, raw)
    problems = found(view.store)
    assert {(p.signal, p.unit, p.remedy) for p in problems} == {(SIGNAL, None, "repair")}
    assert key in [p.where for p in problems]
    write_metadata(view.store, view.signal)
    assert view.store.backend.read(key) == sound
    assert found(view.store) == []


@pytest.mark.parametrize("name", ["rotation_sign", "rotation_order", "vector_codebook"])
def test_a_damaged_missing_or_foreign_rotation(tmp_path: Path, name: str) -> None:
    view = finished_store(tmp_path, "int4").signal()
    array = next(array for array in view.arrays if array.name == name)
    key = f"{view.key}/{chunk_key(name, len(array.dims), 0)}"
    foreign = ArrayEncoder([array]).encode({name: (0, -view.constant(name))})
    for change in (flip_middle, lambda raw: raw[:-3], lambda raw: b"", lambda raw: next(iter(foreign.values()))):
        sound = view.store.backend.read(key)
        rewrite(view.store, key, change)
        problems = found(view.store)
        assert [(p.signal, p.unit, p.where, p.remedy) for p in problems] == [
            (SIGNAL, None, f"{view.key}/{name}", "repair")
        ]
        write_metadata(view.store, view.signal)
        assert view.store.backend.read(key) == sound


def test_damage_to_the_plans_arrays(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    for array in layout.plan_arrays(store.plan):
        chunk = f"samples/{chunk_key(array.name, len(array.dims), 0)}"
        meta = f"samples/{array.name}/zarr.json"
        for key in (chunk, meta):
            sound = store.backend.read(key)
            assert sound is not None
            for change in (flip_middle, lambda raw: raw[: len(raw) // 3], None):
                if change is None:
                    store.backend.delete(key)
                else:
                    store.backend.write(key, change(sound))
                problems = list(check_plan(Store.open(store.location), deep=True))
                assert key in [p.where for p in problems], (key, problems)
                assert {(p.signal, p.unit, p.remedy) for p in problems} == {(None, None, "repair")}
            store.backend.write(key, sound)
    assert found(store) == []


def test_values_of_the_plan_that_are_sound_chunks_but_not_the_planned_ones(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    arrays = layout.plan_arrays(store.plan)
    swapped = ArrayEncoder(arrays).encode({"sample_row": (0, store.column("sample_row")[::-1])})
    for key, value in swapped.items():
        store.backend.write(f"samples/{key}", value)
    text = "the plan's arrays do not match the digest in the plan"
    assert found(store) == [Problem(None, None, "samples", text, "repair")]
    assert found(store, deep=False) == []


@pytest.mark.parametrize("key", ["samples/zarr.json", "signals/zarr.json", "ledger/zarr.json", "zarr.json"])
def test_foreign_metadata_of_a_group(tmp_path: Path, key: str) -> None:
    store = finished_store(tmp_path)
    rewrite(store, key, lambda raw: json.dumps(json.loads(raw) | {"consolidated_metadata": {}}).encode())
    text = "metadata differs from the plan"
    assert found(store) == [Problem(None, None, key, text, "repair")]


def test_a_plan_whose_counts_do_not_add_up(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    plan = store.plan.model_copy(update={"num_records": store.plan.num_records + 1})
    texts = [p.text for p in check_plan(Store(store.backend, Plan.model_validate(plan.model_dump())), deep=False)]
    assert "the number of records is not the sum of samples and records set aside" in texts


def test_a_signal_of_another_plan(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    signal = store.signal().signal
    create_signal(store, Signal.model_validate({**signal.model_dump(), "name": "other", "plan_sha256": "0" * 64}))
    problems = [p for p in found(store) if p.unit is None]
    assert [(p.signal, p.text, p.remedy) for p in problems] == [
        ("other", "the signal belongs to another plan", "delete"),
    ]


def test_another_signals_document_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    shutil.copytree(Path(store.location) / "signals/base", Path(store.location) / "signals/copy")
    with pytest.raises(Corrupt, match=r"signals/copy/zarr\.json belongs to the signal 'base'"):
        store.signal("copy")


@pytest.mark.parametrize("key", [PLAN_COPY, signal_copy_key(SIGNAL)])
def test_a_damaged_lost_or_foreign_copy_of_a_document(tmp_path: Path, key: str) -> None:
    store = finished_store(tmp_path)
    signal = SIGNAL if key != PLAN_COPY else None
    sound = store.backend.read(key) or b""
    changed: Any = store.plan.model_copy(update={"num_records": 99})
    foreign = group_bytes(store.signal().signal.model_copy(update={"plan_sha256": "0"}) if signal else changed)
    for raw, text in (
        (flip_middle(sound), key),
        (None, f"{key} is missing."),
        (foreign, "belongs to another document"),
    ):
        store.backend.delete(key)
        if raw is not None:
            store.backend.write(key, raw)
        problems = found(store, deep=False)
        assert [(p.signal, p.where, p.remedy) for p in problems] == [(signal, key, "repair")]
        assert text in problems[0].text


def test_a_copy_is_on_the_disk_before_its_document_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut could leave a store that works, without its copies."""
    order: list[str] = []
    write, flush = LocalBackend.write, LocalBackend.flush
    monkeypatch.setattr(LocalBackend, "write", lambda self, key, value: (order.append(key), write(self, key, value))[1])
    monkeypatch.setattr(LocalBackend, "flush", lambda self: (order.append("flush"), flush(self))[1])
    write_plan(tmp_path / "s", [1, 2, 3], 2)
    add_signal(Store.open(tmp_path / "s"), "int8", 16)
    for copy, key in ((PLAN_COPY, "zarr.json"), (signal_copy_key(SIGNAL), f"signals/{SIGNAL}/zarr.json")):
        assert "flush" in order[order.index(copy) : order.index(key)]


STRAYS = [
    "notes.txt",
    "zarr.json.bak",
    ".DS_Store",
    "samples/extra/zarr.json",
    "samples/sample_id/c/1",
    "samples/sample_id/c/x",
    "signals/base/segment_loss/c/3",
    "signals/base/segment_scale2/zarr.json",
    "signals/base/rotation_sign/c/0/0",
    "signals/halfborn/sample_gram/zarr.json",
    f"{COMMITS}/base/3.json",
    f"{COMMITS}/base/00000001.json.tmp",
    f"{COMPLETIONS}/base.json~",
    f"{LEDGER_GROUP}/anything",
    f"{TMP}/killed.0-of-1/abcdef",
]


@pytest.mark.parametrize("key", STRAYS)
def test_a_file_that_is_no_part_of_the_format_is_a_stray(tmp_path: Path, key: str) -> None:
    store = finished_store(tmp_path)
    store.backend.write(key, b"?")
    text = "not part of the format; an interrupted run may have left this file"
    assert found(store, deep=False) == [Problem(None, None, key, text, "delete")]


@pytest.mark.parametrize("lost", [["signals/base/zarr.json"], ["signals/base"]])
def test_a_signal_that_lost_its_metadata_is_one_problem_and_its_chunks_no_strays(
    tmp_path: Path, lost: list[str]
) -> None:
    """Strays are deleted by a repair; vectors of a whole signal must not be."""
    store = finished_store(tmp_path)
    for key in lost:
        store.backend.delete_tree(key)
        (Path(store.location) / key).unlink(missing_ok=True)
    text = "the metadata of the signal is missing, although units were committed"
    assert found(store) == [Problem(SIGNAL, None, "signals/base/zarr.json", text, "repair")]
    store.backend.delete(signal_copy_key(SIGNAL))
    assert found(store) == [Problem(SIGNAL, None, "signals/base/zarr.json", text, "delete")]


def test_a_signal_whose_document_is_damaged_has_no_strays(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    rewrite(store, "signals/base/zarr.json", flip_middle)
    assert list(check_strays(Store.open(store.location))) == []
    assert [(p.signal, p.where, p.remedy) for p in found(store)] == [(SIGNAL, "signals/base/zarr.json", "repair")]


def test_a_problem_becomes_json() -> None:
    problem = Problem("base", 3, "key", "text", "repair")
    assert json.loads(json.dumps(problem.to_json())) == {
        "signal": "base", "unit": 3, "where": "key", "text": "text", "remedy": "repair",
    }  # fmt: skip


def test_withdrawn_units_are_work_to_do_and_come_back_the_same(tmp_path: Path) -> None:
    view = write_store(tmp_path / "s", [1, 2, 3, 4, 5], 2, "int8", 16)
    before = {key: view.store.backend.read(key) for key in view.store.backend.walk()}
    withdraw_units(view, [0, 2])
    assert [(p.unit, p.remedy) for p in found(view.store)] == [(0, "extract"), (2, "extract")]
    for unit in (2, 0):
        UnitWriter(view).write(unit, random_signals(view, unit), spans_for(view, unit))
    complete_signal(view)
    assert {key: view.store.backend.read(key) for key in view.store.backend.walk()} == before


# ---------------------------------------------------------------- any byte of any file


def kind_of(key: str) -> str:
    parts = key.split("/")
    if key.startswith(COMMITS):
        return "commit"
    if key.startswith(COMPLETIONS):
        return "completion"
    if key == PLAN_COPY or key.startswith(SIGNAL_COPIES):
        return "copy"
    if parts[-1] == "zarr.json":
        group = {1: "root", 2: "group"}.get(len(parts), "signal" if parts[0] == "signals" else "samples")
        return f"metadata of {group}" + (" array" if len(parts) == (4 if parts[0] == "signals" else 3) else "")
    if parts[0] == "samples":
        return "chunk of samples"
    is_constant = parts[2] in ("rotation_sign", "rotation_order", "vector_codebook")
    return "chunk of rotation" if is_constant else "chunk of unit"


KINDS = [
    "metadata of root",
    "metadata of group",
    "metadata of samples array",
    "metadata of signal",
    "metadata of signal array",
    "chunk of samples",
    "chunk of rotation",
    "chunk of unit",
    "commit",
    "completion",
    "copy",
]


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of two units, with everything that a store can have."""
    location = tmp_path_factory.mktemp("flips") / "s"
    write_plan(location, [2, 1, 3, 1, 2], 4, {0: Reason.BAD_JSON, 1: Reason.NO_STEPS})
    view = add_signal(Store.open(location), "int4", 9)
    for unit in range(2):
        UnitWriter(view).write(unit, random_signals(view, unit, set_aside=[0]), spans_for(view, unit))
    complete_signal(view)
    assert {kind_of(key) for key in view.store.backend.walk()} == set(KINDS)
    assert found(view.store) == []
    return view.store


def first_problem(location: str, key: str) -> Problem | GraceStoreError | None:
    """Return one thing that a deep check says, asked first where it should be found."""
    try:
        store = Store.open(location)
        view = store.signal(SIGNAL)
    except GraceStoreError as error:
        return error
    checks: list[Iterator[Problem]] = [check_plan(store, deep=True), check_signal(view, deep=True), check_strays(store)]
    if not key.startswith("samples"):
        checks.reverse()
    if key.endswith(".json"):
        checks[:0] = [check_signal(view, deep=False), check_plan(store, deep=False)]
    return next(itertools.chain(*checks), None)


@pytest.mark.parametrize("kind", KINDS)
def test_any_flipped_byte_is_found_or_provably_harmless(victim: Store, kind: str) -> None:
    keys = [key for key in victim.backend.walk() if kind_of(key) == kind]
    rng = random.Random(kind)
    num_harmless = 0
    for _ in range(FLIPS_PER_KIND):
        path = Path(victim.location) / rng.choice(keys)
        key = path.relative_to(victim.location).as_posix()
        sound = path.read_bytes()
        position, mask = rng.randrange(len(sound)), rng.randrange(1, 256)
        path.write_bytes(sound[:position] + bytes([sound[position] ^ mask]) + sound[position + 1 :])
        try:
            problem = first_problem(victim.location, key)
            if problem is None:
                # White space between the tokens of JSON carries no meaning, nor does what the format leaves open.
                num_harmless += 1
                assert check.specified(json.loads(path.read_bytes())) == check.specified(json.loads(sound)), key
            elif kind in ("chunk of unit", "commit"):
                assert isinstance(problem, Problem)
                assert problem.unit == int(key.split("/c/")[1][0] if kind == "chunk of unit" else path.stem)
        finally:
            path.write_bytes(sound)
    assert num_harmless < FLIPS_PER_KIND / 4
    assert num_harmless == 0 or path.suffix == ".json"
