"""Conversations as LLaMA-Factory reads them, and their entry in the dataset_info.json beside them."""

import json
from pathlib import Path
from typing import Any

from grace_store.base.errors import DataError
from grace_store.base.files import write_json
from grace_store.choose.exports.conversations import Conversations, plain_conversations, write_conversations
from grace_store.choose.exports.export_kind import ChosenRecords, Export, Exported

DATASET_INFO = "dataset_info.json"
"""The file in which LLaMA-Factory looks up the datasets of a folder."""


def write_registered(
    chosen: ChosenRecords,
    exported: Exported,
    columns: dict[str, str],
    conversations: Conversations = plain_conversations,
    **more: Any,
) -> None:
    """Write conversations, and add their entry (columns, and more fields) to the dataset_info.json beside them."""
    registered = exported.out.with_name(DATASET_INFO)
    known = _known_datasets(registered)  # first, so that nothing is written if the file cannot be read
    num_with_images = write_conversations(chosen, exported, "; LLaMA-Factory will refuse them", conversations)
    entry = {
        "file_name": exported.out.name,
        "formatting": "sharegpt",
        "columns": columns | ({"images": "images"} if num_with_images else {}),
        "tags": {f"{name}_tag": name for name in ("role", "content", "user", "assistant", "system")},
    }
    write_json(registered, known | {exported.out.stem: entry | more})
    exported.files.append(registered)


def _known_datasets(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read, so the subset cannot be added: {error}.") from None
    if not isinstance(known, dict):
        raise DataError(f"{path} is not a JSON object, so the subset cannot be added.")
    return known


EXPORT = Export(
    write=lambda chosen, exported: write_registered(chosen, exported, {"messages": "messages"}),
    also_writes=(DATASET_INFO,),
    no_weights="LLaMA-Factory can only use or skip whole turns",
)
