"""The fidelity audit as a document: what ``grace-store fidelity --out`` writes."""

from __future__ import annotations

from typing import ClassVar, Literal

from grace_store.base.documents import Count, Document, Number
from grace_store.base.settings import Frozen
from grace_store.values.agreement import Agreement, Survival


class SpaceFidelity(Frozen):
    """How the proxy agrees with the gradients over one set of parameters."""

    answer_alignment: Agreement
    history_alignment: Agreement
    value: Agreement
    chosen: Survival
    """How much the two choices share."""


class SampleAlignments(Frozen):
    """The scores of one sample by one set of inner products."""

    value: Number
    answer_alignment: tuple[Number, ...]
    history_alignment: tuple[Number, ...]


class FidelitySample(Frozen):
    """One sample by the proxy, and by each set of parameters."""

    sample_id: str
    scores: dict[str, SampleAlignments]


class FidelityDocument(Document):
    """The proxy's alignments against those of parameter gradients, over the same samples."""

    words: ClassVar[str] = "a measure of fidelity"
    maker: ClassVar[str] = "fidelity"

    kind: Literal["fidelity"] = "fidelity"
    store: str
    plan_sha256: str
    signal: str
    num_samples: Count
    num_steps: Count
    ratio: str
    by_chance: Number
    """What two random choices of that size would share."""
    spaces: dict[str, SpaceFidelity]
    samples: tuple[FidelitySample, ...] | None = None
    """Every number behind it."""
