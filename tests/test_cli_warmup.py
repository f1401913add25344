"""grace-store warmup and extract --adapter, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from grace_store.base.events import StepTaken
from grace_store.cli import progress
from grace_store.cli.main import main
from grace_store.pages.findings import warmup_section
from grace_store.store.opened import Store
from tests.tiny_models import tiny_text_model
from tests.warmups import content, make_inputs

RECIPE = ["--ratio", "0.4", "--batch-size", "4", "--learning-rate", "5e-3", "--heldout", "8", "--threads", "1",
          "--device", "cpu", "--checkpoints", "0.25,0.5,0.75,1"]  # fmt: skip


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == code, result.output + str(result.exception)
    return result


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    model, data = make_inputs(folder)
    run("plan", folder / "s.zarr", data, "--min-steps", 2)
    run("warmup", folder / "s.zarr", "--model", model, "--out", folder / "w", *RECIPE)
    return folder


def test_four_checkpoints_give_four_signals_and_scores(home, tmp_path):
    store, model = home / "s.zarr", home / "model"
    extract = ["extract", store, "--model", model, "--threads", 1, "--device", "cpu"]
    result = run(*extract, "--adapter", home / "w")
    names = ["checkpoint-2", "checkpoint-3", "checkpoint-5", "checkpoint-6"]
    assert Store.open(str(store)).signal_names == names
    assert [line.split(" in signal ")[1].split(",")[0] for line in result.stdout.splitlines()] == names
    signals = [Store.open(str(store)).signal(name).signal for name in names]
    assert len({signal.spec.model.adapter for signal in signals}) == 4
    assert len({signal.spec.model.weights for signal in signals}) == 1
    values = []
    for name in names:
        run("score", store, "--signal", name, "--out", tmp_path / f"{name}.parquet")
        values.append(tuple(pq.read_table(tmp_path / f"{name}.parquet")["value"].to_pylist()))
    assert len(set(values)) == 4
    # Going on needs no adapter, another adapter is another signal.
    run("extract", store, "--signal", "checkpoint-2", "--threads", 1, "--device", "cpu")
    wrong = run(*extract, "--adapter", home / "w" / "checkpoint-3", "--signal", "checkpoint-2", code=1)
    assert "model adapter: begun with" in wrong.stderr
    found = run("verify", store, "--signal", "checkpoint-5", "--model", model, "--threads", 1, "--device", "cpu")
    assert found.exit_code == 0


def test_an_adapter_of_another_model_is_refused_before_anything_is_written(home, tmp_path):
    other = tiny_text_model("qwen3", tmp_path / "other", seed=3)
    adapter = home / "w" / "checkpoint-2"
    result = run("extract", home / "s.zarr", "--model", other, "--adapter", adapter, "--signal", "x", code=1)
    assert "was trained on another model than --model (weights differ)" in result.stderr
    assert "x" not in Store.open(str(home / "s.zarr")).signal_names
    merged = run("extract", home / "s.zarr", "--model", adapter, "--signal", "x", code=1)
    assert "Give its base model with --model and this folder with --adapter" in merged.stderr


def test_what_a_user_sees(home):
    result = run("warmup", "--out", home / "w")
    loss, heldout, summary = result.stdout.splitlines()
    assert loss.startswith("Loss      █")
    assert heldout.count("step ") == 5
    assert "6 steps on 24 of 60 samples; checkpoint-2, checkpoint-3, checkpoint-5, checkpoint-6" in summary
    assert "is already complete, with 6 steps" in result.stderr
    told = json.loads(run("warmup", "--out", home / "w", "--json").stdout)
    assert [each["step"] for each in told["heldout"]] == [0, 2, 3, 5, 6]
    drawn = {line["name"]: line["x"] for line in warmup_section(home / "w").figures["warmup-loss"]["data"]}
    assert drawn == {"training": [1, 2, 3, 4, 5, 6], "held out": [0, 2, 3, 5, 6]}


def test_the_recipe_replays(home, tmp_path):
    run("warmup", "--config", home / "w" / "replay.toml", "--out", tmp_path / "again", "--threads", 1)
    assert content(tmp_path / "again", among="*.safetensors") == content(home / "w", among="*.safetensors")
    assert (tmp_path / "again" / "subset.json").read_bytes() == (home / "w" / "subset.json").read_bytes()


def test_the_recipe_of_a_plan_of_its_own_replays(home, tmp_path):
    model, data = make_inputs(home)
    options = ["--model", model, "--data", data, "--min-steps", 2, *RECIPE]
    run("warmup", *options, "--out", tmp_path / "first")
    run("warmup", "--config", tmp_path / "first" / "replay.toml", "--out", tmp_path / "second", "--threads", 1)
    assert content(tmp_path / "first", among="*.safetensors") == content(home / "w", among="*.safetensors")
    assert content(tmp_path / "second", among="*.safetensors") == content(home / "w", among="*.safetensors")


def test_the_command_line_wins_over_a_config(home, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text(f'model = "{home / "model"}"\nrank = 3\nbatch_size = 8\ntrain-eos = false\ndevice = "cpu"\n')
    store = home / "s.zarr"
    run("warmup", store, "--config", config, "--rank", 2, "--ratio", "0.1", "--out", tmp_path / "w")
    spec = json.loads((tmp_path / "w" / "recipe.json").read_text())["grace_store"]["spec"]
    assert (spec["rank"], spec["batch_size"], spec["train_eos"], spec["ratio"]) == (2, 8, False, "0.1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('rnak = 3\nout = "w"', "has rnak, which warmup does not know"),
        ("rank =", "is not TOML"),
        ('rank = "many"\nout = "w"', "'many' is not a valid integer"),
        ('checkpoints = "0.5,2"\nout = "w"', "'2' is not a number above 0"),
    ],
)
def test_a_wrong_config_is_refused(tmp_path, text, message):
    (tmp_path / "c.toml").write_text(text)
    assert message in " ".join(run("warmup", "--config", tmp_path / "c.toml", code=2).stderr.replace("│", "").split())


def test_a_checkpoint_that_has_learnt_nothing_is_named(home, tmp_path):
    command = ["warmup", home / "s.zarr", "--model", home / "model", "--out", tmp_path / "w", *RECIPE]
    told = run(*command, "--ratio", "0.1", "--checkpoints", "0.5,1")
    assert "checkpoint-1 has learnt nothing yet" in told.stderr
    assert "checkpoint-2 has" not in told.stderr
    assert "checkpoint-1 has learnt nothing yet" in run("warmup", "--out", tmp_path / "w").stderr
    assert "learnt nothing" not in run("warmup", "--out", home / "w").stderr


def test_mistakes_are_sentences(home, tmp_path):
    result = run("warmup", "--out", tmp_path / "w", "--model", home / "model", code=1)
    assert "Give a planned STORE, or the dataset with --data." in result.stderr
    changed = run("warmup", "--out", home / "w", "--rank", 3, code=1)
    assert "rank: begun with 8, now 3" in changed.stderr


@pytest.mark.parametrize("existing", ["", "runs", "runs/w"])
def test_a_refused_plan_leaves_no_folder(existing, home, tmp_path):
    (tmp_path / existing).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    words = ["warmup", "--out", tmp_path / "runs" / "w", "--model", home / "model", "--data", home / "traces.jsonl"]
    assert "Choose a value and give it with --min-steps" in " ".join(run(*words, code=2).stderr.split())
    assert sorted(tmp_path.rglob("*")) == before


def test_progress_is_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with progress.ProgressDisplay() as display:
        for step in (1, 2):
            display(StepTaken(step, 4, 2.5, 1e-4, 100))
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("Step 2/4  loss 2.5000  rate 1.0e-04")


def test_losses_are_drawn_up_to_the_first_line_that_is_none(tmp_path):
    def drawn() -> dict[str, tuple[list[float], list[float]]]:
        lines = warmup_section(tmp_path).figures["warmup-loss"]["data"]
        return {line["name"]: (line["x"], line["y"]) for line in lines}

    assert drawn() == {}
    log = '{"step": 0, "heldout_loss": 3.5}\n{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n'
    for end in ("", '{"step": 3, "lo', "[1]", "3", '{"loss": 1.0}', '{"step": 3, "loss": "<b>"}', "[" * 100_000):
        (tmp_path / "loss.jsonl").write_text(f"{log}{end}\n")
        assert drawn() == {"training": ([1, 2], [3, 2]), "held out": ([0], [3.5])}
