"""The benchmarks that a pool is held against: files of records, or stores, whose vectors can be compared too."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Warned, ignore
from grace_store.base.text import counted, last_name
from grace_store.data.benchmark_items import read_items
from grace_store.data.dataset import Dataset
from grace_store.data.text_matches import Item
from grace_store.pool.records import open_dataset
from grace_store.store.backend import is_url, open_backend
from grace_store.store.opened import Store

BenchmarkLike = str | Path | Store


@dataclass(frozen=True, slots=True)
class ReadBenchmark:
    """A benchmark as it was read."""

    name: str
    """As it was given."""
    items: list[Item]
    """Those whose text can be compared."""
    num_items: int
    num_set_aside: int
    sha256: str
    store: Store | None = None
    """Where its vectors are, if it is a store with a signal."""


def read_benchmarks(
    given: Sequence[BenchmarkLike],
    format: str | None = None,
    mapping: Mapping[str, str] | None = None,
    listener: Listener = ignore,
) -> list[ReadBenchmark]:
    """Read the items of each benchmark; format and mapping are those of the files, for stores know their own."""
    if not given:
        raise SettingError("There is no benchmark to compare with: give a file or a store")
    found = []
    for each in given:
        store = as_store(each)
        found.append(_from_files(str(each), format, mapping) if store is None else _from_store(store, listener))
    names = [each.name for each in found]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise SettingError(f"The benchmark {repeated[0]} is given twice")
    return found


def as_store(given: BenchmarkLike) -> Store | None:
    """Return the store that is meant; None for files."""
    if isinstance(given, Store):
        return given
    return Store.open(given) if is_store(given) else None


def is_store(given: str | Path) -> bool:
    """Whether a benchmark is a store rather than files."""
    return is_url(given) or (Path(given).is_dir() and open_backend(given).read("zarr.json") is not None)


def _from_files(name: str, format: str | None, mapping: Mapping[str, str] | None) -> ReadBenchmark:
    with Dataset.open([name]) as dataset:
        items, set_aside = read_items(dataset, format, mapping)
        digest = contents_digest([file.sha256 for file in dataset.summary()])
    return ReadBenchmark(name, items, len(items), set_aside.total(), digest, None)


def _from_store(store: Store, listener: Listener) -> ReadBenchmark:
    has_vectors = store if store.signal_names else None
    if has_vectors is None:
        listener(Warned(f"{store.location} has no signal yet, so only its texts are compared."))
    spec = store.plan.spec
    try:
        with open_dataset(store) as dataset:
            items, set_aside = read_items(dataset, spec.format, spec.map)
    except DataError as error:
        if has_vectors is None:
            raise
        listener(Warned(f"{error}\nSo only vectors are compared with {store.location}, and no texts."))
        num_items = store.plan.num_samples
        return ReadBenchmark(
            store.location, [], num_items, store.plan.num_records - num_items, store.plan.digest(), store
        )
    digest = contents_digest([file.sha256 for file in store.plan.files])
    return ReadBenchmark(store.location, items, len(items), set_aside.total(), digest, has_vectors)


def contents_digest(contents: Sequence[str]) -> str:
    """Return one digest of files from those of their contents."""
    return contents[0] if len(contents) == 1 else hashlib.sha256("\n".join(contents).encode()).hexdigest()


def sets_in_words(benchmarks: Sequence[ReadBenchmark]) -> str:
    """Say how many items of what there are."""
    items = counted(sum(each.num_items for each in benchmarks), "item")
    return f"{items} of {', '.join(last_name(each.name) for each in benchmarks)}"
