"""What the trace browser shows of each sample: text by segment, scores, cosines, pictures, neighbours.

The browser sorts and filters by an index of all traces, and reads everything else in blocks when it needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from grace_store.base.arrays import Array, Float32Array, IntArray
from grace_store.base.errors import DataError
from grace_store.base.events import Listener, Note
from grace_store.base.text import counted
from grace_store.data.sample import ImageRef, Sample
from grace_store.data.sample_digests import prompt_digest
from grace_store.pages.plain_text import shortened
from grace_store.pages.shown_fields import ShownField, shown_fields
from grace_store.pages.thumbnails import Thumbnails
from grace_store.pool.pool import parse_names, stepwise_signals
from grace_store.pool.records import SampleRecords, UnitLoader, image_folder, open_dataset
from grace_store.pool.walk import SignalReader
from grace_store.scoring.score_table import ScoreTable
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.opened import Store
from grace_store.values.gram import num_entries, unpack

if TYPE_CHECKING:
    from grace_store.pages.report_inputs import ReportInputs
    from grace_store.pages.similarity import Neighbours

BLOCK_TRACES = 64
"""Traces in one block of the page's data."""
SNIPPET_CHARS = 140
READ_AT_ONCE = 512


@dataclass(slots=True)
class TraceData:
    """The browser's data as it goes into the page."""

    index: dict[str, list[Any]]
    blocks: list[list[dict[str, Any]]] = field(default_factory=list)
    pictures: list[dict[str, str]] = field(default_factory=list)
    """For each block, pictures by key; a picture is in the block that first shows it."""
    notes: list[str] = field(default_factory=list)
    fields: list[ShownField] = field(default_factory=list)


def gather_traces(
    given: ReportInputs, shown: ScoreTable, chosen: IntArray, neighbours: Neighbours, listener: Listener
) -> TraceData:
    """Gather the index and the details of the samples shown; chosen has a bit for each subset that a sample is in."""
    asked = None if shown.group is None else shown.group.tolist()
    index = _index(shown) | {"chosen": chosen.tolist(), "question": asked or []}
    prompts: dict[bytes, int] = {}
    found = TraceData(index)
    positions = given.store.positions_of(shown.row)
    found.fields = _fields(given, positions)
    index["fields"] = [each.values for each in found.fields]
    steps = _step_details(given.store, shown, positions)
    listener(Note(f"Reading {counted(len(shown), 'trace')}."))
    for number, (sample, pictures) in enumerate(_texts(given, shown, positions, found, listener)):
        if number % BLOCK_TRACES == 0:
            found.blocks.append([])
            found.pictures.append({})
        near = [[int(other), round(cosine, 4)] for other, cosine in neighbours[number]]
        found.blocks[-1].append(steps[number] | {"near": near} | _text(sample, pictures, found.pictures))
        index["text"].append("" if sample is None else _snippet(sample))
        if asked is None:
            named = None if sample is None else prompts.setdefault(prompt_digest(sample), len(prompts))
            index["question"].append(named)
    return found


def _fields(given: ReportInputs, positions: IntArray) -> list[ShownField]:
    """Return the fields that stand beside the traces; none where the dataset cannot be read."""
    request, named = given.request, None
    if request.fields is not None or request.by:
        lists = request.by if request.fields is None else [request.fields] if request.fields else []
        named = list(dict.fromkeys(name for each in lists for name in parse_names(each)))
    try:
        return shown_fields(SampleRecords(given.store, request.data, positions), named)
    except (DataError, OSError):
        if request.data:
            raise
        return []  # as there are no texts, which is said


def _index(shown: ScoreTable) -> dict[str, list[Any]]:
    scores: list[Any] = [[]] * len(shown)
    if shown.has_step_scores:
        flat, offsets = shown.flat("step_score"), shown.offsets.tolist()
        scores = [_numbers(flat[offsets[i] : offsets[i + 1]]) for i in range(len(shown))]
    return {
        "id": shown.sample_id,
        "row": shown.row.tolist(),
        "value": _numbers(shown.value, 6),
        "steps": shown.num_steps.tolist(),
        "tokens": shown.num_tokens.tolist(),
        "flags": shown.table["flags"].to_pylist(),
        "score": scores,
        "text": [],
    }


def _numbers(values: Array, digits: int = 3) -> list[float | None]:
    return [None if each != each else round(each, digits) for each in np.asarray(values, dtype=np.float64).tolist()]


def _snippet(sample: Sample) -> str:
    turns = [turn.text for turn in sample.turns if turn.role == "user"] or [turn.text for turn in sample.turns]
    return " ".join(" ".join(turns).split())[:SNIPPET_CHARS]


def _step_details(store: Store, shown: ScoreTable, positions: IntArray) -> list[dict[str, Any]]:
    """Return each shown sample's alignments, losses and cosines; every chunk of the store is read once."""
    details: list[dict[str, Any]] = [{} for _ in range(len(shown))]
    name = next((name for name in shown.note.signals if name in stepwise_signals(store)), None)
    if name is None:
        return details
    reader = SignalReader(store, (name,), reads=("gram", "loss"))
    alignments = {}
    if shown.has_step_scores:
        alignments = {key: shown.flat(f"{key}_alignment") for key in ("answer", "history")}
    offsets = shown.offsets.tolist()
    for start in sorted({int(position) // SAMPLES_PER_CHUNK * SAMPLES_PER_CHUNK for position in positions}):
        block = reader.read(start)
        found = block.signals[0]
        entries = np.cumsum([0, *(num_entries(int(k) + 1) for k in found.num_steps)])
        segments = np.cumsum(np.concatenate([[0], found.num_steps + 1]))
        for i in np.flatnonzero((positions >= start) & (positions < start + SAMPLES_PER_CHUNK)).tolist():
            at = int(np.searchsorted(found.sample, positions[i]))
            details[i] = {key: _numbers(flat[offsets[i] : offsets[i + 1]]) for key, flat in alignments.items()}
            if at < len(found.sample) and found.sample[at] == positions[i]:
                mine = slice(int(segments[at]), int(segments[at + 1]))
                details[i] |= {
                    "tokens": found.num_tokens[mine].tolist(),
                    "loss": _numbers(found.statistic["loss"][mine]),
                    "cosines": _cosines(found.gram[entries[at] : entries[at + 1]]),
                }
    return details


def _cosines(packed: Float32Array) -> list[list[float | None]]:
    """Return the cosines below and on the diagonal, row by row; null with a vector of zeros."""
    gram = unpack(packed[None].astype(np.float64))[0]
    norm = np.sqrt(np.diag(gram))
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = gram / (norm[:, None] * norm)
    return [_numbers(np.clip(row[: i + 1], -1, 1)) for i, row in enumerate(cosines)]


def _texts(
    given: ReportInputs, shown: ScoreTable, positions: IntArray, found: TraceData, listener: Listener
) -> Iterator[tuple[Sample | None, Thumbnails | None]]:
    """Yield each shown sample and what makes its pictures; None where the dataset cannot be read."""
    store, request = given.store, given.request
    try:
        dataset = open_dataset(store, request.data)
    except (DataError, OSError) as error:
        if request.data:
            raise
        found.notes.append(f"Texts are not shown: {error}")
        yield from ((None, None) for _ in range(len(shown)))
        return
    with dataset:
        view = store.signal(next(iter(shown.note.signals)))
        loader = UnitLoader(store, dataset)
        pictures: Thumbnails | None = None
        for start in range(0, len(positions), READ_AT_ONCE):
            for sample in loader.read_some(positions[start : start + READ_AT_ONCE]):
                if sample.images and pictures is None:
                    pictures = Thumbnails(image_folder(request.images, view, dataset), len(shown))
                yield sample, pictures
            if start and start % (8 * READ_AT_ONCE) == 0:
                listener(Note(f"{start:,} of {len(positions):,} traces read."))
        if pictures is not None and pictures.num_missing:
            found.notes.append(f"{counted(pictures.num_missing, 'image')} could not be shown; each trace says why.")


def _text(sample: Sample | None, pictures: Thumbnails | None, blocks: list[dict[str, str]]) -> dict[str, Any]:
    if sample is None:
        return {}

    def shown(part: str | ImageRef) -> str | dict[str, Any]:
        return shortened(part) if isinstance(part, str) else _picture(part, pictures, blocks)

    turns = [{"role": turn.role, "parts": [shown(part) for part in turn.parts]} for turn in sample.turns]
    return {"turns": turns, "segments": [shortened(text) for text in sample.segments]}


def _picture(ref: ImageRef, pictures: Thumbnails | None, blocks: list[dict[str, str]]) -> dict[str, Any]:
    assert pictures is not None
    name = ref.source if isinstance(ref.source, str) and ref.source[:5].lower() != "data:" else "image in the record"
    key, url, problem = pictures.picture(ref)
    if url is not None:
        blocks[-1][key] = url
    block = next((number for number, block in enumerate(blocks) if key in block), None)
    return {"name": shortened(name, 120), "key": key, "block": block, "problem": shortened(problem, 300)}
