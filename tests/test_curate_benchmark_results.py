"""The relative average: the paper's table as golden numbers, VLMEvalKit's files, plain tables, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from grace_store.base.errors import DataError
from grace_store.cli import main
from grace_store.curate.benchmark_results import Entry, Results, read_results
from grace_store.curate.relative_average import relative_average

TABLE = """\
run,Hallusion,SQA,MMBench,MME-P,MME-C,MMT-SI,MMT-MI,MathVista,MathVision-MINI,MathVision
Full,43.7,80.2,69.3,1517.3,656.1,55.0,53.4,52.5,16.4,14.7
Random,45.5,84.5,72.6,1495.5,653.2,57.4,54.8,52.3,16.4,13.9
Longest,46.3,83.0,73.6,1494.5,687.5,56.4,54.6,51.3,15.8,14.5
Stepmax,46.9,83.8,73.7,1477.7,637.5,56.7,54.5,52.6,15.5,15.1
LESS,44.6,83.1,70.2,1511.4,668.6,56.0,53.7,49.9,18.8,14.3
ICONS,46.3,82.6,71.5,1497.0,675.0,55.5,53.8,51.0,13.2,14.4
CADC,44.6,84.4,73.1,1498.9,630.7,57.5,55.2,54.0,16.1,16.1
GRACE,46.8,85.0,73.8,1512.3,682.9,58.5,56.3,54.2,21.7,17.2
"""
PAPER = {
    "Random": 101.353,
    "Longest": 101.642,
    "Stepmax": 101.529,
    "LESS": 101.783,
    "ICONS": 99.091,
    "CADC": 102.616,
    "GRACE": 108.768,
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "paper.csv"
    path.write_text(TABLE)
    return path


def test_the_papers_table_gives_the_papers_averages(table: Path) -> None:
    runs = {run.name: run for run in read_results(table)}
    found = {name: relative_average(runs[name], runs["Full"]).value for name in PAPER}
    assert found == pytest.approx(PAPER, abs=1e-3)


def test_the_appendix_reading_with_two_numbers_swapped_does_not(table: Path) -> None:
    runs = {run.name: run for run in read_results(table)}
    entries = dict(runs["Full"].entries)
    entries["MathVision"], entries["MathVision-MINI"] = entries["MathVision-MINI"], entries["MathVision"]
    swapped = Results("Full", entries)
    found = {name: relative_average(runs[name], swapped).value for name in PAPER}
    agreeing = [name for name in PAPER if abs(found[name] - PAPER[name]) <= 1e-3]
    assert agreeing == ["CADC"], "whose two numbers are the same"


def test_one_question_of_the_smallest_benchmark_moves_the_average_by_a_fifth(table: Path) -> None:
    runs = {run.name: run for run in read_results(table)}
    full = Results("Full", {**runs["Full"].entries, "MathVision-MINI": Entry(16.4, 304)})
    found = relative_average(runs["GRACE"], full)
    assert found.one_question == pytest.approx({"MathVision-MINI": 0.20}, abs=0.005)


def test_the_interval_is_that_of_a_ratio_of_binomials() -> None:
    ours, full = Results("ours", {"a": Entry(60.0, 1000)}), Results("full", {"a": Entry(50.0, 1000)})
    found = relative_average(ours, full)
    assert found.value == pytest.approx(120.0)
    # The logarithm of a ratio of two rates is nearly normal, with this variance.
    deviation = np.sqrt(0.4 / 600 + 0.5 / 500)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(120 * np.exp(-1.96 * deviation), rel=0.01)
    assert found.interval.high == pytest.approx(120 * np.exp(1.96 * deviation), rel=0.01)
    assert relative_average(ours, full) == found, "the same seed gives the same draws"


def test_entries_without_counts_are_taken_as_they_are() -> None:
    ours = Results("ours", {"a": Entry(60.0), "MME": Entry(1500.0)})
    full = Results("full", {"a": Entry(50.0), "MME": Entry(1500.0)})
    found = relative_average(ours, full)
    assert found.interval is None
    assert found.fixed == ("a", "MME")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What VLMEvalKit writes for a run: a CSV a benchmark, quoted, several rows."""
    files = {
        "m_HallusionBench_score.csv": '"split","aAcc","fAcc","qAcc"\n"Overall","60","40","32"\n"VD","1","1","1"\n',
        "m_ScienceQA_TEST_acc.csv": '"split","Overall","biology"\n"test","0.802","0.9"\n',
        "m_MMBench_DEV_EN_V11_acc.csv": '"split","Overall","AR"\n"dev","0.693","0.5"\n',
        "m_MME_score.csv": '"perception","reasoning","OCR"\n"1517.3","656.1","140"\n',
        "m_MMT-Bench_VAL_acc.csv": '"split","Overall"\n"VAL","0.1"\n"ALL","0.55"\n',
        "m_MMT-Bench_VAL_MI_acc.csv": '"split","Overall"\n"ALL","0.534"\n',
        "sub/m_MathVista_MINI_gpt-4o_score.csv": '"Task&Skill","tot","acc"\n"Overall","1000","52.5"\n"x","1","3"\n',
        "m_MathVision_MINI_gpt-4o_score.csv": '"Subject","tot","hit","acc"\n"Overall","304","50","16.4"\n',
        "m_MathVision_gpt-4o_score.csv": '"Subject","tot","hit","acc"\n"Overall","3040","447","14.7"\n',
        "m_Unknown_score.csv": "a,b\n1,2\n",
    }
    run = tmp_path / "full"
    for name, text in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    return run


def test_a_folder_of_vlmevalkits_files_is_read_by_row_label(folder: Path) -> None:
    (run,) = read_results(folder)
    assert run.name == "full"
    assert {name: (round(entry.score, 6), entry.num_items) for name, entry in run.entries.items()} == {
        "HallusionBench": (44.0, None),
        "ScienceQA": (80.2, None),
        "MMBench": (69.3, None),
        "MME-P": (1517.3, None),
        "MME-C": (656.1, None),
        "MMT-MI": (53.4, None),
        "MMT-SI": (55.0, None),
        "MathVista": (52.5, 1000),
        "MathVision-MINI": (16.4, 304),
        "MathVision": (14.7, 3040),
    }


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is empty"),
        ("run\nFull\n", "has no entries"),
        ("run,a\nFull,x\n", "a is 'x'; a score is a number"),
        ("run,a\nFull,nan\n", "a is 'nan'; a score is a number"),
        ("run,a\nFull\n", "a is None; a score is a number"),
        ("run,a\nFull,1\nFull,2\n", "several rows named 'Full'"),
        ("run,a,a\nFull,1,2\n", "several columns named 'a'"),
        ("run,a\nFull,1\nitems,1.5\n", "a number of questions is a whole number"),
        ("run,a\nFull,1,2\n", "row 1 below the header has more cells"),
        ("\x00\xff", "cannot be read as CSV|has no entries"),
    ],
)
def test_bad_tables_get_a_sentence(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=match):
        read_results(path)


def test_a_cell_may_hold_a_line_break(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('run,a\n"Full\ndata",1\n')
    assert read_results(tmp_path / "t.csv") == [Results("Full\ndata", {"a": Entry(1.0)})]


def test_two_results_of_one_benchmark_are_not_chosen_between(folder: Path) -> None:
    (folder / "again_MME_score.csv").write_text("perception,reasoning\n1,2\n")
    with pytest.raises(DataError, match="several results of MME-P"):
        read_results(folder)


def test_a_folder_without_results_says_what_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no .*known here"):
        read_results(tmp_path)


def test_runs_with_other_entries_are_not_averaged() -> None:
    with pytest.raises(DataError, match=r"ours lacks b; full lacks c"):
        relative_average(
            Results("ours", {"a": Entry(1), "c": Entry(1)}), Results("full", {"a": Entry(1), "b": Entry(1)})
        )
    with pytest.raises(DataError, match="different numbers of questions in a"):
        relative_average(Results("ours", {"a": Entry(1, 5)}), Results("full", {"a": Entry(1, 6)}))
    with pytest.raises(DataError, match="has 0 in a"):
        relative_average(Results("ours", {"a": Entry(1)}), Results("full", {"a": Entry(0)}))


def test_the_command_prints_entries_average_and_interval(table: Path, folder: Path) -> None:
    done = CliRunner().invoke(main, ["evaluate", str(table), "--full", "Full", "--items", "MathVision-MINI=304"])
    assert done.exit_code == 0, done.output
    average = next(line for line in done.stdout.splitlines() if line.startswith("Rel. Avg."))
    assert average.split()[-1] == "108.8"
    assert "One more right answer in MathVision-MINI moves the average by 0.20." in done.stdout
    machine = CliRunner().invoke(main, ["evaluate", str(table), "--full", "Full", "--json"])
    assert json.loads(machine.stdout)["runs"][-1]["value"] == pytest.approx(108.768, abs=1e-3)
    alone = CliRunner().invoke(main, ["evaluate", str(folder), "--full", str(folder), "--json"])
    assert json.loads(alone.stdout)["runs"][0]["value"] == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--full", "Nobody"], "neither a folder nor among the runs: Full, Random"),
        (["--full", "Full", "--items", "x"], "is not ENTRY=N"),
        (["--full", "Full", "--items", "Mathvista=1000"], "--items Mathvista is none of the entries"),
        (["--full", "{table}"], "is neither a folder nor among the runs"),
    ],
)
def test_the_command_says_what_is_wrong(table: Path, arguments: list[str], match: str) -> None:
    done = CliRunner().invoke(main, ["evaluate", str(table), *(word.format(table=table) for word in arguments)])
    assert done.exit_code != 0
    assert match in done.output


def test_no_right_answer_leaves_the_rate_open_too() -> None:
    none, full = Results("none", {"a": Entry(0.0, 30)}), Results("full", {"a": Entry(50.0, 30)})
    found = relative_average(none, full)
    assert found.value == 0
    assert found.interval is not None
    assert 3 < found.interval.high < 20, "of 30 questions none right: up to about a tenth may be"


def test_results_that_are_not_known_are_named(folder: Path) -> None:
    (run,) = read_results(folder)
    assert run.left_out == ("m_Unknown_score.csv",)
    shown = CliRunner().invoke(main, ["evaluate", str(folder), "--full", str(folder)])
    assert "Left out of full, no benchmark known here: m_Unknown_score.csv." in shown.stdout


def test_a_fraction_held_against_a_percentage_shows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("run,a\nFull,0.5\nSubset,50\n")
    shown = CliRunner().invoke(main, ["evaluate", str(tmp_path / "t.csv"), "--full", "Full"])
    assert "Subset is far from Full in a: are both on the same scale?" in shown.stdout
