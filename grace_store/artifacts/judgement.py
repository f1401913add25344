"""The judgement as a document: what ``grace-store judge`` finds and writes with ``--out``."""

from typing import ClassVar, Literal

from pydantic import Field

from grace_store.artifacts.notes import SignalNote, StoreNote
from grace_store.base.documents import Count, Number
from grace_store.base.settings import Frozen
from grace_store.values.first_errors import FirstErrors
from grace_store.values.roc import Area
from grace_store.values.score_spec import ScoreSpec

LabelsOf = Literal["traces", "first_wrong", "wrong_steps"]
Better = Literal["higher", "lower", "more", "earlier", "-"]


class LabelsNote(Frozen):
    """Where the labels are in the records, and what they say."""

    field: str
    says: LabelsOf
    """Whether a trace is right, which step is the first wrong one, or which steps are wrong."""
    threshold: float | None = None
    """Of a label that is a number: right from this on."""
    kind: str | None = None
    """The field that names kinds of error."""
    question: str | None = None
    """The field that traces of one question share; without it, the prompt."""


class JudgedMeasure(Frozen):
    """How well one measure tells right from wrong."""

    measure: str
    signal: str | None = None
    """None for what needs no model."""
    better: Better
    """What is taken for a sign of being right. The area of the opposite is 1 minus this one."""
    across: Area
    """Over pairs of all questions."""
    within: Area
    """Over pairs of the same question."""
    across_fixed: Area
    """Over pairs with the same place and similar length: position and tokens of a step, steps and tokens of a trace."""
    within_fixed: Area
    """Over pairs that share all three."""
    kinds: dict[str, Area] = Field(default_factory=dict)
    """By kind of error: its wrong items against all right ones, with place and length held fixed."""
    first_errors: FirstErrors | None = None

    @property
    def name(self) -> str:
        return self.measure if self.signal is None else f"{self.measure} of {self.signal}"


class JudgedItems(Frozen):
    """Steps, or whole traces, as each measure sees them."""

    of: Literal["steps", "traces"]
    num_right: Count
    num_wrong: Count
    num_questions: Count
    conclusion: str
    """A sentence or two for people."""
    measures: tuple[JudgedMeasure, ...]
    chance_of_first_errors: Number | None = None
    """The F1 of a blind judge that calls each step wrong by the same chance, whichever is best."""


class Judgement(StoreNote):
    """What stored signals know of labels: the whole document that ``grace-store judge --out`` writes."""

    words: ClassVar[str] = "a judgement"
    maker: ClassVar[str] = "judge"

    kind: Literal["judgement"] = "judgement"
    signals: dict[str, SignalNote]
    skipped: tuple[str, ...] = ()
    """Signals that have one vector a sample, and no steps."""
    spec: ScoreSpec
    """How Grams became scores."""
    labels: LabelsNote
    num_samples: Count
    num_left_out: Count
    """Samples whose record has no label, or one that names a step it does not have."""
    draws: Count
    seed: Count
    judged: tuple[JudgedItems, ...]
    """Steps first, if they have labels; then traces, if there are right and wrong ones."""

    @property
    def conclusion(self) -> str:
        return " ".join(each.conclusion for each in self.judged)
