"""Selections (the rules by which samples are chosen) and subsets (the samples chosen) as values. Chooses nothing.

A selection is request, spec and note in one. A subset is a value in memory, or a file with its note beside it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, Field, InstanceOf, model_validator
from pydantic.json_schema import SkipJsonSchema

from grace_store.base.arrays import BoolArray, IntArray, Positions
from grace_store.base.documents import Count, Document, Number, read_document
from grace_store.base.errors import DataError, SettingError
from grace_store.base.files import file_sha256, sidecar_of
from grace_store.base.finding import LabelsFile, WhereNote
from grace_store.base.settings import Settings
from grace_store.base.text import counted, first_few, last_name, one_line
from grace_store.choose.contamination_table import AgainstTable
from grace_store.pool.arrow_arrays import arrow_numbers
from grace_store.scoring.notes import AgainstNote, DuplicatesNote, ScoresNote, WeightsNote, check_plan_of
from grace_store.scoring.score_table import ScoreTable, read_scores
from grace_store.store.opened import Store
from grace_store.values.diverse_orders import DiversitySpec

SIZES = ("ratio", "count", "threshold")
"""Fields that give the size of the subset."""
Written = Annotated[
    str, BeforeValidator(lambda given: str(given) if isinstance(given, int | float | Decimal | Path) else given)
]
"""A number or a path, kept as it was written."""
Given = SkipJsonSchema[Written]
"""A text that only a request has: a note has the resolved value instead."""


class Selection(Settings):
    """The rules by which samples are chosen from a table of scores, as a user gives them or as a note of a subset.

    In a note all names are resolved: a filter and tables are replaced by their notes, and the note names the flags, the
    lengths and the field of the question that were used.
    """

    ratio: Written | None = None
    """Share of the samples to keep. [default: 0.2; 1 with per_group or margin]"""
    count: int | None = None
    """Number of samples to keep."""
    threshold: float | None = None
    """Least value to keep."""
    by: str | None = None
    """A field of the records (a dot leads into a nested field), num_steps, or several fields joined by commas. Their
    values make strata, and every stratum keeps its share of the pool."""
    exclude_flagged: tuple[str, ...] = ()
    """Names of flags; samples with one of these flags are left out first. "hygiene" means all flags of traces."""
    exclude_contaminated: AgainstNote | SkipJsonSchema[InstanceOf[AgainstTable]] | Given | None = None
    """A table by ``grace-store contamination``; samples that contain items of benchmarks are left out."""
    control: tuple[str, ...] = ()
    """Lengths that are taken out of the values by regression; "length" means all three."""
    diversity: (
        Annotated[
            DiversitySpec,
            BeforeValidator(lambda given: DiversitySpec.parse(method=given) if isinstance(given, str) else given),
        ]
        | None
    ) = None
    """An order that trades value against redundancy. The name of a method stands for its default settings."""
    duplicates: DuplicatesNote | Given | None = None
    """A table by ``grace-store duplicates``. The method dedup uses its groups instead of a new search."""
    where: WhereNote | Given | None = None
    """Rank only samples that meet this condition: SQL over fields of the records, id, row, num_steps, num_tokens, value
    and flags. A ratio is then a share of these samples."""
    per_group: Written | None = None
    """Keep at most this number of the traces of each question, the best first, or this share (with a decimal point): 1
    keeps the best trace of each question."""
    margin: float | None = None
    """Choose pairs: the best trace of each question and, as rejected, the worst trace that has another response. Their
    values must differ by at least this margin. Pairs are ranked by the difference."""
    group_by: str | None = None
    """With per_group or margin, the field of the records that names the question; None for the questions of the
    scoring, or else the same prompt and images."""
    labels: LabelsFile | Given | None = None
    """A file (CSV, JSON lines, Parquet) with a column id. Its other columns are used as if they were fields."""
    right: str | None = None
    """Choose pairs of a right and a wrong trace: a trace is right if it meets this condition in SQL, and wrong if it
    does not. A trace for which the condition is NULL has no label, and is left out."""

    def changed(self, **changes: Any) -> Self:
        """Return the selection with other values of some fields; raise SettingError if a value is invalid."""
        return self.parse(**{**dict(self), **changes})

    @property
    def is_in_questions(self) -> bool:
        """Whether traces are first chosen within their questions."""
        return self.per_group is not None or self.is_of_pairs

    @property
    def is_of_pairs(self) -> bool:
        """Whether pairs of traces are chosen."""
        return self.margin is not None or self.right is not None

    @property
    def sized(self) -> Self:
        """The selection with a default size if none is given: 0.2, or all traces that were chosen within questions."""
        said = [name for name in SIZES if getattr(self, name) is not None]
        if len(said) > 1:
            raise SettingError("give one of --ratio, --count and --threshold")
        return self if said else self.model_copy(update={"ratio": "1" if self.is_in_questions else "0.2"})

    @property
    def given(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        fields = type(self).model_fields
        return {name: value for name, value in self if value != fields[name].default}

    @property
    def rules(self) -> dict[str, str]:
        """The given fields in words, by field name; details are in brackets."""
        return {name: WORDS[name](value) if name in WORDS else f"{name} {value}" for name, value in self.given.items()}

    @property
    def is_by_value(self) -> bool:
        """Whether values alone decide, so that no sample outside the subset has a larger value."""
        return self.given.keys() <= {*SIZES, "labels"}

    def differences(self, other: Self) -> list[tuple[str, str, str]]:
        """Return every field that differs, with its meaning here and in the other selection, in words."""
        mine, theirs = self.rules, other.rules
        names = [name for name in type(self).model_fields if getattr(self, name) != getattr(other, name)]
        return [(name, mine.get(name, NOTHING), theirs.get(name, NOTHING)) for name in names]


NOTHING = "-"
"""Placeholder for a rule that a selection does not have."""


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
    "labels": lambda file: f"labels from a file ({last_name(file if isinstance(file, str) else file.path)})",
    "right": lambda condition: f"pairs of a right and a wrong trace of a question (right: {one_line(condition)})",
}
"""Functions from the value of a field to words, by field. A field that is not here is shown by name and value."""


class SubsetNote(Document, words="a subset", maker="select"):
    """The note beside a subset: the selection, the scores and the rows chosen."""

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
    """One or two sentences about the choice."""
    rows: tuple[Count, ...]
    """Dataset rows of the chosen records, ascending."""
    rejected_rows: tuple[Count, ...] | None = None
    """For pairs, the dataset row of the rejected record of each chosen record."""
    weights: WeightsNote | None = None
    """The table of weights that the steps were written with, if any."""
    contaminated_rows: tuple[Count, ...] | None = None
    """With exclude_contaminated, dataset rows of the samples that were left out, ascending."""
    sha256: str | None = None
    """Digest of the subset's file as it was written; None for a folder."""

    @model_validator(mode="after")
    def _is_resolved(self) -> Self:
        """Refuse a selection that has the name of a filter or table instead of its note."""
        for name in ("exclude_contaminated", "duplicates", "where", "labels"):
            if isinstance(getattr(self.spec, name), str):
                raise SettingError(f"spec.{name} is a text, but must be a note")
        return self


@dataclass(frozen=True, slots=True)
class GroupCount:
    """The numbers of samples and of chosen samples of one group."""

    group: str
    pool: int
    """Candidates; of the groups of a filter, all samples."""
    chosen: int
    by_value: int
    """Samples of the group that would be chosen by value alone, for the same size of subset."""

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
    """The number of these samples by flag; a sample may have several flags."""
    against: AgainstNote | None = None
    """The table of benchmark items that was given."""
    num_contaminated: int = 0
    """Samples with a value that contain an item."""
    contaminated_rows: tuple[int, ...] | None = None
    """Dataset rows of all samples that contain an item, ascending; None if no table was given."""

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
    """Rows of the table, the best first. For a subset that was read from a file, in the order of the records."""
    num_with_value: int
    """Number of candidates: samples that have a value and are not excluded."""
    threshold: float
    """The smallest value in the subset, of the values that samples were ranked by."""
    spec: Selection
    """The rules of the choice, with all names resolved."""
    notes: tuple[str, ...] = ()
    """Remarks for the user."""
    groups: tuple[GroupCount, ...] = ()
    """With strata or a filter, the numbers of chosen samples by group."""
    excluded: Excluded | None = None
    """Samples that were left out for their flags, or for items of benchmarks."""
    conclusion: str = ""
    """One or two sentences about the choice."""
    rejected: IntArray | None = None
    """For pairs, the row of the table that each ranked row is preferred to."""
    num_tied: int = 0
    """Candidates with the value of the last sample chosen that were left out, because their records come later."""
    path: Path | None = None
    """The file that was read: a subset, or a table if the subset is its best samples."""

    @property
    def chosen(self) -> IntArray:
        """Rows of the table in the order of the records."""
        return self.ranked[np.argsort(self.scores.row[self.ranked])]

    @property
    def row(self) -> IntArray:
        """Dataset rows of the chosen samples, ascending."""
        return self.scores.row[self.chosen]

    @property
    def rejected_row(self) -> IntArray | None:
        """For pairs, the dataset rows of the rejected samples, in the order of the chosen rows."""
        if self.rejected is None:
            return None
        row = self.scores.row
        return row[self.rejected[np.argsort(row[self.ranked])]]

    @property
    def sample_id(self) -> list[str]:
        """Ids of the chosen samples, in the order of the records."""
        ids: list[str] = self.scores.table["sample_id"].take(arrow_numbers(self.chosen, pa.int64())).to_pylist()
        return ids

    @property
    def is_by_value(self) -> bool:
        """Whether the values of the table alone decided, so that every other sample has a smaller value."""
        return self.spec.is_by_value and self.scores.capability is None and not self.num_tied

    def to_pandas(self) -> Any:
        """Return the chosen rows of the table, the best first, as a pandas DataFrame."""
        return self.scores.table.take(self.ranked).to_pandas()

    def __len__(self) -> int:
        return len(self.ranked)

    def __repr__(self) -> str:
        return f"<Subset: {len(self)} of {counted(self.num_with_value, 'sample')} by {self.scores.method}>"


def check_unchanged(path: Path, note: SubsetNote) -> None:
    """Raise DataError if a subset is no longer the file that ``select`` wrote."""
    if path.is_file() and file_sha256(path) != note.sha256:
        raise DataError(
            f"{path} was changed since `grace-store select` wrote it: {sidecar_of(path).name} beside it lists other "
            "records. Select again. Or write the ids that you want into a new file, one id per line, and give that "
            "file."
        )


def samples_named(store: Store, path: str | Path) -> Positions:
    """Return the positions in the plan, ascending, of the samples that a file names; raise if one is missing."""
    path = Path(path)
    if (rows := selected_rows(store, path)) is not None:
        return Positions(np.sort(store.positions_of(rows)))
    if path.suffix == ".parquet":
        scores = read_scores(path, steps=False)
        check_plan_of(scores.note, store, scores.what)
        return Positions(np.sort(store.positions_of(scores.row)))
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a list of ids ({error}).") from None
    wanted = {line.removesuffix("\r") for line in lines if line.strip()}
    ids = store.column("sample_id").tolist()
    found = [position for position, text in enumerate(ids) if text in wanted]
    if len(found) < len(wanted):
        unknown = sorted(wanted - set(ids))
        shown = first_few([repr(name[:80]) for name in unknown], 3)
        raise DataError(
            f"{path} is neither a subset with its {sidecar_of(path).name} beside it nor a list of ids of "
            f"{store.location}: {counted(len(unknown), 'line')} without an id of that store ({shown})."
        )
    return Positions(np.array(found, dtype=np.int64))


def selected_rows(store: Store, path: Path) -> IntArray | None:
    """Return the dataset rows, ascending, of a subset that ``select`` wrote; None if the file has no note beside it."""
    sidecar = sidecar_of(path)
    if not sidecar.is_file():
        return None
    note = read_document(sidecar, SubsetNote)
    check_plan_of(note.scores, store, f"subset {path}")
    found = np.unique(np.array(note.rows, dtype=np.int64))
    if not np.isin(found, store.column("sample_row")).all():
        raise DataError(f"{sidecar} names records that are not samples of {store.location}. Select again.")
    return found
