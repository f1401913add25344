"""The page's first part: what the results mean, what the store holds and what all of it was made from."""

import itertools
from collections.abc import Sequence
from pathlib import PurePath

from grace_store.base.finding import WhereNote
from grace_store.base.settings import short
from grace_store.base.text import one_line, size
from grace_store.pages.sections import Cell, Section
from grace_store.run.status import Status, set_aside_rows
from grace_store.scoring.notes import ScoresNote
from grace_store.scoring.score_table import ScoreTable
from grace_store.store.opened import Store

MAX_LISTED = 200
"""Records set aside that are listed one by one."""


def overview_section(
    store: Store,
    status: Status,
    table: ScoreTable,
    subsets: list[tuple[str, int]],
    *,
    where: WhereNote | None = None,
    conclusions: Sequence[str] = (),
) -> Section:
    """Return what the page's results mean, then the counts of a store, its settings and those of the scores."""
    section = Section("overview", "Overview")
    for each in conclusions:
        section.text(each)
    parts = [("done", status.num_done), ("set aside", status.num_set_aside), ("to do", status.num_planned)]
    section.counts(parts, f"{status.num_records:,} records")
    if not status.is_complete:
        section.text("The store is not finished: what is shown is what is there.", kind="note")
    if where is not None:
        kept = f"{where.num_kept:,} of {where.num_samples:,} samples"
        about = f"Values, plots and traces are of the samples where {one_line(where.sql)}"
        section.text(f"{about}: {kept}. Shares are of these.", kind="note")
    if status.set_aside:
        ordered = sorted(status.set_aside.items(), key=lambda item: -item[1])
        section.table("Set aside, and why", ["reason", "records"], [[*item] for item in ordered], bar=1)
    _made_from(section, store)
    note = table.note
    settings = note.spec.model_dump(mode="json")
    section.facts(
        "The scores",
        [
            *((name, str(value)) for name, value in settings.items() if value not in (None, False, "")),
            *_within(note),
            ("signals", ", ".join(f"{name} × {each.weight:g}" for name, each in note.signals.items())),
            ("table", str(table.path) if table.path else "made for this page"),
            *((name, f"a subset of {count:,} samples") for name, count in subsets),
        ],
    )
    _signals(section, store, status)
    in_signal = status.signal is not None and status.signals[status.signal].set_aside
    # Commits say which samples a signal set aside; where it set none aside there is no need to read them.
    listed = list(itertools.islice(set_aside_rows(store, status.signal if in_signal else None), MAX_LISTED + 1))
    if listed:
        rows: list[list[Cell]] = [[row["row"], row["sample_id"], row["reason"], row["detail"]] for row in listed]
        more = f"The first {MAX_LISTED} of {status.num_set_aside:,}." if len(listed) > MAX_LISTED else ""
        columns = ["row", "sample", "reason", "detail"]
        section.table("Records set aside", columns, rows[:MAX_LISTED], more)
    return section


def _within(note: ScoresNote) -> list[tuple[str, Cell]]:
    """Return how values were compared within their questions, if they were."""
    if note.groups is None or note.groups.within is None:
        return []
    question = "same prompt and images" if note.groups.by is None else f"same {note.groups.by}"
    return [("values", f"{note.groups.within} within their question ({question}): 0 is its mean")]


def _made_from(section: Section, store: Store) -> None:
    plan = store.plan
    rows: list[tuple[str, Cell]] = []
    for file in plan.files:
        name = PurePath(file.path).name
        rows.append((name, f"{file.num_records:,} records, {size(file.num_bytes)}, sha256 {short(file.sha256)}"))
    rows += [(name.replace("_", " "), text) for name, text in plan.spec.in_words().items()]
    rows += [
        ("units", f"{plan.num_units:,} of {plan.samples_per_unit:,} samples"),
        ("plan", short(plan.digest())),
        ("made by", plan.created_by),
    ]
    section.facts("The data", rows)


def _signals(section: Section, store: Store, status: Status) -> None:
    rows: list[dict[str, Cell]] = []
    for name, counts in status.signals.items():
        signal = store.signal(name).signal
        spec, model, gradient = signal.spec, signal.spec.model, signal.spec.gradient
        rows.append(
            {
                "signal": name,
                "kind": spec.kind,
                "per": "sample" if spec.is_per_sample else "segment",
                "preconditioner": gradient.preconditioner if gradient else None,
                "projection": gradient.projection if gradient else None,
                "model": PurePath(signal.origin.get("model", "")).name or None,
                "architecture": model.architecture,
                "vector size": spec.vector_size,
                "settings": f"{spec.rendering}, {spec.dtype}, {spec.attention}, {spec.storage}",
                "done": counts.num_done,
                "tokens": counts.num_tokens,
                "bytes": size(counts.num_bytes),
                "digests": f"weights {short(model.weights)}"
                + (f", adapter {short(model.adapter)}" if model.adapter else ""),
            }
        )
    section.records("Signals", rows)
