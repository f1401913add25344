"""grace-store trial, as users type it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grace_store.base.documents import read_document
from grace_store.base.finding import Finding
from grace_store.study.trial_documents import FOUND
from tests.commands import run, run_json
from tests.trials import make_pool, write_ids

SIZES = {
    "updates": 2,
    "random": 2,
    "seeds": 2,
    "held-out": 10,
    "rank": 2,
    "batch-size": 4,
    "device": "cpu",
    "threads": 1,
}
SMALL = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_pool(tmp_path_factory.mktemp("trial"), 40)
    write_ids(folder / "clean.txt", range(0, 40, 2))
    return folder


def words(home: Path, out: Path, *more: str) -> list[str]:
    places = ["--model", str(home / "model"), "--out", str(out)]
    return ["trial", str(home / "pool.zarr"), str(home / "clean.txt"), *places, *SMALL, *more]


def test_it_says_what_it_costs_then_trains_and_ends_with_a_sentence(home: Path, tmp_path: Path) -> None:
    dry = run_json(*words(home, tmp_path / "out", "--dry-run"))["numbers"]
    assert (dry["num_runs"], dry["num_done"], dry["num_updates"]) == (6, 0, 2)
    assert not (tmp_path / "out").exists()
    shown = run(*words(home, tmp_path / "out"))
    found = read_document(tmp_path / "out" / FOUND, Finding)
    assert shown.stdout.splitlines()[0] == found.conclusion
    assert "  clean.txt" in shown.stdout
    assert "6 trainings of 2 updates to do" in shown.stderr
    assert "After seed 2 of 2, clean.txt against random subsets" in shown.stderr
    again = run("trial", "--out", tmp_path / "out", "--json", "--device", "cpu")
    assert json.loads(again.stdout) == found.to_json()


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (["--random", "1"], 2, "1 is not in the range x>=2"),
        (["--held-out", "0.1"], 1, "holds 4 questions out; at least 8 are wanted"),
        (["--by", "kind"], 2, "trial has no --by any more: random subsets follow the rules of their subset"),
        (["--out", "{data}"], 1, "Writing"),
    ],
)
def test_what_cannot_be_done_is_said(home: Path, tmp_path: Path, more: list[str], code: int, told: str) -> None:
    asked = [word.format(data=home / "traces.jsonl" / "out") for word in more]
    result = run(*words(home, tmp_path / "out", *asked), code=code)
    assert told in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "No model answered a question right, so answers say nothing of few.txt."),
        ("...", "Right answers are too few to compare: 0 of 10 held-out traces end with a clear result"),
    ],
)
def test_answers_are_compared_if_it_is_clear_what_is_right(
    home: Path, tmp_path: Path, answer: str | None, told: str
) -> None:
    records = [json.loads(line) for line in (home / "traces.jsonl").read_text().splitlines()]
    records = [{**each, "prompt": f"{each['prompt']} Or not?", "answer": answer or each["answer"]} for each in records]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records[:10]))
    more = ["--generate", "--max-new-tokens", "2", "--seeds", "1", "--held-out", str(tmp_path / "asked.jsonl")]
    few = write_ids(tmp_path / "few.txt", range(1, 40, 3))
    shown = run(*words(home, tmp_path / "out", str(few), *more))
    found = read_document(tmp_path / "out" / FOUND, Finding)
    assert told in shown.stdout
    assert told in found.conclusion
    assert ("answers" in found.tables) == (answer is None)
    row = found.tables["pairs"].row(first="clean.txt", second="few.txt")
    shape = re.escape(row["difference"].text(4))
    assert re.search(rf"clean\.txt +few\.txt +1 +{shape}", shown.stdout.partition("The subsets against each other")[2])
    assert "None of the 40 samples of the pool asks one of the 10 held-out questions" in shown.stdout


def test_a_trial_that_is_not_there_cannot_go_on(tmp_path: Path) -> None:
    result = run("trial", "--out", tmp_path / "none", code=1)
    assert "has no trial yet. Give subsets" in " ".join(result.stderr.split())
