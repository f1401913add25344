"""Images: found, decoded and turned into RGB, or refused with a reason; nothing outside the folder is ever read."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grace_store.base.errors import SettingError
from grace_store.base.states import Reason, Unusable
from grace_store.data import image_files
from grace_store.data.folders import default_image_folder
from grace_store.data.image_files import ImageFolder, decode_image
from grace_store.data.sample import ImageRef

PICTURE = Image.fromarray(np.arange(12 * 8 * 3, dtype=np.uint8).reshape(12, 8, 3))


def encoded(image: Image.Image = PICTURE, kind: str = "PNG", **options) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


PNG = encoded()


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of images beside a file that is nobody's business."""
    (tmp_path / "secret.png").write_bytes(PNG)
    root = tmp_path / "images"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "a.png").write_bytes(PNG)
    return root


def verdict(folder: Path, source: str | bytes) -> tuple[Reason, str]:
    with pytest.raises(Unusable) as caught:
        ImageFolder(folder).open(ImageRef(source))
    assert str(folder) not in caught.value.detail.replace(str(source), ""), "verdicts are kept, and name no folder"
    return caught.value.reason, caught.value.detail


def test_an_image_is_found_by_any_of_its_names(folder):
    urls = [
        f"data:image/png;base64,{base64.b64encode(PNG).decode()}",
        f"DATA:;BASE64,{base64.encodebytes(PNG).decode()}",
    ]
    sources = ["deep/a.png", "./deep/../deep/a.png", str(folder / "deep" / "a.png"), PNG, *urls]
    for source in sources:
        image, sha256 = ImageFolder(folder).open(ImageRef(source))
        assert sha256 == hashlib.sha256(PNG).hexdigest()
        assert image.tobytes() == PICTURE.tobytes()


def test_links_within_the_folder_and_to_it_are_followed(folder, tmp_path):
    (folder / "b.png").symlink_to(folder / "deep" / "a.png")
    (tmp_path / "link").symlink_to(folder)
    assert ImageFolder(tmp_path / "link").open(ImageRef("b.png"))[0].size == (8, 12)


@pytest.mark.parametrize(
    "source", ["../secret.png", "deep/../../secret.png", "/etc/passwd", "/proc/self/environ", "..", "/"]
)
def test_no_path_leaves_the_folder(folder, source):
    reason, detail = verdict(folder, source)
    assert reason == Reason.IMAGE_REFUSED
    assert "leads out of the image folder" in detail


def test_no_link_leaves_the_folder(folder, tmp_path):
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "way").symlink_to(tmp_path)
    (tmp_path / "images-of-others").mkdir()
    (tmp_path / "images-of-others" / "a.png").write_bytes(PNG)
    for source in ("link.png", "way/secret.png", "../images-of-others/a.png", str(tmp_path / "secret.png")):
        assert verdict(folder, source)[0] == Reason.IMAGE_REFUSED


@pytest.mark.parametrize(
    "source", ["http://host/a.png", "HTTPS://host/a.png", "file:///etc/passwd", "s3://bucket/a.png"]
)
def test_nothing_is_fetched(folder, source):
    reason, detail = verdict(folder, source)
    assert reason == Reason.IMAGE_REFUSED
    assert "downloads nothing" in detail


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("gone.png", Reason.IMAGE_MISSING),
        ("deep/a.png/b.png", Reason.IMAGE_MISSING),
        ("a\0b.png", Reason.IMAGE_REFUSED),
        ("x" * 300, Reason.IMAGE_UNREADABLE),
        ("deep", Reason.IMAGE_UNREADABLE),
        ("pipe", Reason.IMAGE_UNREADABLE),
        ("loop", Reason.IMAGE_UNREADABLE),
        ("data:image/png,abc", Reason.IMAGE_UNREADABLE),
        ("data:image/png;base64,???", Reason.IMAGE_UNREADABLE),
        (b"", Reason.IMAGE_UNREADABLE),
        (b"no image", Reason.IMAGE_UNREADABLE),
    ],
)
def test_what_is_no_image_is_said_so(folder, source, reason):
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    assert verdict(folder, source)[0] == reason


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
def test_known_formats_are_decoded_whatever_the_name_says(folder, kind):
    (folder / "a.txt").write_bytes(encoded(PICTURE, kind))
    image = ImageFolder(folder).open(ImageRef("a.txt"))[0]
    assert (image.mode, image.size) == ("RGB", (8, 12))


@pytest.mark.parametrize("kind", ["TIFF", "ICO", "PPM", "PDF"])
def test_other_formats_are_not(folder, kind):
    assert "use one of PNG, JPEG" in verdict(folder, encoded(PICTURE, kind))[1]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_cut_image_is_unreadable(folder, kind):
    whole = encoded(Image.effect_noise((64, 64), 90).convert("RGB"), kind)
    for length in (20, len(whole) // 2, len(whole) - 40):
        assert verdict(folder, whole[:length])[0] == Reason.IMAGE_UNREADABLE


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animated_image_is_unreadable(folder, kind):
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue", "green")]
    content = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert verdict(folder, content) == (Reason.IMAGE_UNREADABLE, "the image in the record is animated (3 frames)")


def test_a_photo_with_a_preview_behind_it_is_the_photo():
    photo = encoded(PICTURE, "MPO", save_all=True, append_images=[Image.new("RGB", (4, 4))])
    assert decode_image(photo, "a").size == (8, 12)


def png_of_size(width: int, height: int) -> bytes:
    """Return a PNG that says it is of a size, and holds nothing."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + PNG[33:]


@pytest.mark.parametrize("side", [8200, 9800, 14000, 60000])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_enormous_image_is_refused_before_it_is_decoded(folder, side):
    assert verdict(folder, png_of_size(side, side))[0] == Reason.IMAGE_REFUSED


def test_an_image_of_too_many_bytes_is_refused_unread(folder, monkeypatch):
    monkeypatch.setattr(image_files, "MAX_IMAGE_BYTES", 50)
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    for source in ("deep/a.png", PNG, url):
        reason, detail = verdict(folder, source)
        assert reason == Reason.IMAGE_REFUSED
        assert "at most 50 are read" in detail


def test_what_is_transparent_becomes_white():
    clear = Image.new("RGBA", (2, 1), (9, 9, 9, 0))
    clear.putpixel((1, 0), (10, 20, 30, 255))
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.putpixel((1, 0), 1)
    grey = Image.new("LA", (2, 1), (7, 0))
    for content, right in (
        (encoded(clear), (10, 20, 30)),
        (encoded(palette, transparency=0), (10, 20, 30)),
        (encoded(grey), (255, 255, 255)),
    ):
        image = decode_image(content, "a")
        assert (image.mode, image.getpixel((0, 0)), image.getpixel((1, 0))) == ("RGB", (255, 255, 255), right)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK"])
def test_other_colours_become_rgb(mode):
    kind = "JPEG" if mode == "CMYK" else "PNG"
    assert decode_image(encoded(PICTURE.convert(mode), kind), "a").mode == "RGB"


def test_more_than_8_bits_are_not_cut_off_silently(folder):
    deep = Image.fromarray(np.arange(0, 60000, 1000, dtype=np.uint16).reshape(6, 10))
    assert "more than 8 bits" in verdict(folder, encoded(deep))[1]


def test_an_image_is_turned_as_its_camera_says():
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees
    assert decode_image(encoded(PICTURE, "JPEG", exif=exif), "a").size == (12, 8)


def test_the_folder_must_be_one(tmp_path):
    with pytest.raises(SettingError, match="is not a folder"):
        ImageFolder(tmp_path / "gone")


def test_by_default_paths_start_where_the_data_is(tmp_path):
    assert default_image_folder([tmp_path / "a" / "x.jsonl"]) == str(tmp_path / "a")
    assert default_image_folder([tmp_path / "a" / "x.jsonl", tmp_path / "b" / "y.jsonl"]) == str(tmp_path)


def test_no_content_makes_the_decoder_raise_anything_but_a_verdict():
    generator = np.random.default_rng(0)
    said: set[Reason] = set()
    details: list[str] = []
    for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF"):
        whole = encoded(PICTURE, kind)
        for _ in range(60):
            broken = bytearray(whole)
            for place in generator.integers(0, len(broken), 4):
                broken[place] = generator.integers(0, 256)
            try:
                decode_image(bytes(broken), "a")
            except Unusable as why:
                said.add(why.reason)
                details.append(why.detail)
    assert said == {Reason.IMAGE_UNREADABLE, Reason.IMAGE_REFUSED}
    assert " at 0x" not in " ".join(details)
