"""The format three times, kept together: FORMAT.md for people, the JSON Schemas for programs, and what is written."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest
import xarray
import zarr

from grace_store.base.metadata import FORMAT_VERSION, Commit, Completion, Plan, Sharing, SharingDocument, Signal
from grace_store.base.settings import DataSpec, ExtractSpec, GradientSpec, Per, Storage
from grace_store.base.states import STATE_CODES, Reason
from grace_store.store import layout
from grace_store.store.backend import commit_key
from grace_store.store.opened import Store
from grace_store.store.storages import Rotation
from grace_store.store.unit_writer import UnitWriter, complete_signal, keep_sharing
from jobs import schemas
from tests.format_page import SCHEMAS, TEXT, names_in, table, tables
from tests.stores import (
    NUM_SAMPLES,
    SIGNAL,
    STORAGES,
    TOO_LONG,
    add_signal,
    finished_store,
    random_signals,
    random_vectors,
    spans_for,
    write_plan,
    write_store,
)

ARRAYS = [row for rows in tables() for row in rows if "path" in row]


# ---------------------------------------------------------------- text and arrays


def sizes(store: Store, storage: Storage) -> dict[str, int]:
    plan, d = store.plan, store.signal(SIGNAL).vector_size
    columns = {row["storage"].strip("`"): row["columns C"] for row in table("columns C")}[storage]
    return {
        "N": plan.num_samples,
        "A": sum(plan.set_aside.values()),
        "U": plan.num_units,
        "S": plan.samples_per_unit,
        "R": plan.rows_per_unit,
        "G": plan.gram_per_unit,
        "T": plan.tokens_per_unit,
        "d": d,
        "C": {"d": d, "ceil(d/2)": math.ceil(d / 2)}[columns],
    }


def stated_arrays(store: Store, storage: Storage, per: Per = "segment") -> dict[str, tuple[Any, ...]]:
    """Return {path: (dimensions, shape, chunk, dtype)} that FORMAT.md says a store has."""
    dtypes = {row["storage"].strip("`"): row["dtype"].strip("`") for row in table("columns C")}
    stated = {}
    for row in ARRAYS:
        if row.get("if storage is", "any") != "any" and storage not in row["if storage is"].split(", "):
            continue
        if row.get("if vectors are per", "any") not in ("any", per):
            continue
        if "error of the encoding" in row and not store.signal(SIGNAL).signal.spec.has_token_table:
            continue
        path = row["path"].strip("`").replace("<signal>", SIGNAL)
        shape, chunk = (evaluate(row[name], sizes(store, storage)) for name in ("shape", "chunk"))
        dtype = dtypes[storage] if row["dtype"] == "section 6" else row["dtype"].strip("`")
        stated[path] = (tuple(row["dimensions"].split(", ")), shape, chunk, dtype)
    return stated


def evaluate(text: str, letters: dict[str, int]) -> tuple[int, ...]:
    """Return a shape such as (U*R, 2) with numbers for letters."""
    dims = [dim.strip() for dim in text.strip("()").split(",") if dim.strip()]
    return tuple(math.prod(letters.get(part) or ast.literal_eval(part) for part in dim.split("*")) for dim in dims)


@pytest.mark.parametrize("storage", STORAGES)
def test_the_arrays_of_a_store_are_those_of_the_tables(tmp_path: Path, storage: Storage) -> None:
    check_arrays(finished_store(tmp_path, storage), storage)


@pytest.mark.parametrize("per", get_args(Per))
@pytest.mark.parametrize("storage", STORAGES)
def test_the_arrays_of_gradients_are_those_of_the_tables(tmp_path: Path, storage: Storage, per: Per) -> None:
    check_arrays(gradient_store(tmp_path / "s.zarr", storage, per), storage, per)


def gradient_store(location: Path, storage: Storage, per: Per) -> Store:
    """Return a finished store of projected gradients of 45 components, the second sample set aside."""
    write_plan(location, [60, 90, 3, 1, 7], 2, {0: Reason.BAD_JSON})
    view = add_signal(Store.open(location), storage, 45, per=per)
    for unit in range(view.store.plan.num_units):
        signals = (random_vectors if per == "sample" else random_signals)(view, unit, [] if unit else [1])
        UnitWriter(view).write(unit, signals, spans_for(view, unit))
    complete_signal(view)
    return view.store


def check_arrays(store: Store, storage: Storage, per: Per = "segment") -> None:
    found = {}
    root = zarr.open_group(store.location, mode="r")
    assert sorted(root.group_keys()) == ["ledger", "samples", "signals"]
    assert list(root.array_keys()) == []
    for group in ("samples", f"signals/{SIGNAL}"):
        for name, array in root[group].members(max_depth=None):
            assert isinstance(array, zarr.Array)
            dtype = "string" if array.dtype.kind in "TO" else str(array.dtype)
            found[f"{group}/{name}"] = (
                array.metadata.dimension_names,
                array.shape,
                array.shards or array.chunks,
                dtype,
            )
            assert array.fill_value == ("" if dtype == "string" else 0)
            assert array.attrs["about"]
    assert found == stated_arrays(store, storage, per)


def test_the_order_of_the_plans_arrays_is_that_of_their_digest() -> None:
    stated = [row["path"].strip("`").removeprefix("samples/") for row in ARRAYS if "`samples/" in row["path"]]
    assert stated == [array.name for array in layout.sample_arrays(1, 1)]


@pytest.mark.parametrize("storage", STORAGES)
def test_encodings_are_those_that_the_text_allows(tmp_path: Path, storage: Storage) -> None:
    stores = (finished_store(tmp_path, storage), gradient_store(tmp_path / "s.zarr", storage, "sample"))
    for store, key in ((each, key) for each in stores for key in each.backend.walk()):
        node = json.loads(store.backend.read(key) or b"") if key.endswith("/zarr.json") else {}
        if node.get("node_type") != "array":
            continue
        codecs = node["codecs"]
        if key.endswith(("segment_vector/zarr.json", "sample_vector/zarr.json")) or "/token_" in key:
            assert [codec["name"] for codec in codecs] == ["sharding_indexed"]
            assert codecs[0]["configuration"]["index_location"] == "end"
            codecs = codecs[0]["configuration"]["codecs"]
        first = "vlen-utf8" if node["data_type"] == "string" else "bytes"
        assert [codec["name"] for codec in codecs] == [first, "zstd", "crc32c"]
        assert codecs[0].get("configuration", {}).get("endian", "little") == "little"
        assert node["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": "/"}}


@pytest.mark.parametrize("storage", STORAGES)
def test_padding_and_samples_set_aside_are_zero(tmp_path: Path, storage: Storage) -> None:
    store = finished_store(tmp_path, storage)
    view, plan = store.signal(), store.plan
    for unit in range(plan.num_units):
        start, stop = plan.unit_range(unit)
        segments = store.column("sample_num_steps", start, stop) + 1
        used = {"segment": segments.sum(), "gram_entry": (segments * (segments + 1) // 2).sum()}
        for array in view.arrays:
            if array.dims[0] in used:
                assert not view.unit_array(array.name, unit)[used[array.dims[0]] :].any(), array.name
    assert not view.gram(TOO_LONG).any()
    assert not view.vectors(TOO_LONG).any()
    assert not view.segments("segment_num_tokens", TOO_LONG).any()
    assert view.segments("segment_span", TOO_LONG).any()


@pytest.mark.parametrize("storage", STORAGES)
def test_samples_set_aside_have_vectors_of_zeros(tmp_path: Path, storage: Storage) -> None:
    view = gradient_store(tmp_path / "s.zarr", storage, "sample").signal()
    assert view.state(1) == "too_long"
    for array in view.arrays:
        if array.is_per_unit and array.name != "sample_state":
            values = view.unit_array(array.name, 0)
            assert values[0].any()
            assert array.name == "sample_vector" or not values[1].any(), array.name
    assert not view.unit_vectors(0)[1].any()


def test_the_codes_of_states_are_those_of_the_table() -> None:
    stated = {row["word"].strip("`"): int(row["code"]) for row in table("code")}
    assert stated == STATE_CODES
    attributes = layout.flag_attributes()
    assert dict(zip(attributes["flag_meanings"].split(), attributes["flag_values"], strict=True)) == STATE_CODES


def test_the_rotation_is_the_one_that_the_text_derives() -> None:
    for d in (9, 24):
        stream = hashlib.shake_256(f"grace-store rotation of size {d}".encode()).digest(10 * d)
        bits = "".join(f"{byte:08b}" for byte in stream[: 2 * d])[: 2 * d]
        keys = [int.from_bytes(stream[2 * d + 8 * i : 2 * d + 8 * i + 8], "little") for i in range(d)]
        rotation = Rotation.for_size(d)
        assert rotation.sign.reshape(-1).tolist() == [1 if bit == "0" else -1 for bit in bits]
        assert rotation.order.tolist() == sorted(range(d), key=keys.__getitem__)


# ---------------------------------------------------------------- text, schemas and documents


def test_the_version_is_that_of_the_code() -> None:
    assert TEXT.startswith(f"# The grace-store format, version {FORMAT_VERSION}\n")
    assert f'"grace-store" and "{FORMAT_VERSION}"' in TEXT


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("field of the plan", Plan),
        ("field of a signal", Signal),
        ("field of a commit", Commit),
        ("field of a completion", Completion),
        ("field of a sharing", SharingDocument),
        ("field of how units share", Sharing),
        ("field of a gradient", GradientSpec),
    ],
)
def test_every_field_of_a_document_is_in_its_table(heading: str, model: type[Plan]) -> None:
    stated = [name for row in table(heading) for name in names_in(row[heading])]
    assert sorted(stated) == sorted(model.model_fields)


def test_the_schema_files_are_those_of_the_models() -> None:
    files = {path.name: path.read_text(encoding="utf-8") for path in SCHEMAS.glob("*.json")}
    assert files == schemas.schema_documents(), "run `make schemas`"
    assert {row["schema"].strip("`") for rows in tables() for row in rows if "schema" in row} == set(files)
    for text in files.values():
        jsonschema.Draft202012Validator.check_schema(json.loads(text))


def test_schemas_name_every_setting_that_changes_numbers() -> None:
    documents = schemas.schema_documents()
    for model, name in ((DataSpec, "plan"), (ExtractSpec, "signal")):
        spec = json.loads(documents[f"{name}.schema.json"])["$defs"][model.__name__]
        assert set(spec["properties"]) == set(model.model_fields)
        assert set(spec["properties"]) - set(spec["required"]) == ({"expand"} if model is DataSpec else set())


def test_documents_of_a_store_have_no_floating_point_numbers() -> None:
    """So that their canonical JSON is the same in every language."""
    assert '"number"' not in "".join(schemas.store_schemas().values())


def test_schemas_are_written_by_the_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schemas.main([str(tmp_path / "out")]) == 0
    written = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "out").iterdir()}
    assert written == schemas.schema_documents()
    assert schemas.main([]) == 2
    assert "usage: python -m jobs.schemas FOLDER" in capsys.readouterr().err


def schema_of(key: str) -> dict[str, Any] | None:
    """Return the schema of a JSON file of a store, None for those of plain groups and arrays."""
    patterns = {
        "plan": r"zarr\.json|ledger/plan\.json",
        "signal": rf"signals/{SIGNAL}/zarr\.json|ledger/signals/{SIGNAL}\.json",
        "commit": rf"ledger/commits/{SIGNAL}/\d{{8}}\.json",
        "completion": rf"ledger/complete/{SIGNAL}\.json",
        "sharing": rf"ledger/sharing/{SIGNAL}\.json",
    }
    for name, pattern in patterns.items():
        if re.fullmatch(pattern, key):
            return dict(json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8")))
    assert key.endswith("/zarr.json"), key
    return None


@pytest.mark.parametrize("storage", STORAGES)
def test_every_document_is_valid_and_none_that_is_changed(tmp_path: Path, storage: Storage) -> None:
    store = finished_store(tmp_path, storage)
    keep_sharing(store.signal(SIGNAL), Sharing(prompts=True, difference=9.3e-07, images="image", allowed=1e-4))
    num_checked = 0
    for key in store.backend.walk():
        if not key.endswith(".json"):
            continue
        schema = schema_of(key)
        if schema is None:
            continue
        document = json.loads(store.backend.read(key) or b"")
        jsonschema.validate(document, schema)
        num_checked += 1
        body = document.get("attributes", document)["grace_store"]
        body.pop(sorted(body)[0])
        with pytest.raises(jsonschema.ValidationError, match="is a required property"):
            jsonschema.validate(document, schema)
    assert num_checked == 6 + store.plan.num_units  # plan and signal with their copies, the completion, the sharing


# ---------------------------------------------------------------- other programs


SCRIPT = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[0]


@pytest.mark.parametrize("per", get_args(Per))
def test_documents_of_gradients_are_valid_and_those_of_proxies_have_none(tmp_path: Path, per: Per) -> None:
    schema = json.loads((SCHEMAS / "signal.schema.json").read_text(encoding="utf-8"))
    store = gradient_store(tmp_path / "s.zarr", "int8", per)
    document = json.loads(store.backend.read(f"signals/{SIGNAL}/zarr.json") or b"")
    jsonschema.validate(document, schema)
    del document["attributes"]["grace_store"]["spec"]["gradient"]["seed"]
    with pytest.raises(jsonschema.ValidationError, match="'seed' is a required property"):
        jsonschema.validate(document, schema)
    proxy = json.loads(finished_store(tmp_path).backend.read(f"signals/{SIGNAL}/zarr.json") or b"")
    assert proxy["attributes"]["grace_store"]["spec"]["gradient"] is None


def run_script(tmp_path: Path, store: Store, sample: int) -> subprocess.CompletedProcess[str]:
    (tmp_path / "read.py").write_text(SCRIPT)
    code = (
        "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "assert not any(name.split('.')[0] == 'grace_store' for name in sys.modules)"
    )
    arguments = [str(tmp_path / "read.py"), store.location, SIGNAL, str(sample), str(tmp_path / f"{sample}.npz")]
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_the_script_needs_zarr_and_numpy_only_and_is_short() -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(SCRIPT))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported == {"sys", "pathlib", "numpy", "zarr"}
    assert len([line for line in SCRIPT.splitlines() if line.strip()]) <= 45


@pytest.mark.parametrize("storage", STORAGES)
def test_the_script_reads_what_the_store_reads(tmp_path: Path, storage: Storage) -> None:
    """Of odd size, and with several inner chunks to a shard."""
    view = write_store(tmp_path / "odd", [60, 90, 3, 1, 7], 2, storage, 45)
    sample = 4
    result = run_script(tmp_path, view.store, sample)
    assert result.returncode == 0, result.stderr
    with np.load(tmp_path / f"{sample}.npz") as read:
        expected = view.vectors(sample)
        np.testing.assert_allclose(read["vectors"], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
        np.testing.assert_array_equal(read["gram"], view.gram(sample))


@pytest.mark.parametrize("storage", STORAGES)
def test_the_script_reads_vectors_of_samples(tmp_path: Path, storage: Storage) -> None:
    view = gradient_store(tmp_path / "s.zarr", storage, "sample").signal()
    result = run_script(tmp_path, view.store, 4)
    assert result.returncode == 0, result.stderr
    with np.load(tmp_path / "4.npz") as read:
        expected = view.unit_vectors(2)
        np.testing.assert_allclose(read["vectors"], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    refused = run_script(tmp_path, view.store, 1)
    assert (refused.returncode, refused.stderr.strip()) == (1, "sample 1 is not done")


def test_the_script_refuses_what_is_not_done(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    result = run_script(tmp_path, store, TOO_LONG)
    assert (result.returncode, result.stderr.strip()) == (1, f"sample {TOO_LONG} is not done")
    store.backend.delete(commit_key(SIGNAL, 0))
    assert run_script(tmp_path, store, 0).stderr.strip() == "sample 0 is not done"


@pytest.mark.parametrize("storage", STORAGES)
def test_xarray_opens_both_kinds_of_group(tmp_path: Path, storage: Storage) -> None:
    store = finished_store(tmp_path, storage)
    view, stated = store.signal(), stated_arrays(store, storage)
    for group in ("samples", f"signals/{SIGNAL}"):
        with xarray.open_dataset(
            store.location, group=group, engine="zarr", consolidated=False, zarr_format=3
        ) as dataset:
            arrays = {f"{group}/{name}": array for name, array in dataset.items()}
            expected = {path: row for path, row in stated.items() if path.startswith(f"{group}/")}
            assert {path: (array.dims, array.shape) for path, array in arrays.items()} == {
                path: row[:2] for path, row in expected.items()
            }
            if group == "samples":
                assert dataset.sizes["sample"] == NUM_SAMPLES
                assert dataset["sample_id"].values.tolist() == store.column("sample_id").tolist()
            else:
                row = view.segment_rows(0)
                np.testing.assert_array_equal(dataset["segment_loss"].values[row], view.segments("segment_loss", 0))
                assert dataset.attrs["grace_store"]["spec"]["storage"] == storage


def test_xarrays_call_is_the_one_in_the_text() -> None:
    assert 'xarray.open_dataset(path, group="signals/base", engine="zarr", consolidated=False, zarr_format=3)' in TEXT
