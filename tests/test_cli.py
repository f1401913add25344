"""The command line as a whole: every command found, documented and in its own file; errors as one sentence."""

from __future__ import annotations

import math
import re
import signal
from importlib import import_module
from pathlib import Path

import click
import pytest

from grace_store.base.errors import Interrupted, how_to_install
from grace_store.base.events import Finished, Note, Progressed, Rated, Started, UnitCommitted, Warned
from grace_store.base.text import duration, size
from grace_store.cli.console import print_json, stoppable
from grace_store.cli.main import COMMANDS, GROUPS, REMOVED, REMOVED_OPTIONS
from grace_store.cli.progress import ProgressDisplay
from grace_store.study import STUDIES
from tests.commands import run

HELPERS = {"__init__", "main", "console", "progress", "options", "shared"}
"""Modules of the command line that are no command."""


# ---------------------------------------------------------------- every command


def test_every_file_is_a_command_named_as_it_or_a_helper(repository: Path) -> None:
    files = {path.stem for path in (repository / "grace_store/cli").glob("*.py")}
    assert files == {name.replace("-", "_") for name in COMMANDS if name not in STUDIES} | HELPERS


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in STUDIES])
def test_a_commands_file_holds_it_and_no_other(name: str) -> None:
    module = import_module(f"grace_store.cli.{name.replace('-', '_')}")
    commands = {id(each): each for each in vars(module).values() if isinstance(each, click.Command)}
    assert [each.name for each in commands.values()] == [name]
    assert COMMANDS[name] in commands.values()


@pytest.mark.parametrize(("name", "line"), [each for lines in GROUPS.values() for each in lines.items()])
def test_the_first_line_of_a_commands_help_is_the_one_that_is_listed(name: str, line: str) -> None:
    assert (COMMANDS[name].help or "").splitlines()[0] == line
    assert len(line) <= 66, "it would not fit on a line of 80 characters"


def test_help_lists_every_command_by_what_it_is_for() -> None:
    shown = run("--help").stdout
    for title, lines in GROUPS.items():
        section = shown.split(f"\n{title}:\n")[1].split("\n\n")[0]
        assert [line.split(maxsplit=1) for line in section.splitlines()] == [list(each) for each in lines.items()]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_it_understands(name: str) -> None:
    command = COMMANDS[name]
    epilog = command.epilog or ""
    assert re.search(rf"Examples?:\n  (.* )?grace-store {name}\b", epilog)
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    for line in epilog.splitlines():
        if line.startswith(f"  grace-store {name} "):
            assert set(re.findall(r"(?<=\s)--[a-z-]+", line.split("  #")[0])) <= known, line


@pytest.mark.parametrize("option", ["--where", "--by", "--labels", "--per-group"])
def test_an_option_that_takes_one_value_refuses_a_second(tmp_path: Path, option: str) -> None:
    words = ("select", tmp_path / "scores.parquet", option, "1", option, "2", "--out", tmp_path / "out.jsonl")
    assert f"{option} is given 2 times: give it once." in run(*words, code=2).stderr


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("score", "sweep")])
def test_options_of_a_score_are_those_that_the_command_takes(name: str, tmp_path: Path) -> None:
    options = {each.name: each for each in COMMANDS[name].params if isinstance(each, click.Option)}
    if "measure" not in options:
        return
    shown = " ".join((options["measure"].help or "").split())
    assert ("several times" in shown) == (name == "judge")
    assert "added" not in shown
    assert ("[default: grace]" in shown) == (name != "judge")
    assert "group" not in options["target"].type.choices  # type: ignore[attr-defined]
    if name != "judge":
        words = (name, tmp_path, "--measure", "grace", "--measure", "loss", "--out", tmp_path / "out.json")
        words = words[:-2] if name == "inspect" else words
        assert "--measure is given 2 times: give it once." in run(*words, code=2).stderr


def test_labels_can_be_in_all_formats_of_tables() -> None:
    assert "CSV, TSV, JSON lines or Parquet" in " ".join(run("judge", "--help").stdout.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does_and_what_it_is_without(name: str) -> None:
    command = COMMANDS[name]
    context = click.Context(command)
    for option in (each for each in command.params if isinstance(each, click.Option) and each.name != "help"):
        assert option.help, f"{option.opts[0]} has no help"
        words = option.help.split("[default:")[0].split()
        assert len(words) >= 3, f"{option.opts[0]}: {option.help}"
        assert words[0][0].isupper(), f"{option.opts[0]}: {option.help}"
        shown = (option.get_help_record(context) or ("", ""))[1]
        is_plain_flag = option.is_flag and not option.secondary_opts
        assert option.required or is_plain_flag or "[default: " in shown, f"{option.opts[0]} hides its default"


def test_the_help_of_markers_shows_what_one_looks_like() -> None:
    shown = " ".join(run("extract", "--help").stdout.split())
    assert r"'marker:^Step \d+:'" in shown
    assert "'marker:^Final answer:'" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_readme(name: str, repository: Path) -> None:
    assert f"grace-store {name}" in (repository / "README.md").read_text()


def test_every_command_in_the_readme_exists(repository: Path) -> None:
    text = (repository / "README.md").read_text()
    code = [
        *re.findall(r"```.*?```", text, re.S),
        *re.findall(r"`[^`\n]+`", text),
        *re.findall(r"^    .*$", text, re.M),
    ]
    named = {name for each in code for name in re.findall(r"(?:^|[\s`])grace-store ([a-z]+)", each)}
    assert named - set(COMMANDS) == set()
    assert len(named) > 10


def test_an_unknown_command_is_a_usage_error() -> None:
    assert "No such command" in run("frobnicate", code=2).stderr


@pytest.mark.parametrize("name", REMOVED)
def test_a_command_that_is_gone_names_the_one_that_took_its_place(name: str) -> None:
    told = run(name, "traces.zarr", code=2).stderr
    assert f"There is no command '{name}' any more: {REMOVED[name]}" in told
    (successor,) = re.findall(r"`grace-store (\w+) ", REMOVED[name])
    assert successor in COMMANDS
    for option in re.findall(r"--[a-z-]+", REMOVED[name]):
        assert option in run(successor, "--help").stdout


@pytest.mark.parametrize(("name", "option"), REMOVED_OPTIONS)
def test_an_option_that_is_gone_names_what_took_its_place(name: str, option: str) -> None:
    assert option not in {each for param in COMMANDS[name].params for each in param.opts}
    told = run(name, "a", "b", option, "c", code=2).stderr
    assert f"{name} has no {option} any more: {REMOVED_OPTIONS[name, option]}" in told


def test_an_option_that_never_was_is_told_by_click() -> None:
    assert "No such option" in run("extract", "s", "--stroe", "c", code=2).stderr


def test_a_store_is_the_first_argument_of_every_command_that_has_one() -> None:
    for name in COMMANDS:
        arguments = [each.name for each in COMMANDS[name].params if isinstance(each, click.Argument)]
        options = [each.opts for each in COMMANDS[name].params if isinstance(each, click.Option)]
        assert "store" not in arguments[1:], name
        assert ["--store"] not in options or name in ("audit", "select"), name


def test_a_configuration_may_name_the_store_and_the_command_line_wins(tmp_path: Path, extracted: Path) -> None:
    (tmp_path / "c.toml").write_text(f'store = "{extracted / "store.zarr"}"\n')
    assert "0 to do" in run("extract", "--config", tmp_path / "c.toml").stdout
    told = run("extract", tmp_path / "none.zarr", "--config", tmp_path / "c.toml", code=1).stderr
    assert "none.zarr" in told


def test_json_has_null_for_a_number_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"low": math.nan, "all": [1.5, -math.inf]})
    assert capsys.readouterr().out == '{\n  "low": null,\n  "all": [\n    1.5,\n    null\n  ]\n}\n'


# ---------------------------------------------------------------- errors are sentences

BAD: dict[str, tuple[list[str], int, str]] = {
    "no store": (["status", "{tmp}/none.zarr"], 1, "is not a grace-store store: nothing is there"),
    "no data": (["extract", "{tmp}/none.zarr", "--model", "m"], 1, "Give the dataset with --data"),
    "missing file": (["plan", "{tmp}/s.zarr", "{tmp}/none.jsonl"], 1, "none.jsonl"),
    "no model": (["extract", "{tmp}/s.zarr", "--data", "{data}", "--min-steps", "2"], 1, "--model"),
    "a file": (["status", "{data}"], 2, "first argument must be a store, a folder: grace-store status STORE [OPTIONS]"),
    "data first": (["plan", "{data}", "{tmp}/s.zarr"], 2, "grace-store plan STORE DATA... [OPTIONS]"),
    "subset first": (["trial", "{data}", "--out", "{tmp}/t"], 2, "grace-store trial [STORE] [SUBSET]... [OPTIONS]"),
    "reserved name": (["extract", "{store}", "--signal", "each", "--model", "m"], 1, "cannot be the name"),
    "bad shard": (["extract", "s", "--shard", "4/4"], 2, "is not i/n with 0 <= i < n"),
    "bad device": (
        ["extract", "s", "--device", "Abacus"],
        1,
        "use auto, cpu, NAME",
    ),
    "bad unit": (["plan", "{tmp}/s.zarr", "{data}", "--unit-samples", "3", "--min-steps", "2"], 1, "power"),
    "bad steps": (["plan", "{tmp}/s.zarr", "{data}", "--min-steps", "0"], 2, "--min-steps"),
    "bad format": (["plan", "{tmp}/s.zarr", "{data}", "--format", "mystery"], 1, "mystery"),
    "unknown sample": (["inspect", "{store}", "nobody"], 1, "has no sample 'nobody'"),
    "unknown signal": (
        ["inspect", "{store}", "case-1", "--signal", "x"],
        1,
        "has no signal 'x' (there are",
    ),
    "other min-steps": (["extract", "{store}", "--min-steps", "5"], 1, "min-steps: planned 2, now 5"),
    "bad name": (["extract", "{store}", "--signal", "../x", "--model", "m"], 1, "cannot be the name"),
    "no such model": (["extract", "{store}", "--signal", "x", "--model", "{tmp}/nomodel"], 1, "nomodel"),
    "bad alpha": (["score", "{store}", "--out", "{tmp}/s.parquet", "--alpha", "1.5"], 1, "alpha 1.5"),
    "a file as store": (["extract", "{data}", "--data", "{data}", "--model", "m"], 2, "grace-store extract STORE"),
    "below a file": (["plan", "{data}/s.zarr", "{data}"], 1, "traces.jsonl is a file, not a folder"),
    "out below a file": (["score", "{store}", "--out", "{data}/s.parquet"], 1, "traces.jsonl is a file, not a folder"),
    "out of the disk": (
        ["score", "{store}", "--out", "/proc/s.parquet"],
        1,
        "Error: /proc/s.parquet cannot be written",
    ),
    "other storage": (["extract", "{store}", "--storage", "int4"], 1, "storage: begun with int8, now int4"),
    "no table": (["select", "{tmp}/none.parquet", "--out", "{tmp}/x"], 1, "does not exist"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_answered_with_a_sentence(tmp_path: Path, data: str, extracted: Path, name: str) -> None:
    words, code, message = BAD[name]
    places = {"tmp": str(tmp_path), "data": data, "store": str(extracted / "store.zarr")}
    result = run(*(word.format(**places) for word in words), code=code)
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


@pytest.mark.parametrize(("module", "extra"), [("torch", "extract"), ("peft.utils", "warmup")])
def test_a_missing_package_is_answered_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    from grace_store.run.engines import engine as engines

    def missing(*_: object) -> tuple[str, ...]:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(engines, "_devices", missing)
    result = run("extract", tmp_path / "s.zarr", code=1)
    assert f"This needs {module}, but {module} is not installed. {how_to_install(extra)}" in result.stderr


def test_a_second_ctrl_c_says_what_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(times: int) -> bool:
        with stoppable("the step under way") as stop:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return stop.is_set()

    assert interrupt(1)
    assert "Stopping after the step under way; Ctrl-C again" in capsys.readouterr().err
    with pytest.raises(Interrupted, match=r"Stopped at once\. All committed work is kept"):
        interrupt(2)


# ---------------------------------------------------------------- what people see


def test_progress_tells_what_is_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from grace_store.cli import console, progress

    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    for is_terminal in (False, True):
        monkeypatch.setattr(
            console, "log", Console(stderr=True, force_terminal=is_terminal, highlight=False, width=120)
        )
        with ProgressDisplay() as display:
            for event in (
                Note("hello"), Warned("careful"), Progressed("1000 records", 5, 10),
                Started("base", 2, 1, 8, 4, 10_000), Rated(2.0, 500.0),
                UnitCommitted(1, 4, 0, 100, 2000), UnitCommitted(2, 4, 0, 100, 2000),
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
