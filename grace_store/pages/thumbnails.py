"""Small pictures of samples' images as data URLs, each image once. Nothing of a file is copied but its pixels."""

import base64
from collections.abc import Iterator
from io import BytesIO

from grace_store.base.states import Unusable
from grace_store.data.sample import ImageRef

LARGE, SMALL = 448, 224
"""Longest side in pixels."""
MANY = 400
"""With more samples than this, pictures are small."""
_QUALITY = 72


class Thumbnails:
    """Makes pictures, and remembers them by the content of their images."""

    def __init__(self, folder: str, num_samples: int) -> None:
        from grace_store.data.image_files import ImageFolder

        self._folder = ImageFolder(folder)
        self._side = LARGE if num_samples <= MANY else SMALL
        self._keys: dict[str, str] = {}
        self.num_missing = 0

    def picture(self, ref: ImageRef) -> tuple[str, str | None, str]:
        """Return an image's key, its data URL the first time it is met, and what is wrong with it, if anything is."""
        try:
            image, sha256 = self._folder.open(ref)
        except Unusable as why:
            self.num_missing += 1
            return "", None, f"{why.reason.value}: {why.detail}"
        if sha256 in self._keys:
            return self._keys[sha256], None, ""
        key = self._keys[sha256] = f"i{len(self._keys)}"
        image.thumbnail((self._side, self._side))
        return key, min(_encoded(image), key=len), ""


def _encoded(image: object) -> Iterator[str]:
    """Yield an image as data URLs of the two formats that suit drawings and photographs."""
    from PIL import Image

    assert isinstance(image, Image.Image)
    options: dict[str, dict[str, int | bool]] = {"WEBP": {"quality": _QUALITY}, "PNG": {"optimize": True}}
    for name, how in options.items():
        stream = BytesIO()
        image.save(stream, name, **how)
        yield f"data:image/{name.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"
