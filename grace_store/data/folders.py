"""Find the files of a dataset: the paths given by the user, with folders expanded, in a fixed order."""

import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard

from grace_store.base.errors import DataError
from grace_store.data.byte_streams import Compression, damaged

_NOT_RECORDS = {"dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json", "config.json"}
_SHARD = re.compile(r"(.+?)-\d{5}-of-\d{5}")


def expand_paths(paths: Sequence[str | Path]) -> list[Path]:
    """Return the absolute path of every file in the given order; the files of a folder are sorted by name."""
    if not paths:
        raise DataError("No data was given. Name at least one file or folder.")
    if missing := [str(path) for path in paths if not Path(path).exists()]:
        raise DataError(f"No such file or folder: {', '.join(missing)}.")
    files: list[Path] = []
    for path in paths:
        absolute = Path(path).absolute()  # not resolve(): the user knows the name of the link
        files += _folder_files(absolute) if absolute.is_dir() else [absolute]
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is not a regular file, but a pipe or a device. Save the records in a file.")
    first: dict[Path, Path] = {}
    for file in files:
        if (earlier := first.setdefault(file.resolve(), file)) is not file:
            same = "" if earlier == file else f" (also as {earlier})"
            raise DataError(f"{file}: this file is given twice{same}. Name each file once.")
    return files


def default_image_folder(files: Sequence[str | Path]) -> str:
    """Return the default folder for relative image paths: the folder that contains all files of the dataset."""
    return os.path.commonpath([Path(file).absolute().parent for file in files])


def name_files(files: Sequence[Path]) -> list[str]:
    """Return a different name for each file: the file name with as few folders before it as possible."""
    names: list[str] = []
    for depth in range(1, max((len(file.parts) for file in files), default=0) + 1):
        names = ["/".join(file.parts[-depth:]) for file in files]
        if len(set(names)) == len(files):
            break
    return names


def _folder_files(folder: Path) -> list[Path]:
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(path.parent.name for path in folder.glob("*/state.json"))
        if len(splits) == 1:
            return _saved_dataset_files(folder / splits[0])
        hint = f" Give the folder of one split, such as {folder / splits[0]}." if splits else ""
        raise DataError(f"{folder} is a datasets folder with several splits ({', '.join(splits)}).{hint}")
    if (folder / "state.json").is_file():
        return _saved_dataset_files(folder)
    if not (found := _record_files(folder, "*") or _record_files(folder, "**/*")):
        raise DataError(f"{folder} has no record file. Give {KINDS_IN_WORDS}.")
    suffixes = map(content_suffix, found)
    families = Counter(suffix if suffix in (".parquet", ".arrow") else ".json(l)" for suffix in suffixes)
    if len(families) > 1:
        counts = ", ".join(f"{count} {family}" for family, count in sorted(families.items()))
        raise DataError(
            f"{folder} has files of several kinds ({counts}). They may hold the same records twice. Name the files to "
            "read."
        )
    splits = sorted({match[1] for file in found if (match := _SHARD.match(file.name))})
    if len(splits) > 1:
        raise DataError(
            f"{folder} has the files of several splits ({', '.join(splits)}). Name the files of one split, such as "
            f"{found[0].parent}/{splits[-1]}-*."
        )
    return found


def _record_files(folder: Path, pattern: str) -> list[Path]:
    return sorted(
        path
        for path in folder.glob(pattern)
        if path.is_file()
        and content_suffix(path) in SUFFIXES
        and path.name not in _NOT_RECORDS
        and not path.name.endswith(".spec.json")  # `select` writes this file beside a subset
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    )


def _saved_dataset_files(folder: Path) -> list[Path]:
    """Return the Arrow files of a folder that ``datasets`` saved, in the order of its state.json."""
    state_path = folder / "state.json"
    try:
        state = json.loads(state_path.read_text(encoding="utf-8"))
        names = [str(entry["filename"]) for entry in state["_data_files"]]
        indices = state.get("_indices_data_files")
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{state_path}: not a state.json of Hugging Face datasets ({error}).") from error
    if indices:
        raise DataError(f"{folder}: an index file selects the rows. Call flatten_indices() and save the dataset again.")
    if not names:
        raise DataError(f"{folder} is a datasets folder without data files.")
    if outside := [name for name in names if Path(name).name != name]:
        raise DataError(f"{state_path} names a file outside the folder ({outside[0]}). Save the dataset again.")
    here = {path.name for path in folder.iterdir() if path.is_file()}
    if absent := [name for name in names if name not in here]:
        raise DataError(f"{folder} has no {', '.join(absent)}, but its state.json names them. Copy the folder again.")
    return [folder / name for name in names]


# ---------------------------------------------------------------- kinds of files
# The first bytes of a file decide its kind. If they are ambiguous, its name decides.
#
# jsonl, jsonl.gz, jsonl.zst    one JSON object per line
# json, json.gz, json.zst       one JSON array of objects
# parquet                       Parquet
# arrow                         Arrow IPC stream (Hugging Face ``save_to_disk``) or file

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
KINDS_IN_WORDS = "JSON lines or a JSON array (plain, .gz or .zst), Parquet, or a Hugging Face datasets folder"

_HEAD_BYTES = 2**16
_BOM = b"\xef\xbb\xbf"
_OTHER_MAGIC = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ": "xz data",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself (run git lfs pull)",
    b"SQLite format 3": "an SQLite database",
}


@dataclass(frozen=True, slots=True)
class RecordFile:
    path: Path
    """The absolute path."""
    kind: str
    num_bytes: int
    """Size on disk."""
    name: str
    """The file's name, with enough folders before it to make it unique in the dataset."""
    skip_bytes: int = 0
    """Length of the byte order mark at the start of the text."""

    @property
    def is_table(self) -> bool:
        return self.kind in ("parquet", "arrow")

    @property
    def compression(self) -> Compression:
        return "gz" if self.kind.endswith(".gz") else "zst" if self.kind.endswith(".zst") else ""


def examine_file(path: Path, name: str) -> RecordFile:
    """Return the file with its kind; raise DataError if it is not a kind that can be read."""
    try:
        num_bytes = path.stat().st_size
        with open(path, "rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if head.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")):
        return RecordFile(path, "parquet" if head.startswith(b"PAR1") else "arrow", num_bytes, name)
    compression: Compression = ""
    if head.startswith(b"\x1f\x8b"):
        compression, head = "gz", _first_text(path, head, "gz")
    elif head.startswith(b"\x28\xb5\x2f\xfd") or re.match(rb"[\x50-\x5f]\x2a\x4d\x18", head):
        compression, head = "zst", _first_text(path, head, "zst")
    skip_bytes = len(_BOM) if head.startswith(_BOM) else 0
    kind = _text_kind(path, head[skip_bytes:])
    return RecordFile(path, f"{kind}.{compression}" if compression else kind, num_bytes, name, skip_bytes)


def _first_text(path: Path, head: bytes, compression: Compression) -> bytes:
    try:
        if compression == "gz":
            return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
        return zstandard.ZstdDecompressor().stream_reader(head).read(_HEAD_BYTES)
    except (zlib.error, zstandard.ZstdError) as error:
        raise damaged(str(path), {"gz": "gzip", "zst": "zstd"}[compression], error) from None


def _text_kind(path: Path, head: bytes) -> str:
    for magic, words in _OTHER_MAGIC.items():
        if head.startswith(magic):
            raise DataError(f"{path} is {words}. Give {KINDS_IN_WORDS}.")
    suffix = content_suffix(path)
    text = head.lstrip()
    if suffix in (".parquet", ".arrow"):
        raise DataError(
            f"{path} is named {suffix}, but does not begin like such a file. The file is damaged or has another format."
        )
    if re.match(rb"\{[ \t]*\r?\n", text):
        raise DataError(
            f"{path} holds one JSON object over several lines. Write an array of objects, or one object per line. If "
            "the records are a list inside this object, write that list to another file (jq -c '.data[]' file > "
            "file.jsonl)."
        )
    if text.startswith(b"[") and (suffix == ".json" or re.match(rb"\[\s*[{\]]", text)):
        return "json"
    if text.startswith(b"{") or suffix in SUFFIXES or not text:
        return "jsonl"
    found = text[:40].decode(errors="backslashreplace")
    raise DataError(f"{path} begins with {found!r}, so this is not a file of records. Give {KINDS_IN_WORDS}.")


def content_suffix(path: Path) -> str:
    """Return the last suffix of a name, without .gz or .zst, in lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".zst", ".zstd"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""
