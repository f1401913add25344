"""Score a store: Grams in, a table out, unit by unit. Needs no model and reads no vector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grace_store import __version__
from grace_store.errors import Unfinished
from grace_store.score import ScoreSpec, score_ragged
from grace_store.select.table import write_scores
from grace_store.store import SignalView, unit_range


def score(view: SignalView, spec: ScoreSpec, out: Path, *, partial: bool = False) -> int:
    """Write the scores of every done sample of a signal and return how many there are."""
    units = view.committed_units()
    plan = view.store.plan
    if len(units) < plan.num_units and not partial:
        raise Unfinished(
            f"Signal {view.name!r} of {view.store.location} has {len(units)} of {plan.num_units} units. Run the same "
            "`grace-store extract` to finish it, or give --partial to score what is there."
        )
    num_scored = 0
    with write_scores(out, _made_by(view, spec, partial=len(units) < plan.num_units)) as table:
        for unit in units:
            grams = view.unit_grams(unit)
            scores = score_ragged(grams.num_steps, grams.gram, grams.num_tokens, spec)
            start, stop = unit_range(plan, unit)
            ids = view.store.column("sample_id", start, stop).tolist()
            rows = view.store.column("sample_row", start, stop)
            done = grams.sample - start
            table.add([ids[i] for i in done], rows[done], grams.num_steps, scores)
            num_scored += len(done)
    return num_scored


def _made_by(view: SignalView, spec: ScoreSpec, *, partial: bool) -> dict[str, Any]:
    return {
        "kind": "scores",
        "made_by": f"grace-store {__version__}",
        "spec": spec.model_dump(mode="json"),
        "store": view.store.location,
        "plan_sha256": view.store.plan.digest(),
        "signals": {view.name: {"weight": 1.0, "sha256": view.signal.digest()}},
        "partial": partial,
    }
