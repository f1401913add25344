"""Conversations as LLaMA-Factory reads them, and their entry in the dataset_info.json beside them."""

from __future__ import annotations

import json
from pathlib import Path

from grace_store.base.files import write_json
from grace_store.curate.exports.conversations import write_conversations
from grace_store.curate.exports.export_kind import ChosenRecords, Export, Exported

DATASET_INFO = "dataset_info.json"
"""Where LLaMA-Factory looks for the datasets of a folder."""


def _write(chosen: ChosenRecords, exported: Exported) -> None:
    num_with_images = write_conversations(chosen, exported, "; LLaMA-Factory will refuse them")
    exported.files.append(register_dataset(exported.out, has_images=num_with_images > 0))


def register_dataset(out: Path, *, has_images: bool) -> Path:
    """Add a file of conversations to the dataset_info.json beside it, as LLaMA-Factory wants, and return that."""
    path = out.with_name(DATASET_INFO)
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known[out.stem] = {
        "file_name": out.name,
        "formatting": "sharegpt",
        "columns": {"messages": "messages"} | ({"images": "images"} if has_images else {}),
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
            "system_tag": "system",
        },
    }
    write_json(path, known)
    return path


EXPORT = Export(
    about="messages and images as LLaMA-Factory reads them, registered in dataset_info.json",
    write=_write,
    also_writes=(DATASET_INFO,),
)
