"""What planning would make of a dataset, for people to look at before anything is written."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from grace_store.base.events import Listener, ignore
from grace_store.base.settings import DataRequest, DataSpec, Frozen
from grace_store.base.states import Unusable
from grace_store.data.dataset import Dataset
from grace_store.data.mapping import mapped_record
from grace_store.data.record import Record
from grace_store.data.understand import sample_id
from grace_store.run.plan import RECORDS_TO_DETECT_FORMAT, check_images, merged_request, resolve_data_spec, scan
from grace_store.run.record_tally import NUM_SHOWN, RecordTally, advise, tally_records
from grace_store.run.scan import Understanding, processes_for
from grace_store.store.backend import open_backend
from grace_store.store.opened import Store

RECORD_CHARS = 400
"""Shown of a record that was set aside."""


class KeptBy(Frozen):
    """What one --min-steps would keep."""

    min_steps: int
    num_kept: int
    share: float


class ReasonExample(Frozen):
    """The first record that was set aside for a reason."""

    reason: str
    count: int
    row: int
    place: str
    """File and the record's number in it, from 0."""
    sample_id: str | None
    detail: str
    record: str
    """How the record begins."""


class ShownTrace(Frozen):
    """A trace as it is split."""

    sample_id: str
    row: int
    prompt: str
    steps: tuple[str, ...]
    answer: str
    is_planned: bool
    """False if it has too few or too many steps."""


class Preview(Frozen):
    """What planning would make of a dataset."""

    settings: DataSpec
    num_records: int
    num_planned: int
    num_set_aside: int
    set_aside: dict[str, int]
    num_images_missing: int
    num_questions: int | None
    """Those whose traces would be gathered; None if none would."""
    unread_keys: dict[str, int]
    """How many records have each key for which records are set aside."""
    flagged: dict[str, int]
    """How many samples that would be planned have each flag of the text."""
    num_steps: dict[int, int]
    """How many traces have each number of steps, those with too few or too many included."""
    kept_by: tuple[KeptBy, ...]
    examples: tuple[ReasonExample, ...]
    traces: tuple[ShownTrace, ...]
    advice: str | None
    """The settings that would keep more, if most are set aside."""


def preview(
    data: Sequence[str | Path],
    request: DataRequest | None = None,
    *,
    store: str | Path | None = None,
    images: str | None = None,
    workers: int | None = 1,
    listener: Listener = ignore,
) -> Preview:
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
        spec = resolve_data_spec(dataset, head, merged_request(planned, dataset, request or DataRequest()))
        understanding = Understanding(tuple(file.name for file in dataset.files), spec, images)
        tally = tally_records(itertools.chain(head, records), understanding, num_processes, None)
    return _preview(tally, understanding)


def _preview(tally: RecordTally, understanding: Understanding) -> Preview:
    advice = advise(tally, understanding) if tally.loses_most else None
    return Preview(
        settings=understanding.spec,
        num_records=tally.num_records,
        num_planned=tally.num_planned,
        num_set_aside=tally.num_set_aside,
        set_aside=dict(sorted(tally.set_aside.items())),
        num_images_missing=tally.num_images_missing,
        num_questions=tally.num_questions,
        unread_keys=dict(tally.unread_keys.most_common()),
        flagged=tally.flagged,
        num_steps=dict(sorted(tally.num_steps.items())),
        kept_by=tuple(_kept_by(tally, understanding.spec)),
        examples=tuple(_examples(tally, understanding)),
        traces=tuple(_traces(tally, understanding)),
        advice=None if advice is None else str(advice),
    )


def _kept_by(tally: RecordTally, spec: DataSpec) -> Iterator[KeptBy]:
    most = min(max([spec.min_steps, *tally.num_steps]), spec.max_steps)
    for min_steps in range(1, most + 1):
        kept = tally.num_kept(min_steps, spec.max_steps)
        yield KeptBy(min_steps=min_steps, num_kept=kept, share=kept / max(tally.num_records, 1))


def _examples(tally: RecordTally, understanding: Understanding) -> Iterator[ReasonExample]:
    for reason, count in tally.set_aside.most_common():
        record, why = tally.examples[reason]
        yield ReasonExample(
            reason=reason,
            count=count,
            row=record.row,
            place=f"{understanding.names[record.file]}:{record.row_in_file}",
            sample_id=_own_id(record, understanding),
            detail=why.detail,
            record=record.raw[:RECORD_CHARS].decode(errors="replace"),
        )


def _own_id(record: Record, understanding: Understanding) -> str | None:
    """Return the id that a record says it has, if that much of it can be read."""
    try:
        found = sample_id(mapped_record(record.parse(), understanding.spec.map), "", 0)
    except Unusable:
        return None
    return None if found == ":0" else found


def _traces(tally: RecordTally, understanding: Understanding) -> Iterator[ShownTrace]:
    """Yield the first few that are planned or, for want of them, whose number of steps alone is wrong."""
    any_steps = {"min_steps": 1, "max_steps": max([1, *tally.num_steps])}
    lenient = replace(understanding, spec=understanding.spec.model_copy(update=any_steps))
    chosen = [*((record, True) for record in tally.shown), *((record, False) for record in tally.spare)]
    for record, is_planned in chosen[:NUM_SHOWN]:
        sample = lenient.sample(record)
        *steps, answer = sample.segments
        prompt = "\n".join(turn.text for turn in sample.turns)
        yield ShownTrace(
            sample_id=sample.sample_id,
            row=record.row,
            prompt=prompt,
            steps=tuple(steps),
            answer=answer,
            is_planned=is_planned,
        )
