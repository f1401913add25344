"""grace-store plan, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import grace_store as gs
from grace_store.store.opened import Store
from tests.commands import extract_words, run, run_json
from tests.conversations import write_conversations
from tests.jobs import NUM_RECORDS, NUM_USABLE, content


def test_plan_says_what_it_found(tmp_path: Path, data: str) -> None:
    result = run("plan", tmp_path / "store.zarr", data, "--min-steps", 2)
    assert f"{NUM_USABLE} of {NUM_RECORDS} records planned" in result.stdout
    assert "1 set aside: duplicate_id" in result.stdout
    counts = run_json("plan", tmp_path / "store.zarr", data)
    assert counts["num_planned"] == NUM_USABLE


def test_questions_are_gathered_from_rounds_of_sampling(tmp_path: Path) -> None:
    for number in range(3):
        traces = [
            {"id": f"{q}-{number}", "prompt": f"{q} + 1?", "steps": ["One."], "answer": str(q + 1 + number)}
            for q in range(4)
        ]
        (tmp_path / f"round-{number}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in traces))
    words = ["plan", tmp_path / "s.zarr", *sorted(tmp_path.glob("round-*")), "--min-steps", 1]
    assert "Gathered 12 samples of 4 questions." in run(*words, "--gather").stderr
    planned = Store.open(tmp_path / "s.zarr")
    assert planned.column("sample_row").tolist() == [row + 4 * number for row in range(4) for number in range(3)]
    assert "gather True" in run("status", planned.location).stdout
    assert "group-by not given became id" in run(*words, "--group-by", "id", "--unit-samples", 8).stderr
    assert "gather True became not given" in (again := run(*words, "--no-gather", "--unit-samples", 4).stderr)
    assert "unit-samples 8 became 4" in again
    assert "--group-by works only with --gather" in run(*words, "--group-by", "id", code=1).stderr


# ---------------------------------------------------------------- a stranger's file

LETTERS = "ABCDE"
PARTS = ("prompt=question", "options=options", "response=rationale", "answer=correct")
MAP = [word for part in PARTS for word in ("--map", part)]


@pytest.fixture
def aqua(tmp_path: Path) -> Path:
    """Forty records as AQuA-RAT has them, of 2 to 5 steps, one without a rationale."""
    rows = [
        {
            "question": f"A shop sells {i} bags of 7.\x1b[2J How many?",
            "options": [f"{letter}){i + number}" for number, letter in enumerate(LETTERS)],
            "rationale": "\n".join(f"Part {step} of {i}." for step in range(2 + i % 4)),
            "correct": LETTERS[i % 5],
        }
        for i in range(40)
    ]
    rows[3]["rationale"] = ""
    path = tmp_path / "aqua.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_dry_run_shows_how_records_are_read_and_writes_nothing(tmp_path: Path, aqua: Path) -> None:
    shown = run("plan", "new.zarr", aqua, "--dry-run", *MAP, "--min-steps", 4).stdout
    assert list(tmp_path.iterdir()) == [aqua]
    lines = shown.splitlines()
    assert lines[0] == "19 of 40 records would be planned. Nothing is written."
    assert f"          5          9  {'█' * 36}" in lines
    assert "          3         29       72 %" in lines
    assert "          4         19       48 %  current setting" in lines
    assert "             aqua.json:0: 2 steps, at least 4 wanted" in lines
    assert "             aqua.json:3: 'response' is empty" in lines
    at = lines.index("  aqua.json:2 (row 2, 4 steps)")
    assert lines[at + 1] == r"    prompt   A shop sells 2 bags of 7.\x1b[2J How many?\nA)2\nB)3\nC)4\nD)5\nE)6"
    assert lines[at + 2 : at + 7 : 4] == ["    step 1   Part 0 of 2.", "    answer   C"]
    assert lines[-1] == "Most records would be set aside: 21 of 40 records. `--min-steps 2` would keep 98 %."
    assert "\x1b" not in shown


def test_a_preview_in_python_has_the_numbers_of_a_dry_run(tmp_path: Path, aqua: Path) -> None:
    fields = dict(part.split("=") for part in MAP[1::2])
    found = gs.preview([aqua], gs.DataSpec(map=fields, min_steps=4))
    assert isinstance(found, gs.RecordTally)
    assert found.to_json() == run_json("plan", tmp_path / "new.zarr", aqua, "--dry-run", *MAP, "--min-steps", 4)
    assert (found.settings.min_steps, found.num_records, found.num_planned, found.num_set_aside) == (4, 40, 19, 21)
    assert found.set_aside == {"too_few_steps": 20, "no_response": 1}
    assert dict(found.kept_by())[3] == 29


def test_flags_are_counted_while_planning_and_kept_through_to_a_subset(tmp_path: Path, text_model: str) -> None:
    sound = [{"id": f"s{i}", "prompt": f"What is {i} + 90?", "steps": [f"We add {i} to 90.", f"It is {i + 90}."],
              "answer": str(i + 90)} for i in range(10, 16)]  # fmt: skip
    again = {"id": "again", "prompt": "What is 5 + 90?", "steps": ["Five and ninety are 95."] * 12, "answer": "95"}
    data, store = tmp_path / "traces.jsonl", tmp_path / "store.zarr"
    data.write_text("\n".join(map(json.dumps, [*sound, again])))
    meaning = "1 flagged repeated_steps: A step or a sentence is repeated word for word."
    assert f"  {meaning}" in run("plan", "new.zarr", data, "--dry-run", "--min-steps", 2).stdout
    assert f"  {meaning}" in run("plan", store, data, "--min-steps", 2, "--unit-samples", 4).stdout
    assert run_json("status", store)["flagged"]["repeated_steps"] == 1
    assert "flagged repeated_steps: A step" in run("inspect", store, "again").stdout
    run(*extract_words(store, text_model, str(data)))
    assert "1 flagged repeated_steps" in run("score", store, "--out", tmp_path / "scores.parquet").stdout
    words = f"select {tmp_path}/scores.parquet --ratio 1 --out {tmp_path}/x.txt --as ids --exclude-flagged"
    chosen = run(*words.split())
    assert "6 of 6 samples, smallest value kept" in chosen.stdout
    assert "1 sample left out for flags" in chosen.stdout
    assert "again" not in (tmp_path / "x.txt").read_text()
    assert "repeated_steps" in json.loads((tmp_path / "x.txt.spec.json").read_text())["spec"]["exclude_flagged"]
    words = f"select {tmp_path}/scores.parquet --out {tmp_path}/y.txt --as ids --exclude-flagged cut_off,repeated"
    assert "unknown flag 'repeated'" in " ".join(run(*words.split(), code=1).stderr.split())


ASKED = (
    "--min-steps was not given, and its default of 8 (as in the paper) would set aside 39 of 40 records for too few "
    "steps. Choose a value and give it with --min-steps: 1 keeps 39 (98 %), 2 keeps 39 (98 %), 3 keeps 29 (72 %), "
    "4 keeps 19 (48 %), 6 keeps 0 (0 %), 8 keeps 0 (0 %)."
)


def test_a_default_that_loses_most_records_must_be_chosen(tmp_path: Path, aqua: Path, text_model: str) -> None:
    store, folder = tmp_path / "aqua.zarr", sorted(tmp_path.rglob("*"))
    for words in (["plan", store, aqua], ["extract", store, "--data", aqua, "--model", text_model]):
        assert run(*words, *MAP, code=2).stderr.endswith(f"Error: {ASKED} Nothing was planned.\n")
    assert sorted(tmp_path.rglob("*")) == folder
    assert "19 of 40 records planned" in run("plan", store, aqua, *MAP, "--min-steps", 4).stdout
    # The plan froze the choice, so that later commands need not repeat it.
    assert "19 of 40 records planned" in run("plan", store, aqua).stdout


def test_a_dry_run_says_which_setting_would_keep_what_is_lost(aqua: Path) -> None:
    shown = run("plan", "new.zarr", aqua, "--dry-run", *MAP).stdout
    assert shown.endswith(f"\n\n{ASKED}\n")
    assert "Most records would be set aside" not in shown
    assert "  aqua.json:0 (row 0, 2 steps, set aside for its number of steps)" in shown
    found = run_json("plan", "new.zarr", aqua, "--dry-run", *MAP)
    assert (found["num_planned"], found["num_steps"]) == (0, {"2": 10, "3": 10, "4": 10, "5": 9})
    assert found["kept_by"][2] == {"min_steps": 3, "num_kept": 29, "share": 29 / 40}
    assert [(each["reason"], each["row"]) for each in found["examples"]] == [("too_few_steps", 0), ("no_response", 3)]
    assert [len(each["steps"]) for each in found["traces"]] == [2, 3, 4]
    assert found["settings"]["map"]["response"] == "rationale"


def test_losing_most_records_is_loud_and_another_try_plans_anew(tmp_path: Path, aqua: Path) -> None:
    store = tmp_path / "aqua.zarr"
    lost = run("plan", store, aqua, *MAP, "--min-steps", 5)
    reasons = "30 too_few_steps, 1 no_response"
    told = f"Most records are set aside: 31 of 40 records ({reasons}). `--min-steps 2` would keep 98 %"
    assert told in lost.stdout
    assert f"Warning: {told}" in lost.stderr
    assert "Most records are set aside." in run("plan", store, aqua).stdout
    again = run("plan", store, aqua, "--min-steps", 2)
    assert "39 of 40 records planned" in again.stdout
    assert (
        "Planned again, because nothing was extracted yet: min-steps 5 became 2; 39 samples instead of 9."
        in again.stderr
    )
    assert "map answer=correct options=options prompt=question response=rationale" in run("status", store).stdout
    assert json.loads(run("plan", store, aqua, "--dry-run", "--json").stdout)["num_planned"] == 39


def test_a_mapping_comes_from_a_configuration_too_and_another_one_is_another_plan(tmp_path: Path, aqua: Path) -> None:
    config = tmp_path / "config.toml"
    table = "\n".join(f'{part} = "{field}"' for part, field in (pair.split("=") for pair in PARTS))
    config.write_text(f"min-steps = 2\n[map]\n{table}\n")
    run("plan", tmp_path / "a.zarr", aqua, "--config", config)
    run("plan", tmp_path / "b.zarr", aqua, *MAP, "--min-steps", 2)
    assert content(tmp_path / "a.zarr") == content(tmp_path / "b.zarr")
    words = ["extract", tmp_path / "a.zarr", "--model", "nowhere", "--map", "prompt=rationale"]
    refused = run(*words, "--map", "response=rationale", code=1).stderr
    assert "map: planned answer=correct options=options" in refused
    assert "now prompt=rationale response=rationale" in refused
    config.write_text("[map]\nprompt.text = 3\n")
    assert "write a text or a number." in run("plan", "s", aqua, "--config", config, code=2).stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--map", "prompt"], 2, "--map 'prompt': write PART=FIELD."),
        (["--map", "id=a", "--map", "id=b"], 2, "--map is given twice for id."),
        (["--map", "quest=question"], 1, "unknown part 'quest' in --map quest=question."),
        (["--map", "prompt=question"], 1, "Give either --map response=FIELD"),
        (["--format", "gsm8k", *MAP], 1, "finds the prompt in its own way"),
    ],
)
def test_mappings_that_say_nothing_are_refused(
    tmp_path: Path, aqua: Path, words: list[str], code: int, message: str
) -> None:
    refused = run("plan", tmp_path / "store.zarr", aqua, *words, code=code)
    assert message in refused.stderr
    assert not (tmp_path / "store.zarr").exists()


def test_a_plan_needs_a_place_and_help_explains_markers(aqua: Path) -> None:
    assert "must be a store, a folder: grace-store plan STORE DATA..." in run("plan", aqua, code=2).stderr
    assert "With 'marker:\\(\\d+\\)' the response" in run("plan", "--help").stdout


def test_a_dry_run_counts_the_keys_that_would_be_lost_and_names_the_option(tmp_path: Path) -> None:
    data = write_conversations(tmp_path / "chats.jsonl")
    lines = run("plan", "new.zarr", data, "--dry-run", "--min-steps", 2).stdout.splitlines()
    at = lines.index("Keys that no reader understands yet, and how many records have each:")
    assert lines[at + 1 : at + 4] == [
        "          3  reasoning_content  --ignore-key reasoning_content reads records without it",
        "          3  tools              --ignore-key tools reads records without it",
        "",
    ]
    ignored = ["--ignore-key", "tools", "--ignore-key", "reasoning_content"]
    found = run_json("plan", "new.zarr", data, "--dry-run", "--min-steps", 2)
    assert (found["num_planned"], found["unread_keys"]) == (4, {"reasoning_content": 3, "tools": 3})
    found = run_json("plan", "new.zarr", data, "--dry-run", "--min-steps", 2, *ignored)
    assert (found["num_planned"], found["unread_keys"]) == (9, {})
    assert found["settings"]["ignore_key"] == ["reasoning_content", "tools"]
    assert "Keys that no reader" not in run("plan", "new.zarr", data, "--dry-run", *ignored).stdout


def test_ignored_keys_are_given_on_the_command_line_or_in_a_configuration(tmp_path: Path) -> None:
    data, store = write_conversations(tmp_path / "chats.jsonl"), tmp_path / "store.zarr"
    config = tmp_path / "config.toml"
    config.write_text('ignore-key = ["tools"]\nmin-steps = 2\n')
    assert "3 set aside: unread_reasoning_content" in run("plan", store, data, "--config", config).stdout
    assert "3 unread_reasoning_content" in run("status", store).stdout
    assert "ignore-key tools" in run("status", store).stdout.replace("ignore_key", "ignore-key")
    again = run("plan", store, data, "--ignore-key", "reasoning_content")
    assert "ignore-key tools became reasoning_content" in again.stderr
    assert "3 set aside: unread_tools" in again.stdout
    refused = run("plan", "new.zarr", data, "--dry-run", "--ignore-key", "name", code=2)
    assert "'name' is not one of 'tools'" in refused.stderr
