"""Make a finished store of any size without data or model, by the real writers: for benchmarks of scoring.

    python jobs/bench/synthetic_store.py /tmp/million.zarr --samples 1000000

The vectors are tiny (two numbers each), so the store is small; Grams, token counts and metadata are as real ones are.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from grace_store.base.metadata import Commit, DataFile, Signal
from grace_store.base.settings import DataSpec, ExtractSpec, ModelIdentity
from grace_store.base.states import STATISTICS, UnitSignals
from grace_store.run.scan import RECORDS_PER_BLOCK, SeenIds
from grace_store.store.backend import chunk_key, commit_key, open_backend
from grace_store.store.digested_json import seal, to_bytes
from grace_store.store.layout import PlannedSample
from grace_store.store.opened import SignalView, Store
from grace_store.store.plan_writer import PlanWriter
from grace_store.store.unit_writer import UnitWriter, complete_signal, create_signal

VECTOR_SIZE = 2
RECORD_BYTES = 800
TRACES_PER_QUESTION = 8


def make_store(
    location: Path,
    num_samples: int,
    *,
    min_steps: int = 9,
    max_steps: int = 9,
    signals: tuple[str, ...] = ("base",),
    seed: int = 0,
) -> Store:
    """Write a plan of so many samples and fill the signals; numbers depend on the arguments alone."""
    store = make_plan(location, num_samples, min_steps=min_steps, max_steps=max_steps, seed=seed)
    for number, name in enumerate(signals):
        fill_signal(store, name, (seed, number))
    return store


def make_plan(location: Path, num_samples: int, *, min_steps: int = 9, max_steps: int = 9, seed: int = 0) -> Store:
    """Write a plan of so many samples, without signals yet; ids are held against those before, as in planning."""
    rng = np.random.default_rng(seed)
    writer, seen = PlanWriter(open_backend(location)), SeenIds()
    for start in range(0, num_samples, RECORDS_PER_BLOCK):
        rows = range(start, min(start + RECORDS_PER_BLOCK, num_samples))
        ids = [f"synthetic-{row}" for row in rows]
        assert not seen.add(ids).any()
        for row, name, steps in zip(rows, ids, rng.integers(min_steps, max_steps + 1, len(rows)).tolist(), strict=True):
            digest, question = row.to_bytes(16, "big"), (row // TRACES_PER_QUESTION).to_bytes(16, "little")
            place = row, 0, row * RECORD_BYTES, RECORD_BYTES
            writer.add(PlannedSample(name, *place, digest, steps, 0, question, RECORD_BYTES, RECORD_BYTES))
    file = DataFile(
        path="synthetic.jsonl",
        kind="jsonl",
        num_bytes=num_samples * RECORD_BYTES,
        num_records=num_samples,
        sha256="0" * 64,
    )
    writer.finish(DataSpec(format="explicit", min_steps=min_steps), [file], None, "synthetic_store.py")
    return Store.open(location)


def fill_signal(store: Store, name: str, seed: tuple[int, int] = (0, 0), *, copied: bool = False) -> None:
    """Write every unit of a new signal, and its totals; if copied, all full units with the chunks of the first."""
    model = ModelIdentity(
        architecture="Synthetic", hidden_size=VECTOR_SIZE, vocab_size=2, config="0", weights=name, tokenizer="0"
    )
    spec = ExtractSpec(model=model, rendering="plain", storage="float16")
    view = create_signal(store, Signal(name=name, spec=spec, plan_sha256=store.plan.digest(), origin={"model": "none"}))
    writer = UnitWriter(view)
    first = None
    for unit in range(store.plan.num_units):
        start, stop = store.plan.unit_range(unit)
        if first is not None and stop - start == first.num_samples:
            _copy_unit(view, first, unit)
            continue
        signals, spans = _unit(view, unit, seed)
        commit = writer.write(unit, signals, spans)
        if copied:
            first = first or commit
    complete_signal(view)


def _copy_unit(view: SignalView, first: Commit, unit: int) -> None:
    """Commit a unit with the chunks of the first one: right wherever all samples have equally many steps."""
    backend = view.store.backend
    chunks = {}
    for key, digest in first.chunks.items():
        array, _, _ = key.partition("/")
        copy = chunk_key(array, key.count("/") - 1, unit)
        chunks[copy] = digest
        backend.write(f"{view.key}/{copy}", backend.read(f"{view.key}/{key}") or b"")
    commit = first.model_copy(update={"unit": unit, "chunks": chunks})
    backend.write(commit_key(view.name, unit), to_bytes(seal(commit)))


def _unit(view: SignalView, unit: int, seed: tuple[int, int]) -> tuple[UnitSignals, npt.NDArray[np.int32]]:
    """Return a unit's signals: every sample has a direction of its own, its segments lie around it."""
    start, stop = view.store.plan.unit_range(unit)
    num_segments = view.store.column("sample_num_steps", start, stop).astype(np.int64) + 1
    num_rows = int(num_segments.sum())
    rng = np.random.default_rng((*seed, unit))
    shared = np.repeat(rng.standard_normal((stop - start, VECTOR_SIZE)), num_segments, axis=0)
    first = (np.arange(num_rows) - np.repeat(np.cumsum(num_segments) - num_segments, num_segments)) * 80
    vectors = (shared + rng.standard_normal((num_rows, VECTOR_SIZE))).astype(np.float32)
    num_tokens = rng.integers(5, 60, num_rows, dtype=np.int32)
    statistics = {f"segment_{name}": rng.random(num_rows, dtype=np.float32) for name in STATISTICS}
    signals = UnitSignals.of_vectors(vectors, num_tokens, stop - start, **statistics, num_tokens=num_rows)
    return signals, np.stack([first, first + 80], axis=1).astype(np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("location", type=Path)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--min-steps", type=int, default=9)
    parser.add_argument("--max-steps", type=int, default=9)
    parser.add_argument("--signal", action="append", help="may be repeated [default: base]")
    given = parser.parse_args()
    began = time.monotonic()
    store = make_store(
        given.location,
        given.samples,
        min_steps=given.min_steps,
        max_steps=given.max_steps,
        signals=tuple(given.signal or ["base"]),
    )
    sys.stdout.write(f"{store.location}: {store.plan.num_samples} samples in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
