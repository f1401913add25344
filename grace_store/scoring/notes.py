"""Notes of results: the settings, store, plan and signals that made a result. schemas/ has their JSON schemas."""

import hashlib
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, model_validator

from grace_store.base.documents import Count, Document, Number
from grace_store.base.errors import ResumeMismatch, SettingError
from grace_store.base.finding import NARROW, Estimate, LabelsFile, LabelsNote, PoolNote, SignalNote, WhereNote
from grace_store.base.settings import Frozen
from grace_store.base.text import counted
from grace_store.likeness.duplicate_groups import Keep, check_thresholds
from grace_store.likeness.recall import Recall
from grace_store.values.alignment import History
from grace_store.values.methods.method import InfluenceSpec, MethodSpec, parse_spec
from grace_store.values.weightings import WeightsSpec
from grace_store.values.within_groups import Within

if TYPE_CHECKING:
    from grace_store.store.opened import Store

WeightsFrom = Literal["given", "learning_rate", "equal"]


class ScoredSignal(SignalNote):
    """A signal with its weight."""

    weight: float = Field(gt=0, allow_inf_nan=False)


class NamedSignal(SignalNote):
    """A signal with its name in the store."""

    name: str


def _openable(place: str) -> str:
    if "\0" in place:
        raise SettingError("store is not a path or an address that can be opened")
    return place


class StoreNote(Document):
    """The note of every result from a store."""

    store: Annotated[str, AfterValidator(_openable)]
    plan_sha256: str
    num_units: Count
    """Number of units of the plan."""
    partial: bool
    """Whether signals were unfinished."""
    where: WhereNote | None = None
    """The filter on samples, if there was one."""
    labels: LabelsFile | None = None
    """The file of labels, if there was one."""


class Subtask(Frozen):
    """One subtask of a target set."""

    name: str
    num_samples: Count


class TargetsNote(Frozen):
    """The target set of an influence method."""

    store: str
    plan_sha256: str
    signals: dict[str, NamedSignal]
    """Target signals, by the signals of the pool."""
    subtasks_by: str | None = None
    """Field of the records that names the subtask; without it, files are subtasks."""
    subtasks: tuple[Subtask, ...]
    num_set_aside: Count
    num_zero: Count
    data: tuple[str, ...] = ()
    """Paths of the target set's files, if they were given."""


class CustomHistory(Frozen):
    """A history from Python: weights, or the name of a function."""

    sha256: str | None = None
    weights: tuple[tuple[float, ...], ...] | None = None
    function: str | None = None

    @classmethod
    def of(cls, history: History) -> Self:
        if callable(history):
            return cls(function=getattr(history, "__qualname__", type(history).__name__))
        given = np.asarray(history, dtype=np.float64)
        digest = hashlib.sha256(given.tobytes()).hexdigest()
        return cls(sha256=digest, weights=tuple(map(tuple, given.tolist())))


class GroupsNote(Frozen):
    """Groups of samples that were compared; a group has the traces of one question."""

    by: str | None = None
    """Field of the records that names the question; without it, the same prompt and images make a question."""
    within: Within | None = None
    """How values were compared within their group, if they were compared."""
    num_groups: Count
    num_compared: Count
    """Number of groups with at least two traces to compare."""
    num_alone: Count
    """Number of samples that are the only trace of their question."""


class LearnedNote(Frozen):
    """A learned value: its labels, its weights, and how well it tells right from wrong on questions it did not see."""

    labels: LabelsNote
    of: Literal["traces", "steps"]
    num_right: Count
    num_wrong: Count
    num_questions: Count
    """Number of questions with labels."""
    by: str | None = None
    """Field of the records that names the question; without it, the format's own, or the same prompt and images."""
    weights: dict[str, Number]
    """Weight of each standardised measure, of the model from all labels."""
    area: Estimate
    """Share of pairs, one right and one wrong, in which the right one has the larger value. Chance is 0.5."""
    area_within: Estimate
    """The same for pairs of one question."""
    single_area: Estimate
    """The area of the best single measure, which is found without the questions that it is judged on."""

    @property
    def in_words(self) -> str:
        """What was learned, in a few sentences."""
        labels = (
            f"{self.num_right} right and {self.num_wrong} wrong {self.of} of {counted(self.num_questions, 'question')}"
        )
        told = f"Learned from {labels}: on questions that were left out, a right one has the larger value in"
        pairs = f"{self.area.text(2)} of pairs (the best single measure: {self.single_area.text(2)}; chance: 0.50)"
        if not self.area.is_known:
            return f"{told} {pairs}. There are too few questions for an interval."
        if self.area.low <= 0.5:
            num = self.num_right + self.num_wrong
            more = "More labels would hardly change this."
            if self.area.half_width > NARROW:
                more = f"About {self.area.num_wanted(num)} labels would narrow this to {NARROW}."
            return f"{told} {pairs}: not shown to be better than chance. {more}"
        largest = sorted(filter(self.weights.get, self.weights), key=lambda name: -abs(self.weights[name]))[:3]
        weighed = ", ".join(f"{name} ({self.weights[name]:+.2g})" for name in largest)
        is_single_enough = self.single_area.value >= self.area.value
        single = " A single measure does as well: `judge` names it." if is_single_enough else ""
        return f"{told} {pairs}. The largest weights: {weighed}.{single}"


class ScoresNote(StoreNote, words="a table of scores", maker="score"):
    """The note of a table of scores."""

    kind: Literal["scores"] = "scores"
    spec: Annotated[
        SerializeAsAny[MethodSpec],
        BeforeValidator(lambda given: parse_spec(given) if isinstance(given, dict) else given),
    ]
    signals: dict[str, ScoredSignal]
    """Signals that were scored; none for measures that the plan knows."""
    custom_history: CustomHistory | None = None
    scales: tuple[tuple[Number, ...], ...] | None = None
    """Mean and standard deviation of each measure over the pool, if several measures were standardised."""
    learned: LearnedNote | None = None
    """How the value was learned, if it was."""
    checkpoints: tuple[str, ...] | None = None
    """For an influence method, the signals in the order of training."""
    weights_from: WeightsFrom | None = None
    targets: TargetsNote | None = None
    groups: GroupsNote | None = None
    """Groups of traces, if values depend on the other traces of a question."""
    influence_of: tuple[str, ...] | None = None
    """Names of the subtasks or capabilities in the column influence."""
    notes: tuple[str, ...] | None = None
    """Notes for the user."""
    label: Literal["reconstruction"] | None = None
    capabilities: tuple[tuple[str, ...], ...] | None = None
    subtask_cosine: tuple[tuple[float, ...], ...] | None = None
    thresholds: tuple[Number, ...] | None = None

    @property
    def title(self) -> str:
        """What the values are by: the method, the labels that taught it, and a comparison within questions."""
        learned = "" if self.learned is None else f" from {self.learned.labels}"
        within = "" if self.groups is None or self.groups.within is None else f", {self.groups.within} within questions"
        return f"{self.spec.title}{learned}{within}"

    @property
    def questions_by(self) -> str | None:
        """The field of the records that names the questions of the table; None for the same prompt and images."""
        named = self.groups or self.learned
        return None if named is None else named.by

    @property
    def signal(self) -> str:
        """The first signal that was scored."""
        if not self.signals:
            raise SettingError(
                f"the scores by {self.spec.title} come from the plan alone, and this needs a signal: name one with "
                "--signal. `grace-store extract` writes signals."
            )
        return next(iter(self.signals))

    @model_validator(mode="after")
    def _influence_is_whole(self) -> Self:
        if not self.signals and self.spec.reads_model:
            raise SettingError(f"signals is empty, but {self.spec.title} cannot be scored without one")
        if not isinstance(self.spec, InfluenceSpec):
            return self
        wanted = ("checkpoints", "weights_from", "targets", "influence_of")
        if missing := [name for name in wanted if getattr(self, name) is None]:
            raise SettingError(f"{', '.join(missing)} is missing: every table by method {self.spec.method} has this")
        for name in self.checkpoints or ():
            if name not in self.signals or name not in (self.targets.signals if self.targets else {}):
                raise SettingError(f"checkpoint {name!r} is not among the signals")
        return self


class WeightsNote(StoreNote, words="a table of weights", maker="weights"):
    """The note of a table of step weights."""

    kind: Literal["weights"] = "weights"
    spec: WeightsSpec
    signals: dict[str, ScoredSignal] = Field(min_length=1)


class PointsNote(StoreNote, words="a description of samples", maker="duplicates"):
    """The note of descriptors, by which samples are compared."""

    kind: str = "descriptors"
    signal: NamedSignal
    descriptor: str
    dimension: int | None = None
    seed: int | None = None
    scores: ScoresNote | None = None
    """The table of scores that weighed steps, or gave samples their values."""


class GroupSpec(Frozen):
    """Thresholds for duplicates, and the rule for the sample of a group that is kept."""

    threshold: float
    floor: float
    keep: Keep

    @model_validator(mode="after")
    def _are_cosines(self) -> Self:
        check_thresholds(self.threshold, self.floor)
        return self


class SearchNote(Frozen):
    """The search for similar samples."""

    index: str
    seed: int
    num_distinct: Count
    recall: Recall | None = None
    num_cells: Count | None = None
    num_probed: Count | None = None


_MISTAKEN = {
    "against": "It compares samples with benchmarks; `grace-store duplicates` compares them with each other.",
    "duplicates": "It compares samples with each other; `grace-store contamination` compares them with benchmarks.",
}
"""What to do when one kind of comparison is given instead of the other."""


class DuplicatesNote(PointsNote, words="a table of duplicates", mistaken=_MISTAKEN):
    """The note of a table of duplicates."""

    kind: Literal["duplicates"] = "duplicates"
    spec: GroupSpec
    num_samples: Count
    num_zero: Count
    exact_by: Literal["text", "record"]
    search: SearchNote
    subset: str | None = None


class AgainstSpec(Frozen):
    """Thresholds for contamination."""

    ngram: int = Field(ge=2, le=100)
    """Number of words in an n-gram."""
    share: float = Field(gt=0, le=1)
    """Least share of the n-grams of an item's question or solution that a contaminated sample contains."""
    cosine: float = Field(gt=0, le=1)
    """Least cosine between the descriptors of a contaminated sample and an item."""


class BenchmarkNote(Frozen):
    """A benchmark that samples were compared with, and the number of matches."""

    name: str
    """File, folder or store of the benchmark, as the user gave it."""
    sha256: str
    """Digest of the contents of its files, or of its plan if the files were missing."""
    num_items: Count
    num_set_aside: Count
    """Number of records without a question."""
    num_short: Count
    """Number of items that match only a whole prompt or response: too short, or made of common words."""
    num_found: Count
    """Number of items with a copy in a sample."""
    num_samples: Count
    """Number of samples with a copy of an item."""
    num_templates: Count
    """Number of samples with the words of an item but other numbers, and no copy of an item."""
    signal: NamedSignal | None = None
    """Signal of the benchmark's vectors; None if only texts were compared."""


class AgainstNote(StoreNote, words="a table of benchmark items in samples", maker="contamination", mistaken=_MISTAKEN):
    """The note of a table of benchmark items in samples."""

    kind: Literal["against"] = "against"
    spec: AgainstSpec
    benchmarks: tuple[BenchmarkNote, ...] = Field(min_length=1)
    num_samples: Count
    """Number of samples that were compared: all of the plan."""
    num_contaminated: Count
    """Number of samples with a copy of an item."""
    signal: NamedSignal | None = None
    """Signal of the pool's vectors, if vectors were compared."""
    descriptor: str | None = None
    dimension: int | None = None
    seed: int | None = None


def check_plan_of(note: StoreNote | TargetsNote | PoolNote, store: "Store", what: str | None = None) -> None:
    """Raise ResumeMismatch unless a result was made from the store's present plan; what is its kind and path."""
    if note.plan_sha256 != store.plan.digest():
        what = what or (note.words.partition(" ")[2] if isinstance(note, StoreNote) else "file")
        belongs = (
            f"Make the {what} again"
            if note.store == store.location
            else f"The {what} belongs to {note.store}: give a file of this store"
        )
        raise ResumeMismatch(
            f"The {what} was made from another plan than the present plan of {store.location}. {belongs}."
        )
