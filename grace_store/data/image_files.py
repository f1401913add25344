"""Open image references as RGB pictures, without leaving the image folder. The only reader of images.

    missing      image_missing      no such file in the image folder
    outside      image_refused      a path that leaves the folder, a URL, too many bytes or pixels
    not usable   image_unreadable   truncated, animated, of another format, or of more than 8 bits a channel

Unless another conversion to RGB is given, pictures are rotated by their EXIF orientation and get a white background,
as in the image processors of transformers. Messages name no folder: stores keep them, and stores do not depend on the
place of the images.
"""

import base64
import binascii
import hashlib
import os
import re
import stat
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from grace_store.base.errors import SettingError
from grace_store.base.states import Reason, Unusable
from grace_store.data.sample import ImageRef

MAX_IMAGE_BYTES = 2**27
"""Size of the largest encoded image that is read."""
MAX_IMAGE_PIXELS = 2**26
"""Size of the largest image that is decoded; Pillow warns of decompression bombs only above this size."""
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""Formats that are decoded; the name of a file does not matter."""

ToRgb = Callable[[Image.Image], Image.Image]
"""A conversion from an image that Pillow opened to the RGB picture for a model's processor."""

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_DATA_URL = re.compile(r"data:[^,;]*(;[^,;]*)*?;base64,", re.IGNORECASE)
_SHOWN_CHARS = 120


def upright_on_white(image: Image.Image) -> Image.Image:
    """Return an image rotated by its EXIF orientation, on a white background."""
    image = ImageOps.exif_transpose(image)
    if {"A", "a"} & {*image.getbands()} or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


class ImageFolder:
    """Opens the images of samples. Relative paths start at the folder, and no path may leave it."""

    def __init__(self, folder: str | Path, to_rgb: ToRgb = upright_on_white) -> None:
        self._to_rgb = to_rgb
        self._root = Path(os.path.realpath(Path(folder).expanduser()))
        if not self._root.is_dir():
            raise SettingError(f"--images {folder} is not a folder. Give the folder that the image paths start from.")

    def open(self, ref: ImageRef) -> tuple[Image.Image, str]:
        """Return the picture of a reference, and the SHA-256 of its bytes; raise Unusable if there is no picture."""
        content, name = self._read(ref.source)
        return decode_image(content, name, self._to_rgb), hashlib.sha256(content).hexdigest()

    def _read(self, source: str | bytes) -> tuple[bytes, str]:
        if isinstance(source, bytes):
            _check_num_bytes(len(source), "the image in the record")
            return source, "the image in the record"
        if source[:5].lower() == "data:":
            return _read_data_url(source), "the image in a data URL"
        return self._read_file(source), _shown(source)

    def _read_file(self, source: str) -> bytes:
        if _SCHEME.match(source):
            raise Unusable(
                Reason.IMAGE_REFUSED,
                f"{_shown(source)} is a URL, but grace-store downloads nothing: store the image in a file",
            )
        try:
            # An absolute path replaces the folder. realpath follows links before the check below.
            path = Path(os.path.realpath(self._root / source))
        except (ValueError, OSError) as error:
            raise Unusable(Reason.IMAGE_REFUSED, f"{_shown(source)} is not a path: {_words(error)}") from None
        if not path.is_relative_to(self._root):
            raise Unusable(Reason.IMAGE_REFUSED, f"{_shown(source)} leads out of the image folder; see --images")
        try:
            return _read_regular(path, _shown(source))
        except (FileNotFoundError, NotADirectoryError):
            raise Unusable(Reason.IMAGE_MISSING, f"no {_shown(source)} in the image folder; see --images") from None
        except OSError as error:
            raise Unusable(Reason.IMAGE_UNREADABLE, f"{_shown(source)}: {error.strerror or error}") from None


def decode_image(content: bytes, name: str, to_rgb: ToRgb = upright_on_white) -> Image.Image:
    """Return the picture from its encoded bytes, or raise Unusable with a message that uses name."""
    try:
        return _decode(content, name, to_rgb)
    except (Unusable, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Unusable(Reason.IMAGE_REFUSED, f"{name}: {_words(error)}") from None
    except UnidentifiedImageError:
        raise Unusable(
            Reason.IMAGE_UNREADABLE, f"{name} has an unknown format: use one of {', '.join(IMAGE_FORMATS)}"
        ) from None
    except Exception as error:  # noqa: BLE001 - decoders raise any error for a broken file
        raise Unusable(Reason.IMAGE_UNREADABLE, f"{name}: {_words(error)}") from None


def _decode(content: bytes, name: str, to_rgb: ToRgb) -> Image.Image:
    with Image.open(BytesIO(content), formats=IMAGE_FORMATS) as opened:
        width, height = opened.size
        if width * height > MAX_IMAGE_PIXELS:
            raise Unusable(
                Reason.IMAGE_REFUSED, f"{name} has {width} x {height} pixels, at most {MAX_IMAGE_PIXELS} are read"
            )
        # An MPO file of a camera contains a photo and then previews.
        num_frames = 1 if opened.format == "MPO" else getattr(opened, "n_frames", 1)
        if num_frames > 1:
            raise Unusable(Reason.IMAGE_UNREADABLE, f"{name} is animated ({num_frames} frames)")
        if opened.mode.startswith(("I", "F")):
            deep = f"{name} has more than 8 bits per channel ({opened.mode}): save the image with 8 bits"
            raise Unusable(Reason.IMAGE_UNREADABLE, deep)
        opened.load()
        return to_rgb(opened)


def _read_regular(path: Path, name: str) -> bytes:
    """Return a file's bytes; never wait for a pipe, and never follow a link created after the check of the path."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Unusable(Reason.IMAGE_UNREADABLE, f"{name} is not a file")
        _check_num_bytes(found.st_size, name)
        return file.read(MAX_IMAGE_BYTES)


def _read_data_url(source: str) -> bytes:
    if (head := _DATA_URL.match(source[:_SHOWN_CHARS])) is None:
        raise Unusable(Reason.IMAGE_UNREADABLE, f"{_shown(source)} is a data URL without base64")
    _check_num_bytes((len(source) - head.end()) * 3 // 4, "the image in a data URL")
    try:
        return base64.b64decode("".join(source[head.end() :].split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unusable(Reason.IMAGE_UNREADABLE, f"the image in a data URL is not base64: {error}") from None


def _check_num_bytes(num_bytes: int, name: str) -> None:
    if num_bytes > MAX_IMAGE_BYTES:
        raise Unusable(Reason.IMAGE_REFUSED, f"{name} has {num_bytes} bytes, at most {MAX_IMAGE_BYTES} are read")


def _shown(source: str) -> str:
    return source if len(source) <= _SHOWN_CHARS else f"{source[:_SHOWN_CHARS]}..."


def _words(error: Exception) -> str:
    """Return the text of an error, or its type if the text has a memory address, which changes with every run."""
    text = str(error)
    return text if text and " at 0x" not in text else type(error).__name__
