"""The notes that results carry: which settings, store, plan and signals made them. schemas/ has them for programs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, model_validator

from grace_store.base.documents import Count, Document, Number
from grace_store.base.errors import ResumeMismatch, SettingError
from grace_store.base.finding import PoolNote, SignalNote, WhereNote
from grace_store.base.settings import Frozen
from grace_store.likeness.duplicate_groups import Keep, check_thresholds
from grace_store.likeness.recall import Recall
from grace_store.values.methods import METHODS
from grace_store.values.methods.method import InfluenceMethod, Method, MethodSpec, parse_spec
from grace_store.values.weightings import WeightsSpec
from grace_store.values.within_groups import Within

if TYPE_CHECKING:
    from grace_store.store.opened import Store

WeightsFrom = Literal["given", "learning_rate", "equal"]


def _as_spec(given: Any) -> Any:
    return parse_spec(given) if isinstance(given, dict) else given


AnyMethodSpec = Annotated[SerializeAsAny[MethodSpec], BeforeValidator(_as_spec)]
"""The settings of whichever method they name."""


class ScoredSignal(SignalNote):
    """A signal and how much it counted."""

    weight: float = Field(gt=0, allow_inf_nan=False)


class NamedSignal(SignalNote):
    """A signal under its name in the store."""

    name: str


def _openable(place: str) -> str:
    if "\0" in place:
        raise SettingError("store is not a place that can be opened")
    return place


class StoreNote(Document):
    """What everything that is made from a store says of it."""

    store: Annotated[str, AfterValidator(_openable)]
    plan_sha256: str
    num_units: Count
    """Units of the plan."""
    partial: bool
    """Whether signals were unfinished."""
    where: WhereNote | None = None
    """Which samples were looked at, if not all."""


# ---------------------------------------------------------------- scores


class Subtask(Frozen):
    """One subtask of a target set."""

    name: str
    num_samples: Count


class TargetsNote(Frozen):
    """The target set that an influence method scored by."""

    store: str
    plan_sha256: str
    signals: dict[str, NamedSignal]
    """By the pool's signals."""
    subtasks_by: str | None = None
    """The records' field; without it, files are subtasks."""
    subtasks: tuple[Subtask, ...]
    num_set_aside: Count
    num_zero: Count
    data: tuple[str, ...] = ()
    """Where the target set's files were, if they had to be given."""


class CustomHistory(Frozen):
    """A history that was given from Python: weights, or the name of a function."""

    sha256: str | None = None
    weights: tuple[tuple[float, ...], ...] | None = None
    function: str | None = None


class GroupsNote(Frozen):
    """The groups, each the traces of one question, that samples were compared within."""

    by: str | None = None
    """The records' field; without it, traces of one question have the same prompt and images."""
    within: Within | None = None
    """How values were compared within their group, if they were."""
    num_groups: Count
    num_compared: Count
    """Groups with at least two traces to compare."""
    num_alone: Count
    """Samples that are the only trace of their question."""


class ScoresNote(StoreNote):
    """What made a table of scores."""

    words: ClassVar[str] = "a table of scores"
    maker: ClassVar[str] = "score"

    kind: Literal["scores"] = "scores"
    spec: AnyMethodSpec
    signals: dict[str, ScoredSignal] = Field(min_length=1)
    custom_history: CustomHistory | None = None
    checkpoints: tuple[str, ...] | None = None
    """Of an influence method: the signals, in the order of training."""
    weights_from: WeightsFrom | None = None
    targets: TargetsNote | None = None
    groups: GroupsNote | None = None
    """The traces of each question, if the values depend on them."""
    influence_of: tuple[str, ...] | None = None
    """What the numbers in the column influence are influences on."""
    notes: tuple[str, ...] | None = None
    """What the user should know."""
    label: Literal["reconstruction"] | None = None
    capabilities: tuple[tuple[str, ...], ...] | None = None
    subtask_cosine: tuple[tuple[float, ...], ...] | None = None
    thresholds: tuple[Number, ...] | None = None

    @property
    def method(self) -> Method:
        return METHODS[self.spec.method]

    @model_validator(mode="after")
    def _influence_is_whole(self) -> Self:
        if not isinstance(self.method, InfluenceMethod):
            return self
        wanted = ("checkpoints", "weights_from", "targets", "influence_of")
        if missing := [name for name in wanted if getattr(self, name) is None]:
            raise SettingError(f"{', '.join(missing)} is missing, which a table by {self.spec.method} has")
        for name in self.checkpoints or ():
            if name not in self.signals or name not in (self.targets.signals if self.targets else {}):
                raise SettingError(f"checkpoint {name!r} is not among the signals")
        return self


class WeightsNote(StoreNote):
    """What made a table of step weights."""

    words: ClassVar[str] = "a table of weights"
    maker: ClassVar[str] = "weights"

    kind: Literal["weights"] = "weights"
    spec: WeightsSpec
    signals: dict[str, ScoredSignal] = Field(min_length=1)


# ---------------------------------------------------------------- duplicates, diversity


class PointsNote(StoreNote):
    """Which vectors samples are compared by."""

    words: ClassVar[str] = "a description of samples"
    maker: ClassVar[str] = "duplicates"

    kind: str = "descriptors"
    signal: NamedSignal
    descriptor: str
    dimension: int | None = None
    seed: int | None = None
    scores: ScoresNote | None = None
    """What weighed steps, or gave samples their values."""


class GroupSpec(Frozen):
    """From which cosine on samples are alike, and which one of a group is kept."""

    threshold: float
    floor: float
    keep: Keep

    @model_validator(mode="after")
    def _are_cosines(self) -> Self:
        check_thresholds(self.threshold, self.floor)
        return self


class SearchNote(Frozen):
    """How similar samples were looked for."""

    index: str
    seed: int
    num_distinct: Count
    recall: Recall | None = None
    num_cells: Count | None = None
    num_probed: Count | None = None


class DuplicatesNote(PointsNote):
    """What made a table of duplicates."""

    words: ClassVar[str] = "a table of duplicates"
    maker: ClassVar[str] = "duplicates"
    mistaken: ClassVar[Mapping[str, str]] = {
        "against": "It compares samples with benchmarks; `grace-store duplicates` compares them with each other."
    }

    kind: Literal["duplicates"] = "duplicates"
    spec: GroupSpec
    num_samples: Count
    num_zero: Count
    exact_by: Literal["text", "record"]
    search: SearchNote
    subset: str | None = None


# ---------------------------------------------------------------- against benchmarks


class AgainstSpec(Frozen):
    """From when on a sample counts as having an item of a benchmark in it."""

    ngram: int = Field(ge=2, le=100)
    """Words in a run."""
    share: float = Field(gt=0, le=1)
    """Of the runs of an item's question or solution that a sample has."""
    cosine: float = Field(gt=0, le=1)
    """Between the descriptors of a sample and an item."""


class BenchmarkNote(Frozen):
    """A benchmark that samples were compared with, and what was found of it."""

    name: str
    """Its file, folder or store, as it was given."""
    sha256: str
    """Digest over its files' contents, or of its plan if they were out of reach."""
    num_items: Count
    num_set_aside: Count
    """Records without a question."""
    num_short: Count
    """Items found only as the whole of a prompt or response: too short, or made of common words."""
    num_found: Count
    """Items that samples have copies of."""
    num_samples: Count
    """Samples that have such a copy."""
    num_templates: Count
    """Samples that have an item's words with other numbers, and no copy of an item."""
    signal: NamedSignal | None = None
    """Whose vectors were compared, too; None where only texts were."""


class AgainstNote(StoreNote):
    """What made a table of samples that have items of benchmarks in them."""

    words: ClassVar[str] = "a table of benchmark items in samples"
    maker: ClassVar[str] = "contamination"
    mistaken: ClassVar[Mapping[str, str]] = {
        "duplicates": "It compares samples with each other; `grace-store contamination` compares them with benchmarks."
    }

    kind: Literal["against"] = "against"
    spec: AgainstSpec
    benchmarks: tuple[BenchmarkNote, ...] = Field(min_length=1)
    num_samples: Count
    """Samples that were looked at: all of the plan."""
    num_contaminated: Count
    """Samples that have a copy of an item."""
    signal: NamedSignal | None = None
    """The pool's, if vectors were compared."""
    descriptor: str | None = None
    dimension: int | None = None
    seed: int | None = None


# ---------------------------------------------------------------- is a file of a store

Planned: TypeAlias = StoreNote | TargetsNote | PoolNote
"""What says which plan it was made from."""


def check_plan_of(note: Planned, store: "Store", what: str | None = None) -> None:
    """Raise ResumeMismatch unless a file was made from the store's present plan; what says its kind and name."""
    if note.plan_sha256 != store.plan.digest():
        what = what or (note.words.partition(" ")[2] if isinstance(note, StoreNote) else "file")
        belongs = (
            "Make it again" if note.store == store.location else f"It belongs to {note.store}: give one of this store"
        )
        raise ResumeMismatch(f"The {what} was made from another plan than the one now in {store.location}. {belongs}.")
