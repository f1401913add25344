"""The verdict that opens a report: what is bad comes first, each sentence with its number."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from grace_store.base.documents import write_document
from grace_store.base.finding import Column, Estimate, Finding, LabelsNote, PoolNote, Table
from grace_store.choose.export import export
from grace_store.choose.select import select
from grace_store.choose.selection import Selection
from grace_store.cli import main
from grace_store.pages.report import report
from grace_store.pages.report_inputs import ReportRequest
from grace_store.pages.verdict import expected_questions
from grace_store.scoring.notes import LearnedNote
from grace_store.scoring.score import score
from grace_store.scoring.score_table import scores_schema, write_scores
from grace_store.store.opened import Store
from grace_store.study.contamination import contamination
from grace_store.study.judge_conclusion import judge_measure
from grace_store.values.methods.method import ScoreSpec
from tests.grouped_stores import grouped_store
from tests.reports import make_store, read_page


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Nine questions with 28 traces."""
    return grouped_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def scores(store: Store) -> Path:
    path = Path(store.location).parent / "scores.parquet"
    score(store, out=path)
    return path


def told(store: Store, folder: Path, **wishes: Any) -> list[dict[str, str]]:
    """Return the verdict of a report, which the page has too."""
    out = folder / "report.html"
    verdict = report(store, out, ReportRequest(**wishes)).verdict
    opening = read_page(out).document("page")["sections"][0]["blocks"][0]
    assert opening == {"kind": "verdict", "rows": [[each["level"], each["sentence"]] for each in verdict]}
    return verdict


def about(topic: str, verdict: list[dict[str, str]]) -> tuple[str, str]:
    """Return level and sentence of the only sentence about a topic."""
    (found,) = [each for each in verdict if each["topic"] == topic]
    return found["level"], found["sentence"]


def benchmark(store: Store, folder: Path, *questions: int) -> Path:
    """Write a table of contamination by a benchmark that asks some of the questions."""
    items = folder / "items.jsonl"
    records = [{"question": f"What is question {each}?", "answer": "1"} for each in questions]
    items.write_text("".join(json.dumps(record) + "\n" for record in records))
    path = folder / "against.parquet"
    contamination(store, [str(items)], ngram=3).write(path)
    return path


def test_a_contaminated_pool_is_the_first_thing_said(tmp_path: Path, store: Store, scores: Path) -> None:
    verdict = told(store, tmp_path, scores=(scores,), against=benchmark(store, tmp_path, *range(9)))
    first = "Contaminated by items of items.jsonl: 6 of 6 samples (100 %) in the best 0.2 and 28 of 28 samples (100 %)"
    assert (verdict[0]["topic"], verdict[0]["level"]) == ("contaminated", "bad")
    assert verdict[0]["sentence"].startswith(f"{first} in the pool. `select --exclude-contaminated`")
    levels = [each["level"] for each in verdict]
    assert levels == sorted(levels, key=["bad", "unclear", "good", "not looked at", "provenance"].index)
    assert "Not looked at: judge, trial. Run `judge` (--finding) and `trial` (--finding)" in verdict[-2]["sentence"]
    assert verdict[-1]["sentence"].startswith(
        "Made from store.zarr (28 of 28 records done, 0 set aside); values by grace"
    )


def test_a_subset_without_contaminated_samples_is_good_news_and_says_the_pool(
    tmp_path: Path, store: Store, scores: Path
) -> None:
    """The subset's own note has the contaminated samples: no table is needed."""
    against, subset = benchmark(store, tmp_path, 8), tmp_path / "subset.txt"
    export(select(scores, Selection(count=10, exclude_contaminated=str(against))), subset, as_format="ids")
    level, sentence = about("contaminated", told(store, tmp_path, scores=(scores,), subsets=(subset,)))
    assert level == "good"
    assert sentence.endswith("0 of 10 samples (0 %) in subset.txt and 6 of 28 samples (21 %) in the pool.")


def test_a_subset_by_other_values_than_those_of_the_page_names_them(tmp_path: Path, store: Store, scores: Path) -> None:
    score(store, ScoreSpec(measure=("loss",)), out=tmp_path / "loss.parquet")
    for name, table in (("own.txt", tmp_path / "loss.parquet"), ("other.txt", scores)):
        export(select(table, ratio="0.3"), tmp_path / name, as_format="ids")
    subsets = (tmp_path / "own.txt", tmp_path / "other.txt")
    _, sentence = about("provenance", told(store, tmp_path, scores=(tmp_path / "loss.parquet",), subsets=subsets))
    assert "; values by loss:lowest, signal " in sentence
    assert "; own.txt: the best 0.3; other.txt: the best 0.3 (from values by grace, aggregation mean, alpha" in sentence


def test_flags_are_counted_in_the_subset_and_in_the_pool(tmp_path: Path) -> None:
    store = make_store(tmp_path / "flagged", 30, hostile=False)
    scores, table = tmp_path / "scores.parquet", score(store)
    score(store, out=scores)
    flagged = {i for i, flags in enumerate(table.table["flags"].to_pylist()) if flags}
    for name, exclude in (("all.txt", ()), ("clean.txt", ("hygiene",))):
        chosen = select(scores, Selection(count=1 if exclude else 8, exclude_flagged=exclude))
        export(chosen, tmp_path / name, as_format="ids")
        num = len(flagged & set(chosen.ranked.tolist()))
        level, sentence = about("flagged", told(store, tmp_path, subsets=(tmp_path / name,)))
        assert sentence.startswith(f"Flagged: {num} of {len(chosen.ranked)} samples (")
        assert f"and {len(flagged)} of 31 samples (" in sentence
        assert (level, "--exclude-flagged" in sentence) == (("bad", True) if num else ("good", False))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=7), st.data())
def test_questions_expected_by_chance_are_those_of_all_subsets(asked: list[int], data: st.DataObject) -> None:
    num = data.draw(st.integers(0, len(asked)))
    every = [len(set(some)) for some in itertools.combinations(asked, num)]
    assert expected_questions(np.array(asked), num) == pytest.approx(np.mean(every))


def test_a_subset_of_few_questions_is_told(tmp_path: Path, store: Store) -> None:
    scores = tmp_path / "random.parquet"
    score(store, ScoreSpec(measure=("random",)), out=scores)
    subset = tmp_path / "few.txt"
    export(select(scores, Selection(count=11, where="\"problem.name\" IN ('p0', 'p8')")), subset, as_format="ids")
    level, sentence = about("varied", told(store, tmp_path, scores=(scores,), subsets=(subset,)))
    assert level == "bad"
    assert sentence.startswith(
        "Variety: 2 questions in few.txt (random subsets of its size: about 7) and 9 in the pool."
    )


def judgement(area: Estimate, questions: int = 200) -> Finding:
    """Return what `judge` could have found of two measures of traces."""
    other = Estimate(value=0.5, low=0.47, high=0.53, num=900, p_value=0.9)
    areas = {"grace": area, "loss:lowest": other}
    rows = [
        {"measure": f"{name} of base", "of": name, "signal": "base", "all_pairs": each, "held_fixed": each}
        for name, each in areas.items()
    ]
    rows.append({"measure": "random", "of": "random", "all_pairs": other, "held_fixed": other})
    table = Table(columns={"measure": Column(heading="measure")}, rows=(*rows, {"measure": "chance"}))
    numbers = {"num_right_traces": 300, "num_wrong_traces": 300, "num_questions": questions}
    return Finding(study="judge", conclusion="Labels were compared.", numbers=numbers, tables={"traces": table})


@pytest.mark.parametrize(
    ("area", "questions", "level"),
    [
        (Estimate(value=0.7, low=0.65, high=0.75, num=900, p_value=1e-6), 200, "good"),
        (Estimate(value=0.51, low=0.46, high=0.56, num=900, p_value=0.6), 200, "bad"),
        (Estimate(value=0.3, low=0.25, high=0.35, num=900, p_value=1e-6), 200, "bad"),
        (Estimate(value=0.6, low=0.3, high=0.9, num=900, p_value=0.5), 200, "unclear"),
        (Estimate(value=0.7, low=0.65, high=0.75, num=900, p_value=1e-6), 9, "unclear"),
    ],
)
def test_the_measure_that_chose_is_held_against_labels(area: Estimate, questions: int, level: str) -> None:
    found = Finding.model_validate_json(json.dumps(judgement(area, questions).to_json()), strict=True)
    assert judge_measure(found, "grace", ["base"]) == (level, f"has {area.text(2)} for traces")
    assert judge_measure(found, "grace", ["other"]) == ("unclear", "was not judged")
    assert judge_measure(found, "grace + loss:lowest", ["base"]) == ("unclear", "was not judged")


def trial(store: Store, **differences: Estimate) -> Finding:
    """Return what a trial of some subsets could have found."""
    rows = tuple(
        {"subset": name, "difference": each, "conclusion": f"{name} differs by {each.value}."}
        for name, each in differences.items()
    )
    pool = PoolNote(store=store.location, plan_sha256=store.plan.digest(), num_units=store.plan.num_units)
    tables = {"subsets": Table(columns={"subset": Column(heading="subset")}, rows=rows)}
    return Finding(study="trial", pool=pool, conclusion="Three were tried.", tables=tables)


def test_each_tried_subset_has_its_sentence_the_worst_first(tmp_path: Path, store: Store, scores: Path) -> None:
    tried = trial(
        store,
        better=Estimate(value=-0.02, low=-0.03, high=-0.01),
        alike=Estimate(value=0.0, low=-0.01, high=0.01),
        worse=Estimate(value=0.02, low=0.01, high=0.03),
    )
    judged = judgement(Estimate(value=0.51, low=0.46, high=0.56, num=900, p_value=0.6))
    for each in (tried, judged):
        write_document(tmp_path / f"{each.study}.json", each)
    findings = (tmp_path / "trial.json", tmp_path / "judge.json")
    verdict = told(store, tmp_path, scores=(scores,), findings=findings)
    assert [(each["level"], each["sentence"]) for each in verdict if each["topic"] == "tried"] == [
        ("bad", "Tried: worse differs by 0.02."),
        ("unclear", "Tried: alike differs by 0.0."),
        ("good", "Tried: better differs by -0.02."),
    ]
    chosen_by = "The samples were chosen by grace, which has 0.51 (0.46 to 0.56) for traces."
    assert about("judged", verdict) == ("bad", f"Judged: Labels were compared. {chosen_by}")


def test_the_command_prints_the_verdict(tmp_path: Path, store: Store, scores: Path) -> None:
    words = ["report", store.location, "--scores", str(scores), "--out", str(tmp_path / "report.html")]
    result = CliRunner().invoke(main, [*words, "--json"])
    verdict = json.loads(result.stdout)["verdict"]
    printed = CliRunner().invoke(main, words).stdout.splitlines()
    assert [line.partition("] ")[2] or line for line in printed[:-1]] == [each["sentence"] for each in verdict]
    assert printed[0].startswith("[bad] Flagged: ")
    assert f"{tmp_path / 'report.html'}: 28 of 28 traces" in printed[-1]


def test_sentences_about_a_subset_do_not_speak_of_the_best_of_the_pool(
    tmp_path: Path, store: Store, scores: Path
) -> None:
    subset = tmp_path / "subset.txt"
    export(select(scores, count=5), subset, as_format="ids")
    report(store, tmp_path / "report.html", ReportRequest(scores=(scores,), subsets=(subset,)))
    page = read_page(tmp_path / "report.html").document("page")
    overview, length = (next(each for each in page["sections"] if each["key"] == key) for key in ("overview", "length"))
    assert "best 6" not in json.dumps(overview)
    assert "best 0.2" not in json.dumps(overview)
    assert length["blocks"][0]["text"].startswith(
        "The best 0.2 are those of the pool by value, not the samples of subset.txt"
    )


def test_near_duplicates_in_a_subset_are_low_variety(tmp_path: Path, store: Store, scores: Path) -> None:
    rows = tuple({"subset": name, "share_alike": share} for name, share in (("all", 0.9), ("subset.txt", 0.5)))
    table = Table(columns={"subset": Column(heading="subset")}, rows=rows)
    clusters = Table(columns={"cluster": Column(heading="cluster")})
    found = Finding(study="diversity", conclusion="Half are alike.", tables={"subsets": table, "clusters": clusters})
    write_document(tmp_path / "diversity.json", found)
    level, sentence = about("varied", told(store, tmp_path, scores=(scores,), findings=(tmp_path / "diversity.json",)))
    assert (level, sentence.endswith("in the pool. Half are alike.")) == ("bad", True)


def test_a_learned_value_is_held_against_the_labels_that_taught_it(tmp_path: Path, store: Store) -> None:
    table, area = score(store), Estimate(value=0.7, low=0.6, high=0.8, num=900)
    counts = dict.fromkeys(("num_right", "num_wrong", "num_questions"), 300)
    areas = dict.fromkeys(("area", "area_within", "single_area"), area)
    learned = LearnedNote(labels=LabelsNote(field="ok", says="traces"), of="traces", weights={}, **counts, **areas)
    note = table.note.model_copy(update={"spec": ScoreSpec(learn=True), "learned": learned})
    plain = table.table.select(["sample_id", "row", "num_steps", "num_tokens", "value", "question", "flags"])
    schema = scores_schema(note).remove_metadata()
    rows = [plain[each.name] if each.name in plain.column_names else pa.nulls(len(plain), each.type) for each in schema]
    with write_scores(tmp_path / "learned.parquet", note) as writer:
        writer.write_table(pa.table(rows, schema=schema))
    verdict = told(store, tmp_path, scores=(tmp_path / "learned.parquet",))
    assert about("judged", verdict) == ("good", f"Judged: {learned.in_words}")
