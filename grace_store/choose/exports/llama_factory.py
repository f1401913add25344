"""Conversations as LLaMA-Factory reads them, and their entry in the dataset_info.json beside them."""

import json
from pathlib import Path
from typing import Any

from grace_store.base.errors import DataError
from grace_store.base.files import write_json
from grace_store.choose.exports.conversations import Conversations, plain_conversations, write_conversations
from grace_store.choose.exports.export_kind import ChosenRecords, Export, Exported

DATASET_INFO = "dataset_info.json"
"""Where LLaMA-Factory looks for the datasets of a folder."""


def write_registered(
    chosen: ChosenRecords,
    exported: Exported,
    columns: dict[str, str],
    conversations: Conversations = plain_conversations,
    **more: Any,
) -> None:
    """Write conversations, and beside them the entry that says which columns they have, with more if wanted."""
    registered = exported.out.with_name(DATASET_INFO)
    known = _known_datasets(registered)  # first: if it cannot be added to, nothing is written
    num_with_images = write_conversations(chosen, exported, "; LLaMA-Factory will refuse them", conversations)
    entry = _dataset_entry(exported.out, columns | ({"images": "images"} if num_with_images else {})) | more
    write_json(registered, known | {exported.out.stem: entry})
    exported.files.append(registered)


def _known_datasets(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read, so the subset cannot be added to it: {error}.") from None
    if not isinstance(known, dict):
        raise DataError(f"{path} is no JSON object, so the subset cannot be added to it.")
    return known


def _dataset_entry(out: Path, columns: dict[str, str]) -> dict[str, Any]:
    """Return what LLaMA-Factory wants to know of a file of conversations."""
    return {
        "file_name": out.name,
        "formatting": "sharegpt",
        "columns": columns,
        "tags": {f"{name}_tag": name for name in ("role", "content", "user", "assistant", "system")},
    }


EXPORT = Export(
    write=lambda chosen, exported: write_registered(chosen, exported, {"messages": "messages"}),
    also_writes=(DATASET_INFO,),
    no_weights="LLaMA-Factory trains on whole turns or not at all",
)
