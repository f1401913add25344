"""Records whose list holds several responses: a record for each element. Knows no files and no formats."""

import json
from typing import Any, NamedTuple

from grace_store.base.settings import DataSpec
from grace_store.base.states import Unusable
from grace_store.base.text import canonical_json
from grace_store.data.images import IMAGE_KEYS
from grace_store.data.mapping import value_at
from grace_store.data.record import ID_KEYS, MAX_EXPANDED_BYTES, parse_object

_NEVER_PARALLEL = frozenset({*IMAGE_KEYS, "options", "choices", "steps", "tools"})
"""Lists of a record that belong to the question, or to one response."""
_TURN_KEYS = {"role", "from"}


class Expansion(NamedTuple):
    """The setting --expand: the field with the list, and the fields that --map names."""

    field: str
    map: dict[str, str]

    @classmethod
    def of(cls, spec: DataSpec) -> "Expansion | None":
        return None if spec.expand is None else cls(spec.expand, spec.map)

    def __call__(self, raw: bytes) -> list[bytes] | None:
        """Return a record for each element of the list, as canonical JSON; None if the record has no such list.

        Return no record if all of them together would be too large: each has a copy of the record's other fields.

        Every other list of the same length is replaced by its element, too, unless it is a conversation or belongs to
        the question. The id of an element is the record's id with "/" and the index; a record without an id gets none.
        """
        try:
            fields = parse_object(raw)
            own_id = self._own_id(fields)
        except Unusable:
            return None
        if not isinstance(elements := fields.get(self.field), list) or not elements:
            return None
        # An element without a value stays apart from a record without the list.
        fields[self.field] = ["" if each in (None, []) else each for each in elements]
        parallel = [key for key, value in fields.items() if self._is_parallel(key, value, len(elements))]
        made = []
        for index in range(len(elements)):
            record = fields | {key: fields[key][index] for key in parallel}
            made.append(_dump(record if own_id is None else record | {"id": f"{own_id}/{index}"}))
            if len(made[0]) * len(elements) > MAX_EXPANDED_BYTES:
                return []
        return made

    def _own_id(self, fields: dict[str, Any]) -> str | None:
        values = [value_at(fields, self.map["id"])] if "id" in self.map else [fields.get(key) for key in ID_KEYS]
        known = (str(value) for value in values if isinstance(value, str | int) and not isinstance(value, bool))
        return next((each for each in known if each.strip()), None)

    def _is_parallel(self, key: str, value: Any, length: int) -> bool:
        if key == self.field:
            return True
        if not isinstance(value, list) or len(value) != length or key in _NEVER_PARALLEL:
            return False
        is_asked = any(self.map.get(part, "").partition(".")[0] == key for part in ("prompt", "options", "images"))
        return not is_asked and not any(isinstance(each, dict) and _TURN_KEYS & each.keys() for each in value)


def _dump(record: dict[str, Any]) -> bytes:
    try:
        return canonical_json(record)
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can write
        return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
