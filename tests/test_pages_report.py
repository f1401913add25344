"""What goes into a report: which traces, which numbers, and what is said when something is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from grace_store.base.documents import write_document
from grace_store.base.errors import DataError, MissingExtra, ResumeMismatch, SettingError, how_to_install
from grace_store.choose.duplicates import duplicates
from grace_store.choose.export import export
from grace_store.choose.select import select
from grace_store.cli import main
from grace_store.pages import page_files as html_module
from grace_store.pages.report import report
from grace_store.pages.report_inputs import ReportRequest
from grace_store.pool.pool import Pool
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.score_conclusion import conclude_scores
from grace_store.scoring.score_table import read_scores
from grace_store.scoring.sweep import sweep
from grace_store.scoring.targets import Targets
from grace_store.store.opened import Store
from grace_store.study.stability import StabilitySettings, stability
from grace_store.values.grid import SweepSpec
from grace_store.values.measures import MEASURES
from grace_store.values.methods.method import InfluenceSpec, ScoreSpec
from tests.gradient_stores import DIMENSION, add_gradients, gradient_spec, plan_store, record
from tests.reports import HOSTILE_ID, NUM_TRACES, make_store, read_page
from tests.scored_stores import known_store

NUM_SHOWN = NUM_TRACES + 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def known(tmp_path: Path) -> Store:
    """A store with two signals and no dataset."""
    return known_store(tmp_path, ("first", "second")).store


def test_a_report_carries_all_traces_with_their_numbers(tmp_path: Path, store: Store) -> None:
    out = tmp_path / "report.html"
    written = report(store, out, ReportRequest(max_traces=1000))
    assert (written.num_samples, written.num_traces) == (NUM_SHOWN, NUM_SHOWN)
    (note,) = written.notes
    assert "1 image could not be shown" in note
    page = read_page(out)
    index, table = page.document("trace-index"), score(store)
    assert index["id"] == table.sample_id
    np.testing.assert_allclose(index["value"], table.value, atol=1e-6)
    best = {table.sample_id[i] for i in select(table, ratio="0.2").ranked}
    assert {name for name, bits in zip(index["id"], index["chosen"], strict=True) if bits & 1} == best
    blocks = [trace for number in range(3) for trace in page.document(f"traces-{number}")]
    assert len(blocks) == NUM_SHOWN
    hostile = blocks[index["id"].index(HOSTILE_ID)]
    assert "</script><script>" in hostile["segments"][0]
    assert (
        hostile["measures"]["tokens"]
        == store.signal(None).segments("segment_num_tokens", store.find(HOSTILE_ID)).tolist()
    )
    near = blocks[index["id"].index("copy-of-7")]["near"]
    assert [index["id"][near[0][0]], near[0][1]] == ["trace-0007", 1.0]


def test_neighbours_are_those_of_a_brute_force(tmp_path: Path, known: Store) -> None:
    out = tmp_path / "report.html"
    report(known, out, ReportRequest(signals=("first",)))
    page = read_page(out)
    vectors = []
    for sample in range(known.plan.num_samples):
        steps = known.signal("first").vectors(sample)[:-1]
        mean = (steps / np.linalg.norm(steps, axis=1, keepdims=True)).mean(axis=0)
        vectors.append(mean / np.linalg.norm(mean))
    cosines = np.array(vectors) @ np.array(vectors).T
    np.fill_diagonal(cosines, -2)
    for i, trace in enumerate(page.document("traces-0")):
        expected = np.argsort(-cosines[i])[:5]
        assert [other for other, _ in trace["near"]] == expected.tolist()
        np.testing.assert_allclose([cosine for _, cosine in trace["near"]], cosines[i][expected], atol=1e-4)


def test_without_the_dataset_the_store_is_shown_and_the_page_says_so(tmp_path: Path, known: Store) -> None:
    out = tmp_path / "report.html"
    written = report(known, out, ReportRequest(signals=("first",)))
    assert "Texts are not shown" in written.notes[0]
    trace = read_page(out).document("traces-0")[2]
    assert "segments" not in trace
    assert len(trace["cosines"]) == known.column("sample_num_steps")[2] + 1
    with pytest.raises(DataError, match="No such file or folder"):
        report(known, out, ReportRequest(signals=("first",), data=[str(tmp_path / "gone.jsonl")]))


def test_signals_are_compared_and_one_must_be_meant(tmp_path: Path, known: Store) -> None:
    out = tmp_path / "report.html"
    report(known, out, ReportRequest(signals=("first", "second=2")))
    page = read_page(out)
    boxes = page.document("figure-value-by-signal")["data"][0]
    assert boxes["y"] == ["first", "second"]
    for name, median in zip(boxes["y"], boxes["median"], strict=True):
        assert median == pytest.approx(np.median(score(known, ScoreRequest(signals=name)).value), rel=1e-4)
    with pytest.raises(LookupError, match="Choose a signal"):
        report(known, out, ReportRequest())


@pytest.mark.parametrize("num_steps", [[1], [1, 2], [3, 1, 2]])
def test_a_store_of_hardly_any_samples_has_a_report_too(tmp_path: Path, num_steps: list[int]) -> None:
    out = tmp_path / "report.html"
    written = report(known_store(tmp_path, num_steps=num_steps).store, out, ReportRequest())
    assert written.num_traces == len(num_steps)


def test_a_store_with_nothing_done_has_a_report_too(tmp_path: Path) -> None:
    store = known_store(tmp_path, units={"base": []}).store
    written = report(store, tmp_path / "report.html", ReportRequest(partial=True))
    assert (written.num_samples, written.num_traces) == (0, 0)


def test_less_is_held_against_others_without_any_step_scores(tmp_path: Path) -> None:
    """A store with gradients alone, one a sample: no Grams, no sweep, and LESS costs backward passes."""
    pool = plan_store(tmp_path, "pool", {"pool.jsonl": [record(f"p{i}") for i in range(20)]})
    targets = plan_store(tmp_path, "targets", {"targets.jsonl": [record(f"t{i}") for i in range(4)]})
    for number, each in enumerate((pool, targets)):
        rng = np.random.default_rng(number)
        add_gradients(
            each, "ck", rng.normal(size=(each.plan.num_samples, DIMENSION)), gradient_spec(learning_rate=1e-5)
        )
    less, out = tmp_path / "less.parquet", tmp_path / "report.html"
    score(pool, ScoreRequest(spec=InfluenceSpec(method="less"), targets=Targets(targets)), out=less)
    report(pool, out, ReportRequest(scores=(less,)))
    page = read_page(out)
    table = score(pool, ScoreRequest(spec=InfluenceSpec(method="less"), targets=Targets(targets)))
    np.testing.assert_allclose(page.document("trace-index")["value"], table.value, atol=1e-6)
    assert "cosines" not in page.document("traces-0")[0]
    by_measure = page.document("trace-index")["measures"]
    assert set(by_measure) == {"loss", "tokens", "steps", "characters", "random"}
    np.testing.assert_allclose(by_measure["loss"], score(pool, ScoreSpec(measure=("loss:highest",))).value, rtol=1e-5)
    took = next(block for section in page.document("page")["sections"] for block in section["blocks"]
                if block.get("title") == "Cost of each method")["rows"]  # fmt: skip
    assert took[0][0] == "less"
    assert took[0][5:7] == [20, 20]  # forward, backward


def test_what_other_commands_made_is_used(tmp_path: Path, store: Store) -> None:
    scores, subset, out = tmp_path / "scores.parquet", tmp_path / "subset.txt", tmp_path / "report.html"
    scored, chosen = score(store, out=scores), select(scores, ratio="0.1")
    export(chosen, subset, as_format="ids")
    swept = sweep(store, SweepSpec.parse(ratio=["0.1"], grid=[{"alpha": (0.2, 0.9)}]), out=tmp_path / "sweep")
    duplicates(store, threshold=0.99).write(tmp_path / "duplicates.parquet")
    request = ReportRequest(
        scores=(scores,), subsets=(subset,), sweep=tmp_path / "sweep", duplicates=tmp_path / "duplicates.parquet"
    )
    report(store, out, request)
    page = read_page(out)
    verdict, *opening = page.document("page")["sections"][0]["blocks"][:4]
    assert verdict["rows"][-1][1].endswith("subset.txt: the best 0.1.")
    length = conclude_scores(score(store), what_next=False)
    assert scored.conclusion.startswith(length)
    assert [block["text"] for block in opening] == [length, chosen.conclusion, swept.conclusion]
    assert sum(page.document("trace-index")["chosen"]) == -(-NUM_SHOWN // 10)
    assert page.document("figure-setting-overlap-0.1")["data"][0]["x"] == ["α 0.2", "α 0.9"]
    groups = [i for i, group in zip(page.document("trace-index")["id"], page.document("trace-index")["group"],
                                    strict=True) if group is not None]  # fmt: skip
    assert sorted(groups) == ["copy-of-7", "trace-0007"]


@pytest.mark.parametrize("measure", ["loss", "norm", "tokens", "random"])
def test_traces_are_shown_with_any_measure(tmp_path: Path, store: Store, measure: str) -> None:
    """Of steps or of traces, of a signal or of the plan alone."""
    scores, grace, out = tmp_path / "scores.parquet", tmp_path / "grace.parquet", tmp_path / "report.html"
    score(store, ScoreSpec(measure=(measure,)), out=scores)
    score(store, out=grace)
    report(store, out, ReportRequest(scores=(scores, grace), fields=""))
    page, shown, beside = read_page(out), read_scores(scores), read_scores(grace)
    browser, index = page.document("trace-browser"), page.document("trace-index")
    assert browser["scored"] == (shown.method if shown.has_step_scores else None)
    np.testing.assert_allclose(index["value"], shown.value, atol=1e-6)
    assert browser["fields"] == [{"name": "value by grace", "kind": "number"}]
    np.testing.assert_allclose(index["fields"][0], beside.value, atol=1e-4)
    trace, view = page.document("traces-0")[5], store.signal(None)
    for key in ("loss", "entropy"):
        stored = view.segments(f"segment_{key}", store.positions_of(shown.row)[5])
        np.testing.assert_allclose(trace["measures"][key], stored, rtol=1e-3)


@pytest.mark.parametrize("measure", [("hes",), ("grace=0.5", "loss:lowest=0.5")])
def test_a_report_is_about_the_values_of_its_first_table(
    tmp_path: Path, store: Store, measure: tuple[str, ...]
) -> None:
    spec, scores = ScoreSpec(measure=measure), tmp_path / "scores.parquet"
    score(store, spec, out=scores)
    found = report(store, tmp_path / "report.html", ReportRequest(scores=(scores,), fields=""))
    told = {each["topic"]: each["sentence"] for each in found.verdict}
    assert f"values by {spec.title}" in told["provenance"]
    assert "grace" not in told["provenance"].replace(spec.title, "")
    index = read_page(tmp_path / "report.html").document("trace-index")
    np.testing.assert_allclose(index["value"], read_scores(scores).value, atol=1e-6)


@pytest.mark.parametrize("scored", [ScoreSpec(), ScoreSpec(alpha=0.2, target="suffix"), ScoreSpec(measure=("loss",))])
def test_traces_have_the_numbers_by_every_measure_that_score_writes(
    tmp_path: Path, store: Store, scored: ScoreSpec
) -> None:
    score(store, scored, out=tmp_path / "scores.parquet")
    report(store, tmp_path / "report.html", ReportRequest(scores=(tmp_path / "scores.parquet",), fields=""))
    page = read_page(tmp_path / "report.html")
    index, legends = page.document("trace-index"), page.document("trace-browser")["measures"]
    traces = [trace for number in range(3) for trace in page.document(f"traces-{number}")]
    assert list(legends) == list(MEASURES)
    by_table = {scored.title}  # shown as the step score and the value
    assert set(MEASURES) - set(index["measures"]) == by_table - {"loss:lowest"}
    for name, kind in MEASURES.items():
        assert legends[name]["better"] == kind.better
        given = {key: getattr(scored, key) for key in ("alpha", "target") if key in kind.settings}
        table = score(store, ScoreSpec(measure=(f"{name}:highest",), **given))
        assert table.row.tolist() == index["row"]
        if name in index["measures"]:
            np.testing.assert_allclose(np.array(index["measures"][name], dtype=float), table.value, rtol=1e-5)
        if name in by_table or not table.has_step_scores:
            assert name not in traces[0]["measures"]
            continue
        steps = [trace["measures"][name][:num] for trace, num in zip(traces, table.num_steps, strict=True)]
        flat = np.array([number for each in steps for number in each], dtype=float)
        np.testing.assert_allclose(flat, table.flat("step_score"), rtol=1e-3)
        known = np.abs(np.array([each for trace in traces for each in trace["measures"][name]], dtype=float))
        assert legends[name]["from_zero"] == (name not in ("grace", "answer_alignment", "history_alignment"))
        wanted = np.nanquantile(known, 0.98)
        assert legends[name]["scale"] == pytest.approx(wanted, rel=0.06) or not wanted


def test_alignments_are_those_of_the_table(tmp_path: Path, known: Store) -> None:
    """Of several signals together, and for a target in other traces, which only the table knows."""
    wanted = ScoreRequest(signals={"first": 1.0, "second": 3.0})
    table = score(known, wanted)
    score(known, wanted, out=tmp_path / "scores.parquet")
    report(known, tmp_path / "report.html", ReportRequest(scores=(tmp_path / "scores.parquet",)))
    page = read_page(tmp_path / "report.html")
    for name in ("answer_alignment", "history_alignment"):
        shown = [number for trace in page.document("traces-0") for number in trace["measures"][name]]
        np.testing.assert_allclose(np.array(shown, dtype=float), table.flat(name), rtol=1e-3)
        means = [np.nanmean(each) if np.isfinite(each).any() else np.nan
                 for each in np.split(table.flat(name), table.offsets[1:-1])]  # fmt: skip
        by_trace = np.array(page.document("trace-index")["measures"][name], dtype=float)
        np.testing.assert_allclose(by_trace, means, rtol=1e-5)


def test_another_stores_tables_are_refused(tmp_path: Path, store: Store, known: Store) -> None:
    scores, subset, out = tmp_path / "scores.parquet", tmp_path / "subset.txt", tmp_path / "report.html"
    score(known, ScoreRequest(signals="first"), out=scores)
    with pytest.raises(ResumeMismatch, match="another plan"):
        report(store, out, ReportRequest(scores=(scores,)))
    sweep(known, SweepSpec.parse(grid=[{"signal": "first"}]), out=tmp_path / "sweep")
    with pytest.raises(ResumeMismatch, match="another plan"):
        report(store, out, ReportRequest(sweep=tmp_path / "sweep"))
    duplicates(Pool.of(known, signals="first")).write(tmp_path / "duplicates.parquet")
    with pytest.raises(ResumeMismatch, match="another plan"):
        report(store, out, ReportRequest(duplicates=tmp_path / "duplicates.parquet"))
    measured = tmp_path / "stability.json"
    write_document(measured, stability(Pool.of(known, signals="first"), StabilitySettings(draws=2)))
    with pytest.raises(ResumeMismatch, match=r"finding .*stability.json was made from another plan"):
        report(store, out, ReportRequest(findings=(measured,)))
    with pytest.raises(DataError, match=r"has no warm-up\. Give the folder that `grace-store warmup` wrote"):
        report(store, out, ReportRequest(warmup=tmp_path / "sweep"))
    export(select(scores, ratio="0.5"), subset, as_format="ids", store=known.location)
    with pytest.raises(ResumeMismatch, match="another plan"):
        report(store, out, ReportRequest(subsets=(subset,)))
    (tmp_path / "bare.txt").write_text("s1\n")
    with pytest.raises(DataError, match=r"bare\.txt.* bare\.txt\.spec\.json"):
        report(store, out, ReportRequest(subsets=(tmp_path / "bare.txt",)))
    assert not out.exists()


def test_a_signal_beside_a_table_of_step_scores_is_refused_not_ignored(tmp_path: Path, known: Store) -> None:
    scores = tmp_path / "scores.parquet"
    score(known, ScoreRequest(signals="first"), out=scores)
    with pytest.raises(SettingError, match="leave --signal out"):
        report(known, tmp_path / "report.html", ReportRequest(scores=(scores,), signals=("second",)))


def test_a_report_is_never_written_over_what_it_is_made_from(tmp_path: Path, store: Store) -> None:
    scores = tmp_path / "scores.parquet"
    score(store, out=scores)
    before = scores.read_bytes()
    for out in (scores, Path(store.plan.files[0].path), Path(store.location) / "report.html"):
        with pytest.raises(SettingError, match="would replace"):
            report(store, out, ReportRequest(scores=(scores,)))
    assert scores.read_bytes() == before


def test_an_older_report_stays_whole_until_the_new_one_is(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "report.html"
    out.write_text("the old one")

    def break_down(*_: object) -> Any:
        yield "half a page"
        raise OSError("no space left")

    monkeypatch.setattr(html_module, "html_parts", break_down)
    with pytest.raises(OSError, match="no space left"):
        report(store, out, ReportRequest(max_traces=20))
    assert out.read_text() == "the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


# ---------------------------------------------------------------- as a user runs it


def test_the_command_says_what_it_wrote(tmp_path: Path, store: Store) -> None:
    out = tmp_path / "report.html"
    result = CliRunner().invoke(main, ["report", store.location, "--out", str(out), "--max-traces", "50", "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert (said["num_traces"], said["num_samples"], said["num_bytes"]) == (50, NUM_SHOWN, out.stat().st_size)
    assert said["sections"][0] == "overview"
    result = CliRunner().invoke(main, ["report", store.location, "--out", str(out), "--max-traces", "50"])
    assert f"{out}: 50 of {NUM_SHOWN} traces, " in result.stdout
    assert "50 traces" in result.stderr
    result = CliRunner().invoke(main, ["report", str(tmp_path / "no.zarr"), "--out", str(out)])
    assert result.exit_code == 1
    assert "is not a grace-store store" in result.stderr


@pytest.mark.parametrize("missing", [(), ("faiss",)])
def test_it_takes_neither_torch_nor_faiss(tmp_path: Path, store: Store, missing: tuple[str, ...]) -> None:
    """In a process of its own, where torch cannot be imported, and faiss neither if so told."""
    code = f"""
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {("torch", "transformers", *missing)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in {missing!r} else found(name, *rest)
sys.meta_path.insert(0, Absent())
from grace_store.cli import main
main(["report", {store.location!r}, "--out", {str(tmp_path / "report.html")!r}], standalone_mode=False)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = json.dumps(read_page(tmp_path / "report.html").document("page"))
    assert (how_to_install("faiss") in words) == bool(missing)


def test_without_plotly_it_says_what_to_install(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingExtra, match=re.escape(how_to_install("report"))):
        report(store, tmp_path / "report.html", ReportRequest())
