"""Selections, how samples are chosen from a table of scores, and the subsets that they choose. Chooses nothing.

A selection is request, spec and note in one. A subset is a value in memory, or a file with its note beside it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, Field, InstanceOf, model_validator
from pydantic.json_schema import SkipJsonSchema

from grace_store.base.arrays import BoolArray, IntArray, Positions
from grace_store.base.documents import Count, Document, Number, read_document
from grace_store.base.errors import DataError, SettingError
from grace_store.base.files import file_sha256, sidecar_of
from grace_store.base.finding import WhereNote
from grace_store.base.settings import Settings
from grace_store.base.text import counted, first_few, last_name, one_line
from grace_store.choose.contamination_table import AgainstTable
from grace_store.scoring.notes import AgainstNote, DuplicatesNote, ScoresNote, WeightsNote, check_plan_of
from grace_store.scoring.parquet_columns import arrow_numbers
from grace_store.scoring.score_table import ScoreTable, read_scores
from grace_store.store.opened import Store
from grace_store.values.diverse_orders import DiversitySpec

DEFAULT_RATIO = "0.2"
SIZES = ("ratio", "count", "threshold")
"""Fields that say how much of a ranking is kept."""


def _as_text(given: Any) -> Any:
    return str(given) if isinstance(given, int | float | Decimal | Path) else given


def _as_diversity(given: Any) -> Any:
    return DiversitySpec.parse(method=given) if isinstance(given, str) else given


Written = Annotated[str, BeforeValidator(_as_text)]
"""A number or a path, kept as it was written."""
Given = SkipJsonSchema[Written]
"""What only a request holds: a note holds what became of it."""


class Selection(Settings):
    """How samples are chosen from a table of scores: what a user asks for, and what the note of a subset says.

    In a note all names are resolved: a filter and tables are replaced by notes of them, and flags, lengths and the
    field that names the question are those that were used.
    """

    ratio: Written | None = None
    """Share of the samples to keep. [default: 0.2; 1 with per_group or margin]"""
    count: int | None = None
    """Number of samples to keep."""
    threshold: float | None = None
    """Least value to keep."""
    by: str | None = None
    """A field of the records (dots lead inside), num_steps, or several that commas join: every subset has the strata
    that their values make in their natural shares."""
    exclude_flagged: tuple[str, ...] = ()
    """Names of flags; samples with one of them are left out before anything else. "hygiene" is all flags of traces."""
    exclude_contaminated: AgainstNote | SkipJsonSchema[InstanceOf[AgainstTable]] | Given | None = None
    """A table by ``grace-store contamination``; samples that have items of benchmarks in them are left out."""
    control: tuple[str, ...] = ()
    """Lengths that are taken out of the values first; "length" is all three."""
    diversity: Annotated[DiversitySpec, BeforeValidator(_as_diversity)] | None = None
    """An order that trades value against redundancy; a method alone has its default settings."""
    duplicates: DuplicatesNote | Given | None = None
    """A table by ``grace-store duplicates`` whose groups dedup takes, in place of a search of its own."""
    where: WhereNote | Given | None = None
    """Rank only what this keeps: a condition in SQL over fields of the records, id, row, num_steps, num_tokens, value
    and flags. A share is then a share of what is kept."""
    per_group: Written | None = None
    """At most this number of each question's traces, the best of them, or this share (with a point): 1 is the best of
    each question."""
    margin: float | None = None
    """Choose pairs: the best trace of each question, with the worst one that has another response as rejected, if their
    values differ by at least this, and at all. Pairs are ranked by that difference."""
    group_by: str | None = None
    """With per_group or margin, the field of the records that names the question; None for what the table was scored
    by, or else the same prompt and images."""

    def changed(self, **changes: Any) -> Self:
        """Return the same selection with other values of some fields, or raise SettingError."""
        return self.parse(**{**dict(self), **changes})

    @property
    def is_in_questions(self) -> bool:
        """Whether traces are chosen within their questions first."""
        return self.per_group is not None or self.margin is not None

    @property
    def sized(self) -> Self:
        """The same selection with the size that is meant where none is given: all that was chosen in questions."""
        said = [name for name in SIZES if getattr(self, name) is not None]
        if len(said) > 1:
            raise SettingError("give one of --ratio, --count and --threshold")
        default = "1" if self.is_in_questions else DEFAULT_RATIO
        return self if said else self.model_copy(update={"ratio": default})

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are not as they would be if nothing was said."""
        fields = type(self).model_fields
        return {name: value for name, value in self if value != fields[name].default}

    @property
    def rules(self) -> dict[str, str]:
        """What each of the given fields asks for, in words; brackets hold details."""
        return {name: WORDS[name](value) if name in WORDS else f"{name} {value}" for name, value in self.given.items()}

    @property
    def is_by_value(self) -> bool:
        """Whether nothing but values decides, so that no sample that is left out has a larger one."""
        return self.given.keys() <= {*SIZES}

    def differences(self, other: Self) -> list[tuple[str, str, str]]:
        """Return every field that differs, with what it asks for here and there, in words."""
        mine, theirs = self.rules, other.rules
        names = [name for name in type(self).model_fields if getattr(self, name) != getattr(other, name)]
        return [(name, mine.get(name, NOTHING), theirs.get(name, NOTHING)) for name in names]


NOTHING = "-"
"""What stands for a rule that a selection does not have."""


def _diversity_in_words(spec: DiversitySpec) -> str:
    said = spec.model_dump(exclude={"method"}, exclude_none=True)
    settings = ", ".join(f"{name} {value}" for name, value in said.items())
    return f"diversity by {spec.method}" + (f" ({settings})" if settings else "")


def _contaminated_in_words(given: Any) -> str:
    note = given.note if isinstance(given, AgainstTable) else given
    names = given if isinstance(given, str) else ", ".join(last_name(each.name) for each in note.benchmarks)
    return f"samples with benchmark items left out ({names})"


def _duplicates_in_words(given: DuplicatesNote | str) -> str:
    by = given if isinstance(given, str) else f"{given.descriptor} of signal {given.signal.name}"
    return f"near-duplicates last ({by})"


WORDS: dict[str, Callable[[Any], str]] = {
    "ratio": lambda ratio: f"the best {ratio}",
    "count": lambda count: f"the best {count}",
    "threshold": lambda least: f"values from {least:g} on",
    "by": lambda by: f"strata of {by}",
    "exclude_flagged": lambda flags: f"no samples flagged {', '.join(flags)}",
    "exclude_contaminated": _contaminated_in_words,
    "control": lambda lengths: f"{', '.join(lengths)} taken out of the values",
    "diversity": _diversity_in_words,
    "duplicates": _duplicates_in_words,
    "where": lambda where: f"a filter ({one_line(where if isinstance(where, str) else where.sql)})",
    "per_group": lambda most: f"at most {most} of the traces of a question",
    "margin": lambda least: f"pairs of the best and the worst trace of a question (differing by {least:g} or more)",
    "group_by": lambda field: f"questions told apart by {field}",
}
"""What the fields of a selection ask for, by name. A field that has no words here is told by its name and value."""


class SubsetNote(Document):
    """What made a subset, written beside it."""

    words: ClassVar[str] = "a subset"
    maker: ClassVar[str] = "select"

    kind: Literal["subset"] = "subset"
    spec: Selection
    as_format: str = Field(alias="as")
    num_samples: Count
    num_with_value: Count
    threshold: float | None = None
    smallest_value: Number
    scores: ScoresNote
    scores_path: str | None = None
    conclusion: str
    """What was chosen, in a sentence or two for people."""
    rows: tuple[Count, ...]
    """The chosen records' places in the dataset, ascending."""
    rejected_rows: tuple[Count, ...] | None = None
    """Of pairs, the place of the rejected record for each of the chosen ones."""
    weights: WeightsNote | None = None
    """The table of weights that its steps were written with, if any."""
    contaminated_rows: tuple[Count, ...] | None = None
    """With exclude_contaminated, the places in the dataset of the samples that it left out, ascending."""
    sha256: str | None = None
    """Digest of the subset's file as it was written; None for a folder."""

    @model_validator(mode="after")
    def _is_resolved(self) -> Self:
        """Refuse a selection that names a filter or a table without saying what became of it."""
        for name in ("exclude_contaminated", "duplicates", "where"):
            if isinstance(getattr(self.spec, name), str):
                raise SettingError(f"spec.{name} is a text, not the note of what was used")
        return self


# ---------------------------------------------------------------- subsets


@dataclass(frozen=True, slots=True)
class GroupCount:
    """How many samples of one group there were to choose from, and how many were chosen."""

    group: str
    pool: int
    """Samples that have a value."""
    chosen: int
    by_value: int
    """How many of as many would be chosen by value alone."""

    @property
    def share(self) -> float:
        return self.chosen / self.pool if self.pool else math.nan


@dataclass(frozen=True, slots=True)
class Excluded:
    """Samples of a table that were left out."""

    is_out: BoolArray
    """Whether each row of the table is left out."""
    flags: tuple[str, ...]
    num_flagged: int
    """Samples with a value that have one of the flags."""
    counts: dict[str, int]
    """How many of them have each of the flags; one may have several."""
    against: AgainstNote | None = None
    """The table of benchmark items that was given."""
    num_contaminated: int = 0
    """Samples with a value that have an item in them."""
    contaminated_rows: tuple[int, ...] | None = None
    """The places in the dataset of all samples that have an item in them, ascending; None if no table was given."""

    def __str__(self) -> str:
        told = []
        if self.flags:
            counts = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)
            what = f"{counted(self.num_flagged, 'sample')} left out for flags ({counts})"
            told.append(what if counts else "no sample has one of the flags to exclude")
        if self.against is not None:
            what = counted(self.num_contaminated, "sample") if self.num_contaminated else "no sample"
            names = ", ".join(last_name(each.name) for each in self.against.benchmarks)
            told.append(f"{what} left out for items of {names}")
        return "; ".join(told)


@dataclass(frozen=True, slots=True, repr=False)
class Subset:
    """The samples chosen from a table."""

    scores: ScoreTable
    ranked: IntArray
    """Rows of the table, the best first; of a subset that was read from a file, in the order of the records."""
    num_with_value: int
    """Samples that it was chosen from: those with a value, without what was excluded."""
    threshold: float
    """The smallest value that was kept, of those ranked by."""
    spec: Selection
    """How it was chosen."""
    notes: tuple[str, ...] = ()
    """What the user should know."""
    groups: tuple[GroupCount, ...] = ()
    """With strata or a filter, how many samples of each group were chosen."""
    excluded: Excluded | None = None
    """What was left out for its flags, or for items of benchmarks."""
    conclusion: str = ""
    """What was chosen, in a sentence or two."""
    rejected: IntArray | None = None
    """Of pairs, the row of the table that each of the ranked ones is preferred to."""
    path: Path | None = None
    """The file that it was read from: a subset, or the table whose best samples it is."""

    @property
    def chosen(self) -> IntArray:
        """Rows of the table in the order of the records."""
        return self.ranked[np.argsort(self.scores.row[self.ranked])]

    @property
    def row(self) -> IntArray:
        """The chosen samples' rows in the dataset, ascending."""
        return self.scores.row[self.chosen]

    @property
    def rejected_row(self) -> IntArray | None:
        """Of pairs, the rows in the dataset of what each of the chosen samples, by ascending row, is preferred to."""
        if self.rejected is None:
            return None
        row = self.scores.row
        return row[self.rejected[np.argsort(row[self.ranked])]]

    @property
    def sample_id(self) -> list[str]:
        """The chosen samples' ids, in the order of the records."""
        chosen = arrow_numbers(self.chosen, pa.int64())
        ids: list[str] = self.scores.table["sample_id"].take(chosen).to_pylist()
        return ids

    @property
    def is_by_value(self) -> bool:
        """Whether nothing but the table's values decided, so that what is left out has no larger one."""
        return self.spec.is_by_value and self.scores.capability is None

    def to_pandas(self) -> Any:
        """Return the chosen rows of the table, the best first, as a pandas DataFrame."""
        return self.scores.table.take(self.ranked).to_pandas()

    def __len__(self) -> int:
        return len(self.ranked)

    def __repr__(self) -> str:
        return f"<Subset: {len(self)} of {counted(self.num_with_value, 'sample')} by {self.scores.method}>"


NAMES_SHOWN = 3


def check_unchanged(path: Path, note: SubsetNote) -> None:
    """Raise DataError if a subset is no longer the file that ``select`` wrote."""
    if path.is_file() and file_sha256(path) != note.sha256:
        raise DataError(
            f"{path} was changed since `grace-store select` wrote it: {sidecar_of(path).name} beside it, which says "
            "what was chosen, does not fit it any more. Select it again; or give what you want as a list of ids, one "
            "on a line, in a file of its own."
        )


def samples_named(store: Store, path: str | Path) -> Positions:
    """Return the positions in the plan, ascending, of the samples that a file names; none may be missing."""
    path = Path(path)
    if (rows := selected_rows(store, path)) is not None:
        return Positions(np.sort(store.positions_of(rows)))
    if path.suffix == ".parquet":
        scores = read_scores(path, steps=False)
        check_plan_of(scores.note, store, scores.what)
        return Positions(np.sort(store.positions_of(scores.row)))
    return Positions(_with_ids(store, path))


def selected_rows(store: Store, path: Path) -> IntArray | None:
    """Return the dataset rows, ascending, of a subset that ``select`` wrote; None if there is no note beside it."""
    sidecar = sidecar_of(path)
    if not sidecar.is_file():
        return None
    note = read_document(sidecar, SubsetNote)
    check_plan_of(note.scores, store, f"subset {path}")
    found = np.unique(np.array(note.rows, dtype=np.int64))
    if not np.isin(found, store.column("sample_row")).all():
        raise DataError(f"{sidecar} names records that {store.location} has no samples of; select it again.")
    return found


def _with_ids(store: Store, path: Path) -> IntArray:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a list of ids ({error}).") from None
    wanted = {line.removesuffix("\r") for line in lines if line.strip()}
    ids = store.column("sample_id").tolist()
    found = [position for position, text in enumerate(ids) if text in wanted]
    if len(found) < len(wanted):
        unknown = sorted(wanted - set(ids))
        shown = first_few([repr(name[:80]) for name in unknown], NAMES_SHOWN)
        raise DataError(
            f"{path} is neither a subset with its {sidecar_of(path).name} beside it nor a list of ids of "
            f"{store.location}: {counted(len(unknown), 'line')} without such an id ({shown})."
        )
    return np.array(found, dtype=np.int64)
