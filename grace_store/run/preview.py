"""What planning would make of a dataset, for people to look at before anything is written."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grace_store.base.events import Listener, ignore
from grace_store.base.settings import DataSpec
from grace_store.base.states import Unusable, flag_lines
from grace_store.base.text import counted, percent
from grace_store.data.dataset import Dataset
from grace_store.data.mapping import mapped_record
from grace_store.data.parse_records import sample_id
from grace_store.data.record import Record
from grace_store.run.plan import RECORDS_TO_DETECT_FORMAT, check_images, merged_request, resolve_data_spec, scan
from grace_store.run.record_tally import NUM_SHOWN, RecordTally, advise, tally_records
from grace_store.run.scan import Understanding, processes_for
from grace_store.store.backend import open_backend
from grace_store.store.opened import Store

RECORD_CHARS = 400
"""Shown of a record that was set aside."""


def preview(
    data: Sequence[str | Path],
    request: DataSpec | None = None,
    *,
    store: str | Path | None = None,
    images: str | None = None,
    workers: int | None = 1,
    listener: Listener = ignore,
) -> RecordTally:
    """Return what `plan` would make of a dataset; write nothing.

    With a store that is planned, what is not said comes from its plan.
    """
    check_images(images)
    backend = None if store is None else open_backend(store)
    planned = Store.open(backend).plan if backend is not None and backend.read("zarr.json") is not None else None
    with Dataset.open(data) as dataset:
        num_processes = processes_for(dataset.num_bytes) if workers is None else workers
        records = scan(dataset, listener)
        head = list(itertools.islice(records, RECORDS_TO_DETECT_FORMAT))
        spec = resolve_data_spec(dataset, head, merged_request(planned, dataset, request or DataSpec()))
        understanding = Understanding(tuple(file.name for file in dataset.files), spec, images)
        return tally_records(itertools.chain(head, records), understanding, num_processes, None)


def preview_json(tally: RecordTally) -> dict[str, Any]:
    """Return what planning would make of a dataset, as JSON has it."""
    advice = advise(tally) if tally.loses_most else None
    counts = ("num_records", "num_planned", "num_set_aside", "num_images_missing", "num_questions", "flagged")
    return {
        "settings": tally.understanding.spec.model_dump(mode="json"),
        **{name: getattr(tally, name) for name in counts},
        "set_aside": dict(sorted(tally.set_aside.items())),
        "unread_keys": dict(tally.unread_keys.most_common()),
        "num_steps": {str(steps): count for steps, count in sorted(tally.num_steps.items())},
        "kept_by": [
            {"min_steps": min_steps, "num_kept": kept, "share": kept / max(tally.num_records, 1)}
            for min_steps, kept in _kept_by(tally)
        ],
        "examples": list(_examples(tally)),
        "traces": list(_traces(tally)),
        "advice": None if advice is None else str(advice),
    }


def _kept_by(tally: RecordTally) -> Iterator[tuple[int, int]]:
    """Yield each --min-steps that would keep a trace, and how many traces it would keep."""
    spec = tally.understanding.spec
    most = min(max([spec.min_steps, *tally.num_steps]), spec.max_steps)
    return ((min_steps, tally.num_kept(min_steps, spec.max_steps)) for min_steps in range(1, most + 1))


def _examples(tally: RecordTally) -> Iterator[dict[str, Any]]:
    """Yield the first record that was set aside for each reason: its place is its file and its number there, from 0."""
    for reason, count in tally.set_aside.most_common():
        record, why = tally.examples[reason]
        yield {
            "reason": reason,
            "count": count,
            "row": record.row,
            "place": f"{tally.understanding.names[record.file]}:{record.row_in_file}",
            "sample_id": _own_id(record, tally.understanding.spec),
            "detail": why.detail,
            "record": record.raw[:RECORD_CHARS].decode(errors="replace"),
        }


def _own_id(record: Record, spec: DataSpec) -> str | None:
    """Return the id that a record says it has, if that much of it can be read."""
    try:
        found = sample_id(mapped_record(record.parse(), spec.map), "", 0)
    except Unusable:
        return None
    return None if found == ":0" else found


def _traces(tally: RecordTally) -> Iterator[dict[str, Any]]:
    """Yield the first few planned traces as they are split; without any, those with too few or too many steps."""
    any_steps = {"min_steps": 1, "max_steps": max([1, *tally.num_steps])}
    lenient = replace(tally.understanding, spec=tally.understanding.spec.model_copy(update=any_steps))
    chosen = [*((record, True) for record in tally.shown), *((record, False) for record in tally.spare)]
    for record, is_planned in chosen[:NUM_SHOWN]:
        sample = lenient.sample(record)
        *steps, answer = sample.segments
        prompt = "\n".join(turn.text for turn in sample.turns)
        known = {"sample_id": sample.sample_id, "row": record.row, "prompt": prompt}
        yield {**known, "steps": steps, "answer": answer, "is_planned": is_planned}


# ---------------------------------------------------------------- in lines for people


BAR_CHARS = 40
MOST_BARS = 16
"""Numbers of steps that have a line of their own; more of them share lines."""
TEXT_CHARS = 160
STEPS_SHOWN = 12


def preview_lines(found: RecordTally) -> Iterator[str]:
    """Yield how a dataset would be planned; control characters of records are still in it."""
    settings = ", ".join(
        f"{name.replace('_', '-')} {text}" for name, text in found.understanding.spec.in_words().items()
    )
    yield f"{found.num_planned} of {counted(found.num_records, 'record')} would be planned; nothing is written."
    yield f"Settings: {settings}."
    if found.num_questions is not None:
        yield f"Samples of {counted(found.num_questions, 'question')} would be gathered."
    if found.num_images_missing:
        yield f"{counted(found.num_images_missing, 'image')} named by records could not be found."
    unread = [_unread_keys(found)] if found.unread_keys else []
    kinds = (
        _histogram(found),
        _kept(found),
        _reasons(list(_examples(found))),
        *unread,
        _flags(found),
        _trace_lines(list(_traces(found))),
    )
    for lines in kinds:
        yield ""
        yield from lines
    if found.loses_most:
        lost = f"{found.num_set_aside} of {counted(found.num_records, 'record')}"
        yield ""
        yield f"Most records would be set aside: {lost}. {advise(found) or 'No other setting tried keeps more'}."


def _histogram(found: RecordTally) -> Iterator[str]:
    """Yield a bar for each number of steps, or for each few of them."""
    yield f"Steps of {counted(found.num_steps.total(), 'trace')}:"
    if not found.num_steps:
        return
    low, high = min(found.num_steps), max(found.num_steps)
    width = -(-(high - low + 1) // MOST_BARS)
    groups = [range(start, min(start + width, high + 1)) for start in range(low, high + 1, width)]
    counts = [sum(found.num_steps[steps] for steps in group) for group in groups]
    for group, count in zip(groups, counts, strict=True):
        name = str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}"
        yield f"  {name:>9}  {count:>9}  {'█' * -(-BAR_CHARS * count // max(counts))}"


def _kept(found: RecordTally) -> Iterator[str]:
    """Yield what each --min-steps would keep: all small ones, then fewer, and always the one that is set."""
    yield f"What --min-steps would keep of {counted(found.num_records, 'record')}:"
    for min_steps, num_kept in _kept_by(found):
        is_set = min_steps == found.understanding.spec.min_steps
        if is_set or min_steps <= 10 or min_steps % 10 == 0:
            # As it would be planned: of several records with one id, the first is kept.
            kept = found.num_planned if is_set else num_kept
            share = percent(kept / max(found.num_records, 1))
            yield f"  {min_steps:>9}  {kept:>9}  {share:>9}{'  as it is set' if is_set else ''}"


def _reasons(examples: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "Set aside, with the first record of each kind:" if examples else "No record is set aside."
    for each in examples:
        name = "" if each["sample_id"] is None else f", id {_short(each['sample_id'])}"
        yield f"  {each['count']:>9}  {each['reason']}"
        yield f"{'':13}{each['place']}{name}: {_short(each['detail']) or 'no more is known'}"
        yield f"{'':13}{_short(each['record'])}"


def _unread_keys(found: RecordTally) -> Iterator[str]:
    yield "Keys that no reader understands yet, and how many records have each:"
    for key, count in found.unread_keys.most_common():
        yield f"  {count:>9}  {key:<18} --ignore-key {key} reads records without it"


def _flags(found: RecordTally) -> Iterator[str]:
    lines = flag_lines(found.flagged)
    yield "Doubtful texts, by flag:" if lines else "No text is flagged."
    yield from (f"  {line}" for line in lines)


def _trace_lines(traces: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "How traces are split:" if traces else "No trace can be split."
    for each in traces:
        note = "" if each["is_planned"] else ", set aside for its number of steps"
        yield f"  {_short(each['sample_id'])} (row {each['row']}, {counted(len(each['steps']), 'step')}{note})"
        yield f"    prompt   {_short(each['prompt'])}"
        shown = list(enumerate(each["steps"], start=1))
        gap = len(shown) - STEPS_SHOWN
        for number, step in shown if gap <= 0 else shown[: STEPS_SHOWN - 1]:
            yield f"    step {number:<3} {_short(step)}"
        if gap > 0:
            yield f"    ...      {counted(gap, 'step')} more"
            yield f"    step {len(shown):<3} {_short(each['steps'][-1])}"
        yield f"    answer   {_short(each['answer'])}"


def _short(text: str) -> str:
    """Return text on one line, line breaks spelled out, cut where it is long."""
    spelled = text.strip().replace("\n", "\\n").replace("\t", "\\t")
    return spelled if len(spelled) <= TEXT_CHARS else f"{spelled[:TEXT_CHARS]}..."
