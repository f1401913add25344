"""Documents: kinds, versions, what is unknown, documents inside documents, and what is none."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store import __version__
from grace_store.base.documents import (
    METADATA_KEY,
    Count,
    Document,
    Number,
    document_metadata,
    find_document,
    metadata_document,
    parse_document,
    read_document,
    write_document,
)
from grace_store.base.errors import DataError
from grace_store.base.finding import Finding
from grace_store.base.metadata import FORMAT_VERSION
from grace_store.base.settings import Frozen
from grace_store.scoring.notes import AgainstNote, DuplicatesNote
from tests.example_notes import EXAMPLES


class Part(Frozen):
    name: str
    size: Number


class Thing(Document):
    """A document for tests."""

    words: ClassVar[str] = "a thing"
    maker: ClassVar[str] = "make"

    kind: Literal["thing"] = "thing"
    title: str
    size: Number
    count: Count
    sure: bool = False
    parts: tuple[Part, ...] = ()
    of: Thing | None = None
    """The thing it was made from."""
    remark: str | None = None


THING = Thing(title="one", size=0.5, count=3)


def changed(**changes: Any) -> bytes:
    """The JSON of a thing with other fields; ... leaves one out."""
    content = THING.to_json() | changes
    return json.dumps({key: value for key, value in content.items() if value is not ...}).encode()


def parsed(raw: bytes) -> Thing:
    return parse_document(raw, Thing, "it.json")


# ---------------------------------------------------------------- there and back

texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.floats(allow_infinity=False)
parts = st.builds(Part, name=texts, size=numbers)
things = st.recursive(
    st.builds(Thing, title=texts, size=numbers, count=st.integers(0, 2**63 - 1), sure=st.booleans()),
    lambda inner: st.builds(
        Thing,
        title=texts,
        size=numbers,
        count=st.integers(0, 9),
        parts=st.lists(parts, max_size=3).map(tuple),
        of=inner,
        remark=st.none() | texts,
    ),
    max_leaves=4,
)


@given(thing=things)
@settings(max_examples=150, deadline=None)
def test_a_document_is_the_same_after_a_trip_through_a_table(thing):
    metadata = document_metadata(thing)
    assert list(metadata) == [METADATA_KEY]
    again = metadata_document(metadata, Thing, "it.parquet")
    assert again.to_json() == thing.to_json()
    assert document_metadata(again) == metadata


@given(thing=things)
@settings(max_examples=50, deadline=None)
def test_a_document_is_the_same_after_a_trip_through_a_file(tmp_path_factory, thing):
    path = tmp_path_factory.mktemp("thing") / "it.json"
    write_document(path, thing)
    assert read_document(path, Thing).to_json() == thing.to_json()
    assert path.read_bytes().endswith(b"\n")


def test_a_file_is_for_people_too(tmp_path):
    write_document(tmp_path / "it.json", Thing(title="für alle", size=1.0, count=0))
    lines = (tmp_path / "it.json").read_text(encoding="utf-8").splitlines()
    assert ' "title": "für alle",' in lines
    assert lines[1].startswith(' "kind": ')


def test_a_document_says_its_kind_its_version_and_the_release():
    said = THING.to_json()
    assert (said["kind"], said["version"], said["made_by"]) == ("thing", FORMAT_VERSION, f"grace-store {__version__}")


def test_what_is_unknown_is_null_and_what_is_not_there_is_left_out():
    thing = Thing(title="x", size=math.nan, count=0, parts=(Part(name="y", size=math.nan),))
    said = thing.to_json()
    assert said["size"] is None
    assert said["parts"] == [{"name": "y", "size": None}]
    assert "remark" not in said
    assert "of" not in said
    again = parsed(json.dumps(said).encode())
    assert math.isnan(again.size)
    assert math.isnan(again.parts[0].size)
    assert again.remark is None
    assert parsed(changed(remark=None)) == THING  # null is as good as nothing


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "1.3", "2.0", "10.0", "one", "", 2.1, [], {}, "9" * 99])
def test_another_version_is_refused_with_the_one_that_is_read(version):
    told = f"it.json has version {version}"[:60]
    with pytest.raises(DataError, match=re.escape(told)) as refused:
        parsed(changed(version=version))
    end = "of the format, but this grace-store reads only version 2.1. Make the file again with `grace-store make`."
    assert str(refused.value).endswith(end)


@pytest.mark.parametrize("version", [..., None])
def test_no_version_is_refused(version):
    with pytest.raises(DataError, match=r"it\.json says no version of the format, but .* reads only version 2\.1"):
        parsed(changed(version=version))


@pytest.mark.parametrize("version", ["1.3", "2.0", "one", "", None])
def test_another_version_is_refused_inside_too(version):
    with pytest.raises(DataError, match=r"of\.version .*'2\.1'.*Make the file again"):
        parsed(changed(of=THING.to_json() | {"version": version}))


# ---------------------------------------------------------------- kinds


@pytest.mark.parametrize("kind", ["scores", "", 7, [], {"a": 1}, "k" * 500])
def test_another_kind_is_refused_by_its_name(kind):
    with pytest.raises(DataError, match=r"is not a thing: its note is of the kind .*`grace-store make`") as refused:
        parsed(changed(kind=kind))
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("found", "wanted", "told"),
    [
        ("duplicates", AgainstNote, "`grace-store contamination` compares them with benchmarks"),
        ("against", DuplicatesNote, "`grace-store duplicates` compares them with each other"),
        ("plan of a trial", Finding, r"Give trial\.json in the same folder\. The trial writes this file when it ends"),
        ("training of a trial", Finding, r"Give trial\.json in the folder above runs"),
    ],
)
def test_a_kind_that_is_easily_mistaken_gets_a_remedy_of_its_own(found, wanted, told):
    with pytest.raises(DataError, match=rf"is not .*: its note is of the kind .* {told}"):
        parse_document(json.dumps(EXAMPLES[found].to_json()).encode(), wanted, "it.json")


@pytest.mark.parametrize("kind", [..., None])
def test_no_kind_is_refused(kind):
    with pytest.raises(DataError, match="is not a thing: its note has no kind"):
        parsed(changed(kind=kind))


def test_another_kind_inside_is_refused():
    with pytest.raises(DataError, match=r"of\.kind"):
        parsed(changed(of=THING.to_json() | {"kind": "scores"}))


# ---------------------------------------------------------------- fields


@pytest.mark.parametrize("name", ["title", "size", "count"])
def test_a_field_that_is_missing_is_named(name):
    with pytest.raises(DataError, match=rf"it\.json .*{name} is missing.*`grace-store make`"):
        parsed(changed(**{name: ...}))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("title", 7, "title 7: a text is wanted"),
        ("title", None, "title None: a text is wanted"),
        ("size", "large", "size 'large': a number is wanted"),
        ("size", True, "size True: a number is wanted"),
        ("count", 1.5, "count 1.5: a whole number is wanted"),
        ("count", "3", "count '3': a whole number is wanted"),
        ("count", -1, "count -1: .*greater than or equal to 0"),
        ("count", 2**63, "count 9223372036854775808: .*less than"),
        ("sure", "yes", "sure 'yes': true or false is wanted"),
        ("sure", 1, "sure 1: true or false is wanted"),
        ("parts", "all", "parts 'all': a list is wanted"),
        ("parts", [1], r"parts\.0 1: a table is wanted"),
        ("parts", [{"name": "a"}], r"parts\.0\.size is missing"),
        ("parts", [{"name": "a", "size": 1, "colour": "red"}], r"parts\.0\.colour 'red': there is no such field"),
        ("of", 5, "of 5: a table is wanted"),
        ("of", {}, r"of\.title is missing"),
        ("colour", "red", "colour 'red': there is no such field"),
        ("made_by", "somebody", "made_by 'somebody'"),
    ],
)
def test_a_field_that_is_wrong_is_named_with_what_is_wanted(field, value, words):
    with pytest.raises(DataError, match=rf"it\.json .*{words}.*`grace-store make`"):
        parsed(changed(**{field: value}))


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(DataError) as refused:
        parsed(changed(title=7, count="x", colour="red"))
    assert all(name in str(refused.value) for name in ("title", "count", "colour"))


def test_a_long_value_does_not_fill_the_sentence():
    with pytest.raises(DataError) as refused:
        parsed(changed(count="x" * 10_000))
    assert len(str(refused.value)) < 300


# ---------------------------------------------------------------- what is no document


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"{'kind': 'thing'}",
        b'{"kind": "thing", "size": NaN}',
        b'{"kind": "thing", "size": Infinity}',
        b'{"kind": "thing", "size": 1e999}',
        b'{"kind": "thing", "title": "\\ud800"}',
        b'{"kind": "thing", "count": ' + b"9" * 10_000 + b"}",
        b"[" * 100_000,
        b'{"of":' * 50_000,
    ],
    ids=lambda raw: repr(raw[:30]),
)
def test_damaged_json_is_told(raw):
    with pytest.raises(DataError, match=r"it\.json has a damaged note .*Make the file again with `grace-store make`"):
        parsed(raw)


def table_bytes(tmp_path: Path) -> bytes:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "table.parquet")
    return (tmp_path / "table.parquet").read_bytes()


def test_a_file_that_is_something_else_is_called_what_it_is(tmp_path):
    """A subset or a table in place of a finding is no damaged finding."""
    path = tmp_path / "given"
    records = b'{"id": "a", "steps": ["b"]}\n{"id": "c"}\n{"id": "d"}\n'
    for raw, what in ((records, "a file of JSON lines"), (table_bytes(tmp_path), "a Parquet table")):
        path.write_bytes(raw)
        with pytest.raises(DataError, match=rf"given is not a finding: the file is {what}\. Give a file that a study"):
            read_document(path, Finding)


@pytest.mark.parametrize("raw", [b"[]", b"null", b"7", b'"thing"', b"true"])
def test_json_that_is_no_object_is_told(raw):
    with pytest.raises(DataError, match=r"it\.json has a note that is not a JSON object"):
        parsed(raw)


@given(raw=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_document_or_a_sentence(raw):
    with pytest.raises(DataError, match=r"it\.json"):
        parsed(raw)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(changes=st.dictionaries(st.sampled_from([*Thing.model_fields, "colour"]), values, max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_fields_are_a_document_or_a_sentence(changes):
    raw, refused = changed(**changes), ""
    try:
        found = parsed(raw)
    except DataError as error:
        refused = str(error)
    if refused:
        assert refused.startswith("it.json")
        assert len(refused) < 3000
    else:
        assert found.to_json() == parsed(json.dumps(found.to_json()).encode()).to_json()


# ---------------------------------------------------------------- files and tables


def test_a_file_that_is_not_there_says_what_makes_it(tmp_path):
    with pytest.raises(DataError, match=r"none\.json does not exist. `grace-store make` makes this file"):
        read_document(tmp_path / "none.json", Thing)
    with pytest.raises(DataError, match="cannot be read"):
        read_document(tmp_path, Thing)


def test_a_table_without_a_note_is_told():
    for metadata in (None, {}, {b"pandas": b"{}"}):
        with pytest.raises(DataError, match=r"it\.parquet is not a thing: the file has no note.*`grace-store make`"):
            metadata_document(metadata, Thing, "it.parquet")


def test_a_document_is_found_if_it_is_one(tmp_path: Path):
    path = tmp_path / "it.json"
    assert find_document(path, Thing) is None
    path.write_text("{")
    assert find_document(path, Thing) is None
    write_document(path, THING)
    assert find_document(path, Thing) == THING
