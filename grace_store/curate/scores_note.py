"""What a table of scores says of its making: settings, store, signals."""

from __future__ import annotations

from typing import Any

from grace_store.artifacts.notes import ScoredSignal, ScoresNote
from grace_store.read.blocks import CommittedSignals
from grace_store.read.signal_choice import SignalWeights
from grace_store.values.methods.method_spec import MethodSpec


def scores_note(signals: CommittedSignals, spec: MethodSpec, weights: SignalWeights, **more: Any) -> ScoresNote:
    """Return the note of every table of scores; more are fields that only some methods have."""
    store = signals.store
    return ScoresNote(
        spec=spec,
        store=store.location,
        plan_sha256=store.plan.digest(),
        num_units=store.plan.num_units,
        signals={
            view.name: ScoredSignal(
                weight=weights.weights[view.name], sha256=view.signal.identity(), num_units=len(units)
            )
            for view, units in zip(signals.views, signals.committed, strict=True)
        },
        partial=signals.is_partial,
        **more,
    )
