"""Samples to try a model on, with images of one colour or without. Knows no model."""

from io import BytesIO

from PIL import Image

from grace_store.data.sample import ImageRef, Sample, Turn

Picture = tuple[str, int, int]
"""An image of a colour, width and height."""


def probe(*pictures: Picture, text: str = "What is known?", response: str = "It is a sum. It is known.") -> Sample:
    """Return a sample with images among its words; the response's first segment are 13 characters."""
    parts: list[str | ImageRef] = []
    for colour, width, height in pictures:
        buffer = BytesIO()
        Image.new("RGB", (width, height), colour).save(buffer, "PNG")
        parts += [ImageRef(buffer.getvalue()), f"What is {width} plus {height}? "]
    return Sample("probe", (Turn("user", tuple(parts) or (text,)),), response, (0, 13, len(response)))
