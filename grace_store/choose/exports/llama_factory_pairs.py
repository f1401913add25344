"""Pairs as LLaMA-Factory reads them: the messages before the response, the chosen response and the rejected one."""

from collections.abc import Iterator
from typing import Any

from grace_store.choose.exports.conversations import ImageName, conversation
from grace_store.choose.exports.export_kind import ChosenRecords, Export
from grace_store.choose.exports.llama_factory import DATASET_INFO, write_registered


def _conversations(chosen: ChosenRecords, image_name: ImageName) -> Iterator[dict[str, Any]]:
    for best, worst in chosen.pairs():
        record = conversation(best, image_name)
        *asked, response = record["messages"]
        said = {"messages": asked, "chosen": response, "rejected": {"role": "assistant", "content": worst.response}}
        yield record | said | {"rejected_id": worst.sample_id}


EXPORT = Export(
    write=lambda chosen, exported: write_registered(
        chosen, exported, {name: name for name in ("messages", "chosen", "rejected")}, _conversations, ranking=True
    ),
    also_writes=(DATASET_INFO,),
    is_of_pairs=True,
)
