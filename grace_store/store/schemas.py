"""The JSON Schemas of the format's documents, made from the models that write them.

Run ``python -m grace_store.store.schemas schemas`` after a change of a model; a test keeps the files equal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from grace_store.base.metadata import Commit, Completion, Plan, Signal
from grace_store.base.settings import Frozen
from grace_store.store.sealed import BODY, SEAL

OMITTED = ("gradient",)
"""Fields that documents leave out when they are None."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_documents() -> dict[str, str]:
    """Return {file name: JSON Schema of a whole file of a store}."""
    return {
        "plan.schema.json": _text("zarr.json of a store", _in_group(_sealed(Plan))),
        "signal.schema.json": _text("signals/<signal>/zarr.json", _in_group(_sealed(Signal))),
        "commit.schema.json": _text("ledger/commits/<signal>/<unit>.json", _sealed(Commit)),
        "completion.schema.json": _text("ledger/complete/<signal>.json", _sealed(Completion)),
    }


def _sealed(model: type[Frozen]) -> dict[str, Any]:
    body = model.model_json_schema(mode="serialization")
    definitions = {**body.pop("$defs", {}), model.__name__: body}
    for definition in definitions.values():
        if "properties" in definition:
            # As written: a field with a default is always there, unless it is left out while it has no meaning.
            definition["required"] = [name for name in definition["properties"] if name not in OMITTED]
    return {
        "$defs": definitions,
        "type": "object",
        "properties": {
            BODY: {"$ref": f"#/$defs/{model.__name__}"},
            SEAL: {
                "description": "SHA-256 of the canonical JSON of the body",
                "type": "string",
                "pattern": "^[0-9a-f]{64}$",
            },
        },
        "required": [BODY, SEAL],
        "additionalProperties": False,
    }


def _in_group(attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        "$defs": attributes.pop("$defs"),
        "type": "object",
        "properties": {
            "zarr_format": {"const": 3},
            "node_type": {"const": "group"},
            "attributes": attributes,
        },
        "required": ["zarr_format", "node_type", "attributes"],
    }


def _text(title: str, schema: dict[str, Any]) -> str:
    return json.dumps({"$schema": _DIALECT, "title": title, **schema}, indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m grace_store.store.schemas FOLDER\n")
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schema_documents().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
