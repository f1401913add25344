"""What selecting and sweeping write: lines, documents and folders, each whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grace_store.errors import SettingError
from grace_store.json_values import without_nan
from grace_store.whole_files import name_beside, sync_file, whole_file

SIDECAR = ".spec.json"


@contextmanager
def whole_folder(path: Path, mark: str | Callable[[Path], bool]) -> Iterator[Path]:
    """Yield a folder to fill, which then takes its own name.

    A folder of that name is replaced only if it was made here before: mark is the name of a document in it that says
    so, or a function that tells. The old one is deleted when the new one is in its place.
    """
    place = Path(os.path.realpath(path))
    if place.exists() and not (place.is_dir() and (_is_empty(place) or _is_marked(place, mark))):
        raise SettingError(f"{path} exists and was not made by this command; choose another --out.")
    part, old = name_beside(place, "part"), name_beside(place, "old")
    part.mkdir(parents=True)
    try:
        yield part
        for file in part.rglob("*"):
            if file.is_file():
                sync_file(file)
        if place.exists():
            place.rename(old)
        try:
            part.rename(place)
        except OSError:
            if old.exists():
                old.rename(place)
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _is_empty(folder: Path) -> bool:
    return next(folder.iterdir(), None) is None


def _is_marked(folder: Path, mark: str | Callable[[Path], bool]) -> bool:
    return read_note(folder / mark) is not None if isinstance(mark, str) else mark(folder)


def read_note(path: Path) -> dict[str, Any] | None:
    """Return a document that says grace-store made what it lies in or beside; None if there is none, or another's."""
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    is_ours = isinstance(note, dict) and str(note.get("made_by")).startswith("grace-store ")
    return note if is_ours else None


def overlaps(one: Path, other: Path) -> bool:
    """Return whether two places are the same or one lies in the other, whatever links or names lead there."""
    one, other = Path(os.path.realpath(one)), Path(os.path.realpath(other))
    return any(_is_same(above, other) for above in (one, *one.parents)) or any(
        _is_same(above, one) for above in other.parents
    )


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one == other or one.samefile(other)
    except OSError:  # one of them is not there
        return False


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document for people and machines."""
    text = json.dumps(without_nan(value), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text; the file appears under its name only when all of it is there."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


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
