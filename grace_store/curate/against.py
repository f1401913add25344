"""Hold a pool against benchmarks: which samples have an item in them, by text or by vectors, so that none is chosen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import numpy as np
import pyarrow as pa

from grace_store.artifacts.against_table import COPIES, SCHEMA, AgainstTable
from grace_store.artifacts.notes import AgainstNote, AgainstSpec, BenchmarkNote, NamedSignal
from grace_store.base.errors import SettingError
from grace_store.base.events import Listener, Note, SamplesCompared, Warned, ignore
from grace_store.base.text import counted, duration
from grace_store.curate.against_vectors import comparable_signal, nearest_items
from grace_store.curate.benchmarks import (
    BenchmarkLike,
    ReadBenchmark,
    contents_digest,
    is_store,
    read_benchmarks,
    sets_in_words,
)
from grace_store.data.passages import DEFAULT_NGRAM, DEFAULT_SHARE, Threshold
from grace_store.data.text_matches import TextMatcher, excerpt
from grace_store.likeness.duplicate_groups import DEFAULT_THRESHOLD
from grace_store.likeness.points import Descriptor
from grace_store.read.descriptors import DescriptionReader, DescriptorSpec
from grace_store.read.parallel import Threads
from grace_store.read.records import UnitLoader, open_dataset
from grace_store.store.opened import Store, StoreLike

SAMPLES_AT_ONCE = 1024
OF_VECTORS = ("threshold", "signal", "descriptor", "dimension", "seed", "partial")
"""Settings that only a benchmark with vectors, a store, has a use for."""
OF_FILES = ("format", "map")
"""Settings that only a benchmark that is a file has a use for."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstRequest:
    """From when on a sample has an item of a benchmark in it, and where everything is."""

    ngram: int = DEFAULT_NGRAM
    """Words in a run; case, punctuation, spacing and line breaks do not count."""
    share: float = DEFAULT_SHARE
    """Of the runs of an item's question, or of its solution, that the sample must have."""
    threshold: float = DEFAULT_THRESHOLD
    """Cosine from which a sample is like an item; vectors are compared if the benchmark is a store."""
    format: str | None = None
    """Of the benchmark's records, if it is not recognised."""
    map: Mapping[str, str] | None = None
    """The fields of the benchmark's records, by the parts that they hold: prompt, and response or answer if wanted."""
    signal: str | None = None
    descriptor: Descriptor | None = None
    dimension: int | None = None
    seed: int = 0
    partial: bool = False
    data: Sequence[str] | None = None
    """Where the pool's dataset is now, if it moved."""


def against(
    store: StoreLike,
    benchmarks: Sequence[BenchmarkLike],
    request: AgainstRequest | None = None,
    *,
    threads: Threads = None,
    listener: Listener = ignore,
) -> AgainstTable:
    """Return the samples of a pool that have items of benchmarks in them: copied, in part, or by their vectors.

    A benchmark is a file of questions, with or without answers, or a store. All planned samples are looked at.
    """
    request = request or AgainstRequest()
    spec = _checked(request)
    check_used(benchmarks, _changed(request, OF_VECTORS), _changed(request, OF_FILES))
    pool = store if isinstance(store, Store) else Store.open(store)
    found = read_benchmarks(benchmarks, request.format, request.map, listener)
    for benchmark in found:
        if benchmark.sha256 in _own_digests(pool):
            listener(Warned(f"{benchmark.name} is what {pool.location} was planned from: everything matches itself."))
    vectors = [_Vectors.of(pool, each, request, threads) for each in found if each.store is not None]
    matcher = TextMatcher([item for each in found for item in each.items], Threshold(spec.ngram, spec.share))
    listener(Note(f"Comparing {counted(pool.plan.num_samples, 'sample')} with {sets_in_words(found)}."))
    rows = list(_text_rows(pool, found, matcher, request.data, listener))
    for each in vectors:
        rows += each.rows(spec.cosine)
    rows.sort(key=lambda row: (row["row"], row["benchmark"], row["item_row"], row["kind"]))
    note = AgainstNote(
        store=pool.location,
        plan_sha256=pool.plan.digest(),
        num_units=pool.plan.num_units,
        partial=any(each.pool.made_by["partial"] for each in vectors),
        spec=spec,
        benchmarks=tuple(_described(found, matcher, rows, vectors)),
        num_samples=pool.plan.num_samples,
        num_contaminated=len({row["row"] for row in rows if row["kind"] in COPIES}),
        **(vectors[0].described if vectors else {}),
    )
    return AgainstTable(pa.Table.from_pylist(rows, schema=SCHEMA), note)


def _checked(request: AgainstRequest) -> AgainstSpec:
    if not 2 <= request.ngram <= 100:
        raise SettingError(f"A run of {request.ngram} words is not between 2 and 100 words long")
    for name, value in (("share", request.share), ("threshold", request.threshold)):
        if not 0 < value <= 1:
            raise SettingError(f"--{name} {value:g} is not above 0 and at most 1")
    return AgainstSpec(ngram=request.ngram, share=request.share, cosine=request.threshold)


def _changed(request: AgainstRequest, names: Sequence[str]) -> list[str]:
    unsaid = AgainstRequest()
    return [name for name in names if getattr(request, name) != getattr(unsaid, name)]


def check_used(benchmarks: Sequence[BenchmarkLike], of_vectors: Sequence[str], of_files: Sequence[str]) -> None:
    """Refuse settings, by the names they were given with, that would change nothing of a comparison with benchmarks."""
    kinds = {isinstance(each, Store) or is_store(each) for each in benchmarks}
    if of_vectors and True not in kinds:
        raise SettingError(
            f"{', '.join(of_vectors)}: only texts are compared with files. Leave that out, or give a store that was "
            "extracted with the same model as a benchmark."
        )
    if of_files and False not in kinds:
        raise SettingError(f"{', '.join(of_files)}: a store knows how its own records are read. Leave that out.")


def _own_digests(pool: Store) -> set[str]:
    """Return what a benchmark would be known by that is the pool itself, or one of its files."""
    contents = [file.sha256 for file in pool.plan.files]
    return {*contents, contents_digest(contents), pool.plan.digest()}


# ---------------------------------------------------------------- texts


def _text_rows(
    pool: Store,
    benchmarks: Sequence[ReadBenchmark],
    matcher: TextMatcher,
    data: Sequence[str] | None,
    listener: Listener,
) -> Iterator[Row]:
    """Yield a row for each item that a sample's text has; a block of samples is in memory at a time."""
    if not matcher.items:
        return
    ends = np.array(list(accumulate(len(each.items) for each in benchmarks)))
    total, start, began = pool.plan.num_samples, 0, time.monotonic()
    with open_dataset(pool, data) as dataset:
        samples = UnitLoader(pool, dataset).each(np.arange(total))
        row = pool.column("sample_row").astype(np.int64)
        while block := list(islice(samples, SAMPLES_AT_ONCE)):
            for place, match in matcher.matches(block):
                item, name = matcher.items[match.item], benchmarks[int(np.searchsorted(ends, match.item, "right"))].name
                asked = item.solution if match.part == "solution" else item.question
                known = {"sample_id": block[place].sample_id, "row": int(row[start + place]), "benchmark": name}
                named = {"item_id": item.item_id, "item_row": item.row, "item_text": excerpt(asked)}
                yield {**known, **named, **match._asdict(), "strength": match.share}
            start += len(block)
            if start == len(block) and total > start:
                left = (time.monotonic() - began) * (total - start) / start
                listener(Note(f"Texts take about {duration(left)}."))
            listener(SamplesCompared(start, total))


# ---------------------------------------------------------------- vectors


@dataclass(frozen=True, slots=True)
class _Vectors:
    """The vectors of a pool and of one benchmark, made comparable."""

    pool: DescriptionReader
    benchmark: ReadBenchmark
    items: DescriptionReader

    @classmethod
    def of(cls, pool: Store, benchmark: ReadBenchmark, request: AgainstRequest, threads: Threads) -> _Vectors:
        assert benchmark.store is not None
        ours = pool.signal(request.signal)
        theirs = comparable_signal(ours, benchmark.store)
        if request.descriptor == "weighted":
            raise SettingError("the descriptor weighted needs the scores of both sides: choose another --descriptor")
        readers = [
            DescriptionReader.of(
                view.store,
                DescriptorSpec(view.name, request.descriptor, request.dimension, request.seed),
                partial=request.partial,
                threads=threads,
            )
            for view in (ours, theirs)
        ]
        return cls(readers[0], benchmark, readers[1])

    @property
    def signal(self) -> NamedSignal:
        """The benchmark's."""
        return NamedSignal(**self.items.made_by["signal"])

    @property
    def described(self) -> dict[str, Any]:
        """What a note says of the pool's vectors."""
        return {name: self.pool.made_by.get(name) for name in ("signal", "descriptor", "dimension", "seed")}

    def rows(self, threshold: float) -> Iterator[Row]:
        """Yield a row for each sample whose nearest item is near enough."""
        items = self.items.read_all()
        ours, theirs = self.pool.store, self.items.store
        texts = {item.row: excerpt(item.question) for item in self.benchmark.items}
        ids, rows = theirs.column("sample_id"), theirs.column("sample_row").astype(np.int64)
        our_ids, our_rows = ours.column("sample_id"), ours.column("sample_row").astype(np.int64)
        for near in nearest_items(self.pool, items, threshold):
            for sample, item, cosine in zip(*(each.tolist() for each in near), strict=True):
                known = {"sample_id": str(our_ids[sample]), "row": int(our_rows[sample])}
                named = {
                    "item_id": str(ids[item]),
                    "item_row": int(rows[item]),
                    "item_text": texts.get(int(rows[item])),
                }
                yield {**known, **named, "benchmark": self.benchmark.name, "kind": "vector", "strength": cosine}


# ---------------------------------------------------------------- what the table says of them


def _described(
    benchmarks: Sequence[ReadBenchmark], matcher: TextMatcher, rows: Sequence[Row], vectors: Sequence[_Vectors]
) -> Iterator[BenchmarkNote]:
    signals = {each.benchmark.name: each.signal for each in vectors}
    stop = 0
    for benchmark in benchmarks:
        start, stop = stop, stop + len(benchmark.items)
        mine = [row for row in rows if row["benchmark"] == benchmark.name]
        copies = [row for row in mine if row["kind"] in COPIES]
        samples = {row["row"] for row in copies}
        yield BenchmarkNote(
            name=benchmark.name,
            sha256=benchmark.sha256,
            num_items=benchmark.num_items,
            num_set_aside=benchmark.num_set_aside,
            num_short=int(matcher.is_short[start:stop].sum()),
            num_found=len({row["item_row"] for row in copies}),
            num_samples=len(samples),
            num_templates=len({row["row"] for row in mine} - samples),
            signal=signals.get(benchmark.name),
        )
