"""The messages format of ms-swift and OpenAI."""

from __future__ import annotations

from grace_store.data.formats.conversation import finish_conversation, holds_turns, read_turns
from grace_store.data.formats.trace import Fields, Format, Trace


def _recognises(record: Fields) -> bool:
    return holds_turns(record, "messages", "role", "content") and "generations" not in record


def _read(record: Fields) -> Trace:
    return finish_conversation(record, read_turns(record, "messages", "role", "content"))


FORMAT = Format(
    name="messages",
    description="ms-swift, OpenAI: messages [{role, content}], optional images",
    recognises=_recognises,
    read=_read,
)
