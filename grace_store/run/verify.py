"""Is the store what was written, and would the model write it again?"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from grace_store.base.arrays import Float32Array
from grace_store.base.errors import Corrupt
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.settings import ExtractRequest, RunOptions
from grace_store.base.text import counted, ranges
from grace_store.base.unit import SampleSignals, UnitOutcome, UnitSignals
from grace_store.base.watch import Watch
from grace_store.read.records import UnitLoader, image_folder, open_dataset
from grace_store.run.model_door import PROXY, model_door
from grace_store.run.open_signal import check_same
from grace_store.run.sharing import follow_sharing
from grace_store.store.check import Problem, check_plan, check_signal, check_strays, listed_sizes, remedy_of_lost
from grace_store.store.keys import completion_key
from grace_store.store.opened import SignalView, Store
from grace_store.store.storages import stored_form

REEXTRACTION_TOLERANCE = 1e-3
"""Largest relative difference of a Gram's entries between two machines, batch sizes or kernels."""
REEXTRACTION_VECTOR_TOLERANCE = 5e-2
"""And of a vector, whose last stored bit may fall to either side; a backward pass in bfloat16 adds to it."""


@dataclass(frozen=True, slots=True)
class ExtractAgainJob:
    """Which units to extract again, with what, to compare them with what is stored."""

    model: str
    num_units: int = 2
    data: tuple[str, ...] = ()
    adapter: str | None = None
    images: str | None = None
    """The folder that relative image paths start from."""
    options: RunOptions = field(default_factory=RunOptions)
    seed: int = 0
    """Decides which of the committed units are taken."""
    door: str = PROXY


def verify(store: Store | str | Path, *, deep: bool = False, signals: Sequence[str] | None = None) -> Iterator[Problem]:
    """Yield what is wrong: with metadata, sizes and counts, and with deep every byte."""
    store = store if isinstance(store, Store) else Store.open(store)
    sizes = listed_sizes(store)
    yield from check_plan(store, deep=deep, sizes=sizes)
    for name in signals or store.signal_names:
        try:
            view = store.signal(name)
        except Corrupt as error:
            yield Problem(name, None, f"signals/{name}/zarr.json", str(error), remedy_of_lost(store, name))
            continue
        yield from check_signal(view, deep=deep, sizes=sizes)
    yield from check_strays(store, sizes)


@dataclass(frozen=True, slots=True)
class Verified:
    """What a check found."""

    problems: list[Problem]
    units_to_do: list[Problem]
    """Units that a signal lacks only because it is not finished: no problem, `extract` goes on with them."""


def verify_store(
    store: Store,
    *,
    deep: bool = False,
    signal: str | None = None,
    again: ExtractAgainJob | None = None,
    listener: Listener = ignore,
) -> Verified:
    """Check a store, or one signal of it, and extract units again unless something is already found to be wrong."""
    names = [store.signal(signal).name] if signal else store.signal_names
    found = Verified([], [])
    for problem in verify(store, deep=deep, signals=names):
        (found.units_to_do if _is_to_do(store, problem) else found.problems).append(problem)
    if again is not None and not found.problems:
        for name in names:
            found.problems.extend(verify_against_model(store.signal(name), again, listener))
    return found


def _is_to_do(store: Store, problem: Problem) -> bool:
    """Whether a unit is missing from a signal without totals, which is one that never was finished."""
    if problem.remedy != "extract" or problem.unit is None or problem.signal is None:
        return False
    return store.backend.size(completion_key(problem.signal)) is None


def describe_problems(problems: Sequence[Problem]) -> Iterator[str]:
    """Yield one line for each problem; units that are still to do share one."""
    missing: dict[str | None, list[int]] = {}
    for problem in problems:
        if problem.remedy == "extract" and problem.unit is not None:
            missing.setdefault(problem.signal, []).append(problem.unit)
        else:
            unit = "" if problem.unit is None else f" unit {problem.unit}"
            yield f"{problem.signal or 'plan'}{unit}: {problem.where}: {problem.text}"
    for signal, units in missing.items():
        yield f"{signal}: {counted(len(units), 'unit')} not committed: {ranges(units)}"


def verify_against_model(view: SignalView, job: ExtractAgainJob, listener: Listener = ignore) -> Iterator[Problem]:
    """Extract a random few committed units again and compare what comes out with what is stored."""
    door = model_door(job.door)
    adapter = job.adapter or view.signal.origin.get("adapter")
    check_same(view, job.model, ExtractRequest(), job.options, door, adapter)
    committed = view.committed_units()
    chosen = sorted(random.Random(job.seed).sample(committed, min(job.num_units, len(committed))))
    listener(Note(f"{view.name}: extracting units {', '.join(map(str, chosen))} again."))
    with open_dataset(view.store, job.data or None) as dataset, Watch(job.options.patience, listener) as watch:
        images = image_folder(job.images, view, dataset)
        with watch.over("its first trials"):
            extractor = door.open_extractor(job.model, view.signal.spec, job.options, adapter=adapter, images=images)
            follow_sharing(view, extractor)
        loader = UnitLoader(view.store, dataset)
        for unit in chosen:
            with watch.over(f"unit {unit}"):
                signals = extractor.compute(extractor.prepare(loader.load(unit).samples)).result()
            if signals.images_sha256 != view.commit(unit).images_sha256:
                text = "its images are not those it was extracted with"
            else:
                try:
                    text = _difference(view, unit, signals)
                except Corrupt as error:
                    text = str(error)
            if text:
                yield Problem(view.name, unit, view.key, text, "repair")


def _difference(view: SignalView, unit: int, signals: UnitOutcome) -> str:
    """Return in words how far a unit extracted again is from what is stored, or nothing if it is near enough."""
    if isinstance(signals, SampleSignals):
        worst, allowed, what = _largest_turn(view, unit, signals), REEXTRACTION_VECTOR_TOLERANCE, "vectors"
    else:
        assert isinstance(signals, UnitSignals)
        worst, allowed, what = _largest_difference(view, unit, signals.segment_vector), REEXTRACTION_TOLERANCE, "Grams"
    told = f"extracted again, its {what} differ by {worst:.1e} (at most {allowed:.0e})"
    return told if worst > allowed else ""


def _largest_turn(view: SignalView, unit: int, signals: SampleSignals) -> float:
    """Return the largest distance of a stored vector from a fresh one in the same stored form, relative to its norm."""
    stored = view.unit_vectors(unit).astype(np.float64)
    fresh = stored_form(signals.sample_vector, view.signal.spec.storage).astype(np.float64)
    norm = np.maximum(np.linalg.norm(fresh, axis=1), np.linalg.norm(stored, axis=1))
    turn = np.linalg.norm(stored - fresh, axis=1) / np.where(norm > 0, norm, 1.0)
    known, now = view.unit_array("sample_norm", unit).astype(np.float64), signals.sample_norm.astype(np.float64)
    longer = np.abs(known - now) / np.where(now > 0, now, 1.0)
    return float(np.concatenate((turn, longer)).max(initial=0.0))


def _largest_difference(view: SignalView, unit: int, vectors: Float32Array) -> float:
    """Return the largest difference between stored Grams and those of the vectors, relative to the norms."""
    worst, row = 0.0, 0
    for sample in range(*view.store.plan.unit_range(unit)):
        stored = view.gram(sample)
        rows = vectors[row : (row := row + len(stored))].astype(np.float64)
        fresh = rows @ rows.T
        scale = float(np.sqrt(np.outer(np.diag(fresh), np.diag(fresh))).max())
        largest = float(np.abs(stored - fresh).max())
        worst = max(worst, largest / scale if scale > 0 else float(largest > 0))
    return worst
