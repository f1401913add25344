"""What kind of file lies at a path: told by its first bytes, and by its name where those leave a choice.

jsonl, jsonl.gz, jsonl.zst    one JSON object per line
json, json.gz, json.zst       one JSON array of objects
parquet                       Parquet
arrow                         Arrow IPC stream (Hugging Face ``save_to_disk``) or file
"""

import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import zstandard

from grace_store.base.errors import DataError
from grace_store.data.byte_streams import Compression, damaged

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
    """One file of records."""

    path: Path
    """Absolute."""
    kind: str
    num_bytes: int
    """On disk."""
    name: str
    """The file's name, with as many folders before it as tell it from the dataset's other files."""
    skip_bytes: int = 0
    """Length of the byte order mark that the text begins with."""

    @property
    def is_table(self) -> bool:
        return self.kind in ("parquet", "arrow")

    @property
    def is_array(self) -> bool:
        return self.kind.startswith("json.") or self.kind == "json"

    @property
    def is_read_forwards(self) -> bool:
        """Whether going back in it means to start it, or a part of it, again."""
        return bool(self.compression) or self.kind == "parquet"

    @property
    def compression(self) -> Compression:
        return "gz" if self.kind.endswith(".gz") else "zst" if self.kind.endswith(".zst") else ""


def examine_file(path: Path, name: str) -> RecordFile:
    """Return the file with its kind; DataError when it is none that can be read."""
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
            raise DataError(f"{path}: this is {words}; {KINDS_IN_WORDS} can be read.")
    suffix = content_suffix(path)
    text = head.lstrip()
    if suffix in (".parquet", ".arrow"):
        raise DataError(f"{path}: named {suffix} but does not begin like one; it is damaged or something else.")
    if re.match(rb"\{[ \t]*\r?\n", text):
        raise DataError(
            f"{path}: one JSON object over several lines; an array of objects, or one object per line, is wanted. "
            "If the records are inside it, write that list to a file of its own (jq -c '.data[]' file > file.jsonl)."
        )
    if text.startswith(b"[") and (suffix == ".json" or re.match(rb"\[\s*[{\]]", text)):
        return "json"
    if text.startswith(b"{") or suffix in SUFFIXES or not text:
        return "jsonl"
    found = text[:40].decode(errors="backslashreplace")
    raise DataError(f"{path}: begins with {found!r}, which is no record file; {KINDS_IN_WORDS} can be read.")


def content_suffix(path: Path) -> str:
    """Return the name's last suffix below .gz or .zst, in lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".zst", ".zstd"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""
