"""Find the images of a record and their places in the conversation. Opens no image file."""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from grace_store.base.states import Reason, Unusable
from grace_store.data.sample import ImageRef, Role, Turn

PLACEHOLDER = "<image>"
EMPTY_PLACE = ImageRef("")
"""Placeholder for the next image of the record, in a turn that marks the place of an image without naming it."""
IMAGE_KEYS = ("images", "image", "image_url")
"""Fields that may hold the images of a record; the first that is not empty counts."""

Part = str | ImageRef
Draft = tuple[Role, Sequence[Part]]
"""A turn before the images of the record are inserted."""


def record_images(record: Mapping[str, Any]) -> list[ImageRef]:
    """Return the record's images: a string, a {"path", "bytes"} or {"bytes_base64"} object, or a list of them."""
    for key in IMAGE_KEYS:
        value = record.get(key)
        if images := [image_ref(item) for item in (value if isinstance(value, list) else [value]) if item]:
            return images
    return []


def image_ref(value: Any) -> ImageRef:
    """Return the reference to one image of a record. If the record has bytes and a path, the bytes count."""
    if isinstance(value, bytes) or (isinstance(value, str) and value):
        return ImageRef(value)
    if isinstance(value, Mapping):
        if isinstance(encoded := value.get("bytes_base64"), str):
            return ImageRef(_decode(encoded))
        content = value.get("bytes")
        if isinstance(content, Mapping):
            content = content.get("bytes_base64")
        if isinstance(content, str) and content:
            return ImageRef(_decode(content))
        for key in ("path", "url", "image", "image_url"):
            if value.get(key):
                return image_ref(value[key])
    wanted = 'a path, a URL, {"path": ...} or {"bytes_base64": ...} is wanted'
    raise Unusable(Reason.IMAGE_UNREADABLE, f"an image is a {type(value).__name__} without a path or bytes; {wanted}")


def is_missing(ref: ImageRef, folder: Path) -> bool:
    """Return whether an image is a file that does not exist in a folder. Opens no file."""
    if isinstance(ref.source, bytes) or ref.source[:5].lower() == "data:" or "://" in ref.source:
        return False
    try:
        return not (folder / ref.source).exists()
    except (OSError, ValueError):  # the name is too long or contains a null
        return True


def _decode(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unusable(Reason.IMAGE_UNREADABLE, f"an image's bytes are not base64: {error}") from None


def place_images(drafts: Sequence[Draft], images: Sequence[ImageRef]) -> tuple[Turn, ...]:
    """Return the turns with the record's images where ``<image>`` stands in their text.

    Without placeholders the images go before the text of the first user turn. If the numbers of placeholders and images
    differ, the record is unusable, also if it has no image: a question must not refer to an image that is not shown.
    """
    all_parts = [part for _, parts in drafts for part in parts]
    num_places = all_parts.count(EMPTY_PLACE)
    num_places += sum(part.count(PLACEHOLDER) for part in all_parts if isinstance(part, str))
    if num_places not in (0, len(images)):
        raise Unusable(Reason.IMAGE_COUNT, f"{len(images)} images for {num_places} {PLACEHOLDER} in the prompt")
    remaining = iter(images)
    if num_places:
        return tuple(Turn(role, _joined(_filled(parts, remaining))) for role, parts in drafts)
    before = {next((i for i, (role, _) in enumerate(drafts) if role == "user"), 0): images}
    return tuple(Turn(role, _joined([*before.get(i, ()), *parts])) for i, (role, parts) in enumerate(drafts))


def _filled(parts: Sequence[Part], images: Iterator[ImageRef]) -> Iterator[Part]:
    for part in parts:
        if isinstance(part, ImageRef):
            yield part if part.source else next(images)
            continue
        before, *after = part.split(PLACEHOLDER)
        yield before
        for text in after:
            yield next(images)
            yield text


def _joined(parts: Sequence[Part] | Iterator[Part]) -> tuple[Part, ...]:
    """Return the parts with neighbouring texts joined and empty texts left out."""
    if isinstance(parts, list) and len(parts) == 1 and parts[0]:
        return (parts[0],)
    joined: list[Part] = []
    for is_text, some in groupby(parts, key=lambda part: isinstance(part, str)):
        if is_text:  # joined once, because repeated concatenation takes quadratic time
            joined.append("".join(map(str, some)))
        else:
            joined.extend(some)
    return tuple(part for part in joined if part)
