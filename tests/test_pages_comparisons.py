"""The parts that compare: the cost of each table, and groups by a field against a loop over all pairs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import SettingError
from grace_store.base.text import size
from grace_store.choose.select import select
from grace_store.pages.comparisons import cost_of, seconds_by_signal
from grace_store.pages.report import report
from grace_store.pages.report_inputs import ReportRequest
from grace_store.run.status import status
from grace_store.scoring.score import score
from grace_store.scoring.score_table import read_scores
from grace_store.store.opened import Store
from grace_store.values.length_bias import rank_correlation
from grace_store.values.methods.method import ScoreSpec
from tests.reports import SCRIPT, make_store, read_page
from tests.scored_stores import known_store

NUM_TRACES = 20


def test_costs_come_from_specs_and_run_logs(tmp_path: Path) -> None:
    store = make_store(tmp_path, NUM_TRACES, hostile=False)
    state = status(store).signals
    grace, random, loss = (
        cost_of(score(store, spec).note, store, state)
        for spec in (None, ScoreSpec(measure=("random",)), ScoreSpec(measure=("loss:highest",)))
    )
    assert (grace["forward passes"], grace["backward passes"]) == (NUM_TRACES + 1, 0)
    assert random == {"forward passes": 0, "backward passes": 0, "stored": "0 B", "run time": "0 s"}
    assert grace == loss
    assert grace["run time"] != "not logged"
    assert grace["stored"] == size(next(iter(state.values())).num_bytes)


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


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(tmp_path_factory.mktemp("store"))


def test_kinds_of_traces_are_held_against_values(tmp_path: Path, store: Store) -> None:
    grace, longest, out = tmp_path / "grace.parquet", tmp_path / "longest.parquet", tmp_path / "report.html"
    score(store, out=grace)
    score(store, ScoreSpec(measure=("tokens",)), out=longest)
    report(store, out, ReportRequest(scores=(grace, longest), by=("kind", "about.number")))
    page = read_page(out)
    section = next(each for each in page.document("page")["sections"] if each["key"] == "groups")
    by_kind, by_method, by_number = (block for block in section["blocks"] if block["kind"] == "table")
    drawn = [block["figure"] for block in section["blocks"] if block["kind"] == "figure"]
    assert drawn == ["value-by-field-1", "chosen-by-field-1", "value-by-field-2", "chosen-by-field-2"]
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
    shares = page.document("figure-chosen-by-field-1")["data"][0]
    place = shares["y"].index(f"even ({even.sum()})")
    assert shares["x"][place] == pytest.approx(chosen[even].mean(), rel=1e-4)
    boxes = page.document("figure-value-by-field-2")["data"][0]
    smallest = table.value[(number >= 0) & (number <= 25)]
    assert boxes["y"][0] == f"0 to 25 ({len(smallest)})"
    assert boxes["median"][0] == pytest.approx(np.median(smallest), rel=1e-4)
    assert {row[0]: row[1] for row in by_method["rows"]}["even"] == pytest.approx(brute)
    assert len(by_method["rows"][0]) == 3
    known = number >= 0
    assert by_number["rows"][0][1:] == [
        known.sum(), pytest.approx(rank_correlation(table.value[known], number[known].astype(float)))
    ]  # fmt: skip


def test_a_field_that_no_record_has_is_said(tmp_path: Path, store: Store) -> None:
    with pytest.raises(SettingError, match=r"No record of .* has a field 'quality'. There are: .*kind, about.number"):
        report(store, tmp_path / "report.html", ReportRequest(by=("quality",)))
