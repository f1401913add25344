"""Conversations with keys that no reader understands yet, for tests of what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path


def write_conversations(path: Path) -> Path:
    """Write conversations as they are exported elsewhere: 4 plain, 2 with reasoning, 2 with tools, 1 with both."""
    rows = []
    for i, keys in enumerate(["", "r", "t", "", "rt", "", "r", "", "t"]):
        said = {"role": "assistant", "content": f"We add {i} to 90.\n\nThat is {i + 90}.\n\nAnswer: {i + 90}"}
        said |= {"reasoning_content": "Let me see."} if "r" in keys else {"reasoning_content": None, "loss": True}
        row = {"id": f"case-{i}", "messages": [{"role": "user", "content": f"What is {i} + 90?"}, said], "tools": []}
        rows.append(row | ({"tools": [{"type": "function"}]} if "t" in keys else {}))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
