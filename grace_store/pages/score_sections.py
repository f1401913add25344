"""The page's parts on a store and its scores: overview, values, length and settings."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from grace_store.base.finding import PoolNote
from grace_store.base.settings import short
from grace_store.base.states import ABOUT, HYGIENE_FLAGS
from grace_store.base.text import one_line, size
from grace_store.pages import figures
from grace_store.pages.figures import MAX_POINTS, PlottedSamples
from grace_store.pages.findings import add_finding
from grace_store.pages.sections import Cell, Section
from grace_store.pool.pool import Pool, stepwise_signals
from grace_store.run.status import Status, set_aside_rows
from grace_store.scoring.score_table import ScoreTable
from grace_store.scoring.sweep import Sweep, sweep
from grace_store.store.opened import Store
from grace_store.study.audit import audit
from grace_store.values.grid import SweepSpec
from grace_store.values.methods.grace import aggregate
from grace_store.values.methods.method import Aggregation, ScoreSpec

MAX_LISTED = 200
"""Maximum number of listed records that are set aside."""


def overview_section(
    store: Store,
    status: Status,
    table: ScoreTable,
    verdict: Sequence[Mapping[str, str]] = (),
    conclusions: Sequence[str] = (),
    *,
    pool: PoolNote | None = None,
) -> Section:
    """Return the part with the verdict and conclusions, the counts and settings of a store, and those of the scores."""
    section = Section("overview", "Overview")
    section.verdict(verdict)
    for each in conclusions:
        section.text(each)
    parts = [("done", status.num_done), ("set aside", status.num_set_aside), ("to do", status.num_planned)]
    section.counts(parts, f"{status.num_records:,} records")
    if not status.is_complete:
        section.text("The store is not finished. The page shows the finished samples.", kind="note")
    if pool is not None and (where := pool.where) is not None:
        kept = f"{where.num_kept:,} of {where.num_samples:,} samples"
        about = f"The page uses only samples where {one_line(where.sql)}"
        section.text(f"{about}: {kept}. Shares are shares of these samples.", kind="note")
    if pool is not None and pool.labels is not None:
        section.text(f"Labels: {pool.labels}.", kind="note")
    if status.set_aside:
        ordered = sorted(status.set_aside.items(), key=lambda item: -item[1])
        section.table("Set aside, and why", ["reason", "records"], [[*item] for item in ordered], bar=1)
    _data_facts(section, store)
    note = table.note
    settings, within = note.spec.model_dump(mode="json"), None
    if note.groups is not None and note.groups.within is not None:
        question = "same prompt and images" if note.groups.by is None else f"same {note.groups.by}"
        within = f"{note.groups.within} within their question ({question}): 0 is its mean"
    section.facts(
        "The scores",
        [
            *((name, str(value)) for name, value in settings.items() if value not in (None, False, "")),
            ("values", within),
            ("signals", ", ".join(f"{name} × {each.weight:g}" for name, each in note.signals.items())),
            ("table", str(table.path) if table.path else "made for this page"),
        ],
    )
    _signal_records(section, store, status)
    in_signal = status.signal is not None and status.signals[status.signal].set_aside
    # Commits list the samples that a signal set aside. They are read only if there are such samples.
    listed = list(itertools.islice(set_aside_rows(store, status.signal if in_signal else None), MAX_LISTED + 1))
    if listed:
        rows: list[list[Cell]] = [[row["row"], row["sample_id"], row["reason"], row["detail"]] for row in listed]
        more = f"The first {MAX_LISTED} of {status.num_set_aside:,}." if len(listed) > MAX_LISTED else ""
        section.table("Records set aside", ["row", "sample", "reason", "detail"], rows[:MAX_LISTED], more)
    return section


def _data_facts(section: Section, store: Store) -> None:
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


def _signal_records(section: Section, store: Store, status: Status) -> None:
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


DEFAULT_GRID: dict[str, Any] = {"alpha": (0.1, 0.3, 0.5, 0.7, 0.9, 1.0), "history": ("uniform", "window:3", "ema:0.8")}
"""Settings of the sweep that is computed if no sweep is given."""
MAX_BOXES = 60
FEW_TRACES = 20
"""The median of fewer traces is too noisy to interpret."""
LENGTH_WORDS = {"step_length": "tokens in a step", "response_length": "tokens in the response", "num_steps": "steps K"}


def values_section(table: ScoreTable, points: PlottedSamples, chosen_name: str) -> Section:
    """Return the part on the distribution of values, and on the alignments behind the values."""
    section = Section("values", "Values", "The distribution of values, and the alignments behind them.")
    value = table.value
    finite = value[np.isfinite(value)]
    if not len(finite):
        section.text("No sample has a value.", kind="note")
        return section
    section.stats(
        [
            ("samples with a value", f"{len(finite):,} of {len(value):,}"),
            ("mean", f"{finite.mean():.4f}"),
            ("standard deviation", f"{finite.std():.4f}"),
            ("5 %, median, 95 %", ", ".join(f"{each:.4f}" for each in np.quantile(finite, (0.05, 0.5, 0.95)))),
        ]
    )
    _flags(section, table)
    caption = f"{len(finite):,} samples with a value; {int(points.chosen.sum()):,} of them are in {chosen_name}."
    section.figure("value-histogram", "Values", figures.value_histogram(value, points.chosen, chosen_name), caption)
    if table.has_step_scores and table.note.spec.reads_grams:
        flat = (table.flat(f"{half}_alignment") for half in ("answer", "history"))
        answer, history = (aggregate(each, table.num_steps, np.ones(len(each)), Aggregation("mean")) for each in flat)
        picture = figures.alignment_scatter(answer, history, points)
        caption = "Each point is a trace, with its mean alignments over steps. Click a point to read the trace."
        section.figure("answer-against-history", "Answer against history", picture, caption + _thinned(len(finite)))
    if table.has_step_scores:
        picture = figures.step_profile(table.flat("step_score"), table.offsets, points.chosen)
        caption = f"Step scores by position, over {int(table.num_steps.sum()):,} steps."
        caption += " The bars below count the traces that have a step at the position."
        reached = [int((table.num_steps >= k).sum()) for k in range(1, figures.MAX_POSITIONS + 1)]
        thin = next((k for k, count in enumerate(reached, 1) if 0 < count < FEW_TRACES), None)
        if thin is not None:
            caption += f" From step {thin} on, fewer than {FEW_TRACES} traces make the median unreliable."
        section.figure("step-profile", "Step profile", picture, caption, wide=True)
    return section


def _flags(section: Section, table: ScoreTable) -> None:
    """Add the number of samples with each flag, and the number of them that have a value."""
    has_value = np.isfinite(table.value)
    rows: list[dict[str, Cell]] = [
        {
            "flag": name,
            "samples": count,
            "with a value": int((table.is_flagged([name]) & has_value).sum()),
            "meaning": ABOUT[name],
        }
        for name, count in table.flag_counts.items()
    ]
    unknown = ", ".join(name for name in HYGIENE_FLAGS if name not in table.known_flags)
    if unknown:
        section.text(f"The table does not know which samples have the flags {unknown}.", kind="note")
    caption = "`select --exclude-flagged` leaves out flagged samples. The list of traces has a filter for flags."
    section.records("Flags", rows, caption)


def _thinned(num: int) -> str:
    """Return a sentence with the number of drawn points; empty if all points are drawn."""
    return f" {MAX_POINTS:,} of {num:,} points are drawn, chosen at random." if num > MAX_POINTS else ""


def length_section(table: ScoreTable, points: PlottedSamples, ratio: str, subset: str | None = None) -> Section:
    """Return the part on values and length: the finding of the audit, and plots. subset is the given subset, if any."""
    section = Section("length", "Length", "Do values only measure the length of traces?")
    num_samples = int(np.isfinite(table.value).sum())
    if not num_samples:
        section.text("No sample has a value.", kind="note")
        return section
    if subset is not None:
        about = f"The best {ratio} are those of the pool by value, not the samples of {subset}"
        section.text(f"{about}; the overview says how long those are.", kind="note")
    add_finding(section, audit(table, ratio=ratio))
    for name, length in table.lengths.items():
        words = LENGTH_WORDS[name]
        if name == "num_steps":
            picture = figures.value_by_num_steps(table.num_steps, points.value)
            caption = figures.BOXES
        else:
            picture = figures.length_scatter(length, points, words)
            caption = f"The line and the band use all samples.{_thinned(num_samples)}"
        section.figure(f"value-against-{name.replace('_', '-')}", f"Value and {words}", picture, caption)
    return section


def settings_section(pool: Pool, table: ScoreTable, given: Sweep | None, ratio: str) -> Section:
    """Return the part that compares settings and signals, from the given sweep or from a small new one."""
    stepwise = stepwise_signals(pool.store)
    section = Section("settings", "Settings", "The choice that other settings make.")
    scored = {name: each for name, each in table.note.signals.items() if name in stepwise}
    if not scored:
        section.text("The signals of this table have one vector for each sample, so there are no settings to vary.")
        return section
    together = ",".join(f"{name}={each.weight:g}" for name, each in scored.items())
    if given is None:
        spec = SweepSpec.parse(ratio=ratio, grid=[DEFAULT_GRID | {"signal": (together,)}])
        swept = sweep(pool, spec)
        made = "A small sweep for this page; `grace-store sweep` makes larger ones."
    else:
        swept, made = given, f"The sweep in {given.folder.name if given.folder else 'memory'}."
    section.text(f"{made} {len(swept.settings)} settings over {swept.num_samples:,} samples.")
    _overlap(section, swept)
    _boxes(section, "value-by-setting", "Values by setting", swept, "setting")
    if len(stepwise) > 1:
        grid: dict[str, Any] = {"signal": stepwise}
        if isinstance(same := table.note.spec, ScoreSpec) and len(same.measure) == 1:
            grid |= {name: (getattr(same, name),) for name in ("alpha", "history", "target", "aggregation")}
            grid |= {"measure": same.measure, "without_answer": same.without_answer}
        spec = SweepSpec.parse(ratio=ratio, grid=[grid])
        signals = sweep(Pool.of(pool, partial=True), spec)
        _boxes(section, "value-by-signal", "Values by signal", signals, "signal")
        names, caption = _signal_names(signals), "The same settings with each signal alone."
        picture = figures.matrix_map(signals.jaccard[0], names, "Jaccard")
        section.matrix("signal-overlap", f"Overlap of signals, best {ratio}", picture, names, caption)
    return section


def _signal_names(sweep: Sweep) -> list[str]:
    return [str(row["signals"]) for row in sweep.summary]


def _short(labels: Sequence[str]) -> list[str]:
    """Return short names of settings for an axis."""
    return [label.replace("alpha=", "α ").replace("history=", "") for label in labels]


def _overlap(section: Section, sweep: Sweep) -> None:
    labels = _short(sweep.labels)
    for index, ratio in enumerate(sweep.ratios):
        picture = figures.matrix_map(sweep.jaccard[index], labels, "Jaccard")
        caption = "Number of samples that both settings choose, divided by the number that at least one chooses."
        section.matrix(f"setting-overlap-{ratio}", f"Overlap of the best {ratio}", picture, labels, caption)
    picture = figures.matrix_map(sweep.rank_correlation, labels, "Spearman", lowest=-1.0)
    caption = f"Over {sweep.num_ranked:,} of {sweep.num_samples:,} samples."
    section.matrix("setting-rank-correlation", "Rank correlation", picture, labels, caption)


def _boxes(section: Section, name: str, title: str, sweep: Sweep, what: str) -> None:
    labels = _signal_names(sweep) if what == "signal" else _short(sweep.labels)
    shown = range(min(len(sweep.settings), MAX_BOXES))
    more = f" The first {MAX_BOXES} of {len(sweep.settings)} settings." if len(sweep.settings) > MAX_BOXES else ""
    picture = figures.value_boxes([labels[i] for i in shown], [sweep.value(i) for i in shown], what)
    section.figure(name, title, picture, f"{figures.BOXES}{more}", wide=True)
