"""Conversations as lists of turns, for the formats that contain a conversation.

The last assistant turn is the response, and everything before this turn is the prompt. Turns after it are left out.
Some keys of records and turns would change the training data but are not supported yet (`unread_keys`).
"""

from collections.abc import Sequence
from typing import Any

from grace_store.base.states import UNREAD_KEYS, Reason, Unusable
from grace_store.data.formats.trace import Fields, Trace, text_field, wrong_field
from grace_store.data.images import EMPTY_PLACE, Draft, Part, image_ref, place_images, record_images
from grace_store.data.sample import Role

_NAMES: dict[Role, tuple[str, ...]] = {
    "system": ("system", "developer"),
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt", "model", "bot"),
}
_ROLES = {name: role for role, names in _NAMES.items() for name in names}
_RECORD_KEYS = frozenset({"tools", "videos", "audios", "objects"})
_TURN_KEYS = UNREAD_KEYS.keys() - _RECORD_KEYS
_WEIGHT_KEYS = frozenset({"loss", "loss_scale", "weight"})
"""Keys that say nothing if their value is 1."""


def read_turns(record: Fields, key: str, role_key: str, text_key: str) -> list[Draft]:
    """Return the turns of a conversation; a "system" field of the record counts as its first turn."""
    if not isinstance(turns := record.get(key), list) or not turns:
        raise wrong_field(record, key, "a list of turns")
    drafts: list[Draft] = []
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict) or not isinstance(turn.get(role_key), str):
            raise Unusable(Reason.UNKNOWN_RECORD, f"turn {number} of {key!r} has no {role_key!r}")
        if (role := _ROLES.get(turn[role_key].strip().lower())) is None:
            found = f"turn {number} of {key!r} is from {turn[role_key][:40]!r}"
            raise Unusable(Reason.UNKNOWN_RECORD, f"{found}; known are {', '.join(_ROLES)}")
        drafts.append((role, _content_parts(turn.get(text_key), f"turn {number} of {key!r}")))
    if isinstance(system := record.get("system"), str) and system and drafts[0][0] != "system":
        drafts.insert(0, ("system", [system]))
    return drafts


def read_prompt(record: Fields, key: str = "prompt") -> list[Draft]:
    """Return the turns of a prompt that is a text or a list of {role, content} turns."""
    if isinstance(record.get(key), list):
        return read_turns(record, key, "role", "content")
    system = record.get("system")
    drafts: list[Draft] = [("system", [system])] if isinstance(system, str) and system else []
    return [*drafts, ("user", [text_field(record, key, Reason.NO_PROMPT)])]


def _content_parts(content: Any, where: str) -> list[Part]:
    """Return a turn's text, or the parts of OpenAI's [{"type": "text"}, {"type": "image_url"}] lists."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise Unusable(Reason.UNKNOWN_RECORD, f"{where} holds a {type(content).__name__}; text is wanted")
    parts: list[Part] = []
    for item in content:
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(item, str):
            parts.append(item)
        elif kind == "text" and isinstance(item.get("text"), str):
            parts.append(item["text"])
        elif kind in ("image", "image_url"):
            source = item.get("image") or item.get("image_url") or item.get("url") or item.get("path")
            parts.append(image_ref(source) if source else EMPTY_PLACE)
        else:
            found = f"{where} has a part of type {str(kind)[:40]!r}"
            raise Unusable(Reason.UNKNOWN_RECORD, f"{found}; text or image is wanted")
    return parts


def finish_conversation(record: Fields, drafts: Sequence[Draft]) -> Trace:
    """Return the trace that has the last assistant turn as response, and the record's images in their places."""
    if (last := max((i for i, (role, _) in enumerate(drafts) if role == "assistant"), default=None)) is None:
        raise Unusable(Reason.NO_RESPONSE, "no turn is the assistant's")
    response = "".join(part for part in drafts[last][1] if isinstance(part, str))
    return Trace(place_images(drafts[:last], record_images(record)), response)


def unread_keys(record: Fields, fields: Sequence[str]) -> list[str]:
    """Return the unsupported keys that have a value in the record or in the turns of the given fields."""
    conversations = [turns for field in fields if isinstance(turns := record.get(field), list)]
    turns = [turn for conversation in conversations for turn in conversation if isinstance(turn, dict)]
    if not turns:
        return []
    found = {key for key in _RECORD_KEYS & record.keys() if not _is_empty(record[key])}
    for turn in turns:
        set_keys = [key for key in _TURN_KEYS & turn.keys() if not _is_empty(turn[key])]
        found.update(key for key in set_keys if not (key in _WEIGHT_KEYS and turn[key] == 1))
    return [key for key in UNREAD_KEYS if key in found]


def _is_empty(value: Any) -> bool:
    """Return whether a value is null, a blank text, an empty list or object (also as JSON), or contains only these."""
    if isinstance(value, str):
        return value.strip() in ("", "[]", "{}", "null")
    if isinstance(value, list | dict):
        return all(map(_is_empty, value.values() if isinstance(value, dict) else value))
    return value is None


def holds_turns(record: Fields, key: str, role_key: str, text_key: str) -> bool:
    """Return whether a field holds a list of turns with these two keys."""
    turns = record.get(key)
    first = turns[0] if isinstance(turns, list) and turns else None
    return isinstance(first, dict) and {role_key, text_key} <= set(first)


def is_asked(record: Fields, key: str) -> bool:
    """Return whether a field holds a text, or a list of {role, content} turns."""
    return isinstance(record.get(key), str) or holds_turns(record, key, "role", "content")
