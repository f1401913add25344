"""Files that appear whole or not at all: written beside their place under another name, then renamed into it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grace_store.errors import SettingError

SIDECAR = ".spec.json"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a name to write to; the file takes its own name only if nothing goes wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise SettingError(f"{path} is a folder; give the name of a file.")
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, mark: str) -> Iterator[Path]:
    """Yield a folder to fill, which then takes its own name.

    A folder of that name is replaced if it holds the file called mark, that is, if it was made here before.
    """
    if path.exists() and not (path / mark).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise SettingError(f"{path} exists and was not made by this command (no {mark} in it); choose another --out.")
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if path.exists():
            shutil.rmtree(path)
        partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document for people and machines."""
    with whole_file(path) as partial:
        partial.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write one record a line."""
    with whole_file(path) as partial, partial.open("wb") as stream:
        for line in lines:
            stream.write(line + b"\n")


def write_array(path: Path, records: Iterable[bytes]) -> None:
    """Write a JSON array of records as they stand."""
    with whole_file(path) as partial, partial.open("wb") as stream:
        stream.write(b"[")
        for number, record in enumerate(records):
            stream.write((b",\n" if number else b"\n") + record)
        stream.write(b"\n]\n")


def sidecar_of(path: Path) -> Path:
    """Return where the spec that made a file lies."""
    return path.with_name(path.name + SIDECAR)
