"""Is the store what was written, and would the model write it again? And the way back: repair."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from grace_store.base.arrays import Float32Array
from grace_store.base.errors import Corrupt, GraceStoreError, StorageError, StoreError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.settings import ExtractRequest, RunOptions
from grace_store.base.text import counted, ranges
from grace_store.base.unit import SampleSignals, UnitOutcome, UnitSignals
from grace_store.read.records import UnitLoader, image_folder, open_dataset
from grace_store.run.extract import ExtractJob, extract
from grace_store.run.model_door import PROXY, model_door
from grace_store.run.open_signal import check_same
from grace_store.run.plan import rewrite_plan_arrays
from grace_store.store.backend import Backend, open_backend
from grace_store.store.check import Problem, check_plan, check_signal, check_strays, listed_sizes, remedy_of_lost
from grace_store.store.copies import has_plan_copy, restore_documents
from grace_store.store.lock import hold, refuse_busy
from grace_store.store.opened import SignalView, Store
from grace_store.store.plan_writer import plan_documents
from grace_store.store.storages import stored_form
from grace_store.store.unit_writer import rewrite_signal_metadata, withdraw_units

REEXTRACTION_TOLERANCE = 1e-3
"""Largest relative difference of a Gram's entries between two machines, batch sizes or kernels."""
REEXTRACTION_VECTOR_TOLERANCE = 5e-2
"""And of a vector, whose last stored bit may fall to either side; a backward pass in bfloat16 adds to it."""


def verify(store: Store, *, deep: bool = False, signals: Sequence[str] | None = None) -> Iterator[Problem]:
    """Yield what is wrong: with metadata, sizes and counts, and with deep every byte."""
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


def describe_problems(problems: Sequence[Problem]) -> Iterator[str]:
    """Yield problems in words, a line each; units that are still to do are drawn together."""
    missing: dict[str | None, list[int]] = {}
    for problem in problems:
        if problem.remedy == "extract" and problem.unit is not None:
            missing.setdefault(problem.signal, []).append(problem.unit)
        else:
            unit = "" if problem.unit is None else f" unit {problem.unit}"
            yield f"{problem.signal or 'plan'}{unit}: {problem.where}: {problem.text}"
    for signal, units in missing.items():
        yield f"{signal}: {counted(len(units), 'unit')} not committed: {ranges(units)}"


def verify_against_model(
    view: SignalView,
    model: str,
    num_units: int,
    options: RunOptions,
    *,
    data: Sequence[str] | None = None,
    seed: int = 0,
    door: str = PROXY,
    adapter: str | None = None,
    images: str | None = None,
    listener: Listener = ignore,
) -> Iterator[Problem]:
    """Extract a random few committed units again and compare what comes out with what is stored."""
    doors = model_door(door)
    adapter = adapter or view.signal.origin.get("adapter")
    check_same(view, model, ExtractRequest(), options, doors, adapter)
    committed = view.committed_units()
    chosen = sorted(random.Random(seed).sample(committed, min(num_units, len(committed))))
    listener(Note(f"{view.name}: extracting units {', '.join(map(str, chosen))} again."))
    with open_dataset(view.store, data) as dataset:
        folder = image_folder(images, view, dataset)
        extractor = doors.open_extractor(model, view.signal.spec, options, adapter=adapter, images=folder)
        loader = UnitLoader(view.store, dataset)
        for unit in chosen:
            signals = extractor.compute(extractor.prepare(loader.load(unit).samples)).result()
            if signals.images_sha256 != view.commit(unit).images_sha256:
                yield Problem(view.name, unit, view.key, "its images are not those it was extracted with", "repair")
                continue
            try:
                text = _difference(view, unit, signals)
            except Corrupt as error:
                yield Problem(view.name, unit, view.key, str(error), "repair")
                continue
            if text:
                yield Problem(view.name, unit, view.key, f"extracted again, {text}", "repair")


def _difference(view: SignalView, unit: int, signals: UnitOutcome) -> str:
    """Return in words how far a unit extracted again is from what is stored, or nothing if it is near enough."""
    if isinstance(signals, SampleSignals):
        worst = _largest_turn(view, unit, signals)
        allowed, what = REEXTRACTION_VECTOR_TOLERANCE, "vectors"
    else:
        assert isinstance(signals, UnitSignals)
        worst = _largest_difference(view, unit, signals.segment_vector)
        allowed, what = REEXTRACTION_TOLERANCE, "Grams"
    return f"its {what} differ by {worst:.1e} (at most {allowed:.0e})" if worst > allowed else ""


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
        m = len(stored)
        rows = vectors[row : row + m].astype(np.float64)
        row += m
        fresh = rows @ rows.T
        norms = np.sqrt(np.outer(np.diag(fresh), np.diag(fresh)))
        largest = float(np.abs(stored - fresh).max())
        scale = float(norms.max())
        worst = max(worst, largest / scale if scale > 0 else float(largest > 0))
    return worst


def repair(
    store: Store | str | Path, job: ExtractJob, listener: Listener = ignore, stop: threading.Event | None = None
) -> list[Problem]:
    """Mend everything that a deep check finds and return it: redo bad units, rewrite metadata, delete strays.

    A store whose plan cannot be opened is given by its path.
    """
    backend = store.backend if isinstance(store, Store) else open_backend(store)
    refuse_busy(backend)
    mended = _repair_documents(backend)
    mended += _repair_plan(Store.open(backend), job, listener)
    store = Store.open(backend)
    found = list(verify(store, deep=True))
    _delete_strays(store)
    for name in sorted({problem.signal for problem in [*mended, *found] if problem.signal}):
        mine = [problem for problem in found if problem.signal == name]
        units = sorted({problem.unit for problem in mine if problem.unit is not None})
        listener(Note(f"{name}: {counted(len(mine), 'problem')}; units to redo: {ranges(units) or 'none'}."))
        _repair_signal(store, name, job, units)
        extract(replace(job, location=store.location, signal=name), listener, stop)
    return mended + found


def _repair_documents(backend: Backend) -> list[Problem]:
    """Bring back the plan's and the signals' documents from their copies."""
    if not has_plan_copy(backend):
        Store.open(backend)  # says what is wrong with it, before anything is written
    with hold(backend, "plan"):
        return [Problem(each.signal, None, each.key, each.text, "repair") for each in restore_documents(backend)]


def _repair_plan(store: Store, job: ExtractJob, listener: Listener) -> list[Problem]:
    """Write again what is wrong with the plan's arrays: metadata from the plan itself, values from the data."""
    found = list(check_plan(store, deep=True))
    hopeless = [problem for problem in found if problem.remedy == "replan"]
    if hopeless:
        raise StoreError(
            f"The plan of {store.location} itself is damaged ({hopeless[0].where}: {hopeless[0].text}), so there is no "
            "telling which rows are whose. Move the store away and run `grace-store extract` into a new one."
        )
    if not found:
        return []
    with hold(store.backend, "plan"):
        documents = plan_documents(store.plan)
        for key in {problem.where for problem in found} & documents.keys():
            store.backend.write(key, documents[key])
        store.backend.flush()
        if any(check_plan(Store.open(store.backend), deep=True)):
            listener(Note("The plan's arrays are damaged; reading the data to write them again."))
            with open_dataset(store, job.data or None) as dataset:
                rewrite_plan_arrays(store, dataset)
    return found


def _delete_strays(store: Store) -> None:
    """Delete what is no part of the format, seen anew: the check may have taken hours, and others work meanwhile."""
    refuse_busy(store.backend)
    for problem in check_strays(Store.open(store.backend)):
        if problem.signal is None:
            store.backend.delete(problem.where)


def _repair_signal(store: Store, name: str, job: ExtractJob, units: Sequence[int]) -> None:
    try:
        view = store.signal(name)
    except StorageError:
        raise  # nothing is lost, it only cannot be seen now
    except GraceStoreError as error:
        raise StoreError(
            f"{error} What the signal was made with is lost, so it cannot be redone: delete "
            f"{store.location}/signals/{name} and extract it anew."
        ) from error
    if units:
        # Before any commit is withdrawn: what cannot be done again must not be undone.
        model = job.model or view.signal.origin["model"]
        adapter = job.adapter or view.signal.origin.get("adapter")
        check_same(view, model, ExtractRequest(), job.options, model_door(job.door), adapter)
        open_dataset(store, job.data or None).close()
    with hold(store.backend, name):
        rewrite_signal_metadata(view)
        withdraw_units(view, units)
