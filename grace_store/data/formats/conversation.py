"""Conversations as lists of turns, for the formats that hold one.

The last assistant turn is the response and everything before it the prompt; turns after it are left out. Some keys of
records and turns change what a model is trained on and are not understood yet (`unread_keys`).
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
_EMPTY_TEXTS = frozenset({"", "[]", "{}", "null"})


def read_turns(record: Fields, key: str, role_key: str, text_key: str) -> list[Draft]:
    """Return the turns of a conversation; a "system" field of the record counts as its first turn."""
    turns = record.get(key)
    if not isinstance(turns, list) or not turns:
        raise wrong_field(record, key, "a list of turns")
    drafts: list[Draft] = []
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict) or not isinstance(turn.get(role_key), str):
            raise Unusable(Reason.UNKNOWN_RECORD, f"turn {number} of {key!r} has no {role_key!r}")
        if (role := _ROLES.get(turn[role_key].strip().lower())) is None:
            found = f"turn {number} of {key!r} is from {turn[role_key][:40]!r}"
            raise Unusable(Reason.UNKNOWN_RECORD, f"{found}; known are {', '.join(_ROLES)}")
        drafts.append((role, _content_parts(turn.get(text_key), f"turn {number} of {key!r}")))
    system = record.get("system")
    if isinstance(system, str) and system and drafts[0][0] != "system":
        drafts.insert(0, ("system", [system]))
    return drafts


def read_prompt(record: Fields) -> list[Draft]:
    """Return the turns of a "prompt" that is a text or a list of {role, content} turns."""
    if isinstance(record.get("prompt"), list):
        return read_turns(record, "prompt", "role", "content")
    system = record.get("system")
    drafts: list[Draft] = [("system", [system])] if isinstance(system, str) and system else []
    return [*drafts, ("user", [text_field(record, "prompt", Reason.NO_PROMPT)])]


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
    """Return the trace whose response is the last assistant turn, the record's images in their places."""
    if (last := max((i for i, (role, _) in enumerate(drafts) if role == "assistant"), default=None)) is None:
        raise Unusable(Reason.NO_RESPONSE, "no turn is the assistant's")
    response = "".join(part for part in drafts[last][1] if isinstance(part, str))
    return Trace(place_images(drafts[:last], record_images(record)), response)


def unread_keys(record: Fields, field: str | None) -> list[str]:
    """Return the keys of a record and its turns, which a field holds, that say something and are not understood yet."""
    turns = None if field is None else record.get(field)
    if not isinstance(turns, list) or not turns:
        return []
    found = {key for key in _RECORD_KEYS & record.keys() if not _is_empty(record[key])}
    for turn in turns:
        if isinstance(turn, dict):
            found.update(key for key in _TURN_KEYS & turn.keys() if not _says_nothing(key, turn[key]))
    return [key for key in UNREAD_KEYS if key in found]


def _says_nothing(key: str, value: Any) -> bool:
    """Whether a turn is the same without a key: there is nothing in it, or it is a weight of 1."""
    is_one = isinstance(value, bool | int | float) and value == 1
    return _is_empty(value) or (is_one and key in _WEIGHT_KEYS)


def _is_empty(value: Any) -> bool:
    """Whether there is nothing in a value: null, a blank text, or a list or object of such, also as JSON in a text."""
    if isinstance(value, str):
        return value.strip() in _EMPTY_TEXTS
    if isinstance(value, list | dict):
        return all(map(_is_empty, value.values() if isinstance(value, dict) else value))
    return value is None


def holds_turns(record: Fields, key: str, role_key: str, text_key: str) -> bool:
    """Whether a field holds a list of turns with these two keys."""
    turns = record.get(key)
    first = turns[0] if isinstance(turns, list) and turns else None
    return isinstance(first, dict) and {role_key, text_key} <= set(first)
