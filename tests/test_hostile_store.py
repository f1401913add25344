"""Stores that strangers made, with every digest right: a sentence, and no more memory or time than they are worth."""

from __future__ import annotations

import hashlib
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from click.testing import CliRunner
from numcodecs import zstd

from grace_store.base.errors import DatasetChanged, GraceStoreError, SettingError
from grace_store.base.text import canonical_json
from grace_store.cli import main
from grace_store.pool.records import open_dataset
from grace_store.run.plan import plan
from grace_store.store.digested_json import BODY, SEAL
from grace_store.store.opened import Store
from tests.stores import extract_store

MEMORY = 2 << 30
"""What a command may take beside what the tests have taken already."""


def edit(path: Path, change: Callable[[dict[str, Any]], None], *within: str) -> None:
    """Change a sealed document and seal it again."""
    node = json.loads(path.read_text())
    sealed = node
    for name in within:
        sealed = sealed[name]
    change(sealed[BODY])
    sealed[SEAL] = hashlib.sha256(canonical_json(sealed[BODY])).hexdigest()
    path.write_text(json.dumps(node))


@contextmanager
def limited_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def plan_says(**fields: Any) -> Callable[[Path], None]:
    return lambda store: edit(store / "zarr.json", lambda plan: plan.update(fields), "attributes")


def data_is(path: str) -> Callable[[Path], None]:
    def change(plan: dict[str, Any]) -> None:
        plan["files"][0]["path"] = path

    return lambda store: edit(store / "zarr.json", change, "attributes")


def array_has_codecs(name: str, codecs: list[Any]) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        path = store / name / "zarr.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"codecs": codecs}))

    return change


def array_has(name: str, **fields: Any) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        path = store / name / "zarr.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def bomb(num_bytes: int) -> bytes:
    """Return a chunk whose checksum is right and which unpacks to zeros."""
    body = zstd.compress(np.zeros(num_bytes, dtype=np.uint8).tobytes(), 19)
    return body + google_crc32c.value(body).to_bytes(4, "little")


def chunk_is_a_bomb(key: str) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        raw = bomb(3 << 30)
        (store / key).write_bytes(raw)
        digest = {"num_bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        name = key.removeprefix("signals/base/")
        if name != key:
            edit(store / "ledger/commits/base/00000000.json", lambda commit: commit["chunks"].update({name: digest}))

    return change


VLEN = [{"name": "vlen-bytes", "configuration": {}}, {"name": "zstd", "configuration": {"level": 3, "checksum": False}}]

ATTACKS: dict[str, Callable[[Path], None]] = {
    "a trillion samples": plan_says(num_samples=10**12, num_records=10**12, set_aside={}, num_units=10**12 // 4),
    "a trillion samples in few units": plan_says(num_samples=10**12),
    "fewer than no samples": plan_says(num_samples=-5),
    "wide units": plan_says(rows_per_unit=2**40),
    "wide Grams": plan_says(gram_per_unit=2**40),
    "units of nothing": plan_says(samples_per_unit=0),
    "huge units": plan_says(samples_per_unit=2**40, num_units=1),
    "negative counts": plan_says(set_aside={"no-steps": -(10**6)}),
    "a number beyond 64 bits": plan_says(num_samples=10**30),
    "foreign codecs": array_has_codecs("signals/base/segment_loss", VLEN),
    "foreign codecs of texts": array_has_codecs("samples/sample_id", VLEN),
    "unknown codecs": array_has_codecs("samples/sample_row", [{"name": "x", "configuration": {}}]),
    "a bomb of losses": chunk_is_a_bomb("signals/base/segment_loss/c/0"),
    "a bomb of ids": chunk_is_a_bomb("samples/sample_id/c/0"),
    "a bomb of rows": chunk_is_a_bomb("samples/sample_row/c/0"),
    "a fill value beyond its type": array_has("samples/sample_row", fill_value=2**40),
    "a fill value that is a list": array_has("signals/base/segment_loss", fill_value=[[]]),
    "a shape that is a text": array_has("signals/base/segment_loss", shape="all"),
}
SPECIAL_PLACES = [
    "zarr.json",
    "signals/base/zarr.json",
    "samples/sample_num_steps/zarr.json",
    "samples/sample_num_steps/c/0",
    "signals/base/sample_gram/c/0",
    "ledger/commits/base/00000000.json",
]
COMMANDS = [("status",), ("verify", "--deep"), ("score", "--out", "x.parquet"), ("inspect", "#0")]


def run(store: Path, *words: str) -> tuple[int, str]:
    """Run a command on a store; return its exit code and all that it said."""
    command, *options = words
    result = CliRunner().invoke(main, [command, str(store), *options], catch_exceptions=True)
    assert result.exception is None or isinstance(result.exception, SystemExit), (words, repr(result.exception))
    return result.exit_code, result.output


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(extract_store(tmp_path).location)


def test_what_is_not_attacked_is_read(store: Path) -> None:
    assert [run(store, *words)[0] for words in COMMANDS] == [0] * len(COMMANDS)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_strangers_store_ends_in_a_sentence(store: Path, name: str) -> None:
    ATTACKS[name](store)
    with limited_memory():
        codes = {words[0]: run(store, *words)[0] for words in COMMANDS}
    assert set(codes.values()) <= {0, 1, 2}
    assert codes["verify"] == 1


@pytest.mark.parametrize("place", SPECIAL_PLACES)
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "/proc/self/pagemap", "/proc/kcore"])
def test_what_is_no_file_is_neither_waited_for_nor_read_without_end(store: Path, place: str, kind: str) -> None:
    path = store / place
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(kind)
    with limited_memory():
        codes = {words[0]: run(store, *words) for words in COMMANDS}
    assert codes["verify"][0] == 1
    if kind in ("pipe", "/dev/zero") and place == "zarr.json":
        assert all("is a pipe or a device, but must be a file" in said for _, said in codes.values())


@pytest.mark.parametrize("kind", ["a pipe", "a secret"])
def test_a_data_file_that_a_stranger_named_is_neither_waited_for_nor_shown(
    store: Path, tmp_path: Path, kind: str
) -> None:
    named = tmp_path / "named"
    if kind == "a pipe":
        os.mkfifo(named)
    else:
        named.write_text("root:x:0:0:secret")
    data_is(str(named))(store)
    for words in (("inspect", "#0"), ("report", "--out", "page.html")):
        assert "secret" not in run(store, *words)[1]
    with pytest.raises(DatasetChanged, match=r"was planned from .*named, where no such records are now.*--data"):
        open_dataset(Store.open(store))


def test_a_link_to_nothing_is_no_place_for_a_store(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "a", "steps": ["b"], "answer": "c"}\n')
    (tmp_path / "store.zarr").symlink_to(tmp_path / "unmounted" / "store.zarr")
    with pytest.raises(SettingError, match=r"is a link to .*unmounted/store.zarr, but that folder does not exist"):
        plan([data], tmp_path / "store.zarr")
    with pytest.raises(GraceStoreError, match="nothing is there"):
        Store.open(tmp_path / "store.zarr")
