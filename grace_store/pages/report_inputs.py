"""The request for a report, and the files that it names. All files are read and checked before any computation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from grace_store.base.arrays import IntArray
from grace_store.base.documents import read_document
from grace_store.base.errors import DataError, SettingError
from grace_store.base.files import sidecar_of
from grace_store.base.finding import Finding
from grace_store.choose.contamination_table import AgainstTable, read_against
from grace_store.choose.duplicate_table import DuplicateTable, read_duplicates
from grace_store.choose.selection import SubsetNote, selected_rows
from grace_store.pool.pool import Pool
from grace_store.scoring.notes import check_plan_of
from grace_store.scoring.score_table import ScoreTable, read_scores
from grace_store.scoring.sweep import Sweep, read_sweep
from grace_store.store.opened import Store
from grace_store.train.recipe import read_recipe

MAX_SUBSETS = 30
"""Maximum number of subsets: the page stores the subsets of a trace as bits of one number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """The request for a report. Every field is optional: a missing part is computed, or left out with a note."""

    signals: Sequence[str] = ()
    scores: Sequence[Path] = ()
    """Tables of scores. Traces are shown with the first table that has step scores."""
    sweep: Path | None = None
    duplicates: Path | None = None
    """Table that ``grace-store duplicates`` wrote."""
    findings: Sequence[Path] = ()
    """Files that studies wrote with ``--out``."""
    against: Path | None = None
    """Table that ``grace-store contamination`` wrote."""
    warmup: Path | None = None
    """Folder that ``grace-store warmup`` wrote."""
    subsets: Sequence[Path] = ()
    by: Sequence[str] = ()
    """Fields of the records that make groups to compare. Fields joined by commas are combined."""
    fields: str | None = None
    """Fields that are shown with the traces, joined by commas; "" for no field. None means the fields of by, or else a
    few fields with short values that differ between traces."""
    where: str | None = None
    """Condition in SQL that samples must meet, over fields of the records, id, row, num_steps, num_tokens, value and
    flags."""
    images: str | None = None
    data: Sequence[str] | None = None
    labels: Path | None = None
    """File of labels, whose columns are used as if they were fields."""
    ratio: str = "0.2"
    """Share of the samples that counts as chosen without a subset, and for the comparison of methods."""
    max_traces: int = 5000
    partial: bool = False


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """A store, a request, and the contents of the files that the request names, all made from the store's plan."""

    store: Store
    request: ReportRequest
    tables: list[ScoreTable]
    sweep: Sweep | None
    duplicates: DuplicateTable | None
    findings: list[Finding]
    against: AgainstTable | None
    subsets: dict[str, IntArray]
    """The dataset rows of each subset, by its file's name."""
    subset_notes: dict[str, SubsetNote]
    """The note beside each subset, by its file's name."""
    pool: Pool
    """The samples that the request's filter keeps, with their fields and labels."""

    @classmethod
    def read(cls, store: Store, request: ReportRequest) -> Self:
        """Read all files that a request names. Raise an error for the first file that cannot be used."""
        tables = [read_scores(path) for path in request.scores]
        for table in tables:
            check_plan_of(table.note, store, table.what)
        if request.signals and any(table.has_step_scores for table in tables):
            raise SettingError("the table of --scores names its signals: leave --signal out")
        if request.warmup is not None and read_recipe(request.warmup) is None:
            raise DataError(f"{request.warmup} has no warm-up. Give the folder that `grace-store warmup` wrote.")
        duplicates = None if request.duplicates is None else read_duplicates(request.duplicates)
        if duplicates is not None:
            check_plan_of(duplicates.note, store, f"table of duplicates {request.duplicates}")
        sweep = None if request.sweep is None else read_sweep(store, request.sweep)
        against = None if request.against is None else read_against(request.against)
        if against is not None:
            check_plan_of(against.note, store, f"table of benchmark items {request.against}")
        findings = [read_document(path, Finding) for path in request.findings]
        for path, found in zip(request.findings, findings, strict=True):
            if found.pool is not None:
                check_plan_of(found.pool, store, f"finding {path}")
        named = _named_subsets(request.subsets)
        subsets = {name: _rows_of(store, path) for name, path in named.items()}
        notes = {name: read_document(sidecar_of(path), SubsetNote) for name, path in named.items()}
        pool = Pool(store, where=request.where, data=request.data, labels=request.labels)
        return cls(store, request, tables, sweep, duplicates, findings, against, subsets, notes, pool)


def _named_subsets(paths: Sequence[Path]) -> dict[str, Path]:
    if len(paths) > MAX_SUBSETS:
        raise DataError(f"{len(paths)} subsets are given, but a page shows at most {MAX_SUBSETS}. Give fewer subsets.")
    found: dict[str, Path] = {}
    for path in paths:
        found[path.name if path.name not in found else str(path)] = path
    return found


def _rows_of(store: Store, path: Path) -> IntArray:
    if (rows := selected_rows(store, path)) is None:
        raise DataError(
            f"{path} has no {sidecar_of(path).name} beside it. Give a subset that `grace-store select` wrote."
        )
    return rows
