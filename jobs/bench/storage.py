"""What a sample takes on disk, and what compression costs in values: K = 9 steps, vectors of 2048 numbers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_store.base.metadata import Signal
from grace_store.base.settings import ExtractSpec, ModelIdentity, Storage
from grace_store.base.states import STATISTICS, UnitSignals
from grace_store.store.opened import SignalView, Store
from grace_store.store.storages import packed_grams, stored_form
from grace_store.store.unit_writer import UnitWriter, complete_signal, create_signal
from grace_store.values.gram import pack
from grace_store.values.length_bias import rank_correlation
from grace_store.values.methods.grace import score_ragged
from grace_store.values.methods.method import ScoreSpec
from jobs.bench.findings import Findings, Goal, Ratio
from jobs.bench.stores import NUM_STEPS
from jobs.bench.synthetic_store import make_plan

HIDDEN_SIZE = 2048
NUM_SEGMENTS = NUM_STEPS + 1
FLOAT16_BYTES = NUM_SEGMENTS * HIDDEN_SIZE * 2
SIZE_GOALS: dict[Storage, float] = {"int8": 0.55, "int4": 0.30}
READ_GOAL = Goal("<=", 0.01)
RANK_GOALS: dict[Storage, float] = {"int8": 1e-6, "int4": 4e-5}
OVERLAP_GOAL = Goal(">=", 0.995)
READ_BY_SCORING = ("sample_gram", "segment_num_tokens", "sample_state")
"""Arrays of a signal, and of the plan's samples those that follow."""
READ_OF_SAMPLES = ("sample_num_steps", "sample_row")
SAMPLES_AT_ONCE = 64
RATIO = 0.2

Vectors = npt.NDArray[np.float32]


def measure(*, quick: bool, threads: int) -> dict[str, Any]:
    """Measure bytes in stores that the real writer writes, and values from vectors that are stored and read again."""
    num_samples = 64 if quick else 1024
    with tempfile.TemporaryDirectory() as folder:
        written = {storage: _write(Path(folder, storage), num_samples, storage) for storage in SIZE_GOALS}
        ratios = [_size(store, storage) for storage, store in written.items()]
        ratios.append(_read(written["int8"]))
    return Findings([*ratios, *_compression(200 if quick else 4000)]).to_json()


def _write(place: Path, num_samples: int, storage: Storage) -> Store:
    view = new_signal(place, num_samples, storage)
    writer = UnitWriter(view)
    for unit in range(view.store.plan.num_units):
        writer.write(unit, *unit_of_samples(*view.store.plan.unit_range(unit)))
    complete_signal(view)
    return view.store


def new_signal(place: Path, num_samples: int, storage: Storage) -> SignalView:
    """Return an empty signal of a new store."""
    store = make_plan(place, num_samples, min_steps=NUM_STEPS, max_steps=NUM_STEPS)
    model = ModelIdentity(
        architecture="Synthetic", hidden_size=HIDDEN_SIZE, vocab_size=2, config="0", weights="0", tokenizer="0"
    )
    spec = ExtractSpec(model=model, rendering="plain", storage=storage)
    signal = Signal(name="base", spec=spec, plan_sha256=store.plan.digest(), origin={"model": "none"})
    return create_signal(store, signal)


def unit_of_samples(start: int, stop: int) -> tuple[UnitSignals, npt.NDArray[np.int32]]:
    """Return what an extractor would make of samples start..stop, and their segments' spans."""
    rng, rows = np.random.default_rng((8, start)), (stop - start) * NUM_SEGMENTS
    vectors = np.concatenate([_sample_vectors(sample) for sample in range(start, stop)])
    num_tokens = rng.integers(5, 60, rows, dtype=np.int32)
    statistics = {f"segment_{name}": rng.random(rows, dtype=np.float32) for name in STATISTICS}
    signals = UnitSignals.of_vectors(vectors, num_tokens, stop - start, **statistics, num_tokens=rows)
    first = np.tile(np.arange(NUM_SEGMENTS, dtype=np.int32) * 80, stop - start)
    return signals, np.stack([first, first + 80], axis=1)


def _sample_vectors(sample: int) -> Vectors:
    """Return a sample's segments, which share a direction more or less; normal, so that zstd finds little to save."""
    rng = np.random.default_rng((7, sample))
    shared = rng.standard_normal(HIDDEN_SIZE, dtype=np.float32) * np.float32(rng.uniform(0, 2))
    noise = rng.standard_normal((NUM_SEGMENTS, HIDDEN_SIZE), dtype=np.float32)
    return np.asarray(shared + noise, dtype=np.float32)


def _size(store: Store, storage: Storage) -> Ratio:
    num_bytes = _bytes_below(Path(store.location)) / store.plan.num_samples
    note = f"{num_bytes / 1e3:.1f} kB a sample, all of the store counted"
    goal = Goal("<=", SIZE_GOALS[storage])
    return Ratio(f"bytes a sample, {storage}", "(K + 1) d float16", num_bytes / FLOAT16_BYTES, goal, note=note)


def _read(store: Store) -> Ratio:
    root = Path(store.location)
    arrays = [root / store.signal().key / name for name in READ_BY_SCORING]
    arrays += [root / "samples" / name for name in READ_OF_SAMPLES]
    num_bytes = sum(_bytes_below(array) for array in arrays) / store.plan.num_samples
    note = f"{num_bytes:.0f} bytes a sample"
    return Ratio(
        "bytes a sample that scoring reads", "(K + 1) d float16", num_bytes / FLOAT16_BYTES, READ_GOAL, note=note
    )


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _compression(num_samples: int) -> list[Ratio]:
    """Return how far values from stored vectors and from Grams are from those of float64 vectors."""
    forms: dict[str, list[npt.NDArray[np.float64]]] = {"exact": [], "int8": [], "int4": [], "Grams": []}
    for start in range(0, num_samples, SAMPLES_AT_ONCE):
        stop = min(start + SAMPLES_AT_ONCE, num_samples)
        vectors = np.stack([_sample_vectors(sample) for sample in range(start, stop)])
        forms["exact"].append(_values(vectors))
        for storage in RANK_GOALS:
            flat = stored_form(vectors.reshape(-1, HIDDEN_SIZE), storage)
            forms[storage].append(_values(flat.reshape(vectors.shape)))
        packed = packed_grams(vectors.reshape(-1, HIDDEN_SIZE), np.full(stop - start, NUM_SEGMENTS))
        forms["Grams"].append(_score(packed.reshape(stop - start, -1)))
    exact = np.concatenate(forms.pop("exact"))
    found: list[Ratio] = []
    for name, parts in forms.items():
        value, note = np.concatenate(parts), f"{num_samples} samples"
        limit = RANK_GOALS.get(name, 1e-9)  # type: ignore[call-overload]
        against = "V from float64 vectors"
        found.append(
            Ratio(
                f"1 - Spearman of V, {name}", against, 1 - rank_correlation(exact, value), Goal("<=", limit), note=note
            )
        )
        found.append(Ratio(f"top-20 % overlap, {name}", against, _overlap(exact, value), OVERLAP_GOAL, note=note))
    return found


def _values(vectors: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    exact = vectors.astype(np.float64)
    return _score(pack(exact @ exact.transpose(0, 2, 1)))


def _score(packed: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    num_steps = np.full(len(packed), NUM_SEGMENTS - 1)
    return score_ragged(num_steps, packed.ravel(), np.ones(packed.shape[0] * NUM_SEGMENTS), ScoreSpec()).value


def _overlap(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    num = round(len(one) * RATIO)
    best = [set(np.argsort(-value, kind="stable")[:num].tolist()) for value in (one, other)]
    return len(best[0] & best[1]) / num
