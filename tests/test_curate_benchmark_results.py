"""Results of benchmarks from files: VLMEvalKit's, plain tables, bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from grace_store.base.errors import DataError
from grace_store.curate.benchmark_results import Entry, Results, read_results
from tests.benchmark_files import vlmevalkit_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return vlmevalkit_folder(tmp_path)


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


def test_results_that_are_not_known_are_named(folder: Path) -> None:
    (run,) = read_results(folder)
    assert run.left_out == ("m_Unknown_score.csv",)
