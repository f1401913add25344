"""Conversations as LLaMA-Factory reads them, and their entry in the dataset_info.json beside them."""

import json
from pathlib import Path
from typing import Any

from grace_store.base.errors import DataError
from grace_store.base.files import write_json
from grace_store.curate.exports.conversations import write_conversations
from grace_store.curate.exports.export_kind import ChosenRecords, Export, Exported

DATASET_INFO = "dataset_info.json"
"""Where LLaMA-Factory looks for the datasets of a folder."""


def _write(chosen: ChosenRecords, exported: Exported) -> None:
    registered = exported.out.with_name(DATASET_INFO)
    known = _known_datasets(registered)  # first: if it cannot be added to, nothing is written
    num_with_images = write_conversations(chosen, exported, "; LLaMA-Factory will refuse them")
    entry = _dataset_entry(exported.out, has_images=num_with_images > 0)
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


def _dataset_entry(out: Path, *, has_images: bool) -> dict[str, Any]:
    """Return what LLaMA-Factory wants to know of a file of conversations."""
    return {
        "file_name": out.name,
        "formatting": "sharegpt",
        "columns": {"messages": "messages"} | ({"images": "images"} if has_images else {}),
        "tags": {f"{name}_tag": name for name in ("role", "content", "user", "assistant", "system")},
    }


EXPORT = Export(write=_write, also_writes=(DATASET_INFO,))
