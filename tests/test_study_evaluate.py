"""The relative average: the paper's table as golden numbers, and intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import DataError, SettingError
from grace_store.study.benchmark_results import Entry, Results, read_results
from grace_store.study.evaluate import evaluate, one_question, relative_average
from tests.benchmark_files import paper_table

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
    return paper_table(tmp_path)


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
    assert one_question(runs["GRACE"], full) == pytest.approx({"MathVision-MINI": 0.20}, abs=0.005)


def test_the_interval_is_that_of_a_ratio_of_binomials() -> None:
    ours, full = Results("ours", {"a": Entry(60.0, 1000)}), Results("full", {"a": Entry(50.0, 1000)})
    found = relative_average(ours, full)
    assert found.value == pytest.approx(120.0)
    # The logarithm of a ratio of two rates is nearly normal, with this variance.
    deviation = np.sqrt(0.4 / 600 + 0.5 / 500)
    assert found.is_known
    assert found.low == pytest.approx(120 * np.exp(-1.96 * deviation), rel=0.01)
    assert found.high == pytest.approx(120 * np.exp(1.96 * deviation), rel=0.01)
    assert relative_average(ours, full) == found, "the same seed gives the same draws"


def test_a_standard_error_gives_the_interval_in_place_of_the_questions() -> None:
    ours, full = (Results(name, {"a": Entry(score, 1000, stderr=3.0)}) for name, score in (("ours", 60), ("full", 50)))
    found = relative_average(ours, full)
    deviation = np.hypot(3 / 60, 3 / 50)
    assert found.is_known
    assert found.low == pytest.approx(120 * np.exp(-1.96 * deviation), rel=0.01)
    assert found.high == pytest.approx(120 * np.exp(1.96 * deviation), rel=0.01)
    alone = [Results(run.name, {"a": Entry(run.entries["a"].score, stderr=3.0)}) for run in (ours, full)]
    assert relative_average(*alone) == found, "also where the questions are not known"
    assert one_question(*alone) == {}


def test_runs_that_were_asked_something_else_are_not_compared() -> None:
    ours, full = (Results(name, {"a": Entry(50, asked=name)}) for name in ("MMBench_DEV_EN", "MMBench_DEV_CN"))
    with pytest.raises(DataError, match=r"were not asked the same in a \(MMBench_DEV_EN against MMBench_DEV_CN\)"):
        relative_average(ours, full)


def test_entries_without_counts_have_no_interval() -> None:
    ours = Results("ours", {"a": Entry(60.0), "MME": Entry(1500.0)})
    full = Results("full", {"a": Entry(50.0), "MME": Entry(1500.0)})
    assert not relative_average(ours, full).is_known


def test_runs_with_other_entries_are_not_averaged() -> None:
    with pytest.raises(DataError, match=r"ours lacks b; full lacks c"):
        relative_average(
            Results("ours", {"a": Entry(1), "c": Entry(1)}), Results("full", {"a": Entry(1), "b": Entry(1)})
        )
    with pytest.raises(DataError, match="different numbers of questions in a"):
        relative_average(Results("ours", {"a": Entry(1, 5)}), Results("full", {"a": Entry(1, 6)}))
    with pytest.raises(DataError, match="has 0 in a"):
        relative_average(Results("ours", {"a": Entry(1)}), Results("full", {"a": Entry(0)}))


def test_no_right_answer_leaves_the_rate_open_too() -> None:
    none, full = Results("none", {"a": Entry(0.0, 30)}), Results("full", {"a": Entry(50.0, 30)})
    found = relative_average(none, full)
    assert found.value == 0
    assert found.is_known
    assert 3 < found.high < 20, "of 30 questions none right: up to about a tenth may be"


def test_a_finding_has_every_score_and_tells_runs_of_one_name_apart(tmp_path: Path) -> None:
    for place, score in {"one": 40, "other": 60}.items():
        (tmp_path / place).mkdir()
        (tmp_path / place / "t.csv").write_text(f"run,a,b\nFull,50,20\ngrace,{score},20\n")
    found = evaluate([tmp_path / "one" / "t.csv", tmp_path / "other" / "t.csv"], "Full")
    averages = {row["run"]: row["average"].value for row in found.tables["averages"]}
    assert averages == {"grace": 90.0, "Full": 100.0, "grace (2)": 110.0}
    row = found.tables["entries"].row(entry="a")
    assert (row["full"], row["score of grace"], row["relative of grace (2)"]) == (50.0, 40.0, 120.0)
    assert "No interval: numbers of questions not known of a, b. Give them with --items ENTRY=N." in found.notes


def test_an_entry_of_unknown_size_has_no_exact_score(tmp_path):
    """Before, such an entry counted as exact, and half of the intervals missed the truth."""
    table = tmp_path / "results.csv"
    table.write_text("run,a,b\nFull,50,60\ngrace,55,57\nitems,200,\n")
    average = evaluate([table], "Full").tables["averages"].rows[0]["average"]
    assert not average.is_known
    assert average.value == pytest.approx(102.5)
    assert evaluate([table], "Full", num_items={"b": 100}).tables["averages"].rows[0]["average"].is_known


def test_an_entry_can_be_left_out(tmp_path):
    table = tmp_path / "results.csv"
    table.write_text("run,a,b\nFull,50,0\ngrace,55,57\nitems,200,100\n")
    with pytest.raises(DataError, match=r"Full has 0 in b, .* Give --leave-out b\."):
        evaluate([table], "Full")
    found = evaluate([table], "Full", leave_out=["b"])
    assert found.tables["averages"].rows[0]["average"].value == pytest.approx(110)
    assert found.tables["entries"].column("entry") == ["a"]
    assert found.settings["leave_out"] == ["b"]
    with pytest.raises(SettingError, match="unknown entry c in --leave-out: use one of a, b"):
        evaluate([table], "Full", leave_out=["c"])
    with pytest.raises(SettingError, match="leaves no entry to compare"):
        evaluate([table], "Full", leave_out=["a", "b"])
