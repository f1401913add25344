"""Every field of every note, deleted, mistyped, of another kind or version, with every command that reads it.

Whatever was done to a note, a command ends with a result or with a sentence, never with a traceback.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from grace_store.base.documents import METADATA_KEY
from grace_store.base.files import sidecar_of
from grace_store.base.text import canonical_json
from grace_store.cli import main
from tests.commands import tree
from tests.stores import extract_store
from tests.warmups import make_inputs

Path_ = tuple[str | int, ...]
WRONG: dict[type, list[Any]] = {
    str: [7, None, ["text"], {"a": 1}],
    int: ["many", None, 1.5, -(10**30)],
    float: ["many", None, {}],
    bool: ["yes", None, 3],
    list: ["text", None, {"a": 1}, [None], [{}]],
    dict: ["text", None, [1], {"foreign": 1}],
}


def run(*words: object) -> Any:
    return CliRunner().invoke(main, [str(word) for word in words])


def run_well(*words: object) -> None:
    result = run(*words)
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each thing that carries a note."""
    folder = tmp_path_factory.mktemp("made")
    store = extract_store(folder)
    run_well("score", store.location, "--out", folder / "scores.parquet")
    run_well("select", folder / "scores.parquet", "--ratio", "0.5", "--out", folder / "subset.jsonl")
    run_well("sweep", store.location, "--out", folder / "sweep", "--alpha", "0.3,0.7")
    run_well("duplicates", store.location, "--out", folder / "duplicates.parquet")
    against = ("--against", folder / "data.jsonl")
    run_well("contamination", store.location, *against, "--out", folder / "against.parquet")
    run_well("diversity", store.location, "--scores", folder / "scores.parquet", "--out", folder / "diversity.json")
    run_well("stability", store.location, "--draws", "2", "--out", folder / "stability.json")
    (folder / "inputs").mkdir()
    model, data = make_inputs(folder / "inputs")
    recipe = ["--ratio", "0.1", "--batch-size", 4, "--heldout", 2, "--min-steps", 2, "--threads", 1]
    run_well("warmup", "--model", model, "--data", data, "--out", folder / "warmup", *recipe)
    return folder


# ---------------------------------------------------------------- what is done to a note


def places(value: Any, here: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of every field and of the first few entries of every list, at any depth."""
    items = value.items() if isinstance(value, dict) else list(enumerate(value))[:2] if isinstance(value, list) else ()
    for key, inner in items:
        yield (*here, key)
        yield from places(inner, (*here, key))


def changed(note: dict[str, Any], path: Path_, change: Callable[[Any, Any], None]) -> dict[str, Any]:
    spoilt = copy.deepcopy(note)
    holder: Any = spoilt
    for key in path[:-1]:
        holder = holder[key]
    change(holder, path[-1])
    return spoilt


def spoilt_notes(note: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every way in which a note is spoilt, with a name for it."""
    for path in places(note):
        name = ".".join(map(str, path))
        yield f"{name} deleted", changed(note, path, lambda holder, key: holder.pop(key))
        found: Any = note
        for key in path:
            found = found[key]
        for wrong in WRONG.get(type(found), ["text"]):
            yield f"{name} = {wrong!r}", changed(note, path, lambda holder, key, w=wrong: holder.__setitem__(key, w))
    yield "a foreign field", note | {"colour": "red"}
    yield "another kind", note | {"kind": "recipe"}
    yield "no version", {key: value for key, value in note.items() if key != "version"}
    yield "another version", note | {"version": "2.1"}


# ---------------------------------------------------------------- where notes are, and who reads them


@dataclass(frozen=True)
class Carrier:
    """A file or folder that carries a note, and the commands that read it."""

    name: str
    read: Callable[[Path], dict[str, Any]]
    write: Callable[[Path, dict[str, Any]], None]
    commands: tuple[tuple[str, ...], ...]
    """Words of commands; {it} is the carrier, {store} and {out} what they are called."""


def read_table(path: Path) -> dict[str, Any]:
    note: dict[str, Any] = json.loads(pq.read_schema(path).metadata[METADATA_KEY])
    return note


def write_table(path: Path, note: dict[str, Any]) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(note).encode()}), path)


def json_file(place: Callable[[Path], Path]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def read(path: Path) -> dict[str, Any]:
        note: dict[str, Any] = json.loads(place(path).read_text(encoding="utf-8"))
        return note

    return read, lambda path, note: place(path).write_text(json.dumps(note), encoding="utf-8") and None


def read_sealed(folder: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))["grace_store"]
    return body


def write_sealed(folder: Path, note: dict[str, Any]) -> None:
    sealed = {"grace_store": note, "grace_store_sha256": hashlib.sha256(canonical_json(note)).hexdigest()}
    (folder / "recipe.json").write_text(json.dumps(sealed), encoding="utf-8")


WARM_UP = ("warmup", "--out", "{it}")
EXTRACT = (
    "extract", "{it}/plan.zarr", "--model", "{made}/inputs/model", "--adapter", "{it}/checkpoint-2",
    "--signal", "warm", "--device", "cpu", "--threads", "1",
)  # fmt: skip
CARRIERS = (
    Carrier(
        "scores.parquet", read_table, write_table,
        (
            ("select", "{it}", "--out", "{out}/s.jsonl"),
            ("audit", "{it}"),
            ("compare", "{it}", "{it}"),
            ("score", "{store}", "--replay", "{it}", "--out", "{out}/again.parquet"),
            ("duplicates", "{store}", "--scores", "{it}", "--out", "{out}/d.parquet"),
            ("inspect", "{store}", "sample-0", "--neighbours", "3", "--descriptor", "weighted", "--scores", "{it}"),
            ("diversity", "{store}", "--scores", "{it}", "--random", "2"),
            ("report", "{store}", "--scores", "{it}", "--out", "{out}/r.html"),
        ),
    ),
    Carrier(
        "subset.jsonl", *json_file(sidecar_of),
        (
            ("compare", "{it}", "{it}"),
            ("duplicates", "{store}", "--subset", "{it}", "--out", "{out}/d.parquet"),
            ("diversity", "{store}", "--subset", "{it}", "--random", "2"),
            ("report", "{store}", "--subset", "{it}", "--out", "{out}/r.html"),
        ),
    ),
    Carrier(
        "sweep", *json_file(lambda folder: folder / "sweep.json"),
        (("report", "{store}", "--sweep", "{it}", "--out", "{out}/r.html"),),
    ),
    Carrier(
        "duplicates.parquet", read_table, write_table,
        (
            ("duplicates", "--from", "{it}", "--out", "{out}/d.parquet"),
            ("select", "{scores}", "--diversity", "dedup", "--duplicates", "{it}", "--out", "{out}/s.jsonl"),
            ("report", "{store}", "--duplicates", "{it}", "--out", "{out}/r.html"),
        ),
    ),
    Carrier(
        "against.parquet", read_table, write_table,
        (
            ("select", "{scores}", "--exclude-contaminated", "{it}", "--out", "{out}/s.jsonl"),
            ("report", "{store}", "--against", "{it}", "--out", "{out}/r.html"),
        ),
    ),
    Carrier(
        "diversity.json", *json_file(lambda path: path),
        (("report", "{store}", "--finding", "{it}", "--out", "{out}/r.html"),),
    ),
    Carrier(
        "stability.json", *json_file(lambda path: path),
        (("report", "{store}", "--finding", "{it}", "--out", "{out}/r.html"),),
    ),
    Carrier("warmup", read_sealed, write_sealed, (WARM_UP,)),
    Carrier("warmup", *json_file(lambda folder: folder / "done.json"), (WARM_UP,)),
    Carrier("warmup", *json_file(lambda folder: folder / "checkpoint-2" / "training_state.json"), (WARM_UP, EXTRACT)),
)  # fmt: skip
READINGS = [(carrier, command) for carrier in CARRIERS for command in carrier.commands]


def copied(folder: Path, made: Path, carrier: Carrier) -> Path:
    """Return a copy of what carries a note, beside an empty folder for results."""
    it = folder / carrier.name
    (shutil.copytree if (made / carrier.name).is_dir() else shutil.copy)(made / carrier.name, it)
    if sidecar_of(made / carrier.name).exists():
        shutil.copy(sidecar_of(made / carrier.name), sidecar_of(it))
    (folder / "out").mkdir()
    return it


def words_of(command: tuple[str, ...], it: Path, made: Path) -> list[str]:
    others = {"made": made, "store": made / "store.zarr", "scores": made / "scores.parquet"}
    return [word.format(it=it, out=it.parent / "out", **others) for word in command]


@pytest.mark.parametrize(
    ("carrier", "command"), READINGS, ids=lambda each: each.name if isinstance(each, Carrier) else each[0]
)
def test_a_note_of_a_draft_is_refused_and_nothing_is_changed(
    tmp_path: Path, made: Path, carrier: Carrier, command: tuple[str, ...]
) -> None:
    it = copied(tmp_path, made, carrier)
    note = carrier.read(it)
    for version in ("1.0", "1.1", "1.2", "1.3"):
        carrier.write(it, note | {"version": version})
        before = tree(tmp_path)
        result = run(*words_of(command, it, made))
        assert result.exit_code == 1
        told = f"has version {version} of the format, but this grace-store reads only version 2.1. "
        assert told in " ".join(result.output.split())
        assert tree(tmp_path) == before
    carrier.write(it, {key: value for key, value in note.items() if key not in ("kind", "version", "made_by")})
    before = tree(tmp_path)
    assert run(*words_of(command, it, made)).exit_code == 1
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("carrier", "command"), READINGS, ids=lambda each: each.name if isinstance(each, Carrier) else each[0]
)
def test_no_note_ends_in_a_traceback(
    tmp_path: Path, made: Path, carrier: Carrier, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = copied(tmp_path, made, carrier)
    if command[0] == "report":
        # All that a page is made from is read before anything is computed; a page itself takes seconds.
        monkeypatch.setattr("grace_store.pages.report.status", _stop)
    words = words_of(command, it, made)
    num_refused = 0
    for name, note in spoilt_notes(carrier.read(it)):
        carrier.write(it, note)
        result = run(*words)
        is_expected = result.exception is None or isinstance(result.exception, SystemExit | _Read)
        assert is_expected, f"{name}: {result.exception!r}"
        assert "Traceback" not in result.output, name
        if result.exit_code and not isinstance(result.exception, _Read):
            num_refused += 1
            assert len(result.output.strip()) > 20, name
    assert num_refused > 20  # most of what is spoilt is noticed


class _Read(Exception):
    """Everything that the page is made from was read."""


def _stop(*_: object, **__: object) -> None:
    raise _Read
