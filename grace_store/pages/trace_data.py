"""The data of the trace browser: the shown samples with texts, scores, cosines, pictures and fields.

The browser sorts and filters by an index of all traces. It reads the other data in blocks, when it needs them.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from grace_store.base.arrays import Array, BoolArray, FloatArray, IntArray, Numbers, offsets_of
from grace_store.base.errors import DataError
from grace_store.base.events import Listener, Note
from grace_store.base.states import Unusable
from grace_store.base.text import counted, one_line
from grace_store.data.record import fields_in
from grace_store.data.sample import ImageRef, Sample
from grace_store.data.sample_digests import prompt_digest
from grace_store.pages.sections import shortened
from grace_store.pool.pool import stepwise_signals
from grace_store.pool.records import SampleRecords, UnitLoader, image_folder, open_dataset
from grace_store.pool.sample_fields import parse_names
from grace_store.pool.samples import token_table
from grace_store.pool.walk import EVERYTHING, SignalReader
from grace_store.scoring.score_table import ScoreTable
from grace_store.store.opened import SignalView, Store
from grace_store.store.storages import num_packed
from grace_store.values.gram import unpack
from grace_store.values.measures import MEASURES, step_numbers, trace_values
from grace_store.values.methods.grace import aggregate
from grace_store.values.methods.method import Aggregation, NamedMeasure, ScoreSpec
from grace_store.values.random_values import random_values
from grace_store.values.ranking import comparable, rank

if TYPE_CHECKING:
    from grace_store.pages.report_inputs import ReportInputs

BLOCK_TRACES = 64
"""Number of traces in one block of the page's data."""
SNIPPET_CHARS = 140
READ_AT_ONCE = 512
MAX_TOKENS = 200_000
"""Maximum number of tokens in the page: the numbers of a token take about 15 bytes."""
MAX_CHOICES = 24
"""Maximum number of different values of a field that is filtered by a choice. Others have a range or a text."""
MAX_TABLE_COLUMNS = 12
"""Maximum number of columns of score tables that traces are shown with and sorted by."""
MAX_DEFAULT_FIELDS = 4
MAX_DEFAULT_CHOICES = 12
MAX_DEFAULT_CHARS = 32
MAX_NAMES_LOOKED_AT = 500
SHOWN_ANYWAY = ("id", "row", "num_steps", "num_tokens", "value", "flags")
"""Columns of the list for every trace. These names never mean fields of records."""
LARGEST_WHOLE = 2**53
"""Largest whole number that a browser does not round. Larger numbers are shown as text."""
_STREAM = 0x7265706F7274
"""Seed of the page's random samples. `score --measure random` with a usual seed draws other samples."""

Shown = str | int | float | bool | None
"""The value of a field in the page; None if the record does not have the field."""
Neighbours = list[list[tuple[int, float]]]
"""For each sample shown, the places of its nearest samples among those shown, nearest first, with cosines."""


@dataclass(slots=True)
class TraceData:
    """The browser's data in the form of the page."""

    index: dict[str, Any]
    blocks: list[list[dict[str, Any]]] = field(default_factory=list)
    pictures: list[dict[str, str]] = field(default_factory=list)
    """Pictures by key, for each block. A picture is in the first block that shows it."""
    notes: list[str] = field(default_factory=list)
    fields: list[dict[str, str]] = field(default_factory=list)
    """Name and kind of each shown field. The index has the values."""


def gather_traces(
    given: ReportInputs,
    tables: Mapping[str, ScoreTable],
    shown: ScoreTable,
    chosen: IntArray,
    neighbours: Neighbours,
    listener: Listener,
) -> TraceData:
    """Gather the index and the details of the shown samples. chosen has a bit for each subset of a sample.

    tables has all tables by name; shown has the shown samples of one of them.
    """
    asked = None if shown.group is None else shown.group.tolist()
    index = _index(shown) | {"chosen": chosen.tolist(), "question": asked or []}
    prompts: dict[bytes, int] = {}
    found = TraceData(index)
    positions = given.store.positions_of(shown.row)
    of_records = _shown_fields(given, positions)
    shown_fields = of_records | _table_columns(tables, shown)
    for name, values in shown_fields.items():
        is_number = {type(value) for value in values if value is not None} <= {int, float}
        is_choice = name in of_records and len(set(values)) <= MAX_CHOICES
        kind = "choice" if is_choice else "number" if is_number else "text"
        found.fields.append({"name": name, "kind": kind})
    index["fields"] = list(shown_fields.values())
    steps, found.index["measures"] = _step_details(given.store, shown, positions)
    if 0 < (num_coloured := sum("token" in each for each in steps)) < len(steps):
        found.notes.append(f"The tokens of {counted(num_coloured, 'trace')} of {len(steps)} can be coloured.")
    listener(Note(f"Reading {counted(len(shown), 'trace')}."))
    for number, (sample, pictures) in enumerate(_texts(given, shown, positions, found, listener)):
        if number % BLOCK_TRACES == 0:
            found.blocks.append([])
            found.pictures.append({})
        near = [[int(other), round(cosine, 4)] for other, cosine in neighbours[number]]
        found.blocks[-1].append(steps[number] | {"near": near} | _text(sample, pictures, found.pictures))
        turns = [] if sample is None else sample.turns
        texts = [turn.text for turn in turns if turn.role == "user"] or [turn.text for turn in turns]
        index["text"].append(" ".join(" ".join(texts).split())[:SNIPPET_CHARS])
        if asked is None:
            named = None if sample is None else prompts.setdefault(prompt_digest(sample), len(prompts))
            index["question"].append(named)
    return found


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


def _numbers(values: Array, digits: int = 3, kind: str = "f") -> list[float | None]:
    """Return rounded numbers: to digits behind the point (f), or to significant digits (g)."""
    flat = np.asarray(values, dtype=np.float64).tolist()
    return [None if each != each else float(f"{each:.{digits}{kind}}") for each in flat]


def _step_details(
    store: Store, shown: ScoreTable, positions: IntArray
) -> tuple[list[dict[str, Any]], dict[str, list[float | None]]]:
    """Return each shown sample's cosines and its steps' numbers by each measure, and the values by each measure.

    A number is as it is, not turned so that larger ones are better. Alignments are those of the table if it has any.
    """
    details: list[dict[str, Any]] = [{} for _ in range(len(shown))]
    names, stepwise = [name for name in shown.note.signals if name in store.signal_names], stepwise_signals(store)
    name = next((name for name in names if name in stepwise), names[0] if names else None)
    reads = EVERYTHING if name in stepwise else ("responses", "loss") if name else ()
    fit = [each for each, kind in MEASURES.items() if {*kind.reads} <= {*reads, "plan"} and (name or kind.reads)]
    known = {each: NamedMeasure(each, "highest") for each in fit if each != shown.method}
    spec = shown.note.spec
    spec = spec if isinstance(spec, ScoreSpec) and spec.target != "group" else ScoreSpec()
    values = {each: np.full(len(shown), np.nan) for each in known}
    place = {position: i for i, position in enumerate(positions.tolist())}

    def add(each: str, at: Sequence[int], flat: Array, num: IntArray) -> None:
        for i, (start, stop) in zip(at, pairwise(offsets_of(num).tolist()), strict=True):
            details[i].setdefault("measures", {})[each] = _numbers(flat[start:stop], 4, "g")

    for block in SignalReader.blocks_at(store, () if name is None else (name,), positions, reads):
        samples, at = block.responses(0, spec), [place[position] for position in block.sample.tolist()]
        of_segments = {"tokens": samples.num_tokens, **samples.statistic}  # the answer has these numbers, too
        for each, measure in known.items():
            values[each][at] = trace_values(measure, samples)
            numbers = step_numbers(measure, samples)
            if numbers is not None:
                add(each, at, of_segments.get(each, numbers), samples.num_steps + (each in of_segments))
        entries = offsets_of(num_packed(samples.num_steps + 1)).tolist() if len(samples.gram) else [0]
        for i, (start, stop) in zip(at, pairwise(entries), strict=False):
            details[i]["cosines"] = _cosines(samples.gram[start:stop])
    if shown.has_step_scores and shown.note.spec.reads_grams:
        for each in ("answer_alignment", "history_alignment"):
            add(each, range(len(shown)), flat := shown.flat(each), shown.num_steps)
            values[each] = aggregate(flat, shown.num_steps, np.ones(len(flat)), Aggregation("mean"))
    if name in stepwise:
        _add_tokens(store.signal(name), positions, details)
    return details, {each: _numbers(value, 6, "g") for each, value in values.items()}


def _add_tokens(view: SignalView, positions: IntArray, details: Sequence[dict[str, Any]]) -> None:
    """Add the numbers of tokens to the details of as many samples as the page may hold."""
    left = MAX_TOKENS
    for position, detail in zip(positions.tolist(), details, strict=True):
        num_tokens = int(sum(detail.get("measures", {}).get("tokens", ())))
        table = token_table(view, position) if 0 < num_tokens <= left else None
        if table is not None:
            left -= num_tokens
            surprisal, entropy = (_numbers(each, 1) for each in (0.0 - table["log_probability"], table["entropy"]))
            whole = {"characters": table["num_characters"].tolist(), "rank": table["rank"].tolist()}
            detail["token"] = {**whole, "surprisal": surprisal, "entropy": entropy}


def _cosines(packed: Numbers) -> list[list[float | None]]:
    """Return the cosines on and below the diagonal, row by row; None for a vector of zeros."""
    gram = unpack(packed[None].astype(np.float64))[0]
    norm = np.sqrt(np.diag(gram))
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = gram / (norm[:, None] * norm)
    return [_numbers(np.clip(row[: i + 1], -1, 1)) for i, row in enumerate(cosines)]


def _texts(
    given: ReportInputs, shown: ScoreTable, positions: IntArray, found: TraceData, listener: Listener
) -> Iterator[tuple[Sample | None, Thumbnails | None]]:
    """Yield each shown sample and the maker of its pictures; None if the dataset cannot be read."""
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
        view = store.signal(shown.note.signal)
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


# ---------------------------------------------------------------- choice of traces


def choose_traces(value: FloatArray, row: IntArray, chosen: BoolArray, limit: int) -> tuple[IntArray, str]:
    """Return the places of at most limit samples, ascending, and a sentence about the choice.

    A tenth comes from each end of the ranking, half of the rest from the chosen samples, and the remainder is random.
    The random choice depends only on rows, so that tables of one store show the same samples.
    """
    num = len(value)
    if num <= limit:
        return np.arange(num), f"All {num:,} samples are here."
    ranking = rank(comparable(value), row)
    end = min(limit // 10, len(ranking) // 2)
    taken = np.zeros(num, dtype=np.bool_)
    taken[ranking[:end]] = taken[ranking[len(ranking) - end :]] = True
    order = rank(random_values(_STREAM, row), row)
    left = limit - 2 * end
    kept = order[(chosen & ~taken)[order]][: left // 2]
    taken[kept] = True
    others = order[~taken[order]][: left - len(kept)]
    taken[others] = True
    words = (
        f"{limit:,} of {num:,} samples are here: the {end:,} with the largest values and the {end:,} with the smallest"
        f", {len(kept):,} more of the chosen, and {len(others):,} others drawn at random (seed 0). Numbers and plots "
        "in the other parts use all samples."
    )
    return np.flatnonzero(taken), words


# ---------------------------------------------------------------- fields of the records


def _shown_fields(given: ReportInputs, positions: IntArray) -> dict[str, list[Shown]]:
    """Return the shown fields, with a value for each trace; empty if the dataset cannot be read."""
    request, named = given.request, None
    if request.fields is not None or request.by:
        lists = request.by if request.fields is None else [request.fields] if request.fields else []
        named = list(dict.fromkeys(name for each in lists for name in parse_names(each)))
    try:
        return _field_values(given.pool.records(positions), named)
    except (DataError, OSError):
        if request.data:
            raise
        return {}  # the texts are missing, too, and the page has a note about them


def _table_columns(tables: Mapping[str, ScoreTable], shown: ScoreTable) -> dict[str, list[Shown]]:
    """Return the values in other tables than the shown one, and the numbers that methods add, for each trace."""
    found: dict[str, list[Shown]] = {}
    for title, table in tables.items():
        for name in table.number_columns[: MAX_TABLE_COLUMNS - len(found)]:
            if name != "value" or table.note is not shown.note:
                found[f"{name} by {title}"] = [*_numbers(table.values_of(shown.row, name), 4)]
    return found


def _field_values(records: SampleRecords, named: Sequence[str] | None) -> dict[str, list[Shown]]:
    """Return the values of the named fields, or of a few fields with short values that differ between traces."""
    if named is None:
        named = _default_fields(records)
        if records.labels is not None:
            of_records = records.first_fields()
            named = [*(name for name in records.labels.names if name not in of_records), *named]
    found = records.fields([name for name in named if name not in SHOWN_ANYWAY])
    columns = {name: [_shown(value) for value in values] for name, values in found.items()}
    for name, values in columns.items():
        if len(records) and all(value is None for value in values):
            raise records.unknown(name)
    return columns


def _shown(value: object) -> Shown:
    """Return a value on one short line, in a form that JSON and browsers do not change."""
    is_text = isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value))
    if is_text or (isinstance(value, int) and abs(value) > LARGEST_WHOLE):
        return one_line(value)
    return value if isinstance(value, (bool, int, float)) else None


def _default_fields(records: SampleRecords) -> list[str]:
    """Return the first fields that most records have, with a few different short values."""
    texts: dict[str, set[str]] = {}
    counts: Counter[str] = Counter()
    unfit: set[str] = set()
    for record in records:
        for name, value in fields_in(record):
            if name not in texts and len(texts) >= MAX_NAMES_LOOKED_AT:
                continue
            found = texts.setdefault(name, set())
            counts[name] += 1
            is_short = isinstance(value, (str, int, float)) and len(str(value)) <= MAX_DEFAULT_CHARS
            if is_short and name not in unfit:
                found.add(str(value))  # True and 1 are equal in a set, but not as texts
            if not is_short or len(found) > MAX_DEFAULT_CHOICES:
                unfit.add(name)
    fit = [name for name in texts if name not in unfit and len(texts[name]) > 1 and 2 * counts[name] >= len(records)]
    return fit[:MAX_DEFAULT_FIELDS]


# ---------------------------------------------------------------- pictures


class Thumbnails:
    """A maker of small pictures as data URLs, once for each image. Only the pixels of a file are copied."""

    def __init__(self, folder: str, num_samples: int) -> None:
        from grace_store.data.image_files import ImageFolder

        self._folder = ImageFolder(folder)
        self._side = 448 if num_samples <= 400 else 224  # longest side of a picture in pixels
        self._keys: dict[str, str] = {}
        self.num_missing = 0

    def picture(self, ref: ImageRef) -> tuple[str, str | None, str]:
        """Return an image's key, its data URL if the image is new, and the problem if the image cannot be opened."""
        try:
            image, sha256 = self._folder.open(ref)
        except Unusable as why:
            self.num_missing += 1
            return "", None, f"{why.reason.value}: {why.detail}"
        if sha256 in self._keys:
            return self._keys[sha256], None, ""
        key = self._keys[sha256] = f"i{len(self._keys)}"
        image.thumbnail((self._side, self._side))
        return key, min(_encoded(image), key=len), ""


def _encoded(image: object) -> Iterator[str]:
    """Yield the data URLs of an image in two formats: one suits photographs, the other drawings."""
    from PIL import Image

    assert isinstance(image, Image.Image)
    options: dict[str, dict[str, int | bool]] = {"WEBP": {"quality": 72}, "PNG": {"optimize": True}}
    for name, how in options.items():
        stream = BytesIO()
        image.save(stream, name, **how)
        yield f"data:image/{name.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"
