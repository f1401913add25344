"""Commands on what strangers made: tables, notes, configurations, model folders. A sentence, never a traceback."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from grace_store.base.errors import ModelError, UnsafeModel
from grace_store.cli import main
from grace_store.model.load.adapter_folder import open_adapter
from grace_store.model.load.model_folder import open_folder
from tests.scored_stores import known_store


def run(*words: object) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(*words: object) -> str:
    result = run(*words)
    assert result.exit_code in (1, 2), result.output
    return result.stderr


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scored")
    assert run("score", known_store(folder).store.location, "--out", folder / "scores.parquet").exit_code == 0
    return folder / "scores.parquet"


def changed(scores: Path, folder: Path, position: int, name: str, column: Any) -> Path:
    table = pq.read_table(scores)
    made = table.set_column(position, name, column(len(table))).replace_schema_metadata(table.schema.metadata)
    pq.write_table(made, folder / "strange.parquet")
    return folder / "strange.parquet"


@pytest.mark.parametrize(
    ("position", "name", "column", "message"),
    [
        (1, "row", lambda n: pa.nulls(n, pa.int64()), "row is empty in some rows"),
        (0, "sample_id", lambda n: pa.nulls(n, pa.string()), "sample_id is empty in some rows"),
        (1, "row", lambda n: pa.array([-1] * n), "row is negative in some rows"),
        (2, "num_steps", lambda n: pa.array([10**6] * n, pa.int32()), "step_score"),
        (4, "value", lambda n: pa.array([[1.0]] * n), "is not a table that `grace-store score` made"),
        (4, "value", lambda n: pa.array(["high"] * n), "is not a table that `grace-store score` made"),
    ],
)
def test_a_table_of_another_build_is_refused(scores, tmp_path, position, name, column, message):
    assert message in refused("audit", changed(scores, tmp_path, position, name, column))


@pytest.mark.parametrize(
    "note",
    [b"{", b"\xff", b"[" * 100_000, b"[]", b"{}", b'{"kind": "scores"}', b'{"kind": "scores", "spec": {}}',
     b'{"kind":"scores","spec":{"method":"grace"},"store":"a\\u0000b","plan_sha256":"0","signals":{}}',
     b'{"kind":"scores","spec":{"method":"grace"},"store":"\\ud800","plan_sha256":"0","signals":{}}'],
)  # fmt: skip
def test_a_table_with_a_strangers_note_is_refused(scores, tmp_path, note):
    pq.write_table(pq.read_table(scores).replace_schema_metadata({b"grace_store": note}), tmp_path / "t.parquet")
    assert "t.parquet" in refused(
        "select", tmp_path / "t.parquet", "--ratio", "0.5", "--out", tmp_path / "o", "--as", "ids"
    )


@pytest.mark.parametrize(
    "change", [{"rows": 5}, {"num_samples": "x"}, {"spec": {"control": 1}}, {"spec": {"diversity": 1}}]
)
def test_a_subset_with_a_strangers_note_is_refused(scores, tmp_path, change):
    assert run("select", scores, "--ratio", "0.5", "--out", tmp_path / "s.txt", "--as", "ids").exit_code == 0
    sidecar = tmp_path / "s.txt.spec.json"
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | change))
    told = refused("compare", tmp_path / "s.txt", scores)
    assert sidecar.name in told
    assert next(iter(change)) in told
    assert "Make the file again with `grace-store select`" in told
    sidecar.write_bytes(b"{" * 100_000)
    assert f"{sidecar.name} has a damaged note" in refused("compare", tmp_path / "s.txt", scores)


@pytest.mark.parametrize("place", ["", "/", "..", "a\x00b", "no such table"])
def test_a_subset_whose_table_is_nowhere_is_refused(scores, tmp_path, place):
    assert run("select", scores, "--ratio", "0.5", "--out", tmp_path / "s.txt", "--as", "ids").exit_code == 0
    sidecar = tmp_path / "s.txt.spec.json"
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | {"scores_path": place}))
    assert "this file no longer exists. Put the file back" in refused("compare", tmp_path / "s.txt", scores)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format = 1", "unknown value '1' of --format"),
        ("min-steps = true", "min-steps is 'True'; write a text or a number"),
        ("min-steps = []", "min-steps is '[]'; write a text or a number"),
        ("min-steps = 2020-01-01", "write a text or a number"),
        ("min-steps = 1\nmin_steps = 2", "has min_steps twice"),
        ("store = 1\nx = 2", "has x, which plan does not know"),
        ("json = 1", "json is 1; write true or false"),
        ("a = " + "[" * 5000, "is not TOML"),
        ("a = \x00", "is not TOML"),
    ],
)
def test_a_configuration_is_checked_as_the_command_line_is(tmp_path, text, message):
    (tmp_path / "c.toml").write_text(text)
    (tmp_path / "d.jsonl").write_text('{"prompt": "a", "steps": ["b"], "answer": "c"}\n')
    told = refused("plan", tmp_path / "s.zarr", tmp_path / "d.jsonl", "--config", tmp_path / "c.toml")
    assert message in " ".join(told.split())


def test_one_text_for_an_option_that_may_be_repeated_is_one_value(tmp_path):
    (tmp_path / "c.toml").write_text('data = "nowhere.jsonl"\nmodel = "m"')
    told = run("doctor", "--config", tmp_path / "c.toml")
    assert "No such file or folder: nowhere.jsonl." in told.stdout


def test_settings_are_complained_about_in_our_words(tmp_path, scores):
    (tmp_path / "g.toml").write_text('[[grid]]\nalpha = ["x"]\nwithout_answer = 7\nalpa = 1\n')
    told = refused("sweep", scores.parent / "known.zarr", "--out", tmp_path / "o", "--grid", tmp_path / "g.toml")
    assert "alpha.0 'x': a number is wanted" in told
    assert "alpa 1: there is no such setting" in told
    assert "put should" not in told
    device = refused("verify", scores.parent / "known.zarr", "--model", "m", "--device", "foo bar")
    assert device == "Error: unknown value 'foo bar' of --device: use auto, cpu, NAME or NAME:N\n"


class Evil:
    """A pickle that would leave a mark if anybody opened it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt"])
def test_weights_that_are_pickles_are_never_opened(tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / name).write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    with pytest.raises(UnsafeModel, match=f"as pickles \\({name}\\)\\. A pickle can run code"):
        open_folder(folder)
    assert not (tmp_path / "ran").exists()


def test_an_adapter_that_is_a_pickle_is_never_opened(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (tmp_path / "adapter_model.bin").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    (tmp_path / "optimizer.pt").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    with pytest.raises(UnsafeModel, match="as a pickle"):
        open_adapter(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"\xff", b"", b"[]", b'{"weight_map": {"a": "' + b"x" * 5000 + b'.safetensors"}}']
)
def test_broken_documents_of_a_model_are_sentences(tmp_path, content):
    for name in ("config.json", "model.safetensors.index.json", "tokenizer.json"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=str(tmp_path)):
        open_folder(tmp_path)


def test_what_was_set_aside_is_found_again(tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    good = '{"prompt": "a", "steps": ["b"], "answer": "c"}\n'
    first.write_text(good * 2)
    second.write_text(good + "{broken\n")
    assert run("plan", tmp_path / "s.zarr", first, second, "--min-steps", "1").exit_code == 0
    assert "row 3 (b.jsonl:1): bad_json: " in run("status", tmp_path / "s.zarr", "--list").stdout
    told = refused("inspect", tmp_path / "s.zarr", "#3")
    assert "Row 3 (b.jsonl:1) was set aside when the store was planned: bad_json: " in told
