"""The first-time path of the docs: its five commands run as they are typed, and their output is put into the page."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import CliRunner

from grace_store.cli import main
from jobs.quickstart import MODEL, PAGE, commands_of, refreshed
from tests.tiny_models import tiny_text_model

COMMANDS = [shlex.split(command)[1:] for command in commands_of(PAGE.read_text())]
NUM_RECORDS = 40


def solution(number: int) -> str:
    steps = [f"There are {number} bags with 3 apples each.", f"That makes {number} * 3 = {number * 3} apples."]
    if number % 10 == 9:
        steps += [steps[1]] * 2
    said = number * 3 + (number % 3 == 0)
    return "\n\n".join([*steps, f"So the answer is \\boxed{{{said}}}."])


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the commands of the page on a file with the page's fields; return what each printed."""
    folder = tmp_path_factory.mktemp("first")
    records = [
        {
            "qid": f"apples-{number}",
            "task": {"question": f"How many apples are in {number} bags of 3?"},
            "solution": solution(number),
            "is_correct": number % 3 != 0,
        }
        for number in range(1, NUM_RECORDS + 1)
    ]
    (folder / "solutions.json").write_text(json.dumps(records, indent=1))
    tiny_text_model("qwen3", folder / MODEL)
    found = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for words in COMMANDS[1:]:
            result = CliRunner().invoke(main, words)
            assert result.exit_code == 0, result.output
            found[words[0]] = result.output
    return found


def test_the_path_has_five_commands_after_a_look() -> None:
    assert [words[0] for words in COMMANDS] == ["plan", "plan", "extract", "judge", "score", "select", "report"]
    assert all("--dry-run" in words for words in COMMANDS[:2])


def test_extract_says_what_became_of_the_records(printed: dict[str, str]) -> None:
    flagged = "4 repeated_steps, 13 unsupported_answer"
    assert f"Planned 40 of 40 records, read as mapped; flagged: {flagged}." in printed["extract"]


def test_a_foreign_file_ends_judged_flagged_filtered_and_reported(printed: dict[str, str]) -> None:
    assert "27 right and 13 wrong traces" in printed["judge"]
    assert "13 flagged unsupported_answer" in printed["score"]
    assert "5 of 25 samples that have none of the excluded flags are chosen" in printed["select"]
    assert "report.html: 40 of 40 traces" in printed["report"]


def test_output_is_put_into_the_page() -> None:
    command = "    $ grace-store a \\\n      --b c\n"
    page = f"A\n\n<!-- output: 1 1 -->\n\n{command}    old\n\n    older\n\nB\n\n    $ left alone\n"
    assert commands_of(page) == ["grace-store a --b c"]
    fresh = refreshed(page, lambda command: f"{command}\n2\n3\n\n5\n")
    assert fresh == page.replace("    old\n\n    older\n", "    grace-store a --b c\n    ...\n    5\n")
    assert refreshed(page, lambda command: None) == page
