"""Write the report of a store: gather its parts, put them into one HTML file, and the figures beside it if asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from grace_store.base.arrays import BoolArray, IntArray
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.files import HTML, check_name
from grace_store.base.states import ABOUT
from grace_store.base.text import counted
from grace_store.choose.select import select
from grace_store.pages.comparisons import groups_section, methods_section, name_tables
from grace_store.pages.figures import PlottedSamples
from grace_store.pages.findings import audit_sections
from grace_store.pages.page_files import load_plotly_js, write_figures, write_page
from grace_store.pages.report_inputs import ReportInputs, ReportRequest
from grace_store.pages.score_sections import length_section, overview_section, settings_section, values_section
from grace_store.pages.sections import Figure, Section
from grace_store.pages.similarity import similarity_section
from grace_store.pages.trace_data import BLOCK_TRACES, TraceData, choose_traces, gather_traces
from grace_store.pool.pool import stepwise_signals
from grace_store.run.status import status
from grace_store.scoring.provenance import Source, check_outputs, keep_samples, sources_of, where_note
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.score_table import ScoreTable, conclude_scores
from grace_store.store.opened import Store


@dataclass(frozen=True, slots=True)
class Report:
    """What was written."""

    out: Path
    num_bytes: int
    num_samples: int
    num_traces: int
    sections: list[str]
    figures: list[Path]
    notes: list[str]


def report(
    store: Store | str | Path,
    out: Path,
    request: ReportRequest,
    *,
    figures: Path | None = None,
    listener: Listener = ignore,
) -> Report:
    """Write a store's report to one HTML file that needs nothing else, and its figures to a folder if one is given."""
    load_plotly_js()  # a report that cannot be written is refused before anything is computed
    opened = store if isinstance(store, Store) else Store.open(store)
    check_outputs([out], [*sources_of(opened), *_sources(request)])
    check_name(out, HTML)
    if figures is not None:
        check_outputs([figures], sources_of(opened))
    page = _Page.gather(opened, request, listener)
    written: list[Path] = []
    if figures is not None:
        listener(Note(f"Drawing {counted(len(page.figures), 'figure')}, each as an SVG and a PNG file."))
        written = write_figures(page.figures, figures)
    listener(Note("Writing the page."))
    write_page(out, page.title, page.sections, page.trace_documents())
    num_traces, sections = len(page.traces.index["id"]), [section.key for section in page.sections]
    return Report(out, out.stat().st_size, len(page.table), num_traces, sections, written, page.traces.notes)


def _sources(request: ReportRequest) -> list[Source]:
    named = [(path, "the scores") for path in request.scores] + [(path, "a subset") for path in request.subsets]
    named += [(path, "a finding") for path in request.findings]
    kinds = ("duplicates", "sweep", "against", "warmup")
    others = {name: getattr(request, name) for name in kinds}
    return named + [(path, f"what {name} wrote") for name, path in others.items() if path is not None]


@dataclass(frozen=True, slots=True)
class _Page:
    """Everything in the HTML file."""

    title: str
    table: ScoreTable
    sections: list[Section]
    subsets: list[str]
    traces: TraceData
    shown: str
    """Which of the samples are in the trace browser, in words."""

    @property
    def figures(self) -> dict[str, Figure]:
        return {name: figure for section in self.sections for name, figure in section.figures.items()}

    @classmethod
    def gather(cls, store: Store, request: ReportRequest, listener: Listener) -> Self:
        given = ReportInputs.read(store, request)
        listener(Note("Scoring and counting."))
        state = status(store)
        tables = _with_step_scores(store, given.tables, request)
        given = replace(given, kept=keep_samples(store, request.where, _main(tables), request.data))
        tables = _among(tables, given)
        table = _main(tables)
        subsets = _chosen(table, given.subsets, request.ratio)
        chosen = subsets[0][1]
        place, words = choose_traces(table.value, table.row, chosen, request.max_traces)
        trace = np.full(len(table), -1, dtype=np.int64)
        trace[place] = np.arange(len(place))
        points = PlottedSamples(table.sample_id, table.value, chosen, trace)
        counts = [(name, int(mask.sum())) for name, mask in subsets]
        told = [conclude_scores(table), *_of_best(table, given, request.ratio), *given.conclusions]
        named, filtered = counts if request.subsets else [], where_note(given.kept)
        sections = [overview_section(store, state, table, named, where=filtered, conclusions=told)]
        sections.append(values_section(table, points, subsets[0][0]))
        sections.append(length_section(table, points, request.ratio))
        named_tables = name_tables(tables)
        if request.by:
            sections.append(groups_section(store, named_tables, table, chosen, request.by, request.data))
        listener(Note("Comparing settings."))
        sections.append(settings_section(given, table))
        sections.append(methods_section(store, named_tables, state, request.ratio))
        listener(Note("Looking for neighbours."))
        alike, neighbours, groups = similarity_section(given, table, place, listener)
        sections += [alike, *audit_sections(given)]
        listed = ScoreTable(table.table.take(place), table.note, table.path)
        traces = gather_traces(given, listed, _bits(subsets)[place], neighbours, listener)
        traces.index["group"] = groups
        title = Path(store.location.rstrip("/")).name
        return cls(title, table, sections, [name for name, _ in subsets], traces, words)

    def trace_documents(self) -> dict[str, Any]:
        """Return the data of the trace browser by the names that the page's script reads them under."""
        documents: dict[str, Any] = {
            "trace-browser": {
                "num": len(self.traces.index["id"]),
                "fields": self.traces.fields,
                "block": BLOCK_TRACES,
                "subsets": self.subsets,
                "flags": ABOUT,
                "shown": self.shown,
                "notes": self.traces.notes,
                "scale": self._scale(),
                "signal": next(iter(self.table.note.signals)),
            },
            "trace-index": self.traces.index,
        }
        documents |= {f"traces-{number}": block for number, block in enumerate(self.traces.blocks)}
        return documents | {f"pictures-{number}": some for number, some in enumerate(self.traces.pictures) if some}

    def _scale(self) -> float:
        """Return the step score that has the full colour: few are beyond it, on either side."""
        flat = np.abs(self.table.flat("step_score")) if self.table.has_step_scores else np.zeros(0)
        flat = flat[np.isfinite(flat)]
        return max(0.05, float(np.round(np.quantile(flat, 0.98), 2))) if len(flat) else 1.0


def _with_step_scores(store: Store, given: Sequence[ScoreTable], request: ReportRequest) -> list[ScoreTable]:
    """Return the tables given, after one made here if none of them has step scores."""
    tables, stepwise = list(given), stepwise_signals(store)
    if any(table.has_step_scores for table in tables) or (tables and not stepwise):
        return tables
    meant = [name for table in tables for name in table.note.signals if name in stepwise] or stepwise
    signals = request.signals or (meant[:1] if tables or len(meant) == 1 else None)
    return [score(store, ScoreRequest(signals=signals, partial=request.partial)), *tables]


def _main(tables: Sequence[ScoreTable]) -> ScoreTable:
    """Return the table that traces are shown with: the first that has step scores."""
    return next(each for each in tables if each.has_step_scores or each is tables[-1])


def _among(tables: Sequence[ScoreTable], given: ReportInputs) -> list[ScoreTable]:
    """Return the tables with the samples that the filter keeps."""
    if given.kept is None:
        return list(tables)
    rows = given.store.column("sample_row")[given.kept.places]
    return [table.among(rows) for table in tables]


def _chosen(table: ScoreTable, subsets: Mapping[str, IntArray], ratio: str) -> list[tuple[str, BoolArray]]:
    """Return each subset's name and which rows of the table are in it; without any, the best share of the table."""
    if subsets:
        return [(name, np.isin(table.row, rows)) for name, rows in subsets.items()]
    best = np.zeros(len(table), dtype=np.bool_)
    if np.isfinite(table.value).any():
        best[select(table, ratio=ratio).ranked] = True
    return [(f"the best {ratio}", best)]


def _of_best(table: ScoreTable, given: ReportInputs, ratio: str) -> list[str]:
    """Return the conclusion about the best share if no subset is given."""
    if given.subsets or not np.isfinite(table.value).any():
        return []
    return [select(table, ratio=ratio).conclusion]


def _bits(subsets: Sequence[tuple[str, BoolArray]]) -> IntArray:
    bits = np.zeros(len(subsets[0][1]), dtype=np.int64)
    for number, (_, mask) in enumerate(subsets):
        bits |= mask.astype(np.int64) << number
    return bits
