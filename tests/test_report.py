"""What goes into a report: which traces, which numbers, what is inert, what is said when something is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from grace_store.artifacts.score_table import read_scores
from grace_store.base.errors import DataError, MissingExtra, ResumeMismatch, SettingError
from grace_store.cli import main
from grace_store.curate.duplicates import DuplicatesRequest, duplicates
from grace_store.curate.export import ExportRequest, export
from grace_store.curate.score import ScoreRequest, score
from grace_store.curate.select import select
from grace_store.curate.sweep import sweep
from grace_store.curate.targets import Targets
from grace_store.pages import report as writing
from grace_store.pages.costs import cost_of, seconds_by_signal
from grace_store.pages.html import html_parts, inert_json
from grace_store.pages.overview import overview_section
from grace_store.pages.plain_text import plot_label, shortened, visible
from grace_store.pages.report import ReportRequest, write_report
from grace_store.pages.shown_traces import choose_traces
from grace_store.run.status import status
from grace_store.store.opened import Store
from grace_store.values.grid import SweepSpec
from grace_store.values.length_bias import rank_correlation
from grace_store.values.methods.heuristic_spec import HeuristicSpec
from grace_store.values.methods.influence_spec import InfluenceSpec
from tests.gradient_stores import DIMENSION, add_gradients, gradient_spec, plan_store, record
from tests.reports import HOSTILE_ID, NUM_TRACES, SCRIPT, make_store
from tests.scored_stores import known_store

NUM_SHOWN = NUM_TRACES + 4


class Reader(HTMLParser):
    """Reads a page as a browser's parser does: scripts by id or number, and all text outside them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: dict[str, str] = {}
        self.tags: list[str] = []
        self.policy = ""
        self._script: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if tag == "script":
            self._script = found.get("id") or f"script {len(self.scripts)}"
            self.scripts[self._script] = ""
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] += data

    def document(self, name: str) -> Any:
        return json.loads(self.scripts[name])


def read_page(path: Path) -> Reader:
    return Reader(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def known(tmp_path: Path) -> Store:
    """A store with two signals and no dataset."""
    return known_store(tmp_path, ("first", "second")).store


# ---------------------------------------------------------------- inert text


@given(st.text())
def test_json_in_a_page_comes_out_as_it_went_in(text: str) -> None:
    packed = inert_json({"text": text})
    assert not set("<>&\u2028\u2029") & set(packed)
    assert json.loads(packed)["text"] == visible(text)
    assert Reader(f'<script id="a">{packed}</script>').document("a")["text"] == visible(text)


@given(st.text())
def test_what_is_visible_has_nothing_to_obey_and_stays_so(text: str) -> None:
    shown = visible(text)
    assert all(c.isprintable() or c.isspace() or c in "\u200c\u200d\u00ad" or c > "\u02ff" for c in shown)
    assert not set("\x00\x1b\x7f\x9b\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\ufeff") & set(shown)
    assert visible(shown) == shown
    assert not set("<>") & set(plot_label(text))


def test_ordinary_writing_is_left_alone() -> None:
    for text in ("naïve ∑ x² → ∞", "שלום עולם", "مرحبا", "你好，世界", "क्षत्रिय", "👩‍👩‍👧 👍🏽", "a\u00a0b\tc\nd"):
        assert visible(text) == text


def test_numbers_that_are_none_are_null() -> None:
    assert json.loads(inert_json([float("nan"), float("inf"), 1.5, True, None])) == [None, None, 1.5, True, None]


def test_long_texts_are_cut_and_say_so() -> None:
    assert shortened("x" * 30_000).endswith("… (10000 characters more)")


def test_the_policy_names_the_scripts_by_their_digests() -> None:
    page = Reader("".join(html_parts("<b>title", {"page": {"text": "</script>"}}, "var Plotly = 1;")))
    assert page.tags.count("script") == 3
    assert "b" not in page.tags
    assert page.document("page") == {"text": "</script>"}
    assert "default-src 'none'; script-src 'sha256-" in page.policy
    assert page.policy.count("sha256-") == 2
    for word in ("unsafe-eval", "http", "*", "connect-src", "script-src 'unsafe-inline'"):
        assert word not in page.policy


# ---------------------------------------------------------------- which traces


@given(st.integers(0, 300), st.integers(1, 80), st.integers(0, 2**31))
def test_shown_traces_have_both_ends_and_prefer_the_chosen(num: int, limit: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    value = np.where(rng.random(num) < 0.1, np.nan, rng.normal(size=num))
    row = np.sort(rng.choice(10 * num + 1, num, replace=False))
    chosen = rng.random(num) < 0.3
    shown = choose_traces(value, row, chosen, limit)
    assert len(shown.place) == min(num, limit)
    assert (np.diff(shown.place) > 0).all()
    if num > limit:
        inside = set(shown.place.tolist())
        ranked = sorted(np.flatnonzero(np.isfinite(value)).tolist(), key=lambda i: (-value[i], row[i]))
        assert inside >= set(ranked[: shown.num_top]) | set(ranked[len(ranked) - shown.num_bottom :])
        assert shown.num_top + shown.num_bottom + shown.num_chosen + shown.num_uniform == limit
        assert shown.num_top >= min(limit // 10, len(ranked) // 2)
        assert f"{limit:,} of {num:,} samples" in shown.words
        again = choose_traces(value, row, chosen, limit)
        assert again.place.tolist() == shown.place.tolist()


# ---------------------------------------------------------------- the whole page


def test_a_report_carries_all_traces_with_their_numbers(tmp_path: Path, store: Store) -> None:
    out = tmp_path / "report.html"
    written = write_report(store, out, ReportRequest(max_traces=1000))
    assert (written.num_samples, written.num_traces, written.notes) == (
        NUM_SHOWN, NUM_SHOWN, ["1 images could not be shown; each trace says why."],
    )  # fmt: skip
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
    assert hostile["tokens"] == store.signal(None).segments("segment_num_tokens", store.find(HOSTILE_ID)).tolist()
    near = blocks[index["id"].index("copy-of-7")]["near"]
    assert [index["id"][near[0][0]], near[0][1]] == ["trace-0007", 1.0]


def test_neighbours_are_those_of_a_brute_force(tmp_path: Path, known: Store) -> None:
    out = tmp_path / "report.html"
    write_report(known, out, ReportRequest(signals=("first",)))
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
    written = write_report(known, out, ReportRequest(signals=("first",)))
    assert "Texts are not shown" in written.notes[0]
    trace = read_page(out).document("traces-0")[2]
    assert "segments" not in trace
    assert len(trace["cosines"]) == known.column("sample_num_steps")[2] + 1
    with pytest.raises(DataError, match="No such file or folder"):
        write_report(known, out, ReportRequest(signals=("first",), data=[str(tmp_path / "gone.jsonl")]))


def test_signals_are_compared_and_one_must_be_meant(tmp_path: Path, known: Store) -> None:
    out = tmp_path / "report.html"
    write_report(known, out, ReportRequest(signals=("first", "second=2")))
    page = read_page(out)
    boxes = page.document("figure-value-by-signal")["data"][0]
    assert boxes["y"] == ["first", "second"]
    for name, median in zip(boxes["y"], boxes["median"], strict=True):
        assert median == pytest.approx(np.median(score(known, ScoreRequest(signals=name)).value), rel=1e-4)
    with pytest.raises(LookupError, match="say which signal is meant"):
        write_report(known, out, ReportRequest())


@pytest.mark.parametrize("num_steps", [[1], [1, 2], [3, 1, 2]])
def test_a_store_of_hardly_any_samples_has_a_report_too(tmp_path: Path, num_steps: list[int]) -> None:
    out = tmp_path / "report.html"
    written = write_report(known_store(tmp_path, num_steps=num_steps).store, out, ReportRequest())
    assert written.num_traces == len(num_steps)


def test_a_store_with_nothing_done_has_a_report_too(tmp_path: Path) -> None:
    store = known_store(tmp_path, units={"base": []}).store
    written = write_report(store, tmp_path / "report.html", ReportRequest(partial=True))
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
    write_report(pool, out, ReportRequest(scores=(less,)))
    page = read_page(out)
    table = score(pool, ScoreRequest(spec=InfluenceSpec(method="less"), targets=Targets(targets)))
    np.testing.assert_allclose(page.document("trace-index")["value"], table.value, atol=1e-6)
    assert "cosines" not in page.document("traces-0")[0]
    took = next(block for section in page.document("page")["sections"] for block in section["blocks"]
                if block.get("title") == "What each took")["rows"]  # fmt: skip
    assert took[0][0] == "less"
    assert took[0][5:7] == [20, 20]  # forward, backward


def test_what_other_commands_made_is_used(tmp_path: Path, store: Store) -> None:
    scores, subset, out = tmp_path / "scores.parquet", tmp_path / "subset.txt", tmp_path / "report.html"
    score(store, out=scores)
    export(select(scores, ratio="0.1"), subset, ExportRequest(as_format="ids"))
    sweep(store, SweepSpec.parse(ratio=["0.1"], grid=[{"alpha": (0.2, 0.9)}]), out=tmp_path / "sweep")
    duplicates(store, DuplicatesRequest(threshold=0.99)).write(tmp_path / "duplicates.parquet")
    request = ReportRequest(
        scores=(scores,), subsets=(subset,), sweep=tmp_path / "sweep", duplicates=tmp_path / "duplicates.parquet"
    )
    write_report(store, out, request)
    page = read_page(out)
    assert sum(page.document("trace-index")["chosen"]) == -(-NUM_SHOWN // 10)
    assert page.document("figure-setting-overlap-0.1")["data"][0]["x"] == ["α 0.2", "α 0.9"]
    groups = [i for i, group in zip(page.document("trace-index")["id"], page.document("trace-index")["group"],
                                    strict=True) if group is not None]  # fmt: skip
    assert sorted(groups) == ["copy-of-7", "trace-0007"]


def test_kinds_of_traces_are_held_against_values(tmp_path: Path, store: Store) -> None:
    grace, longest, out = tmp_path / "grace.parquet", tmp_path / "longest.parquet", tmp_path / "report.html"
    score(store, out=grace)
    score(store, HeuristicSpec(method="longest"), out=longest)
    write_report(store, out, ReportRequest(scores=(grace, longest), by=("kind", "about.number")))
    section = next(each for each in read_page(out).document("page")["sections"] if each["key"] == "groups")
    by_kind, _, by_method, by_number = section["blocks"]
    table = read_scores(grace)
    number = np.array([int(name[-4:]) if name.startswith("trace-") else -1 for name in table.sample_id])
    number[table.sample_id.index("copy-of-7")] = 7
    even = (number >= 0) & (number % 2 == 0)
    brute = np.mean([(a > b) + 0.5 * (a == b) for a in table.value[even] for b in table.value[~even]])
    rows = {row[0]: row[1:] for row in by_kind["rows"]}
    assert set(rows) == {"even", SCRIPT, "(none)"}
    assert rows["even"][0] == even.sum()
    assert rows["even"][4] == pytest.approx(brute)
    chosen = np.isin(table.row, select(grace, ratio="0.2").row)
    assert rows["even"][3] == pytest.approx(chosen[even].mean() / chosen.mean())
    assert {row[0]: row[1] for row in by_method["rows"]}["even"] == pytest.approx(brute)
    assert len(by_method["rows"][0]) == 3
    known = number >= 0
    assert by_number["rows"][0][1:] == [
        known.sum(), pytest.approx(rank_correlation(table.value[known], number[known].astype(float)))
    ]  # fmt: skip


def test_a_field_that_no_record_has_is_said(tmp_path: Path, store: Store) -> None:
    with pytest.raises(DataError, match=r"No record of .* has a field 'quality'"):
        write_report(store, tmp_path / "report.html", ReportRequest(by=("quality",)))


def test_another_stores_tables_are_refused(tmp_path: Path, store: Store, known: Store) -> None:
    scores, subset, out = tmp_path / "scores.parquet", tmp_path / "subset.txt", tmp_path / "report.html"
    score(known, ScoreRequest(signals="first"), out=scores)
    with pytest.raises(ResumeMismatch, match="another plan"):
        write_report(store, out, ReportRequest(scores=(scores,)))
    sweep(known, SweepSpec.parse(grid=[{"signal": "first"}]), out=tmp_path / "sweep")
    with pytest.raises(ResumeMismatch, match="another plan"):
        write_report(store, out, ReportRequest(sweep=tmp_path / "sweep"))
    duplicates(known, DuplicatesRequest(signal="first")).write(tmp_path / "duplicates.parquet")
    with pytest.raises(ResumeMismatch, match="another plan"):
        write_report(store, out, ReportRequest(duplicates=tmp_path / "duplicates.parquet"))
    export(select(scores, ratio="0.5"), subset, ExportRequest(as_format="ids", store=known.location))
    with pytest.raises(ResumeMismatch, match="another plan"):
        write_report(store, out, ReportRequest(subsets=(subset,)))
    (tmp_path / "bare.txt").write_text("s1\n")
    with pytest.raises(DataError, match=r"bare.txt has no bare.txt.spec.json beside it"):
        write_report(store, out, ReportRequest(subsets=(tmp_path / "bare.txt",)))
    assert not out.exists()


def test_a_signal_beside_a_table_of_step_scores_is_refused_not_ignored(tmp_path: Path, known: Store) -> None:
    scores = tmp_path / "scores.parquet"
    score(known, ScoreRequest(signals="first"), out=scores)
    with pytest.raises(SettingError, match="leave --signal out"):
        write_report(known, tmp_path / "report.html", ReportRequest(scores=(scores,), signals=("second",)))


def test_a_report_is_never_written_over_what_it_is_made_from(tmp_path: Path, store: Store) -> None:
    scores = tmp_path / "scores.parquet"
    score(store, out=scores)
    before = scores.read_bytes()
    for out in (scores, Path(store.plan.files[0].path), Path(store.location) / "report.html"):
        with pytest.raises(SettingError, match="would replace or change"):
            write_report(store, out, ReportRequest(scores=(scores,)))
    assert scores.read_bytes() == before


def test_an_older_report_stays_whole_until_the_new_one_is(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "report.html"
    out.write_text("the old one")

    def break_down(*_: object) -> Any:
        yield "half a page"
        raise OSError("no space left")

    monkeypatch.setattr(writing, "html_parts", break_down)
    with pytest.raises(OSError, match="no space left"):
        write_report(store, out, ReportRequest(max_traces=20))
    assert out.read_text() == "the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


# ---------------------------------------------------------------- overview


def test_signals_that_differ_in_how_gradients_are_made_do_not_look_alike(known: Store) -> None:
    gradients = np.random.default_rng(0).standard_normal((known.plan.num_samples, DIMENSION))
    add_gradients(known, "plain", gradients, gradient_spec())
    add_gradients(known, "adam", gradients, gradient_spec(preconditioner="adam", moments="m", projection="sparse"))
    known = Store.open(known.location)
    table = score(known, ScoreRequest(signals="first"))
    section = overview_section(known, status(known), table, [("subset.jsonl", 3)])
    signals = next(block for block in section.blocks if block.get("title") == "Signals")
    assert signals["columns"][:5] == ["signal", "kind", "per", "preconditioner", "projection"]
    assert len(signals["columns"]) == len(signals["rows"][0])
    shown = {row[0]: row[1:5] for row in signals["rows"]}
    assert shown["first"] == ["proxy", "segment", None, None]
    assert shown["plain"] == ["gradient", "sample", "none", "rademacher"]
    assert shown["adam"] == ["gradient", "sample", "adam", "sparse"]
    scores = next(block for block in section.blocks if block.get("title") == "The scores")
    assert ["subset.jsonl", "a subset of 3 samples"] in scores["rows"]


# ---------------------------------------------------------------- costs


def test_costs_come_from_specs_and_run_logs(store: Store) -> None:
    state = status(store).signals
    grace, random, loss = (
        cost_of(score(store, spec).made_by, store, state)
        for spec in (None, HeuristicSpec(method="random"), HeuristicSpec(method="loss"))
    )
    assert (grace.num_forward, grace.num_backward) == (NUM_SHOWN, 0)
    assert (random.num_forward, random.num_bytes, random.seconds) == (0, 0, 0.0)
    assert grace == loss
    assert grace.seconds is not None
    assert grace.num_bytes == next(iter(state.values())).num_bytes


def test_seconds_are_added_up_over_runs_and_a_cut_line_is_passed_over(tmp_path: Path) -> None:
    known = known_store(tmp_path).store
    runs = Path(known.location) / "ledger" / "runs"
    runs.mkdir(parents=True)
    at = "2026-01-02T03:04:{:02}.000+00:00"
    started = {"event": "Started", "signal": "base"}
    (runs / "a.jsonl").write_text(
        "\n".join(json.dumps({"time": at.format(s), **event}) for s, event in
                  [(0, started), (10, {"event": "UnitCommitted"}), (15, {"event": "UnitCommitted"})])
    )  # fmt: skip
    (runs / "b.jsonl").write_text(
        json.dumps({"time": at.format(1), **started}) + "\n"
        + json.dumps({"time": at.format(8), "event": "UnitCommitted"}) + '\n{"time": "2026'
    )  # fmt: skip
    assert seconds_by_signal(known) == {"base": 22.0}


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
    assert "Reading 50 traces." in result.stderr
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
    assert ("faiss, which is not installed" in words) == bool(missing)


def test_without_plotly_it_says_what_to_install(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingExtra, match=r"pip install 'grace-store\[report\]'"):
        write_report(store, tmp_path / "report.html", ReportRequest())
