"""The ShareGPT format, which LLaMA-Factory and LLaVA-CoT-100k use too."""

from grace_store.data.formats.conversation import finish_conversation, holds_turns, read_turns
from grace_store.data.formats.trace import Format

FORMAT = Format(
    name="sharegpt",
    description="ShareGPT, LLaVA-CoT, LLaMA-Factory: conversations [{from, value}], optional image(s), system",
    recognises=lambda record: holds_turns(record, "conversations", "from", "value"),
    read=lambda record: finish_conversation(record, read_turns(record, "conversations", "from", "value")),
    turns="conversations",
)
