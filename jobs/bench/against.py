"""Measure the comparison of a pool with a benchmark by text: time, memory, and what of planted items is found.

    python -m jobs.bench.against --samples 10000 40000

Makes pools of short traces, as long as GSM8K's, of words as frequent as words are, with an item in every thousandth,
and a benchmark of 10,000 items. Every measurement runs in a process of its own, which tells its peak memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.base.files import write_lines
from grace_store.base.settings import DataSpec
from grace_store.run.plan import plan
from grace_store.study.contamination import contamination
from jobs.bench.measuring import measured_apart

NUM_ITEMS = 10_000
NUM_WORDS = 6_000
QUESTION_WORDS, STEP_WORDS, NUM_STEPS = 45, 15, 4
PLANTED_EVERY = 1_000
SEED = 0


class Writer:
    """Writes texts of words drawn by Zipf's law."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._words = [_spelled(number) for number in range(NUM_WORDS)]
        weight = 1 / np.arange(1, NUM_WORDS + 1)
        self._share = weight / weight.sum()

    def texts(self, count: int, num_words: int) -> Iterator[str]:
        """Yield texts of that many words."""
        for drawn in self._rng.choice(NUM_WORDS, (count, num_words), p=self._share):
            yield " ".join(self._words[number] for number in drawn.tolist())


def _spelled(number: int) -> str:
    letters = []
    for _ in range(3):
        number, rest = divmod(number, 20)
        letters.append("bcdfghjklmnpqrstvwxz"[rest] + "aeiou"[rest % 5])
    return "".join(letters)


def make_files(folder: Path, num_samples: int, num_items: int = NUM_ITEMS) -> tuple[Path, Path]:
    """Write a planned pool and a benchmark, and return where they are."""
    items = list(Writer(SEED).texts(num_items, QUESTION_WORDS))
    benchmark, pool = folder / "items.jsonl", folder / f"pool-{num_samples}.jsonl"
    write_lines(benchmark, (json.dumps({"question": each}).encode() for each in items))
    write_lines(pool, _records(num_samples, items))
    store = pool.with_suffix(".zarr")
    plan([pool], store, DataSpec(format="explicit", min_steps=1))
    return store, benchmark


def _records(num_samples: int, items: list[str]) -> Iterator[bytes]:
    writer = Writer(SEED + 1)
    prompts, steps = writer.texts(num_samples, QUESTION_WORDS), writer.texts(NUM_STEPS * num_samples, STEP_WORDS)
    for number, prompt in enumerate(prompts):
        asked = f"{prompt}\n{items[number % len(items)]}" if number % PLANTED_EVERY == 0 else prompt
        yield json.dumps({"prompt": asked, "steps": [next(steps) for _ in range(NUM_STEPS)], "answer": "7"}).encode()


def against_in(store: str, benchmark: str) -> dict[str, Any]:
    """Compare the two, and return how many samples and items were found."""
    note = contamination(store, [benchmark]).note
    return {"contaminated": note.num_contaminated, "planted": -(-note.num_samples // PLANTED_EVERY)}


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, nargs="+", default=[10_000, 40_000])
    given = parser.parse_args()
    sys.stdout.write(f"{'samples':>9}{'CPU s':>8}{'peak MB':>9}{'found':>7}{'planted':>9}\n")
    with tempfile.TemporaryDirectory() as folder:
        for num_samples in given.samples:
            store, benchmark = make_files(Path(folder), num_samples)
            cost = measured_apart(against_in, store=str(store), benchmark=str(benchmark))
            found = cost["result"]
            numbers = f"{cost['cpu_seconds']:>8.1f}{cost['peak_bytes'] / 1e6:>9.0f}"
            sys.stdout.write(f"{num_samples:>9}{numbers}{found['contaminated']:>7}{found['planted']:>9}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
