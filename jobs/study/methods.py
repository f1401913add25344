"""Every way to choose a subset in the study: which settings of grace-store, on which signals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grace_store.values.methods.method import InfluenceSpec, ScoreSpec

Signals = Literal["proxy", "projected", "adam", "plain"]
"""proxy: the last checkpoint's proxies; projected: its gradient of every segment; adam: every checkpoint's gradient of
every sample, preconditioned; plain: the last checkpoint's, as it is."""


@dataclass(frozen=True, slots=True)
class Method:
    """One way to choose."""

    label: str
    spec: ScoreSpec | InfluenceSpec | None
    """None for random choice, whose seed is that of the training."""
    signals: Signals = "proxy"


METHODS: dict[str, Method] = {
    "random": Method("Random", None),
    "longest": Method("Longest", ScoreSpec(measure=("tokens",))),
    "stepmax": Method("Stepmax", ScoreSpec(measure=("steps",))),
    "loss": Method("Loss", ScoreSpec(measure=("loss:highest",))),
    "less": Method("LESS", InfluenceSpec(method="less"), "adam"),
    "icons": Method("ICONS", InfluenceSpec(method="icons"), "plain"),
    "cadc": Method("CADC (reconstruction)", InfluenceSpec(method="cadc"), "adam"),
    "grace": Method("GRACE", ScoreSpec()),
    "grace-without-history": Method("w/o Hist.", ScoreSpec(alpha=1.0)),
    "grace-without-answer": Method("w/o Ans.", ScoreSpec(without_answer=True)),
    "grace-trace": Method("Target = CoT + Ans", ScoreSpec(target="trace")),
    "grace-suffix": Method("Target = Suffix", ScoreSpec(target="suffix")),
    "grace-projected": Method("Proxy = Proj. Grad.", ScoreSpec(), "projected"),
}

FULL, BASE = "full", "base"
"""The references: trained on the whole pool, and not trained any further."""
REFERENCES = {FULL: "Full pool", BASE: "Base model"}


def label(name: str) -> str:
    return REFERENCES.get(name) or METHODS[name].label
