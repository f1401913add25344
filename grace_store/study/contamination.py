"""Compare a pool with benchmarks: find the samples that contain an item, by text or by vectors."""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from grace_store.base.arrays import Array, Float32Array, Places
from grace_store.base.errors import DataError, SettingError, TargetMismatch, UnknownName
from grace_store.base.events import Listener, Note, Progressed, Warned, ignore
from grace_store.base.text import counted, duration, last_name
from grace_store.choose.contamination_table import COPIES, SCHEMA, AgainstTable
from grace_store.data.benchmark_items import read_items
from grace_store.data.dataset import Dataset
from grace_store.data.passages import DEFAULT_NGRAM, DEFAULT_SHARE, Threshold
from grace_store.data.text_matches import Item, TextMatcher, excerpt
from grace_store.likeness.duplicate_groups import DEFAULT_THRESHOLD
from grace_store.likeness.points import Descriptor
from grace_store.pool.descriptors import DescriptionReader
from grace_store.pool.pool import Pool, PoolLike
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.scoring.notes import AgainstNote, AgainstSpec, BenchmarkNote, NamedSignal
from grace_store.scoring.signal_pairs import differences
from grace_store.store.backend import is_url, open_backend
from grace_store.store.opened import SignalView, Store

BenchmarkLike: TypeAlias = str | Path | Store


@dataclass(frozen=True, slots=True)
class ReadBenchmark:
    """The items of a benchmark."""

    name: str
    """The path or location that was given."""
    items: list[Item]
    """Items with a text that can be compared."""
    num_items: int
    num_set_aside: int
    sha256: str
    store: Store | None = None
    """The store with the vectors, if the benchmark is a store with a signal."""


def read_benchmarks(
    given: Sequence[BenchmarkLike],
    format: str | None = None,
    mapping: Mapping[str, str] | None = None,
    listener: Listener = ignore,
) -> list[ReadBenchmark]:
    """Read the items of each benchmark; format and mapping are for files, since a store has its own."""
    if not given:
        raise SettingError("There is no benchmark to compare with: give a file or a store")
    found = []
    for each in given:
        if (store := as_store(each)) is not None:
            found.append(_from_store(store, listener))
            continue
        with Dataset.open([str(each)]) as dataset:
            items, set_aside = read_items(dataset, format, mapping)
            digest = _contents_digest([file.sha256 for file in dataset.summary()])
        found.append(ReadBenchmark(str(each), items, len(items), set_aside.total(), digest))
    names = [each.name for each in found]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise SettingError(f"The benchmark {repeated[0]} is given twice")
    return found


def as_store(given: BenchmarkLike) -> Store | None:
    """Return the store at a location; None for files."""
    if isinstance(given, Store):
        return given
    return Store.open(given) if is_store(given) else None


def is_store(given: str | Path) -> bool:
    """Return whether a benchmark is a store rather than files."""
    return is_url(given) or (Path(given).is_dir() and open_backend(given).read("zarr.json") is not None)


def _from_store(store: Store, listener: Listener) -> ReadBenchmark:
    has_vectors = store if store.signal_names else None
    if has_vectors is None:
        listener(Warned(f"{store.location} has no signal yet, so only texts are compared with this store."))
    spec = store.plan.spec
    try:
        with open_dataset(store) as dataset:
            items, set_aside = read_items(dataset, spec.format, spec.map)
    except DataError as error:
        if has_vectors is None:
            raise
        listener(Warned(f"{error}\nOnly vectors are compared with {store.location}, no texts."))
        num_items = store.plan.num_samples
        return ReadBenchmark(
            store.location, [], num_items, store.plan.num_records - num_items, store.plan.digest(), store
        )
    digest = _contents_digest([file.sha256 for file in store.plan.files])
    return ReadBenchmark(store.location, items, len(items), set_aside.total(), digest, has_vectors)


def _contents_digest(contents: Sequence[str]) -> str:
    """Return one digest for several files from the digests of their contents."""
    return contents[0] if len(contents) == 1 else hashlib.sha256("\n".join(contents).encode()).hexdigest()


SAMPLES_AT_ONCE = 1024
ITEMS_AT_ONCE = 2048
_ROUNDING = 1e-6
"""Largest amount by which the cosine of equal vectors is below 1."""
Row = dict[str, Any]


def contamination(
    pool: PoolLike,
    benchmarks: Sequence[BenchmarkLike],
    *,
    ngram: int = DEFAULT_NGRAM,
    share: float = DEFAULT_SHARE,
    threshold: float | None = None,
    format: str | None = None,
    map: Mapping[str, str] | None = None,
    descriptor: Descriptor | None = None,
    dimension: int | None = None,
    seed: int | None = None,
    listener: Listener = ignore,
) -> AgainstTable:
    """Return the samples of a pool that contain items of benchmarks: as copies, in part, or by similar vectors.

    A benchmark is a file of questions, with or without answers, or a store. All planned samples are compared, or those
    that the pool's filter keeps. A sample contains an item if it has at least this share of the n-grams (ngram words)
    of the item's question or solution; case, punctuation, spacing and line breaks do not count. If the benchmark is a
    store, vectors are compared, too: a sample matches an item if their cosine is threshold or more. format and map say
    how the records of a file are read: map has the names of fields by part (prompt, and response or answer).
    """
    pool = Pool.of(pool)
    vectors_only = {"signal": pool.signals, "partial": pool.partial, "threshold": threshold, "seed": seed}
    vectors_only |= {"descriptor": descriptor, "dimension": dimension}
    _check_used(benchmarks, vectors_only, {"format": format, "map": map})
    cosine = DEFAULT_THRESHOLD if threshold is None else threshold
    if not 2 <= ngram <= 100:
        raise SettingError(f"--ngram {ngram} is not between 2 and 100 words")
    for name, value in (("share", share), ("threshold", cosine)):
        if not 0 < value <= 1:
            raise SettingError(f"--{name} {value:g} is not above 0 and at most 1")
    spec = AgainstSpec(ngram=ngram, share=share, cosine=cosine)
    found = read_benchmarks(benchmarks, format, map, listener)
    contents = [file.sha256 for file in pool.store.plan.files]
    own_digests = {*contents, _contents_digest(contents), pool.store.plan.digest()}
    for own in (each for each in found if each.sha256 in own_digests):
        listener(Warned(f"{pool.store.location} was planned from {own.name}, so every sample matches itself."))
    stores = {each.name: each.store for each in found if each.store is not None}
    readers = {name: _readers(pool, store, descriptor, dimension, seed or 0) for name, store in stores.items()}
    matcher = TextMatcher([item for each in found for item in each.items], Threshold(spec.ngram, spec.share))
    items = counted(sum(each.num_items for each in found), "item")
    names = ", ".join(last_name(each.name) for each in found)
    listener(Note(f"Comparing {counted(len(pool.positions), 'sample')} with {items} of {names}."))
    rows = list(_text_rows(pool, found, matcher, listener))
    for each in found:
        if each.name in readers:
            rows += _vector_rows(each, *readers[each.name], spec.cosine)
    rows.sort(key=lambda row: (row["row"], row["benchmark"], row["item_row"], row["kind"]))
    made_by = next((ours.made_by for ours, _ in readers.values()), {})
    note = AgainstNote(
        store=pool.store.location,
        plan_sha256=pool.store.plan.digest(),
        num_units=pool.store.plan.num_units,
        partial=any(ours.made_by["partial"] for ours, _ in readers.values()),
        **pool.filter_notes,
        spec=spec,
        benchmarks=tuple(_described(found, matcher, rows, readers)),
        num_samples=len(pool.positions),
        num_contaminated=len({row["row"] for row in rows if row["kind"] in COPIES}),
        **{name: made_by.get(name) for name in ("signal", "descriptor", "dimension", "seed")},
    )
    return AgainstTable(pa.Table.from_pylist(rows, schema=SCHEMA), note)


def _check_used(
    benchmarks: Sequence[BenchmarkLike], vectors_only: Mapping[str, object], files_only: Mapping[str, object]
) -> None:
    """Raise SettingError if a setting would have no effect on a comparison with these benchmarks."""
    kinds = {isinstance(each, Store) or is_store(each) for each in benchmarks}
    of_vectors, of_files = (
        ", ".join(f"--{name}" for name, value in given.items() if value is not None and value is not False)
        for given in (vectors_only, files_only)
    )
    if of_vectors and True not in kinds:
        raise SettingError(
            f"{of_vectors} needs a store as benchmark. Leave {of_vectors} out, or give a store as benchmark "
            "that was extracted with the same model."
        )
    if of_files and False not in kinds:
        raise SettingError(f"{of_files} is only for files, but every benchmark is a store. Leave {of_files} out.")


def _text_rows(
    pool: Pool, benchmarks: Sequence[ReadBenchmark], matcher: TextMatcher, listener: Listener
) -> Iterator[Row]:
    """Yield a row for each item in the text of a sample; one block of samples is in memory at a time."""
    if not matcher.items:
        return
    ends = np.array(list(accumulate(len(each.items) for each in benchmarks)))
    row, start, began = pool.rows, 0, time.monotonic()
    with open_dataset(pool.store, pool.data) as dataset:
        samples = UnitLoader(pool.store, dataset).each(pool.positions)
        while block := list(islice(samples, SAMPLES_AT_ONCE)):
            for place, match in matcher.matches(block):
                item, name = matcher.items[match.item], benchmarks[int(np.searchsorted(ends, match.item, "right"))].name
                asked = item.solution if match.part == "solution" else item.question
                known = {"sample_id": block[place].sample_id, "row": int(row[start + place]), "benchmark": name}
                named = {"item_id": item.item_id, "item_row": item.row, "item_text": excerpt(asked)}
                yield {**known, **named, **match._asdict(), "strength": match.share}
            start += len(block)
            if start == len(block) and len(row) > start:
                left = (time.monotonic() - began) * (len(row) - start) / start
                listener(Note(f"The comparison of texts takes about {duration(left)}."))
            listener(Progressed(f"Searching: {start} of {len(row)} samples compared.", start, len(row)))


def _readers(
    pool: Pool, benchmark: Store, descriptor: Descriptor | None, dimension: int | None, seed: int
) -> tuple[DescriptionReader, DescriptionReader]:
    """Return readers of the vectors of the pool and of the comparable vectors of a benchmark."""
    theirs = _comparable_signal(pool.signal, benchmark)
    if descriptor == "weighted":
        raise SettingError("the descriptor weighted needs the scores of both sides: choose another --descriptor")
    items = Pool(benchmark, theirs.name, partial=pool.partial, threads=pool.threads)
    first, second = (DescriptionReader.of(each, descriptor, dimension=dimension, seed=seed) for each in (pool, items))
    return first, second


def _comparable_signal(ours: SignalView, benchmark: Store) -> SignalView:
    """Return the signal of the benchmark that fits the pool's signal: the one of the same name, or the only one."""
    others = [benchmark.signal(name) for name in benchmark.signal_names]
    obstacles = {each.name: differences(ours.signal.spec, each.signal.spec, "benchmark") for each in others}
    fitting = [each for each in others if not obstacles[each.name]]
    if same := [each for each in fitting if each.name == ours.name]:
        return same[0]
    if len(fitting) > 1:
        names = ", ".join(each.name for each in fitting)
        raise UnknownName(
            f"Several signals of {benchmark.location} fit {ours.name} ({names}). Keep only one of these signals in "
            "the benchmark store."
        )
    if not fitting:
        nearest = min(obstacles, key=lambda name: len(obstacles[name]))
        raise TargetMismatch(
            f"The vectors of {ours.store.location} ({ours.name}) cannot be compared with those of {benchmark.location} "
            f"({nearest}), which another model or other settings made:\n  " + "\n  ".join(obstacles[nearest]) + "\n"
            "Extract the benchmark with the pool's model, or give its file in place of the store to compare texts only."
        )
    return fitting[0]


def _vector_rows(
    benchmark: ReadBenchmark, ours: DescriptionReader, theirs: DescriptionReader, threshold: float
) -> Iterator[Row]:
    """Yield a row for each sample that has a cosine of at least threshold with its nearest item."""
    items = theirs.read_all()
    texts = {item.row: excerpt(item.question) for item in benchmark.items}
    ids, our_ids, our_rows = theirs.store.column("sample_id"), ours.store.column("sample_id"), ours.row
    for block in ours.blocks():
        cosine, nearest = _nearest(block.vector, items.vector)
        for place in np.flatnonzero(cosine >= threshold - _ROUNDING).tolist():
            sample, item = int(block.sample[place]), int(items.sample[nearest[place]])
            item_row = int(theirs.row[item])
            known = {"sample_id": str(our_ids[sample]), "row": int(our_rows[sample]), "benchmark": benchmark.name}
            named = {"item_id": str(ids[item]), "item_row": item_row, "item_text": texts.get(item_row)}
            yield {**known, **named, "kind": "vector", "strength": float(cosine[place].clip(-1, 1))}


def _nearest(vector: Array, items: Array) -> tuple[Float32Array, Places]:
    """Return the cosine of each vector with its nearest item, and the place of this item."""
    cosine, nearest = np.full(len(vector), -1.0, dtype=np.float32), np.zeros(len(vector), dtype=np.int64)
    for start in range(0, len(items), ITEMS_AT_ONCE):
        found = vector @ items[start : start + ITEMS_AT_ONCE].T
        best = found.argmax(axis=1)
        larger = found[np.arange(len(vector)), best]
        nearest = np.where(larger > cosine, start + best, nearest)
        cosine = np.maximum(cosine, larger)
    return cosine, Places(nearest)


def _described(
    benchmarks: Sequence[ReadBenchmark],
    matcher: TextMatcher,
    rows: Sequence[Row],
    readers: Mapping[str, tuple[DescriptionReader, DescriptionReader]],
) -> Iterator[BenchmarkNote]:
    """Yield the note of each benchmark, with the numbers of items and samples found."""
    signals = {name: NamedSignal(**theirs.made_by["signal"]) for name, (_, theirs) in readers.items()}
    stop = 0
    for benchmark in benchmarks:
        start, stop = stop, stop + len(benchmark.items)
        mine = [row for row in rows if row["benchmark"] == benchmark.name]
        copies = [row for row in mine if row["kind"] in COPIES]
        samples = {row["row"] for row in copies}
        yield BenchmarkNote(
            **{name: getattr(benchmark, name) for name in ("name", "sha256", "num_items", "num_set_aside")},
            num_short=int(matcher.is_short[start:stop].sum()),
            num_found=len({row["item_row"] for row in copies}),
            num_samples=len(samples),
            num_templates=len({row["row"] for row in mine} - samples),
            signal=signals.get(benchmark.name),
        )
