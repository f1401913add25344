"""Write the report of a store: one HTML file, and on request the figures as files."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from grace_store.base.events import Listener, Note, ignore
from grace_store.base.files import HTML, check_name
from grace_store.base.states import ABOUT
from grace_store.base.text import counted
from grace_store.choose.select import select
from grace_store.pages.comparisons import groups_section, methods_section, name_tables
from grace_store.pages.figures import PlottedSamples
from grace_store.pages.findings import against_section, finding_section, warmup_section
from grace_store.pages.page_files import load_plotly_js, write_figures, write_page
from grace_store.pages.report_inputs import ReportInputs, ReportRequest
from grace_store.pages.score_sections import length_section, overview_section, settings_section, values_section
from grace_store.pages.sections import Section
from grace_store.pages.similarity import similarity_section
from grace_store.pages.trace_data import BLOCK_TRACES, TraceData, choose_traces, gather_traces
from grace_store.pages.verdict import conclude_report
from grace_store.pool.pool import Pool
from grace_store.run.status import status
from grace_store.scoring.provenance import check_outputs, keep_samples, sources_of
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.score_conclusion import conclude_scores
from grace_store.scoring.score_table import ScoreTable
from grace_store.store.opened import Store
from grace_store.values.measures import MEASURES


@dataclass(frozen=True, slots=True)
class Report:
    """The files and counts of a written report."""

    out: Path
    figures: list[Path]
    num_bytes: int
    num_samples: int
    num_traces: int
    sections: list[str]
    notes: list[str]
    verdict: list[dict[str, str]]
    """Sentences with their topics and levels, the worst first."""


def report(
    store: Store | str | Path,
    out: Path,
    request: ReportRequest,
    *,
    figures: Path | None = None,
    listener: Listener = ignore,
) -> Report:
    """Write a store's report to one HTML file that needs no other file, and its figures to a folder if one is given."""
    load_plotly_js()  # a missing plotly is reported before anything is computed
    opened = store if isinstance(store, Store) else Store.open(store)
    sources = [(path, "the scores") for path in request.scores] + [(path, "a subset") for path in request.subsets]
    sources += [(path, "a finding") for path in request.findings]
    for name in ("duplicates", "sweep", "against", "warmup"):
        if (path := getattr(request, name)) is not None:
            sources.append((path, f"what {name} wrote"))
    check_outputs([out], [*sources_of(opened, request.labels), *sources])
    check_name(out, HTML)
    if figures is not None:
        check_outputs([figures], sources_of(opened, request.labels))
    table, sections, traces, verdict = _gather(opened, request, listener)
    written: list[Path] = []
    if figures is not None:
        drawn = {name: figure for section in sections for name, figure in section.figures.items()}
        listener(Note(f"Drawing {counted(len(drawn), 'figure')}, each as an SVG and a PNG file."))
        written = write_figures(drawn, figures)
    listener(Note("Writing the page."))
    write_page(out, Path(opened.location.rstrip("/")).name, sections, traces)
    keys, browser = [section.key for section in sections], traces["trace-browser"]
    return Report(out, written, out.stat().st_size, len(table), browser["num"], keys, browser["notes"], verdict)


def _gather(
    store: Store, request: ReportRequest, listener: Listener
) -> tuple[ScoreTable, list[Section], dict[str, Any], list[dict[str, str]]]:
    """Return the table that traces are shown with, the page's parts, the trace browser's documents, and the verdict."""
    given = ReportInputs.read(store, request)
    listener(Note("Scoring and counting."))
    state = status(store)
    made = [] if given.tables else [score(store, ScoreRequest(signals=request.signals, partial=request.partial))]
    tables = [*given.tables, *made]
    given = replace(given, pool=Pool.of(given.pool, where=keep_samples(given.pool, tables[0])))
    if given.pool.kept is not None:
        tables = [table.among(given.pool.rows) for table in tables]
    table = tables[0]
    conclusions = [conclude_scores(table, what_next=False)]
    subsets = [(name, np.isin(table.row, rows)) for name, rows in given.subsets.items()]
    if not subsets:
        best = np.zeros(len(table), dtype=np.bool_)
        if np.isfinite(table.value).any():
            taken = select(table, ratio=request.ratio)
            best[taken.ranked] = True
            conclusions.append(taken.conclusion)
        subsets = [(f"the best {request.ratio}", best)]
    chosen_name, chosen = subsets[0]
    place, shown = choose_traces(table.value, table.row, chosen, request.max_traces)
    trace = np.full(len(table), -1, dtype=np.int64)
    trace[place] = np.arange(len(place))
    points = PlottedSamples(table.sample_id, table.value, chosen, trace)
    conclusions += [note.conclusion for note in given.subset_notes.values() if note.conclusion]
    conclusions += [] if given.sweep is None else [given.sweep.conclusion]
    sections = [
        values_section(table, points, chosen_name),
        length_section(table, points, request.ratio, chosen_name if request.subsets else None),
    ]
    named_tables = name_tables(tables)
    if request.by:
        sections.append(groups_section(store, named_tables, table, chosen, request))
    listener(Note("Comparing settings."))
    sections.append(settings_section(Pool.of(given.pool, partial=request.partial), table, given.sweep, request.ratio))
    sections.append(methods_section(store, named_tables, state, request.ratio))
    listener(Note("Looking for neighbours."))
    similar, neighbours, groups, found = similarity_section(given, table, place, listener)
    verdict = conclude_report(given, table, dict(subsets), [*given.findings, *found], state)
    sections.insert(0, overview_section(store, state, table, verdict, conclusions, pool=given.pool.note()))
    sections += [similar, *map(finding_section, given.findings)]
    sections += [] if given.against is None else [against_section(given.against)]
    sections += [] if request.warmup is None else [warmup_section(request.warmup)]
    listed = ScoreTable(table.table.take(place), table.note, table.path)
    in_subsets = sum(mask.astype(np.int64) << bit for bit, (_, mask) in enumerate(subsets))
    traces = gather_traces(given, named_tables, listed, np.asarray(in_subsets)[place], neighbours, listener)
    traces.index["group"] = groups
    return table, sections, _trace_documents(traces, table, [name for name, _ in subsets], shown), verdict


def _trace_documents(traces: TraceData, table: ScoreTable, subsets: list[str], shown: str) -> dict[str, Any]:
    """Return the data of the trace browser by the names that the page's script uses."""
    measured = [trace.get("measures", {}) for block in traces.blocks for trace in block]
    numbers = {name: [each for trace in measured for each in trace.get(name, ())] for name in MEASURES}
    documents: dict[str, Any] = {
        "trace-browser": {
            "num": len(traces.index["id"]),
            "fields": traces.fields,
            "block": BLOCK_TRACES,
            "subsets": subsets,
            "flags": ABOUT,
            "shown": shown,
            "notes": traces.notes,
            "scored": table.method if table.has_step_scores else None,
            "scale": _full_colour(table.flat("step_score") if table.has_step_scores else ()),
            "measures": {name: _legend(name, each) for name, each in numbers.items()},
            "signal": next(iter(table.note.signals), None),
        },
        "trace-index": traces.index,
    }
    documents |= {f"traces-{number}": block for number, block in enumerate(traces.blocks)}
    return documents | {f"pictures-{number}": some for number, some in enumerate(traces.pictures) if some}


def _legend(name: str, numbers: ArrayLike) -> dict[str, Any]:
    """Return what the page says of a measure and of its colours. Only alignments can be below 0."""
    kind = MEASURES[name]
    scale = _full_colour(numbers, 0.05 if kind.settings else 0.0)
    return {"about": kind.about, "better": kind.better, "from_zero": not kind.settings, "scale": scale}


def _full_colour(numbers: ArrayLike, least: float = 0.05) -> float:
    """Return the number with the full colour: only 2 % of the numbers are further from 0."""
    sizes = np.abs(np.asarray(numbers, dtype=np.float64))
    sizes = sizes[np.isfinite(sizes)]
    return max(least, float(f"{np.quantile(sizes, 0.98):.2g}")) or 1.0 if len(sizes) else 1.0
