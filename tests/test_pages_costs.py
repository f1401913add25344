"""What a table of scores took, from specs and run logs."""

from __future__ import annotations

import json
from pathlib import Path

from grace_store.pages.costs import cost_of, seconds_by_signal
from grace_store.run.status import status
from grace_store.scoring.score import score
from grace_store.values.methods.method import HeuristicSpec
from tests.reports import make_store
from tests.scored_stores import known_store

NUM_TRACES = 20


def test_costs_come_from_specs_and_run_logs(tmp_path: Path) -> None:
    store = make_store(tmp_path, NUM_TRACES, hostile=False)
    state = status(store).signals
    grace, random, loss = (
        cost_of(score(store, spec).note, store, state)
        for spec in (None, HeuristicSpec(method="random"), HeuristicSpec(method="loss"))
    )
    assert (grace.num_forward, grace.num_backward) == (NUM_TRACES + 1, 0)
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
