"""Samples as the trainers read them: ms-swift, LLaMA-Factory. Knows samples, no stores and no datasets.

Both take messages with one ``<image>`` in the text for each image; the images themselves are named beside them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grace_store.base.errors import DataError
from grace_store.base.files import whole_file, write_json
from grace_store.data.images import PLACEHOLDER
from grace_store.data.sample import ImageRef, Sample

ImageName = Callable[[ImageRef], str]
"""What a trainer is to call an image: a path or URL."""

DATASET_INFO = "dataset_info.json"
"""Where LLaMA-Factory looks for the datasets of a folder."""

_MAGIC = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp"}
_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)
_SHOWN_CHARS = 60


def conversation(sample: Sample, image_name: ImageName) -> dict[str, Any]:
    """Return a sample as {"id", "messages", "images"}, its images where they stood in the conversation."""
    messages = [
        {
            "role": turn.role,
            "content": "".join(part if isinstance(part, str) else PLACEHOLDER for part in turn.parts),
        }
        for turn in sample.turns
    ]
    messages.append({"role": "assistant", "content": sample.response})
    return {"id": sample.sample_id, "messages": messages, "images": [image_name(image) for image in sample.images]}


def has_stray_placeholder(record: dict[str, Any]) -> bool:
    """Return whether the texts say ``<image>`` more often than there are images, which trainers stumble over."""
    num_said: int = sum(message["content"].count(PLACEHOLDER) for message in record["messages"])
    return num_said != len(record["images"])


class ImageNames:
    """Names images for a trainer: paths absolute, images that lie in the records written to a folder of their own.

    Bytes and data URLs lie in the records; not every trainer reads data URLs, all read files.
    """

    def __init__(self, folder: str | Path, extracted: Path) -> None:
        self._folder = Path(folder).absolute()
        self._extracted = extracted.absolute()
        self.num_written = 0

    def __call__(self, image: ImageRef) -> str:
        source = image.source
        if isinstance(source, bytes):
            return self._write(source)
        if source[:5].lower() == "data:":
            return self._write(_data_url_bytes(source))
        if "://" in source:
            return source
        # As extraction finds it; an absolute path stays absolute.
        return str((self._folder / source).resolve())

    def _write(self, content: bytes) -> str:
        suffix = next((suffix for magic, suffix in _MAGIC.items() if content.startswith(magic)), ".img")
        path = self._extracted / f"{hashlib.sha256(content).hexdigest()[:24]}{suffix}"
        if not path.exists():
            with whole_file(path) as partial:
                partial.write_bytes(content)
            self.num_written += 1
        return str(path)


def _data_url_bytes(url: str) -> bytes:
    head = _DATA_URL.match(url)
    try:
        if head is None:
            raise ValueError("it does not say ;base64")
        return base64.b64decode("".join(url[head.end() :].split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"The image in the data URL {url[:_SHOWN_CHARS]}... cannot be decoded: {error}.") from None


def register_dataset(out: Path, *, has_images: bool) -> Path:
    """Add a file of conversations to the dataset_info.json beside it, as LLaMA-Factory wants, and return that."""
    path = out.with_name(DATASET_INFO)
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known[out.stem] = {
        "file_name": out.name,
        "formatting": "sharegpt",
        "columns": {"messages": "messages"} | ({"images": "images"} if has_images else {}),
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
            "system_tag": "system",
        },
    }
    write_json(path, known)
    return path


def with_step_scores(raw: bytes, added: dict[str, Any]) -> bytes:
    """Return a record as it stands with one field more, "grace_store", at its end.

    >>> with_step_scores(b'{"id": 1}', {"value": 0.5})
    b'{"id": 1, "grace_store": {"value": 0.5}}'
    """
    head = raw.rstrip()[:-1].rstrip()
    comma = b"" if head == b"{" else b", "
    return head + comma + b'"grace_store": ' + json.dumps(added, ensure_ascii=False).encode() + b"}"
