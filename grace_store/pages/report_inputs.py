"""The files that a report reads beside the store, all read and checked before anything is computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from grace_store.base.arrays import IntArray
from grace_store.base.documents import read_document
from grace_store.base.errors import DataError, SettingError
from grace_store.base.files import sidecar_of
from grace_store.base.finding import Finding
from grace_store.base.text import enumerated
from grace_store.choose.contamination_table import AgainstTable, read_against
from grace_store.choose.duplicate_table import DuplicateTable, read_duplicates
from grace_store.choose.selection import SubsetNote, selected_rows
from grace_store.pool.pool import Kept
from grace_store.scoring.notes import check_plan_of
from grace_store.scoring.score_table import ScoreTable, read_scores
from grace_store.scoring.sweep import Sweep, read_sweep
from grace_store.store.opened import Store
from grace_store.train.recipe import read_recipe

MAX_SUBSETS = 30
"""A trace's subsets are bits of one number in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """The request for a report. All is optional: missing parts are made from the store, or left out with a note."""

    signals: Sequence[str] = ()
    scores: Sequence[Path] = ()
    """Tables of scores; the first that has step scores is the one that traces are shown with."""
    sweep: Path | None = None
    duplicates: Path | None = None
    """What ``grace-store duplicates`` wrote."""
    findings: Sequence[Path] = ()
    """What studies wrote with ``--out``."""
    against: Path | None = None
    """What ``grace-store contamination`` wrote."""
    warmup: Path | None = None
    """The folder that ``grace-store warmup`` wrote."""
    subsets: Sequence[Path] = ()
    by: Sequence[str] = ()
    """Fields of the records whose groups are compared; several that commas join are combined."""
    fields: str | None = None
    """Fields that are shown beside the traces, joined by commas, "" for none; None for those of by, or else the few
    that tell traces apart with short values."""
    where: str | None = None
    """Report only on what this keeps: a condition in SQL over fields of the records, id, row, num_steps, num_tokens,
    value and flags."""
    images: str | None = None
    data: Sequence[str] | None = None
    ratio: str = "0.2"
    """Share that counts as chosen where no subset is given, and that methods are compared at."""
    max_traces: int = 5000
    partial: bool = False


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """A store, the request, and the contents of the files that the request names, all made from the store's plan."""

    store: Store
    request: ReportRequest
    tables: list[ScoreTable]
    sweep: Sweep | None
    duplicates: DuplicateTable | None
    findings: list[Finding]
    against: AgainstTable | None
    subsets: dict[str, IntArray]
    """The dataset rows of each subset, by its file's name."""
    conclusions: tuple[str, ...] = ()
    """What the commands that made these said of them."""
    kept: Kept | None = None
    """What the request's filter keeps, by position."""

    @classmethod
    def read(cls, store: Store, request: ReportRequest) -> Self:
        """Read all files that a request names; raise an error for the first that cannot be used."""
        tables = [read_scores(path) for path in request.scores]
        for table in tables:
            check_plan_of(table.note, store, table.what)
        if request.signals and any(table.has_step_scores for table in tables):
            raise SettingError("--scores says by which signals it was scored: leave --signal out")
        if request.warmup is not None and read_recipe(request.warmup) is None:
            raise DataError(f"{request.warmup} holds no warm-up; give the folder that `grace-store warmup` wrote.")
        duplicates = None if request.duplicates is None else read_duplicates(request.duplicates)
        if duplicates is not None:
            check_plan_of(duplicates.note, store, f"table of duplicates {request.duplicates}")
        sweep = None if request.sweep is None else read_sweep(store, request.sweep)
        subsets = _subsets(store, request.subsets)
        told = [sentence for path in request.subsets for sentence in _told(path)]
        told += [] if sweep is None else [sweep.conclusion]
        return cls(
            store,
            request,
            tables,
            sweep=sweep,
            duplicates=duplicates,
            findings=[_finding(store, path) for path in request.findings],
            against=_against(store, request.against),
            subsets=subsets,
            conclusions=tuple(told),
        )


def _finding(store: Store, path: Path) -> Finding:
    """Read a finding, and make sure that it is about this store."""
    found = read_document(path, Finding)
    if found.pool is not None:
        check_plan_of(found.pool, store, f"finding {path}")
    return found


def _against(store: Store, path: Path | None) -> AgainstTable | None:
    """Read a table of benchmark items, if one is given, and make sure that it is about this store."""
    if path is None:
        return None
    found = read_against(path)
    check_plan_of(found.note, store, f"table of benchmark items {path}")
    return found


def _told(path: Path) -> list[str]:
    """Return the conclusion in a subset's note, and all rules that it was chosen by."""
    note = read_document(sidecar_of(path), SubsetNote)
    rules = f"How {path.name} was chosen: {enumerated(list(note.spec.rules.values()))}."
    return [note.conclusion, rules] if note.conclusion else [rules]


def _subsets(store: Store, paths: Sequence[Path]) -> dict[str, IntArray]:
    if len(paths) > MAX_SUBSETS:
        raise DataError(f"{len(paths)} subsets are given, a page shows at most {MAX_SUBSETS}.")
    found = {}
    for path in paths:
        if (rows := selected_rows(store, path)) is None:
            raise DataError(f"{path} has no {sidecar_of(path).name} beside it, as `grace-store select` writes it.")
        found[path.name if path.name not in found else str(path)] = rows
    return found
