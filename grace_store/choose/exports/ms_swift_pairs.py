"""Pairs as ms-swift reads them for DPO and similar methods: conversations with the chosen and the rejected response."""

from collections.abc import Iterator
from typing import Any

from grace_store.choose.exports.conversations import ImageName, conversation, write_conversations
from grace_store.choose.exports.export_kind import ChosenRecords, Export


def _conversations(chosen: ChosenRecords, image_name: ImageName) -> Iterator[dict[str, Any]]:
    for best, worst in chosen.pairs():
        yield conversation(best, image_name) | {"rejected_id": worst.sample_id, "rejected_response": worst.response}


EXPORT = Export(
    write=lambda chosen, exported: write_conversations(chosen, exported, conversations=_conversations), is_of_pairs=True
)
