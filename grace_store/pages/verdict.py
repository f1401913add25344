"""The verdict that opens a report: contamination, flags, labels, trials and variety. Bad news comes first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from grace_store.base.arrays import BoolArray, IntArray
from grace_store.base.finding import Estimate, Finding
from grace_store.base.text import counted, enumerated, first_few, last_name, percent
from grace_store.choose.contamination_table import AgainstTable
from grace_store.run.status import Status
from grace_store.scoring.notes import AgainstNote, ScoresNote
from grace_store.scoring.score_table import ScoreTable
from grace_store.store.opened import Store
from grace_store.study.judge_conclusion import BAD, GOOD, UNCLEAR, judge_measure
from grace_store.study.trial_conclusion import FEW_QUESTIONS
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.roc import CHANCE
from grace_store.values.subset_trial import is_clear

if TYPE_CHECKING:
    from grace_store.pages.report_inputs import ReportInputs

MISSING, PROVENANCE = "not looked at", "provenance"
LEVELS = (BAD, UNCLEAR, GOOD, MISSING, PROVENANCE)
"""The levels of sentences, in the order of the verdict."""
NEEDED = {
    "contaminated": "`contamination` (--against)",
    "judged": "`judge` (--finding)",
    "tried": "`trial` (--finding)",
}
"""Topics that need the file of another command, with the command and the option for the file."""
MANY_ALIKE = 0.2
"""Share of a subset's samples with a near-duplicate in it that counts as low variety."""
MAX_NAMED = 4
"""Maximum number of subsets or benchmarks that a sentence names."""

Told = Iterator[tuple[str, str]]
"""Levels with sentences."""
Subsets = Mapping[str, BoolArray]
"""For each subset, which samples of the table are in it."""


def conclude_report(
    given: ReportInputs, table: ScoreTable, subsets: Subsets, findings: Sequence[Finding], state: Status
) -> list[dict[str, str]]:
    """Return the sentences of the verdict, each with its topic and level: the worst first, the provenance last."""
    told = {
        "values": _values(table),
        "contaminated": _contaminated(given, table, subsets),
        "flagged": _flagged(table, subsets),
        "judged": _judged(given, table, findings),
        "tried": _tried(findings),
        "varied": _varied(table, subsets, findings),
    }
    told = told if len(table) else {"values": told["values"]}
    found = [(topic, level, sentence) for topic, each in told.items() for level, sentence in each]
    if needed := [words for topic, words in NEEDED.items() if all(topic != each for each, *_ in found)]:
        names = ", ".join(words.split("`")[1] for words in needed)
        run = f"Run {enumerated(needed)}, and give the report each file with the option in brackets."
        found.append((MISSING, MISSING, f"Not looked at: {names}. {run}"))
    found.append((PROVENANCE, PROVENANCE, _provenance(given, table, state)))
    found.sort(key=lambda each: LEVELS.index(each[1]))
    return [dict(zip(("topic", "level", "sentence"), each, strict=True)) for each in found]


def _in_each(is_hit: BoolArray, subsets: Subsets) -> tuple[str, str]:
    """Return whether it is bad that subsets have some samples, and the number of these samples in each subset."""
    named = {**dict([*subsets.items()][:MAX_NAMED]), "the pool": np.ones(len(is_hit), dtype=np.bool_)}
    counts = {name: (int(is_hit[mask].sum()), int(mask.sum())) for name, mask in named.items()}
    texts = [f"{num} of {of} samples ({percent(num / of)}) in {name}" for name, (num, of) in counts.items() if of]
    return BAD if any(is_hit[mask].any() for mask in subsets.values()) else GOOD, enumerated(texts)


def _values(table: ScoreTable) -> Told:
    if not np.isfinite(table.value).any():
        yield BAD, f"None of {counted(len(table), 'sample')} has a value."


def _contaminated(given: ReportInputs, table: ScoreTable, subsets: Subsets) -> Told:
    against = given.against
    for note in given.subset_notes.values():
        # The note of a subset that was chosen with --exclude-contaminated has the contaminated samples, too.
        if against is None and isinstance(known := note.spec.exclude_contaminated, AgainstNote):
            against = AgainstTable.of_rows(note.contaminated_rows or (), known)
    if against is not None:
        level, counts = _in_each(np.isin(table.row, against.contaminated), subsets)
        names = first_few([last_name(each.name) for each in against.note.benchmarks], MAX_NAMED)
        remedy = " `select --exclude-contaminated` leaves them out." if level == BAD else ""
        yield level, f"Contaminated by items of {names}: {counts}.{remedy}"


def _flagged(table: ScoreTable, subsets: Subsets) -> Told:
    level, counts = _in_each(table.is_flagged(table.known_trace_flags), subsets)
    chosen = np.logical_or.reduce([*subsets.values()])
    flags = {name: int(table.is_flagged([name])[chosen].sum()) for name in table.known_trace_flags}
    named = ", ".join(f"{count} {name}" for name, count in flags.items() if count)
    remedy = f" Chosen: {named}. `select --exclude-flagged` leaves flagged samples out." if named else ""
    yield level, f"Flagged: {counts}.{remedy}"


def _judged(given: ReportInputs, table: ScoreTable, findings: Sequence[Finding]) -> Told:
    notes = {each.scores.title: each.scores for each in given.subset_notes.values()} or {"": table.note}
    for note in notes.values():
        if note.learned is not None:
            yield GOOD if note.learned.area.low > CHANCE else UNCLEAR, f"Judged: {note.learned.in_words}"
    for found in findings:
        for note in notes.values() if found.study == "judge" else ():
            if note.learned is not None:
                continue
            level, told = judge_measure(found, note.spec.title, list(note.signals))
            yield level, f"Judged: {found.conclusion} The samples were chosen by {note.spec.title}, which {told}."


def _tried(findings: Sequence[Finding]) -> Told:
    for found in findings:
        for row in found.tables.get("subsets", ()) if found.study == "trial" else ():
            difference, level = row.get("difference"), UNCLEAR
            if isinstance(difference, Estimate) and is_clear(difference):
                level = BAD if difference.value > 0 else GOOD
            yield level, f"Tried: {row.get('conclusion') or found.conclusion}"


def _varied(table: ScoreTable, subsets: Subsets, findings: Sequence[Finding]) -> Told:
    few, texts = False, []
    for name, mask in [*subsets.items()][:MAX_NAMED]:
        size, num = int(mask.sum()), len(np.unique(table.question[mask]))
        by_chance = expected_questions(table.question, size)
        # Repeated questions are rare events, so their number has about the variance of a Poisson distribution.
        few |= num < min(FEW_QUESTIONS * by_chance, by_chance - 2 * math.sqrt(max(size - by_chance, 0)))
        texts.append(f"{counted(num, 'question')} in {name} (random subsets of its size: about {by_chance:.0f})")
    texts.append(f"{len(np.unique(table.question))} in the pool")
    measured = [found for found in findings if found.study == "diversity"]
    few |= any(found.numbers.get("num_less_varied") for found in measured)
    alike = [row.get("share_alike") for found in measured for row in [*found.tables.get("subsets", ())][1:]]
    level = BAD if few or any(isinstance(each, float) and each > MANY_ALIKE for each in alike) else GOOD
    yield level, " ".join([f"Variety: {enumerated(texts)}.", *(found.conclusion for found in measured)])


def expected_questions(question: IntArray, num: int) -> float:
    """Return the expected number of different questions among samples that are drawn at random.

    >>> round(expected_questions(np.array([0, 0, 1, 1]), 2), 4)  # two of six pairs have the same question
    1.6667
    """
    sizes = np.unique(question, return_counts=True)[1]
    # A question is missed if each of its traces in turn is among those that are not drawn.
    traces = np.arange(sizes.max(initial=0))
    factors = np.maximum(len(question) - num - traces, 0) / (len(question) - traces)
    return float((1 - np.cumprod(factors)[sizes - 1]).sum())


def _provenance(given: ReportInputs, table: ScoreTable, state: Status) -> str:
    store, note = PurePath(given.store.location.rstrip("/")).name, table.note
    counts = f"{state.num_done} of {counted(state.num_records, 'record')} done, {state.num_set_aside} set aside"
    by, chosen = _by(note, given.store), []
    for name, each in given.subset_notes.items():
        other = _by(each.scores, given.store)
        chosen.append(f"{name}: {enumerated([*each.spec.rules.values()])}{f' (from {other})' if other != by else ''}")
    return f"Made from {'; '.join([f'{store} ({counts})', by, *chosen])}."


def _by(note: ScoresNote, store: Store) -> str:
    """Return the measure of a table in words, with the settings that the measure uses, and the signals."""
    used = sorted(note.spec.used - {"seed"}) if isinstance(note.spec, ScoreSpec) else []
    settings = [f"{name} {each}" for name in used if (each := getattr(note.spec, name))]
    known = store.signal_names
    models = {name: store.signal(name).signal.origin.get("model", "") for name in note.signals if name in known}
    signals = [f"signal {name} of {PurePath(model).name}" for name, model in models.items()]
    return ", ".join([f"values by {note.title}", *settings, *signals])
