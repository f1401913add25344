"""Stores whose vectors a test knows, so that scores can be held against a brute force over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grace_store.base.states import Reason, SetAside, UnitSignals
from grace_store.store.opened import Store
from grace_store.store.unit_writer import UnitWriter, complete_signal
from tests.stores import add_signal, spans_for, write_plan

VECTOR_SIZE = 6
NUM_STEPS = [3, 1, 9, 2, 5, 5, 12, 1, 4, 8, 3, 2, 7]
SAMPLES_PER_UNIT = 4


@dataclass
class KnownStore:
    """A store and, for each signal, the vectors and token counts of every sample; None for one set aside."""

    store: Store
    samples: dict[str, list[tuple[np.ndarray, np.ndarray] | None]]
    loss: dict[str, list[np.ndarray]]


def known_store(
    folder: Path,
    signals: Sequence[str] = ("base",),
    *,
    set_aside: dict[str, Sequence[int]] | None = None,
    units: dict[str, Sequence[int]] | None = None,
    num_steps: Sequence[int] = NUM_STEPS,
    huge: Sequence[int] = (),
) -> KnownStore:
    """Write a store; a signal without all its units is not complete. Grams of huge samples are infinite."""
    write_plan(folder / "known.zarr", num_steps, SAMPLES_PER_UNIT)
    store = Store.open(folder / "known.zarr")
    known = KnownStore(store, {}, {})
    for number, name in enumerate(signals):
        rng = np.random.default_rng(number)
        aside = set((set_aside or {}).get(name, ()))
        chosen = (units or {}).get(name, range(store.plan.num_units))
        fill_signal(known, name, rng, aside, chosen, set(huge))
    return known


def fill_signal(
    known: KnownStore,
    name: str,
    rng: np.random.Generator,
    aside: set[int],
    units: Sequence[int],
    huge: set[int] = frozenset(),  # type: ignore[assignment]
) -> None:
    view = add_signal(known.store, "float32", VECTOR_SIZE, name)
    writer = UnitWriter(view)
    num_steps = known.store.column("sample_num_steps").tolist()
    all_samples, losses = [], []
    for number, steps in enumerate(num_steps):
        vectors = (rng.normal(size=(steps + 1, VECTOR_SIZE)) + rng.normal(size=VECTOR_SIZE)).astype(np.float32)
        vectors *= 1e30 if number in huge else 1
        all_samples.append((vectors, rng.integers(1, 40, steps + 1).astype(np.int32)))
        losses.append(rng.random(steps + 1).astype(np.float32))
    for unit in units:
        start, stop = known.store.plan.unit_range(unit)
        alive = np.repeat([i not in aside for i in range(start, stop)], [steps + 1 for steps in num_steps[start:stop]])
        tokens = np.concatenate([counts for _, counts in all_samples[start:stop]]) * alive
        signals = UnitSignals.of_vectors(
            np.concatenate([vectors for vectors, _ in all_samples[start:stop]]) * alive[:, None],
            tokens.astype(np.int32),
            stop - start,
            segment_loss=np.concatenate(losses[start:stop]) * alive,
            set_aside={i - start: SetAside(Reason.TOO_LONG, "long") for i in sorted(aside) if start <= i < stop},
            num_tokens=0,
        )
        writer.write(unit, signals, spans_for(view, unit))
    if len(units) == known.store.plan.num_units:
        complete_signal(view)
    done = {i for unit in units for i in range(*known.store.plan.unit_range(unit))} - aside
    known.samples[name] = [sample if i in done else None for i, sample in enumerate(all_samples)]
    known.loss[name] = losses
