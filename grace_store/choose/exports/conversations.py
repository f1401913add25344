"""Samples as conversations: messages with one ``<image>`` in the text for each image, and the names of the images."""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from grace_store.base.errors import DataError
from grace_store.base.files import whole_file
from grace_store.base.text import counted
from grace_store.choose.exports.export_kind import ChosenRecords, Exported, Part, write_records
from grace_store.data.images import PLACEHOLDER
from grace_store.data.sample import ImageRef, Sample

ImageName = Callable[[ImageRef], str]
"""A function from an image to its name for a trainer: a path or URL."""
Conversations = Callable[[ChosenRecords, ImageName], Iterator[dict[str, Any]]]
"""A function from the chosen samples to records with messages and images."""

_MAGIC = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp"}
_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)


def conversation(sample: Sample, image_name: ImageName) -> dict[str, Any]:
    """Return a sample as {"id", "messages", "images"}; placeholders mark the images in the conversation."""
    messages = []
    for turn in sample.turns:
        content = "".join(part if isinstance(part, str) else PLACEHOLDER for part in turn.parts)
        messages.append({"role": turn.role, "content": content})
    messages.append({"role": "assistant", "content": sample.response})
    return {"id": sample.sample_id, "messages": messages, "images": [image_name(image) for image in sample.images]}


class ImageNames:
    """Names of images for a trainer. Paths become absolute; bytes and data URLs in records are written to a folder.

    All trainers read files, and not every trainer reads data URLs.
    """

    def __init__(self, chosen: ChosenRecords, exported: Exported) -> None:
        self._folder = Path(chosen.image_folder).absolute()
        self._extracted = exported.out.with_name(f"{exported.out.stem}-images").absolute()
        self._num_written = 0

    def __call__(self, image: ImageRef) -> str:
        source = image.source
        if isinstance(source, bytes):
            return self._write(source)
        if source[:5].lower() == "data:":
            return self._write(_data_url_bytes(source))
        if "://" in source:
            return source
        # The same path as in extraction; an absolute path stays absolute.
        return str((self._folder / source).resolve())

    def _write(self, content: bytes) -> str:
        suffix = next((suffix for magic, suffix in _MAGIC.items() if content.startswith(magic)), ".img")
        path = self._extracted / f"{hashlib.sha256(content).hexdigest()[:24]}{suffix}"
        if not path.exists():
            with whole_file(path) as partial:
                partial.write_bytes(content)
            self._num_written += 1
        return str(path)

    def notes(self) -> list[str]:
        """Return a note on the images that were written, if any were."""
        told = f"{counted(self._num_written, 'image')} from inside the records in {self._extracted.name}"
        return [told] if self._num_written else []


def _data_url_bytes(url: str) -> bytes:
    head = _DATA_URL.match(url)
    try:
        if head is None:
            raise ValueError("the URL has no ;base64")
        return base64.b64decode("".join(url[head.end() :].split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"The image in the data URL {url[:60]}... cannot be decoded: {error}.") from None


def plain_conversations(chosen: ChosenRecords, image_name: ImageName) -> Iterator[dict[str, Any]]:
    return (conversation(sample, image_name) for _, sample in chosen.samples())


def write_conversations(
    chosen: ChosenRecords, exported: Exported, stray: str = "", conversations: Conversations = plain_conversations
) -> int:
    """Write the chosen samples as conversations, add notes on images, and return the number of samples with images.

    stray is the end of a note: what the trainer does with a text that has more <image> placeholders than images.
    """
    names = ImageNames(chosen, exported)
    # A column of images, even an empty one, makes trainers expect a vision model.
    has_images = any(sample.images for _, sample in chosen.samples())
    num_with_images = num_stray = 0

    def lines() -> Iterator[bytes]:
        nonlocal num_with_images, num_stray
        for record in conversations(chosen, names):
            num_with_images += bool(record["images"])
            messages = [*record["messages"], *([record["chosen"]] if "chosen" in record else [])]
            contents = (message["content"] for message in messages)
            texts = (each if isinstance(each, str) else "".join(part["text"] for part in each) for each in contents)
            num_stray += sum(text.count(PLACEHOLDER) for text in texts) != len(record["images"])
            if not has_images:
                del record["images"]
            yield json.dumps(record, ensure_ascii=False).encode()

    write_records(exported.out, lines())
    if num_with_images:
        exported.notes.append(f"{counted(num_with_images, 'sample')} with images")
    exported.notes += names.notes()
    if num_stray:
        exported.notes.append(f"{counted(num_stray, 'sample')} with <image> in the text and no image for it{stray}")
    return num_with_images


def write_weighted(
    chosen: ChosenRecords,
    exported: Exported,
    in_parts: Callable[[list[dict[str, Any]], Sequence[Part]], list[dict[str, Any]]],
) -> None:
    """Write the chosen samples as conversations; with weights, in_parts puts the parts into the last message."""
    if chosen.weights is None:
        write_conversations(chosen, exported)
        return

    def weighted(chosen: ChosenRecords, image_name: ImageName) -> Iterator[dict[str, Any]]:
        for sample, parts in chosen.weighted_samples(exported):
            record = conversation(sample, image_name)
            yield record | {"messages": in_parts(record["messages"], parts)}

    write_conversations(chosen, exported, conversations=weighted)
