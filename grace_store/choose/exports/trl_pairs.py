"""Pairs as TRL's DPOTrainer and RewardTrainer read them: a prompt, a chosen and a rejected completion."""

from collections.abc import Iterator
from typing import Any

from grace_store.choose.exports.conversations import ImageName
from grace_store.choose.exports.export_kind import ChosenRecords, Export
from grace_store.choose.exports.trl import prompt_and_completion, write_prompts


def _records(chosen: ChosenRecords, image_name: ImageName, has_images: bool) -> Iterator[dict[str, Any]]:
    for pair in chosen.pairs():
        best, worst = (prompt_and_completion(each, image_name, has_images=has_images) for each in pair)
        responses = {"chosen": best.pop("completion"), "rejected": worst["completion"]}
        yield best | responses | {"rejected_id": worst["id"]}


EXPORT = Export(write=lambda chosen, exported: write_prompts(chosen, exported, _records), is_of_pairs=True)
