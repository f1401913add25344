"""Conversations as axolotl's ``chat_template`` reads them. With weights, contents are in parts: trained on or not."""

from collections.abc import Sequence
from typing import Any

from grace_store.choose.exports.conversations import write_weighted
from grace_store.choose.exports.export_kind import Export, Part


def axolotl_messages(messages: list[dict[str, Any]], parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Return a conversation with its last message in parts; axolotl trains on parts with a weight above 0.

    Every content has parts because `datasets` needs one type for all. Messages of other roles have no flag, since
    axolotl would train on the end of their turn.
    """
    said = [_message(each["role"], [Part(each["content"], 0.0)]) for each in messages[:-1]]
    return [*said, _message("assistant", parts)]


def _message(role: str, parts: Sequence[Part]) -> dict[str, Any]:
    content = []
    for part in parts:
        flag = {"train": part.weight > 0} if role == "assistant" else {}
        content.append({"type": "text", "text": part.text, **flag})
    return {"role": role, "content": content}


EXPORT = Export(
    write=lambda chosen, exported: write_weighted(chosen, exported, axolotl_messages),
    weights="masks",
    no_weights="axolotl can only use or skip a part of a response",
)
