"""The messages format of ms-swift and OpenAI."""

from grace_store.data.formats.conversation import finish_conversation, holds_turns, read_turns
from grace_store.data.formats.trace import Format

FORMAT = Format(
    name="messages",
    description="ms-swift, OpenAI: messages [{role, content}], optional images",
    recognises=lambda record: holds_turns(record, "messages", "role", "content") and "generations" not in record,
    read=lambda record: finish_conversation(record, read_turns(record, "messages", "role", "content")),
    turns="messages",
)
