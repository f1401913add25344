"""The JSON Schemas of all documents, of stores and beside results, made from the models that write them.

Run ``python -m jobs.schemas schemas`` after a change of a model; a test keeps the files equal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from grace_store.base.documents import Document
from grace_store.base.finding import Finding
from grace_store.base.metadata import Commit, Completion, Plan, SharingDocument, Signal
from grace_store.base.settings import DataSpec, Frozen
from grace_store.choose.selection import SubsetNote
from grace_store.model.load.adapter_folder import CheckpointState
from grace_store.scoring.notes import AgainstNote, DuplicatesNote, ScoresNote, WeightsNote
from grace_store.scoring.sweep_table import SweepNote
from grace_store.store.digested_json import BODY, SEAL
from grace_store.study.trial_documents import TrialPlan, TrialRun
from grace_store.train.recipe import Recipe, WarmupDone, WarmupSubset
from grace_store.values.methods.method import MEASURED, METHODS, InfluenceSpec, MethodSpec, ScoreSpec

NOTES: tuple[type[Document], ...] = (
    ScoresNote, SweepNote, WeightsNote, SubsetNote, DuplicatesNote, AgainstNote, Finding,
    Recipe, WarmupSubset, CheckpointState, WarmupDone, TrialPlan, TrialRun,
)  # fmt: skip
"""Every kind of document beside results. A new kind is a model where it is written, and its name here."""

OMITTED = frozenset(name for name, field in DataSpec.model_fields.items() if field.exclude_if is not None)
"""Settings that a plan leaves out if they are not given."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_documents() -> dict[str, str]:
    """Return {file name: JSON Schema} of all documents."""
    return store_schemas() | {f"{kind_of(model)}.schema.json": note_schema(model) for model in NOTES}


def _text(title: str, schema: dict[str, Any]) -> str:
    return json.dumps({"$schema": _DIALECT, "title": title, **schema}, indent=2, ensure_ascii=False) + "\n"


# ---------------------------------------------------------------- documents of a store


def store_schemas() -> dict[str, str]:
    """Return {file name: JSON Schema of a whole file of a store}."""
    return {
        "plan.schema.json": _text("zarr.json of a store", _in_group(_sealed(Plan))),
        "signal.schema.json": _text("signals/<signal>/zarr.json", _in_group(_sealed(Signal))),
        "commit.schema.json": _text("ledger/commits/<signal>/<unit>.json", _sealed(Commit)),
        "completion.schema.json": _text("ledger/complete/<signal>.json", _sealed(Completion)),
        "sharing.schema.json": _text("ledger/sharing/<signal>.json", _sealed(SharingDocument)),
    }


def _sealed(model: type[Frozen]) -> dict[str, Any]:
    body = model.model_json_schema(mode="serialization")
    definitions = {**body.pop("$defs", {}), model.__name__: body}
    for definition in definitions.values():
        if "properties" in definition:
            # As written: a field with a default is always there, except a setting that is left out if it is not given.
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


# ---------------------------------------------------------------- documents beside results


def kind_of(model: type[Document]) -> str:
    """Return the kind that a document says it is of."""
    return str(model.model_fields["kind"].default)


def note_schema(model: type[Document]) -> str:
    """Return the JSON Schema of a kind of note."""
    body = model.model_json_schema(mode="serialization")
    definitions = body.pop("$defs", {})
    if MethodSpec.__name__ in definitions:
        definitions |= _method_specs()
    for definition in (body, *definitions.values()):
        # Of a docstring, what it says; examples are for Python.
        definition["description"] = definition["description"].partition("\n\n")[0]
        if {"kind", "version", "made_by"} <= set(definition.get("properties", ())):
            definition["properties"]["made_by"].pop("default")  # which would be another one in every release
            definition["required"] = ["kind", "version", "made_by", *definition.get("required", ())]
    body.pop("title")
    return _text(f"the note of {model.words}", {"$defs": definitions, **body})


def _method_specs() -> dict[str, Any]:
    """Return the definitions of all methods' settings, and of any one of them."""
    found: dict[str, Any] = {}
    for spec, names in ((ScoreSpec, [MEASURED]), (InfluenceSpec, list(METHODS))):
        schema = spec.model_json_schema(mode="serialization")
        schema["properties"]["method"] = {"description": "The method's name.", "enum": names, "type": "string"}
        found[spec.__name__] = schema
    choices = [{"$ref": f"#/$defs/{name}"} for name in found]
    return found | {MethodSpec.__name__: {"description": "The settings of a method.", "anyOf": choices}}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m jobs.schemas FOLDER\n")
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schema_documents().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
