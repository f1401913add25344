"""Notes three times, kept together: FORMAT.md for people, JSON Schemas for programs, and what is written."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest

import grace_store.base.finding
import grace_store.choose.selection
import grace_store.train.recipe
from grace_store.base.documents import METADATA_KEY, Document, write_document
from grace_store.base.metadata import FORMAT_VERSION
from grace_store.choose.duplicates import duplicates
from grace_store.choose.export import export
from grace_store.choose.select import select
from grace_store.choose.selection import Selection
from grace_store.scoring.notes import StoreNote
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.sweep import sweep
from grace_store.scoring.targets import Targets
from grace_store.scoring.weigh_steps import weights
from grace_store.study.contamination import contamination
from grace_store.study.diversity import diversity
from grace_store.study.diversity_tables import curve_choices
from grace_store.values.grid import Grid, SweepSpec
from grace_store.values.methods.method import ScoreSpec
from jobs.schemas import NOTES, kind_of, note_schema
from tests.benchmark_stores import extracted, item_records, pool_records
from tests.example_notes import EXAMPLES
from tests.format_page import names_in, table
from tests.influence_stores import CADC, CHECKPOINTS, ICONS, LESS, fill, make_pool, make_targets
from tests.planted_stores import planted_store

SCHEMAS = {kind_of(model): json.loads(note_schema(model)) for model in NOTES}
COMMON = ("kind", "version", "made_by")
HEADINGS = {
    "scores": "field of scores",
    "sweep": "field of a sweep",
    "weights": "field of weights",
    "subset": "field of a subset",
    "duplicates": "field of duplicates",
    "against": "field of against",
    "finding": "field of a finding",
    "warmup_recipe": "field of a warm-up's recipe",
    "warmup_subset": "field of a warm-up's subset",
    "warmup_checkpoint": "field of a warm-up's checkpoint",
    "warmup_done": "field of a warm-up's end",
    "trial_plan": "field of a trial's plan",
    "trial_run": "field of a training",
}


def check(note: dict[str, Any]) -> None:
    jsonschema.validate(note, SCHEMAS[note["kind"]], jsonschema.Draft202012Validator)


def note_in(path: Path) -> dict[str, Any]:
    """The note that a Parquet file carries, or a file is."""
    raw = pq.read_schema(path).metadata[METADATA_KEY] if path.suffix == ".parquet" else path.read_bytes()
    found: dict[str, Any] = json.loads(raw)
    return found


# ---------------------------------------------------------------- the page and the models


def test_every_kind_of_document_has_a_schema():
    rooms = [import_module(f"grace_store.{name}") for name in ("base", "scoring", "choose", "study")]
    names = [f"{room.__name__}.{each.name}" for room in rooms for each in pkgutil.iter_modules(room.__path__)]
    modules = [*map(import_module, names), grace_store.train.recipe, grace_store.model.load.adapter_folder]
    found = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    kinds = {
        each for each in found if issubclass(each, Document) and isinstance(each.model_fields["kind"].default, str)
    }
    assert {each for each in kinds if not each.__subclasses__()} == set(NOTES)
    assert len(SCHEMAS) == len(NOTES)


def test_every_kind_is_in_the_table_of_kinds_with_the_command_that_makes_it():
    stated = {row["kind"]: (row["made by"], row["schema"]) for row in table("made by")}
    assert set(stated) == set(SCHEMAS) == set(HEADINGS)
    for model in NOTES:
        command, schema = stated[kind_of(model)]
        assert command.strip("`").startswith(f"grace-store {model.maker}")
        assert schema == f"`{kind_of(model)}.schema.json`"


def words(schema: dict[str, Any], *, plural: bool = False) -> str:
    """Return a type in the words of the page."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "const" in schema or "enum" in schema:
        return " or ".join(json.dumps(each) for each in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(words(each, plural=plural) for each in schema["anyOf"])
    if schema["type"] == "array":
        return f"{'lists' if plural else 'list'} of {words(schema['items'], plural=True)}"
    if schema["type"] == "object":
        inside = schema["additionalProperties"]
        return f"{'anything' if inside is True else words(inside)} by name"
    if schema["type"] == "boolean":
        return "true or false"
    names = {"string": "text", "integer": "whole number", "number": "number", "null": "null"}
    return names[schema["type"]] + ("s" if plural else "")


def fields_of(kind: str) -> dict[str, str]:
    """Return {field: its type in words} of a kind of note."""
    schema = SCHEMAS[kind]
    found = {}
    for name, each in schema["properties"].items():
        optional = name not in schema["required"]
        found[name] = words(each).removesuffix(" or null") + ", optional" if optional else words(each)
    return found


def stated_in(heading: str) -> dict[str, str]:
    return {name: row["type"] for row in table(heading) for name in names_in(row[heading])}


@pytest.mark.parametrize("model", NOTES, ids=kind_of)
def test_every_field_of_a_note_is_in_its_table_with_its_type(model):
    kind = kind_of(model)
    shared = stated_in("field of every note") | {"kind": json.dumps(kind)}
    if issubclass(model, StoreNote):
        shared |= stated_in("field of a note of a store")
    stated = stated_in(HEADINGS[kind])
    assert not set(stated) & set(shared)
    assert stated | shared == fields_of(kind)


def test_the_fields_that_notes_share_are_in_tables_of_their_own():
    assert list(stated_in("field of every note")) == list(COMMON)
    assert set(stated_in("field of a note of a store")) == set(StoreNote.model_fields) - set(COMMON)


def test_every_part_is_in_the_table_of_parts_with_its_fields():
    stated = {names_in(row["part"])[0]: set(names_in(row["fields"])) for row in table("part")}
    parts: dict[str, set[str]] = {}
    for schema in SCHEMAS.values():
        for name, definition in schema["$defs"].items():
            properties = set(definition.get("properties", ()))
            if "made_by" not in properties:  # a note inside another has its own table
                parts[name] = properties
    assert stated == parts


# ---------------------------------------------------------------- what is written


@pytest.mark.parametrize("name", EXAMPLES)
def test_notes_with_few_fields_and_with_all_of_them_are_valid(name):
    check(EXAMPLES[name].to_json())


def test_the_examples_have_every_field_there_is():
    for kind, schema in SCHEMAS.items():
        said = {name for each in EXAMPLES.values() if each.kind == kind for name in each.to_json()}
        assert said == set(schema["properties"])


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """The notes of what commands write, by file."""
    folder = tmp_path_factory.mktemp("results")
    store = planted_store(folder, num_clusters=3, per_cluster=5).store
    score(store, out=folder / "scores.parquet")
    score(store, ScoreSpec(measure=("random",), seed=3), out=folder / "random.parquet")
    pool, targets = make_pool(folder), make_targets(folder)
    fill(pool, targets)
    for spec in (LESS, ICONS, CADC):
        signals = CHECKPOINTS if spec is not ICONS else CHECKPOINTS[0]
        request = ScoreRequest(spec=spec, signals=signals, targets=Targets(targets))
        score(pool, request, out=folder / f"{spec.method}.parquet")
    sweep(store, SweepSpec(grid=(Grid(alpha="0.1,0.9"),)), out=folder / "sweep")
    weights(store, out=folder / "weights.parquet")
    found = duplicates(store, scores=folder / "scores.parquet", descriptor="projected", dimension=4)
    found.write(folder / "duplicates.parquet")
    pool, benchmark = extracted(folder / "against", pool_records()), extracted(folder / "items", item_records())
    held = contamination(pool, [benchmark])
    held.write(folder / "against.parquet")
    export(select(score(pool), Selection(exclude_contaminated=held)), folder / "clean.txt", as_format="ids")
    export(select(folder / "scores.parquet"), folder / "plain.txt", as_format="ids")
    export(select(folder / "cadc.parquet"), folder / "balanced.txt", as_format="ids")
    by = Selection(diversity="dedup", duplicates=folder / "duplicates.parquet")
    export(select(folder / "scores.parquet", by, store=store.location), folder / "diverse.txt", as_format="ids")
    subsets, scores, curve = [folder / "plain.txt"], folder / "scores.parquet", curve_choices()
    write_document(folder / "diversity.json", diversity(store, subsets, scores=scores, curve=curve))
    named = ["diversity.json", "plain.txt.spec.json", "balanced.txt.spec.json", "diverse.txt.spec.json"]
    named.append("clean.txt.spec.json")
    paths = [*folder.glob("*.parquet"), *folder.glob("sweep/*.parquet"), folder / "sweep" / "sweep.json"]
    return {str(path.relative_to(folder)): note_in(path) for path in [*paths, *(folder / each for each in named)]}


def test_notes_that_commands_write_are_valid(results):
    trained = (kind for kind in SCHEMAS if kind.startswith(("warmup", "trial")))
    assert {note["kind"] for note in results.values()} == set(SCHEMAS) - set(trained)
    for name, note in results.items():
        assert note["version"] == FORMAT_VERSION, name
        check(note)


# ---------------------------------------------------------------- what is refused


def inner(note: Any) -> Iterator[dict[str, Any]]:
    """Yield a note and all notes inside it."""
    if isinstance(note, dict):
        if "made_by" in note:
            yield note
        for each in note.values():
            yield from inner(each)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_version_may_not_be_missing_or_another(name):
    note = EXAMPLES[name].to_json()
    for each in inner(note):
        version = each.pop("version")
        with pytest.raises(jsonschema.ValidationError):
            check(note)
        each["version"] = "2.0"
        with pytest.raises(jsonschema.ValidationError):
            check(note)
        each["version"] = version


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_note_with_a_field_too_few_or_too_many_is_refused(name):
    note = EXAMPLES[name].to_json()
    for field in SCHEMAS[note["kind"]]["required"]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({key: value for key, value in note.items() if key != field}, SCHEMAS[note["kind"]])
    for each in inner(note):
        each["colour"] = "red"
        with pytest.raises(jsonschema.ValidationError):
            check(note)
        del each["colour"]
    check(note)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_note_of_another_kind_is_refused(name):
    note = EXAMPLES[name].to_json()
    for kind in SCHEMAS:
        if kind != note["kind"]:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(note, SCHEMAS[kind])
