"""Results of benchmarks from files: VLMEvalKit's, plain tables, bad input."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from grace_store.base.errors import DataError
from grace_store.study.benchmark_results import Entry, Results, read_results
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
    with pytest.raises(DataError, match=r"of a known benchmark"):
        read_results(tmp_path)


def test_results_that_are_not_known_are_named(folder: Path) -> None:
    (run,) = read_results(folder)
    assert run.left_out == ("m_Unknown_score.csv",)


# ---------------------------------------------------------------- VLMEvalKit's output folder

GOLDEN = Path(__file__).parent / "golden/benchmarks"
"""Written by VLMEvalKit 0.2rc1's own evaluate(), and by lm-evaluation-harness 0.4.13, from made-up answers."""
RUN = "T20261102-111500"


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """A folder as VLMEvalKit leaves it: a run's folder in the model's, and links to its files beside it."""
    shutil.copytree(GOLDEN / "vlmevalkit", tmp_path / "outputs")
    link_files(tmp_path / "outputs/grace", RUN)
    return tmp_path / "outputs"


def link_files(model: Path, run: str) -> None:
    for path in (model / run).iterdir():
        (model / path.name).unlink(missing_ok=True)
        (model / path.name).symlink_to(f"{run}/{path.name}")


def rename_model(folder: Path, old: str, new: str) -> None:
    for path in sorted(folder.rglob(f"{old}_*")):
        path.rename(path.with_name(path.name.replace(f"{old}_", f"{new}_", 1)))


EXPECTED = {
    "HallusionBench": (25.0, None),
    "ScienceQA": (60.0, None),
    "MMBench": (55.0, None),
    "MME-P": (450.0, None),
    "MME-C": (450.0, None),
    "MMT-MI": (43.75, None),
    "MMT-SI": (65.625, None),
    "MathVista": (50.0, 20),
    "MathVision-MINI": (50.0, 20),
    "MathVision": (50.0, 20),
    "MMStar": (45.0, None),
    "AI2D_TEST": (35.0, None),
    "MMMU_DEV_VAL": (46.153846, None),
    "MMMU_Pro_10c": (65.0, None),
    "MathVerse_MINI_Vision_Only": (60.0, None),
    "MathVerse_MINI": (45.0, None),
    "LogicVista": (55.0, 20),
    "DynaMath": (55.0, None),
    "WeMath": (97.43, None),
    "MMVet": (55.560157, None),
    "OCRBench": (0.9, None),
    "POPE": (40.0, None),
    "ChartQA_TEST": (40.0, None),
    "DocVQA_VAL": (50.0, None),
    "InfoVQA_VAL": (65.0, None),
    "A-OKVQA": (60.0, None),
    "BLINK": (60.0, None),
    "CCBench": (45.0, None),
    "RealWorldQA": (35.0, None),
    "SEEDBench_IMG": (35.0, None),
}


@pytest.mark.parametrize("given", ["grace", f"grace/{RUN}", "."])
def test_files_and_links_to_them_count_once(outputs: Path, given: str) -> None:
    (run,) = read_results(outputs / given)
    assert run.name == ("outputs" if given == "." else "grace")
    found = {name: (round(entry.score, 6), entry.num_items) for name, entry in run.entries.items()}
    assert {name: number for name, (number, _) in found.items()} == pytest.approx(
        {name: number for name, (number, _) in EXPECTED.items()}, abs=1e-6
    )
    assert {name: count for name, (_, count) in found.items()} == {name: count for name, (_, count) in EXPECTED.items()}
    assert (run.left_out, run.remarks) == ((), ())


def test_each_models_folder_is_a_run(outputs: Path) -> None:
    shutil.copytree(outputs / "grace", outputs / "MME_full", symlinks=True)
    rename_model(outputs / "MME_full", "grace", "MME_full")
    link_files(outputs / "MME_full", RUN)
    full, grace = read_results(outputs)
    assert (full.name, grace.name) == ("MME_full", "grace"), "a model may be named like a benchmark"
    assert full.entries == grace.entries


def write_again(outputs: Path, run: str, score: str) -> None:
    folder = outputs / "grace" / run
    folder.mkdir()
    (folder / "grace_MMStar_acc.csv").write_text(f'"split","Overall"\n"none","{score}"\n')


@pytest.mark.parametrize("run", ["T20261103-080000", "T20261103_G1a2b3c4d"])
def test_of_several_runs_the_one_that_is_linked_counts_or_else_the_newest(outputs: Path, run: str) -> None:
    write_again(outputs, run, "0.9")
    assert read_results(outputs)[0].entries["MMStar"].score == pytest.approx(45.0), "the link says which"
    link_files(outputs / "grace", run)
    (linked,) = read_results(outputs)
    assert linked.remarks == (f"older results are not used: {RUN}/grace_MMStar_acc.csv",)
    for path in (outputs / "grace").iterdir():
        if path.is_symlink():
            path.unlink()
    (unlinked,) = read_results(outputs)
    for found in (linked, unlinked):
        assert found.entries["MMStar"].score == pytest.approx(90.0)
        assert len(found.entries) == len(EXPECTED)


def test_runs_of_one_day_without_a_time_are_not_chosen_between(outputs: Path) -> None:
    for run, score in {"T20261103_Gaaaaaaa": "0.8", "T20261103_Gbbbbbbb": "0.9"}.items():
        write_again(outputs, run, score)
    (outputs / "grace/grace_MMStar_acc.csv").unlink()
    with pytest.raises(DataError, match=r"several results of MMStar: T20261103_Gaaaaaaa/.* Keep only one of these"):
        read_results(outputs)


def test_several_datasets_of_one_benchmark_go_by_their_own_names(outputs: Path) -> None:
    (outputs / "grace/grace_MMBench_DEV_CN_acc.csv").write_text('"split","Overall"\n"dev","0.5"\n')
    (run,) = read_results(outputs)
    assert run.entries["MMBench_DEV_CN"] == Entry(50.0, asked="MMBench_DEV_CN")
    assert run.entries["MMBench_DEV_EN_V11"].score == pytest.approx(55.0)
    assert "MMBench" not in run.entries


def test_names_that_only_begin_like_a_benchmarks_are_left_out(outputs: Path) -> None:
    for name in ("MME_CoT_TEST_score", "MMMU_Pro_10c_COT_cotpost_acc", "GMAI-MMBench_VAL_acc"):
        (outputs / f"grace/grace_{name}.csv").write_text("a,b\n1,2\n")
    (run,) = read_results(outputs)
    assert len(run.left_out) == 3


def test_one_table_of_vlmevalkit_is_not_taken_for_a_table_of_runs(outputs: Path) -> None:
    with pytest.raises(DataError, match="VLMEvalKit's table of one benchmark: give the folder"):
        read_results(outputs / "grace/grace_MME_score.csv")


# ---------------------------------------------------------------- lm-evaluation-harness


def test_lm_evals_results_are_groups_and_tasks_with_their_errors() -> None:
    (run,) = read_results(GOLDEN / "lm_eval")
    assert list(run.entries) == ["tiny_c acc", "tinies acc"], "not tiny_a and tiny_b: the group holds them"
    group = run.entries["tinies acc"]
    assert (group.num_items, group.asked) == (40, "version 2, 0 shots")
    assert (group.score, group.stderr) == pytest.approx((55.0, 8.0704), abs=1e-3)
    assert run.remarks == ("older results are not used: tiny_c acc in results_2026-11-17T05-16-16.211576.json",)
    (newest,) = read_results(GOLDEN / "lm_eval/ckpt__grace/results_2026-11-17T05-16-42.464883.json")
    assert newest.name == "ckpt__grace"
    assert newest.entries == {"tiny_c acc": run.entries["tiny_c acc"]}


def lm_eval_file(folder: Path, model: str, results: dict[str, Any], **more: Any) -> None:
    path = folder / model / "results_2026-01-01T10-00-00.000001.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"results": results, "model_name": model, **more}))


def test_every_model_of_lm_eval_is_a_run_and_metrics_to_lower_are_left_out(tmp_path: Path) -> None:
    gsm8k = {"alias": "gsm8k", "exact_match,strict-match": 0.5, "exact_match,flexible-extract": 0.75}
    wiki = {"word_perplexity,none": 12.5, "word_perplexity_stderr,none": "N/A"}
    bleu = {"bleu,none": 0.8, "bleu_stderr,none": 0.1}
    higher = {"gsm8k": {"exact_match": True}, "wikitext": {"word_perplexity": False}, "wmt": {"bleu": True}}
    for model in ("a", "b"):
        lm_eval_file(tmp_path, model, {"gsm8k": gsm8k, "wikitext": wiki, "wmt": bleu}, higher_is_better=higher)
    first, second = read_results(tmp_path)
    assert (first.name, second.name) == ("a", "b")
    assert {name: (entry.score, entry.stderr) for name, entry in first.entries.items()} == {
        "gsm8k exact_match,strict-match": (50.0, None),
        "wmt bleu": (0.8, 0.1),
    }
    assert first.remarks == ("tasks without a metric of which higher is better are left out: wikitext",)


def test_both_kinds_in_one_folder_are_one_run(outputs: Path) -> None:
    lm_eval_file(outputs, "lm", {"arc": {"acc,none": 0.5}})
    (run,) = read_results(outputs)
    assert len(run.entries) == len(EXPECTED) + 1
    assert run.entries["arc acc"].score == 50.0


# ---------------------------------------------------------------- what is not understood


@pytest.mark.parametrize("name", ["results.xlsx", "renamed.csv"])
def test_a_spreadsheet_is_to_be_saved_as_csv(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(DataError, match=r"is a spreadsheet\. Save the table as \.csv\. Give a folder of VLMEvalKit's"):
        read_results(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b'{"scores": [1]}'),
        ("a.json", b'{"results": {"task": 1}}'),
        ("a.csv", b"model,note\nfull,good\n"),
        ("a.csv", b"only one column\n"),
        ("a.csv", b"\xff\xfe\x00"),
    ],
)
def test_unknown_tables_are_told_what_is_understood(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"Give a folder of VLMEvalKit's or lm-evaluation-harness's results"):
        read_results(tmp_path / name)


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000, b"[1]"])
def test_broken_json_gets_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=r"cannot be read as JSON|is not a results file of lm-evaluation-harness"):
        read_results(tmp_path / "a.json")
