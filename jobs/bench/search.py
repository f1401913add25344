"""Measure the search for duplicates: how long, how much memory, how much of what was planted is found.

    python -m jobs.bench.search /tmp/vectors.zarr --samples 200000

Makes the store if it is not there: int8 vectors of 2048 numbers around a few hundred centres, and in every unit some
noisy copies. Every measurement runs in a process of its own, which tells its peak memory. Nothing here is asserted
anywhere: numbers belong to the machine they were measured on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_store.base.metadata import Signal
from grace_store.base.settings import ExtractSpec, ModelIdentity
from grace_store.base.states import UnitSignals
from grace_store.choose.duplicates import StoreVectors, duplicates
from grace_store.likeness.duplicate_groups import DEFAULT_FLOOR
from grace_store.likeness.search import plan_index, similar_pairs
from grace_store.likeness.search_base import IndexPlan, Kind
from grace_store.pool.descriptors import DescriptionReader
from grace_store.pool.pool import Pool
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import UnitWriter, complete_signal, create_signal
from grace_store.study.inspect import neighbours
from jobs.bench.findings import Curve, Findings, Ratio
from jobs.bench.measuring import measured_apart
from jobs.bench.synthetic_store import make_plan

NUM_CENTRES = 300
COPIES_PER_UNIT = 4
COPY_COSINES = (0.99, 0.97, 0.96, 0.93)
"""Of the copies in a unit with what they are copied from; the last is below the threshold."""
THRESHOLD = 0.95
COMPARED = (50_000, 2048)
"""Samples and size of the vectors that both ways to search by cells are measured on."""
FEW_CELLS = (8, 4)
SEED = 0


def make_vectors(location: Path, num_samples: int, size: int) -> None:
    """Write a store of samples with one step and an answer each."""
    store = make_plan(location, num_samples, min_steps=1, max_steps=1)
    model = ModelIdentity(
        architecture="Synthetic", hidden_size=size, vocab_size=2, config="0", weights="0", tokenizer="0"
    )
    spec = ExtractSpec(model=model, rendering="plain", storage="int8")
    signal = Signal(name="base", spec=spec, plan_sha256=store.plan.digest(), origin={"model": "none"})
    view = create_signal(store, signal)
    writer = UnitWriter(view)
    centres = np.random.default_rng(SEED).standard_normal((NUM_CENTRES, size), dtype=np.float32)
    for unit in range(store.plan.num_units):
        answers = _answers(view, unit, centres)
        num_rows = 2 * len(answers)
        vectors, num_tokens = np.repeat(answers, 2, axis=0), np.ones(num_rows, dtype=np.int32)
        signals = UnitSignals.of_vectors(vectors, num_tokens, len(answers), num_tokens=num_rows)
        first = np.arange(num_rows, dtype=np.int32) % 2 * 80
        writer.write(unit, signals, np.stack([first, first + 80], axis=1))
    complete_signal(view)


def _answers(view: SignalView, unit: int, centres: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return a unit's answers; its last few are noisy copies of its first few."""
    start, stop = view.store.plan.unit_range(unit)
    rng = np.random.default_rng((SEED, unit))
    answers = rng.standard_normal((stop - start, centres.shape[1]), dtype=np.float32)
    answers += centres[rng.integers(len(centres), size=stop - start)]
    for copy, cosine in enumerate(COPY_COSINES if stop - start >= 2 * COPIES_PER_UNIT else ()):
        source = answers[copy] / np.linalg.norm(answers[copy])
        noise = rng.standard_normal(len(source), dtype=np.float32)
        noise -= (noise @ source) * source
        answers[-1 - copy] = cosine * source + np.sqrt(1 - cosine**2) * noise / np.linalg.norm(noise)
    return answers


def duplicates_in(location: str, threads: int | None) -> dict[str, Any]:
    """Look for the planted copies, and say how many of them were found."""
    store = Store.open(location)
    found = duplicates(Pool.of(store, threads=threads), descriptor="answer", threshold=THRESHOLD)
    planted, seen = 0, 0
    for unit in range(store.plan.num_units):
        start, stop = store.plan.unit_range(unit)
        for copy, cosine in enumerate(COPY_COSINES if stop - start >= 2 * COPIES_PER_UNIT else ()):
            if cosine >= THRESHOLD:
                planted += 1
                seen += int(
                    found.group[start + copy] >= 0 and found.group[start + copy] == found.group[stop - 1 - copy]
                )
    search = found.note.search
    return {
        "index": search.index,
        "planted": planted,
        "planted_found": seen,
        "dropped": int((~found.keep).sum()),
        "recall_pairs": search.recall and search.recall.num_true,
        "recall": search.recall and search.recall.share,
    }


def neighbours_in(location: str, threads: int | None) -> dict[str, Any]:
    best = neighbours(Pool.of(location, threads=threads), "#0", descriptor="answer").tables["neighbours"].rows[0]
    return {"nearest": best["sample_id"], "cosine": best["cosine"]}


def search_by(location: str, threads: int | None, kind: Kind) -> dict[str, Any]:
    """Search the vectors alone, in one way, by as many cells whatever the way."""
    reader = DescriptionReader.of(Pool.of(location, threads=threads), "answer")
    planned = plan_index(reader.max_samples, reader.size)
    cells = (planned.num_cells, planned.num_probed) if planned.num_cells else FEW_CELLS
    found = similar_pairs(StoreVectors(reader), DEFAULT_FLOOR, plan=IndexPlan(kind, *cells), threads=threads)
    assert found.recall is not None
    return {"num_true": found.recall.num_true, "recall": found.recall.share, "linked": len(found.forest)}


TASKS: dict[str, Callable[[str, int | None], dict[str, Any]]] = {
    "duplicates": duplicates_in,
    "neighbours": neighbours_in,
}


def measure(*, quick: bool, threads: int) -> dict[str, Any]:
    """Measure how both searches grow with the number of samples."""
    sizes, size = ((200, 400), 16) if quick else ((2_500, 5_000, 10_000, 20_000), 256)
    lines: dict[str, list[float]] = {task: [] for task in TASKS}
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for num_samples in sizes:
            place = Path(folder, f"{num_samples}.zarr")
            make_vectors(place, num_samples, size)
            for name, task in TASKS.items():
                cost = measured_apart(task, location=str(place), threads=threads)
                lines[name].append(cost["cpu_seconds"])
                if name == "duplicates":
                    found = cost["result"]
                    notes.append(
                        f"duplicates among {num_samples:,} samples of {size} numbers: {found['planted_found']} of "
                        f"{found['planted']} planted copies found, {cost['peak_bytes'] / 1e6:.0f} MB"
                    )
        ratio = _against_index(Path(folder), threads, *((400, 16) if quick else COMPARED))
    curve = Curve("Search", "samples", "CPU seconds", sizes, lines)
    return Findings([ratio], [curve], notes).to_json()


def _against_index(folder: Path, threads: int, num_samples: int, size: int) -> Ratio:
    """Return what a search by cells takes of what the same search takes through an index of faiss."""
    place = folder / "compared.zarr"
    make_vectors(place, num_samples, size)
    ways: tuple[Kind, ...] = ("cells", "ivf-sq8")
    costs = {kind: measured_apart(search_by, location=str(place), threads=threads, kind=kind) for kind in ways}
    found = {kind: cost.pop("result") for kind, cost in costs.items()}
    told = ", ".join(
        f"{kind} {costs[kind]['cpu_seconds']:.0f} s CPU, {costs[kind]['peak_bytes'] / 1e6:.0f} MB, recall "
        f"{found[kind]['recall']:.3f}"
        for kind in ways
    )
    value = costs["cells"]["cpu_seconds"] / costs["ivf-sq8"]["cpu_seconds"]
    note = f"{num_samples:,} samples of {size} numbers, reading included: {told}"
    return Ratio("search by cells", "an index of faiss, 8 bits a number, CPU time", value, None, costs, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=2048, help="numbers in a vector")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    if not given.store.exists():
        began = time.perf_counter()
        make_vectors(given.store, given.samples, given.size)
        sys.stdout.write(f"made {given.store} in {time.perf_counter() - began:.0f} s\n")
    plan = Store.open(given.store).plan
    sys.stdout.write(f"{plan.num_samples} samples\n{'task':<12}{'s':>8}{'CPU s':>8}{'peak MB':>9}\n")
    for name, task in TASKS.items():
        cost = measured_apart(task, location=str(given.store.resolve()), threads=given.threads)
        more = "  ".join(f"{key} {value}" for key, value in cost["result"].items())
        seconds = f"{cost['wall_seconds']:>8.0f}{cost['cpu_seconds']:>8.0f}"
        sys.stdout.write(f"{name:<12}{seconds}{cost['peak_bytes'] / 1e6:>9.0f}  {more}\n")


if __name__ == "__main__":
    main()
