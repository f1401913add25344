"""Prompts and completions as TRL's SFTTrainer reads them. Images are parts of the content, not placeholders."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from grace_store.base.text import counted
from grace_store.choose.exports.conversations import ImageName, ImageNames
from grace_store.choose.exports.export_kind import ChosenRecords, Export, Exported, write_records
from grace_store.data.sample import Sample, Turn

TrlRecords = Callable[[ChosenRecords, ImageName, bool], Iterator[dict[str, Any]]]
"""A function from the chosen samples, the names of images, and whether there are images, to records."""


def prompt_and_completion(sample: Sample, image_name: ImageName, *, has_images: bool) -> dict[str, Any]:
    """Return a sample as {"id", "prompt", "completion", "images"}; without images in the subset, contents are texts.

    All contents of a subset have the same shape because ``datasets`` makes a table of them.
    """
    prompt, completion = (
        [{"role": turn.role, "content": _parts(turn) if has_images else turn.text} for turn in turns]
        for turns in (sample.turns, (Turn("assistant", (sample.response,)),))
    )
    record: dict[str, Any] = {"id": sample.sample_id, "prompt": prompt, "completion": completion}
    return record | ({"images": [image_name(image) for image in sample.images]} if has_images else {})


def _parts(turn: Turn) -> list[dict[str, str | None]]:
    # An image has the key text, too: if its keys differed, chat templates would take texts for images.
    return [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "text": None}
        for part in turn.parts
        if part != ""
    ]


def plain_records(chosen: ChosenRecords, image_name: ImageName, has_images: bool) -> Iterator[dict[str, Any]]:
    """Yield the chosen samples as prompts and completions."""
    return (prompt_and_completion(sample, image_name, has_images=has_images) for _, sample in chosen.samples())


def write_prompts(chosen: ChosenRecords, exported: Exported, records: TrlRecords = plain_records) -> None:
    """Write records that begin with a prompt, and add notes on their images."""
    names = ImageNames(chosen, exported)
    num_with_images = sum(bool(sample.images) for _, sample in chosen.samples())
    made = records(chosen, names, num_with_images > 0)
    write_records(exported.out, (json.dumps(record, ensure_ascii=False).encode() for record in made))
    if num_with_images:
        cast = 'load_dataset("json", data_files=...).cast_column("images", List(Image()))'
        exported.notes.append(f"{counted(num_with_images, 'sample')} with images; read them with {cast}")
    exported.notes += names.notes()


EXPORT = Export(
    write=write_prompts,
    no_weights="TRL's SFTTrainer has no weights, and can mask parts of a completion only in token ids",
)
