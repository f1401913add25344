"""What a table of scores says of its making: settings, store, signals."""

from __future__ import annotations

from typing import Any

from grace_store import __version__
from grace_store.read.blocks import CommittedSignals
from grace_store.read.signal_choice import SignalWeights


def describe(signals: CommittedSignals, spec: dict[str, Any], weights: SignalWeights) -> dict[str, Any]:
    """Return what the metadata of every scores table has."""
    store = signals.store
    return {
        "kind": "scores",
        "made_by": f"grace-store {__version__}",
        "spec": spec,
        "store": store.location,
        "plan_sha256": store.plan.digest(),
        "num_units": store.plan.num_units,
        "signals": {
            view.name: {
                "weight": weights.weights[view.name],
                "sha256": view.signal.identity(),
                "num_units": len(units),
            }
            for view, units in zip(signals.views, signals.committed, strict=True)
        },
        "partial": signals.is_partial,
    }
