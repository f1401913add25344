"""The command line: results on stdout, words on stderr, errors as one sentence, and every command documented."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner, Result

from grace_store.base.errors import Interrupted
from grace_store.base.events import Finished, Note, Rated, Scanned, Started, UnitCommitted, Warned
from grace_store.cli import analysing, diversifying, main, options, selecting
from grace_store.cli.console import ProgressDisplay, duration, print_json, size, stoppable
from grace_store.cli.main import COMMANDS
from grace_store.curate import trade_curve
from grace_store.likeness import duplicate_groups as duplicates
from grace_store.likeness import points as descriptors
from grace_store.values import diversity_spec
from grace_store.values import ranking as budget
from tests.jobs import NUM_RECORDS, NUM_USABLE, content, write_dataset
from tests.tiny_models import tiny_text_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_text_model("qwen3", tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(write_dataset(tmp_path / "traces.jsonl"))


@pytest.fixture(scope="module")
def finished(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished store; tests must not change it."""
    folder = tmp_path_factory.mktemp("finished")
    write_dataset(folder / "traces.jsonl")
    run_ok(*extract_words(folder / "store.zarr", model, str(folder / "traces.jsonl")))
    return folder


def extract_words(store: Path, model: str, data: str) -> list[str]:
    return [
        "extract", "--store", str(store), "--model", model, "--data", data, "--min-steps", "2", "--unit-samples", "4",
        "--threads", "1",
    ]  # fmt: skip


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def run_ok(*words: object) -> Result:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result


def run_json(*words: object) -> Any:
    return json.loads(run_ok(*words, "--json").stdout)


# ---------------------------------------------------------------- every command


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    text = run_ok(name, "--help").stdout
    assert "Example" in text
    assert f"grace-store {name}" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_readme(name: str, repository: Path) -> None:
    assert f"grace-store {name}" in (repository / "README.md").read_text()


def test_an_unknown_command_is_a_usage_error() -> None:
    result = run("frobnicate")
    assert result.exit_code == 2
    assert "No such command" in result.stderr


def test_choices_are_those_of_the_library() -> None:
    assert options.DESCRIPTORS == descriptors.DESCRIPTORS
    assert analysing.KEEPS == duplicates.KEEPS
    assert get_args(trade_curve.Traded) == diversifying.TRADED
    choices = {each.name: each.type for each in selecting.select.params}
    assert tuple(choices["diversity"].choices) == diversity_spec.METHODS
    assert tuple(choices["balance"].choices) == get_args(budget.Balance)


def test_json_has_null_for_a_number_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"low": math.nan, "all": [1.5, -math.inf]})
    assert capsys.readouterr().out == '{\n  "low": null,\n  "all": [\n    1.5,\n    null\n  ]\n}\n'


def test_a_reader_that_stops_reading_is_no_error(finished: Path) -> None:
    command = [sys.executable, "-m", "grace_store", "status", str(finished / "store.zarr")]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.stderr == ""


# ---------------------------------------------------------------- the main road


def test_plan_says_what_it_found(tmp_path: Path, data: str) -> None:
    result = run_ok("plan", data, "--store", tmp_path / "store.zarr", "--min-steps", 2)
    assert f"{NUM_USABLE} of {NUM_RECORDS} records planned" in result.stdout
    assert "1 set aside: duplicate_id" in result.stdout
    counts = run_json("plan", data, "--store", tmp_path / "store.zarr")
    assert counts["num_planned"] == NUM_USABLE


def test_from_traces_to_subset(tmp_path: Path, model: str, data: str) -> None:
    store, scores, subset = tmp_path / "store.zarr", tmp_path / "scores.parquet", tmp_path / "subset.jsonl"
    result = run_ok(*extract_words(store, model, data))
    assert f"{NUM_USABLE} samples done in signal base, 3 records set aside" in result.stdout
    assert "samples in 6 units to do" in result.stderr
    assert run_json("score", store, "--out", scores)["num_samples"] == NUM_USABLE
    chosen = run_json("select", scores, "--ratio", "0.2", "--out", subset)
    assert chosen["num_samples"] == 5  # ceil(0.2 * 24)
    lines = subset.read_text().splitlines()
    assert len(lines) == 5
    assert set(lines) <= set(Path(data).read_text().splitlines())


def test_running_again_skips_everything(finished: Path) -> None:
    result = run_ok("extract", "--store", finished / "store.zarr")
    assert f"{NUM_USABLE} samples in 6 units were done before" in result.stderr


def test_a_finished_store_needs_neither_data_nor_model_to_say_so(tmp_path: Path, finished: Path) -> None:
    store = shutil.copytree(finished / "store.zarr", tmp_path / "store.zarr")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grace_store.run.extract.open_dataset", _must_not_be_called)
        patch.setattr("grace_store.run.extract.model_door", _must_not_be_called)
        result = run_ok("extract", "--store", store)
    assert "Signal base is complete: there is nothing to do." in result.stderr
    assert f"{NUM_USABLE} samples done in signal base" in result.stdout


def _must_not_be_called(*_: object) -> None:
    raise AssertionError("there was nothing to do")


def test_status_adds_up(finished: Path) -> None:
    counts = run_json("status", finished / "store.zarr", "--list")
    assert counts["num_records"] == NUM_RECORDS
    assert counts["num_records"] == counts["num_planned"] + counts["num_done"] + counts["num_set_aside"]
    assert counts["num_set_aside"] == sum(counts["set_aside"].values()) == len(counts["set_aside_records"])
    text = run_ok("status", finished / "store.zarr", "--list").stdout
    assert "row 6 (traces.jsonl:6): duplicate_id: id 'case-0' was used before" in text
    assert "signal base: complete" in text


def test_status_of_a_plan_says_what_comes_next(tmp_path: Path, data: str) -> None:
    run_ok("plan", data, "--store", tmp_path / "store.zarr", "--min-steps", 2)
    assert "run `grace-store extract`" in run_ok("status", tmp_path / "store.zarr").stdout


def test_info_shows_where_it_came_from(finished: Path, model: str) -> None:
    text = run_ok("info", finished / "store.zarr").stdout
    assert "traces.jsonl: 27 records" in text
    assert "Qwen3ForCausalLM" in text
    assert model in text
    facts = run_json("info", finished / "store.zarr")
    assert facts["signals"]["base"]["spec"]["storage"] == "int8"


def test_inspect_shows_a_sample_by_segment(finished: Path) -> None:
    shown = run_json("inspect", finished / "store.zarr", "case-7")
    assert [segment["name"] for segment in shown["segments"]] == [f"step {i}" for i in range(1, 6)] + ["answer"]
    assert shown["segments"][0]["text"] == "We look at part 0 of case 7.\n"
    assert shown["segments"][0]["step_score"] == pytest.approx(shown["segments"][0]["answer_alignment"])
    scores = [segment["step_score"] for segment in shown["segments"][:-1]]
    assert shown["value"] == pytest.approx(sum(scores) / len(scores))
    text = run_ok("inspect", finished / "store.zarr", "#10").stdout
    assert "case-7" in text
    assert "value" in text


def test_inspect_goes_without_the_text_when_the_data_is_gone(tmp_path: Path, model: str, data: str) -> None:
    run_ok(*extract_words(tmp_path / "store.zarr", model, data))
    Path(data).unlink()
    shown = run_json("inspect", tmp_path / "store.zarr", "case-7")
    assert shown["segments"][0]["text"] is None
    assert "no longer there" in shown["missing_text"]
    assert "text not shown" in run_ok("inspect", tmp_path / "store.zarr", "case-7").stdout


def test_verify_and_repair(tmp_path: Path, model: str, data: str) -> None:
    store = tmp_path / "store.zarr"
    run_ok(*extract_words(store, model, data))
    result = run_ok("verify", store, "--deep", "--model", model, "--units", 2, "--threads", 1)
    assert "0 problems" in result.stdout
    assert "base: extracting units " in result.stderr
    before = content(store)
    chunk = store / "signals/base/segment_vector/c/4/0"
    chunk.write_bytes(chunk.read_bytes()[:-7])
    result = run("verify", store)
    assert result.exit_code == 1
    assert "base unit 4: signals/base/segment_vector/c/4/0: chunk has" in result.stdout
    result = run("verify", store, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["problems"][0]["unit"] == 4
    assert "1 problem mended" in run_ok("repair", store, "--threads", 1).stdout
    assert content(store) == before
    assert run_json("repair", store)["mended"] == []
    assert "nothing to mend" in run_ok("repair", store).stdout


def test_units_to_do_are_no_problem_of_a_store_but_lost_ones_are(tmp_path: Path, model: str, data: str) -> None:
    store = tmp_path / "store.zarr"
    words = extract_words(store, model, data)
    run_ok(*words, "--shard", "1/3")
    result = run_ok("verify", store)
    assert "0 problems" in result.stdout
    assert "base: 4 units not committed: 0, 2-3, 5" in result.stdout
    assert "4 units still to do: `grace-store extract` goes on." in result.stdout
    told = run_json("verify", store)
    assert told["problems"] == []
    assert [each["unit"] for each in told["units_to_do"]] == [0, 2, 3, 5]
    run_ok(*words)
    next((store / "ledger/commits/base").iterdir()).unlink()
    lost = run("verify", store, "--json")
    assert lost.exit_code == 1
    assert json.loads(lost.stdout)["units_to_do"] == []
    assert "unit is not committed" in [each["text"] for each in json.loads(lost.stdout)["problems"]]


def test_a_repair_that_cannot_be_done_undoes_nothing(tmp_path: Path, model: str, data: str) -> None:
    store = tmp_path / "store.zarr"
    run_ok(*extract_words(store, model, data))
    chunk = store / "signals/base/segment_vector/c/4/0"
    chunk.write_bytes(chunk.read_bytes()[:-7])
    before = content(store)
    other = tiny_text_model("llama", tmp_path / "other")
    result = run("repair", store, "--model", other)
    assert result.exit_code == 1
    assert "model architecture: begun with" in result.stderr
    assert content(store) == before


def test_it_goes_on_from_another_folder(tmp_path: Path, model: str, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(model).parent)
    words = extract_words(tmp_path / "store.zarr", Path(model).name, data)
    run_ok(*words, "--shard", "0/2")
    monkeypatch.chdir("/")
    run_ok("extract", "--store", tmp_path / "store.zarr", "--threads", 1)
    assert run_json("status", tmp_path / "store.zarr")["is_complete"]


@pytest.mark.parametrize("option", ["--model", "--images", "--adapter"])
def test_a_wrong_path_is_said_before_anything_is_planned(tmp_path: Path, model: str, data: str, option: str) -> None:
    words = extract_words(tmp_path / "store.zarr", model, data)
    result = run(*words, option, tmp_path / "nothing")
    assert result.exit_code == 1
    assert "nothing" in result.stderr
    assert not (tmp_path / "store.zarr").exists()


@pytest.mark.parametrize("place", ["{store}/zarr.json", "{store}", "{data}"])
def test_scores_never_replace_what_they_are_made_from(finished: Path, place: str) -> None:
    store, data = finished / "store.zarr", finished / "traces.jsonl"
    before = content(store), data.read_bytes()
    result = run("score", store, "--out", place.format(store=store, data=data))
    assert result.exit_code != 0
    assert (content(store), data.read_bytes()) == before


def test_a_terminal_is_shown_control_characters_not_given_them(tmp_path: Path, model: str) -> None:
    data = tmp_path / "hostile.jsonl"
    hostile = {"id": "a\u202eb", "prompt": "clear \x1b[2J", "steps": ["one \x07", "two"], "answer": "three"}
    data.write_text(2 * (json.dumps(hostile) + "\n"))  # the second uses the first one's id
    run_ok(*extract_words(tmp_path / "store.zarr", model, str(data)), "--format", "explicit")
    shown = run_ok("inspect", tmp_path / "store.zarr", "#0").stdout
    listed = run_ok("status", tmp_path / "store.zarr", "--list").stdout
    assert "\\x1b[2J" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown + listed)


def test_workers_and_shards_write_the_same_bytes(tmp_path: Path, finished: Path, model: str) -> None:
    words = extract_words(tmp_path / "store.zarr", model, str(finished / "traces.jsonl"))
    run_ok(*words, "--shard", "1/2")
    run_ok(*words, "--workers", 2)
    assert content(tmp_path / "store.zarr") == content(finished / "store.zarr")


# ---------------------------------------------------------------- errors are sentences

BAD: dict[str, tuple[list[str], int, str]] = {
    "no store": (["status", "{tmp}/none.zarr"], 1, "is not a grace-store store: nothing is there"),
    "no data": (["extract", "--store", "{tmp}/none.zarr", "--model", "m"], 1, "give the dataset with --data"),
    "missing file": (["plan", "{tmp}/none.jsonl", "--store", "{tmp}/s.zarr"], 1, "none.jsonl"),
    "no model": (["extract", "--store", "{tmp}/s.zarr", "--data", "{data}", "--min-steps", "2"], 1, "--model"),
    "a file": (["status", "{data}"], 1, "it is a file"),
    "reserved name": (["extract", "--store", "{store}", "--signal", "each", "--model", "m"], 1, "cannot be the name"),
    "bad shard": (["extract", "--store", "s", "--shard", "4/4"], 2, "is not i/n with 0 <= i < n"),
    "bad device": (["extract", "--store", "s", "--device", "abacus"], 1, "none of auto, cpu, cuda"),
    "bad unit": (["plan", "{data}", "--store", "{tmp}/s.zarr", "--unit-samples", "3", "--min-steps", "2"], 1, "power"),
    "bad steps": (["plan", "{data}", "--store", "{tmp}/s.zarr", "--min-steps", "0"], 2, "--min-steps"),
    "bad format": (["plan", "{data}", "--store", "{tmp}/s.zarr", "--format", "mystery"], 1, "mystery"),
    "unknown sample": (["inspect", "{store}", "nobody"], 1, "has no sample 'nobody'"),
    "unknown signal": (["inspect", "{store}", "case-1", "--signal", "x"], 1, r"has no signal 'x' (there are: base)"),
    "other min-steps": (["extract", "--store", "{store}", "--min-steps", "5"], 1, "min-steps: planned 2, now 5"),
    "bad name": (["extract", "--store", "{store}", "--signal", "../x", "--model", "m"], 1, "cannot be the name"),
    "no such model": (["extract", "--store", "{store}", "--signal", "x", "--model", "{tmp}/nomodel"], 1, "nomodel"),
    "bad alpha": (["score", "{store}", "--out", "{tmp}/s.parquet", "--alpha", "1.5"], 1, "alpha 1.5"),
    "a file as store": (["extract", "--store", "{data}", "--data", "{data}", "--model", "m"], 1, "a store is a folder"),
    "below a file": (["plan", "{data}", "--store", "{data}/s.zarr"], 1, "traces.jsonl is a file, not a folder"),
    "out below a file": (["score", "{store}", "--out", "{data}/s.parquet"], 1, "traces.jsonl is a file, not a folder"),
    "out of the disk": (
        ["score", "{store}", "--out", "/proc/s.parquet"],
        1,
        "Error: /proc/s.parquet cannot be written",
    ),
    "other storage": (["extract", "--store", "{store}", "--storage", "int4"], 1, "storage: begun with int8, now int4"),
    "no table": (["select", "{tmp}/none.parquet", "--out", "{tmp}/x"], 1, "does not exist"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_answered_with_a_sentence(tmp_path: Path, data: str, finished: Path, name: str) -> None:
    words, code, message = BAD[name]
    places = {"tmp": str(tmp_path), "data": data, "store": str(finished / "store.zarr")}
    result = run(*(word.format(**places) for word in words))
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


@pytest.mark.parametrize(("module", "extra"), [("torch", "extract"), ("peft.utils", "warmup")])
def test_a_missing_package_is_answered_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    from grace_store.run.engines import choice as engines

    def missing(environment: object) -> list[str]:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(engines, "_gpus", missing)
    result = run("extract", "--store", tmp_path / "s.zarr")
    assert result.exit_code == 1
    assert f"pip install 'grace-store[{extra}]'" in result.stderr


def test_a_full_disk_keeps_what_is_committed(
    tmp_path: Path, model: str, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grace_store.store.backend import LocalBackend

    real = LocalBackend.write
    monkeypatch.setattr(LocalBackend, "write", _full_after(real, "base/00000002"))
    result = run(*extract_words(tmp_path / "store.zarr", model, data))
    assert result.exit_code == 1
    assert (
        "Everything committed is kept and nothing half-written: make room and run the same command again"
        in result.stderr
    )
    monkeypatch.setattr(LocalBackend, "write", real)
    assert run_json("status", tmp_path / "store.zarr")["num_units_done"] == 2
    run_ok(*extract_words(tmp_path / "store.zarr", model, data))
    assert run_json("status", tmp_path / "store.zarr")["num_done"] == NUM_USABLE


def _full_after(real: Any, part: str) -> Any:
    def write(self: Any, key: str, value: bytes) -> None:
        if part in key:
            raise OSError(28, "No space left on device", key)
        real(self, key, value)

    return write


def test_ctrl_c_stops_at_a_unit_and_says_how_to_go_on(tmp_path: Path, model: str, data: str) -> None:
    words = extract_words(tmp_path / "store.zarr", model, data)
    process = subprocess.Popen(
        [sys.executable, "-m", "grace_store", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("Loading"):
            process.send_signal(signal.SIGINT)
            break
    _, err = process.communicate()
    assert process.returncode == 130
    said = " ".join(err.split())
    assert "Stopping after the units under way" in said
    assert "run the same command again to go on" in said
    run_ok(*words)
    assert run_json("status", tmp_path / "store.zarr")["num_done"] == NUM_USABLE


def test_a_second_ctrl_c_says_what_is_kept() -> None:
    def interrupt(times: int) -> bool:
        with stoppable() as stop:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return stop.is_set()

    assert interrupt(1)
    with pytest.raises(Interrupted, match=r"Stopped at once\. What was committed is kept"):
        interrupt(2)


# ---------------------------------------------------------------- what people see


def test_progress_tells_what_is_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from grace_store.cli import console

    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    for is_terminal in (False, True):
        monkeypatch.setattr(
            console, "log", Console(stderr=True, force_terminal=is_terminal, highlight=False, width=120)
        )
        with ProgressDisplay() as display:
            for event in (
                Note("hello"), Warned("careful"), Scanned(1000, 5, 10), Started("base", 2, 1, 8, 4, 10_000),
                Rated(2.0, 500.0), UnitCommitted(1, 4, 0, 100, 2000), UnitCommitted(2, 4, 0, 100, 2000),
                Finished(2, 3.0),
            ):  # fmt: skip
                display(event)
        seen = capsys.readouterr().err
        for text in ("hello", "careful", "1000 records", "4 samples in 1 unit were done before", "10.0 kB to write",
                     "about 4 s in all", "samples/s", "tokens/s", "4.0 kB", "Wrote 2 units"):  # fmt: skip
            assert text in seen


def test_quiet_progress_still_warns(capsys: pytest.CaptureFixture[str]) -> None:
    display = ProgressDisplay(quiet=True)
    display(Note("hello"))
    display(Warned("careful"))
    assert capsys.readouterr().err == "Warning: careful\n"


@pytest.mark.parametrize(("seconds", "text"), [(3, "3 s"), (300, "5 min"), (12000, "3 h 20 min")])
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("num_bytes", "text"), [(5, "5 B"), (2500, "2.5 kB"), (7.25e9, "7.2 GB"), (3e15, "3000.0 TB")])
def test_sizes_are_for_people(num_bytes: float, text: str) -> None:
    assert size(num_bytes) == text
