"""grace-store evaluate, as users type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from grace_store.cli import main
from tests.benchmark_files import paper_table, vlmevalkit_folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return paper_table(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return vlmevalkit_folder(tmp_path)


def test_the_command_prints_entries_average_and_interval(table: Path, folder: Path) -> None:
    done = CliRunner().invoke(main, ["evaluate", str(table), "--full", "Full", "--items", "MathVision-MINI=304"])
    assert done.exit_code == 0, done.output
    average = next(line for line in done.stdout.splitlines() if line.split()[:1] == ["GRACE"])
    assert average.split()[1] == "108.8"
    assert "One more right answer in MathVision-MINI moves the average by 0.20." in done.stdout
    machine = CliRunner().invoke(main, ["evaluate", str(table), "--full", "Full", "--json"])
    said = json.loads(machine.stdout)["tables"]
    assert said["averages"]["rows"][-1]["average"]["value"] == pytest.approx(108.768, abs=1e-3)
    alone = CliRunner().invoke(main, ["evaluate", str(folder), "--full", str(folder), "--json"])
    assert json.loads(alone.stdout)["tables"]["averages"]["rows"][0]["average"]["value"] == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--full", "Nobody"], "neither a folder nor among the runs: Full, Random"),
        (["--full", "Full", "--items", "x"], "write ENTRY=N"),
        (["--full", "Full", "--items", "Mathvista=1000"], "unknown entry Mathvista in --items"),
        (["--full", "{table}"], "is neither a folder nor among the runs"),
    ],
)
def test_the_command_says_what_is_wrong(table: Path, arguments: list[str], match: str) -> None:
    done = CliRunner().invoke(main, ["evaluate", str(table), *(word.format(table=table) for word in arguments)])
    assert done.exit_code != 0
    assert match in done.output


def test_a_fraction_held_against_a_percentage_shows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("run,a\nFull,0.5\nSubset,50\n")
    shown = CliRunner().invoke(main, ["evaluate", str(tmp_path / "t.csv"), "--full", "Full"])
    assert "Subset is far from Full in a: are both on the same scale?" in shown.stdout


def test_results_that_are_not_known_are_named(folder: Path) -> None:
    shown = CliRunner().invoke(main, ["evaluate", str(folder), "--full", str(folder)])
    assert "Left out of full, no benchmark known here: m_Unknown_score.csv." in shown.stdout


def test_a_folder_of_several_models_has_the_full_one_by_name(tmp_path: Path) -> None:
    for model, score in {"full": 50, "grace": 60}.items():
        for run, share in {"T20260101-000000": 1, "T20260102-000000": score}.items():
            table = tmp_path / f"outputs/{model}/{run}/{model}_MMStar_acc.csv"
            table.parent.mkdir(parents=True)
            table.write_text(f'"split","Overall"\n"none","{share / 100}"\n')
    outputs = str(tmp_path / "outputs")
    shown = CliRunner().invoke(main, ["evaluate", outputs, "--full", "full"])
    assert ["MMStar", "50.0", "60.0", "120.0"] in [line.split() for line in shown.stdout.splitlines()], shown.output
    assert "grace: older results are not used: T20260101-000000/grace_MMStar_acc.csv." in shown.stdout
    refused = CliRunner().invoke(main, ["evaluate", outputs, "--full", outputs])
    assert "has several runs (full, grace); give the folder of one of them." in refused.output
