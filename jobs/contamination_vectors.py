"""Whether vectors find paraphrased items of a benchmark that words do not: SmolLM2-135M-Instruct on some of GSM8K.

The benchmark is a store of test items with their solutions. The pool has untouched training traces, and test items in
several ways: the question paraphrased and the item's own solution, both paraphrased or renumbered, and the question as
it is with a solution that somebody else wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.base.files import write_lines
from grace_store.base.settings import DataSpec, RunOptions
from grace_store.example import demo_model
from grace_store.pool.descriptors import describe_samples
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.store.opened import Store
from grace_store.study.contamination import contamination
from grace_store.values.intervals import share_interval
from jobs.planted_copies import Plant, has_number, renumber, reorder, reword

NUM_ITEMS, NUM_PLANTED, NUM_UNTOUCHED = 24, 12, 20
MOST_CHARS = 420
"""Of a question and its solution: short ones, so that it takes minutes of one core."""
COSINES = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
UNTOUCHED = "untouched"
_OWN_SOLUTION: dict[str, Plant] = {
    "question with other names and synonyms": reword,
    "question with other names, synonyms and order": reorder,
}
_BOTH: dict[str, Plant] = {"question and solution with other names and synonyms": reword, "both renumbered": renumber}
_BETWEEN = "\n@@\n"

Record = dict[str, Any]


def planted_records(test: Sequence[Record], train: Sequence[Record], others: Mapping[str, str]) -> Iterator[Record]:
    """Yield the records of the pool: how each was planted, and which item it is."""
    questions = [record["question"] for record in train]
    for number, record in enumerate(test[:NUM_PLANTED]):
        question, answer = record["question"], record["answer"]
        for name, plant in _OWN_SOLUTION.items():
            asked = plant(question, questions, Random(f"{name} {number}"))
            yield {"how": name, "item": number, "question": asked, "answer": answer}
        for name, plant in _BOTH.items():
            body, mark, end = answer.rpartition("####")
            both = plant(question + _BETWEEN + body, questions, Random(f"{name} {number}"))
            asked, _, told = both.partition(_BETWEEN)
            yield {"how": name, "item": number, "question": asked, "answer": told + mark + end}
        if question in others:
            yield {"how": "somebody else's solution", "item": number, "question": question, "answer": others[question]}
    for record in train[:NUM_UNTOUCHED]:
        yield {"how": UNTOUCHED, "item": -1, **record}


def vector_tables(train: Path, test: Path, solutions: Sequence[Record], folder: Path) -> Iterator[str]:
    """Yield the lines of the tables: what each cosine finds of each way, what words find, and what is found in vain."""
    others = {each["problem"]: "\n".join([*each["steps"], "#### ?"]) for each in solutions}
    items, untouched = ([each for each in _read(path) if _is_short(each)] for path in (test, train))
    # Those with another solution first, so that there are enough of them.
    items = sorted(items, key=lambda each: each["question"] not in others)[:NUM_ITEMS]
    pool_records = list(planted_records(items, untouched, others))
    folder.mkdir(parents=True, exist_ok=True)
    pool, benchmark = _extract(pool_records, folder / "pool"), _extract(items, folder / "benchmark")
    table = contamination(pool, [benchmark])
    found = {(row["row"], row["item_row"]) for row in table.table.to_pylist() if row["kind"] in ("exact", "ngram")}
    by_words = np.array([(row, record["item"]) in found for row, record in enumerate(pool_records)])
    yield from _lines(pool_records, by_words, _cosines(pool, benchmark))


def _lines(records: Sequence[Record], by_words: FloatArray, cosine: FloatArray) -> Iterator[str]:
    """Yield the table's lines; cosine is that of every trace of the pool with every item."""
    item = np.array([record["item"] for record in records])
    how = np.array([record["how"] for record in records])
    own = np.where(item >= 0, cosine[np.arange(len(item)), item], cosine.max(axis=1))
    yield f"| in the pool | traces | words | {' | '.join(f'cosine {each}' for each in COSINES)} | median cosine |"
    yield f"|---|---|---|{'---|' * (len(COSINES) + 1)}"
    for name in dict.fromkeys(how.tolist()):
        mine = how == name
        shares = [_share(own[mine] >= each) for each in COSINES]
        told = " | ".join([_share(by_words[mine]), *shares])
        yield f"| {name} | {int(mine.sum())} | {told} | {np.median(own[mine]):.2f} |"
    others = cosine.copy()
    others[np.flatnonzero(item >= 0), item[item >= 0]] = -1
    wrong = others.max(axis=1)
    shares = " | ".join(_share(wrong >= each) for each in COSINES)
    yield f"| any of them, an item that is not its own | {len(item)} | | {shares} | {np.median(wrong):.2f} |"


def _share(found: FloatArray) -> str:
    low, high = share_interval(int(found.sum()), len(found))
    return f"{found.mean():.2f} ({low:.2f}-{high:.2f})"


def _cosines(pool: Store, benchmark: Store) -> FloatArray:
    """Return the cosine of every record of the pool with every item; -1 where one has no vectors."""
    ours, theirs = describe_samples(pool), describe_samples(benchmark)
    found = np.full((pool.plan.num_records, benchmark.plan.num_records), -1.0)
    found[np.ix_(ours.row, theirs.row)] = ours.vector @ theirs.vector.T
    return found


def _extract(records: Sequence[Record], place: Path) -> Store:
    write_lines(place.with_suffix(".jsonl"), (json.dumps(record).encode() for record in records))
    job = ExtractJob(
        store=str(place.with_suffix(".zarr")),
        model=str(demo_model()),
        data=(str(place.with_suffix(".jsonl")),),
        data_request=DataSpec(format="gsm8k", min_steps=1),
        options=RunOptions(threads=1),
    )
    return extract(job).store


def _is_short(record: Record) -> bool:
    return has_number(record["question"]) and len(record["question"] + record["answer"]) <= MOST_CHARS


def _read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
