"""Is the store what was written, and would the model write it again? If not, mend it: the same call resumes."""

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from grace_store.base.arrays import Float32Array
from grace_store.base.errors import Corrupt, GraceStoreError, StorageError, StoreError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.settings import ExtractSpec
from grace_store.base.states import SampleSignals, UnitOutcome, UnitSignals
from grace_store.base.text import counted, ranges
from grace_store.base.watch import Watch
from grace_store.pool.records import UnitLoader, image_folder, open_dataset
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.extractor_protocol import model_door
from grace_store.run.open_signal import check_same, follow_sharing
from grace_store.run.plan import rewrite_plan_arrays
from grace_store.store.backend import Backend, open_backend
from grace_store.store.check import Problem, check_plan, check_signal, check_strays, listed_sizes, remedy_of_lost
from grace_store.store.keys import completion_key, sharing_key
from grace_store.store.lock import hold, refuse_busy
from grace_store.store.metadata_backup import find_plan_copy, restore_documents
from grace_store.store.opened import SignalView, Store
from grace_store.store.plan_writer import plan_documents
from grace_store.store.storages import stored_form
from grace_store.store.unit_writer import drop_damaged_sharing, rewrite_signal_metadata, withdraw_units

UNITS_AGAIN = 2
REEXTRACTION_TOLERANCE = 1e-3
"""Largest relative difference of a Gram's entries between two machines, batch sizes or kernels."""
REEXTRACTION_VECTOR_TOLERANCE = 5e-2
"""And of a vector, whose last stored bit may fall to either side; a backward pass in bfloat16 adds to it."""


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


def verify_store(
    store: Store,
    *,
    deep: bool = False,
    signal: str | None = None,
    again: ExtractJob | None = None,
    num_units: int = UNITS_AGAIN,
    listener: Listener = ignore,
) -> tuple[list[Problem], list[Problem]]:
    """Check a store, or one signal of it; with a job, extract a few units again unless something is found wrong.

    Return the problems, and apart from them the units that a signal lacks only because it is not finished.
    """
    names = [store.signal(signal).name] if signal else store.signal_names
    problems: list[Problem] = []
    units_to_do: list[Problem] = []
    for problem in verify(store, deep=deep, signals=names):
        (units_to_do if _is_to_do(store, problem) else problems).append(problem)
    if again is not None and not problems:
        for name in names:
            problems.extend(verify_against_model(store.signal(name), again, num_units, listener))
    return problems, units_to_do


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


def verify_against_model(
    view: SignalView, job: ExtractJob, num_units: int = UNITS_AGAIN, listener: Listener = ignore
) -> Iterator[Problem]:
    """Extract a random few committed units again and compare what comes out with what is stored."""
    door, model = model_door(job.door), job.model or view.signal.origin["model"]
    adapter = job.adapter or view.signal.origin.get("adapter")
    check_same(view, model, ExtractSpec(), job.options, door, adapter)
    committed = view.committed_units()
    chosen = sorted(random.Random(0).sample(committed, min(num_units, len(committed))))
    listener(Note(f"{view.name}: extracting units {', '.join(map(str, chosen))} again."))
    with open_dataset(view.store, job.data or None) as dataset, Watch(job.options.patience, listener) as watch:
        images = image_folder(job.images, view, dataset)
        with watch.over("its first probes"):
            extractor = door.open_extractor(model, view.signal.spec, job.options, adapter=adapter, images=images)
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


# ---------------------------------------------------------------- mending it


def repair(job: ExtractJob, listener: Listener = ignore, stop: threading.Event | None = None) -> list[Problem]:
    """Mend and return all that a deep check finds; the job's model, data and options count before a signal's own."""
    backend = open_backend(job.store)
    if find_plan_copy(backend) is None:
        Store.open(backend)  # says what is wrong with it, before anything is written
    refuse_busy(backend)
    mended = _repair_documents(backend)
    mended += _repair_plan(Store.open(backend), job, listener)
    store = Store.open(backend)
    found = list(verify(store, deep=True))
    _delete_strays(store)
    for name in sorted({problem.signal for problem in [*mended, *found] if problem.signal}):
        mine = [problem for problem in found if problem.signal == name]
        units = _units_to_redo(store, name, mine)
        listener(Note(f"{name}: {counted(len(mine), 'problem')}; units to redo: {ranges(units) or 'none'}."))
        _repair_signal(store, name, job, units)
        extract(replace(job, signal=name), listener, stop)
    return mended + found


def _repair_documents(backend: Backend) -> list[Problem]:
    """Bring back the plan's and the signals' documents from their copies."""
    with hold(backend, "plan"):
        return [Problem(name, None, key, text, "repair") for name, key, text in restore_documents(backend)]


def _repair_plan(store: Store, job: ExtractJob, listener: Listener) -> list[Problem]:
    """Write again what is wrong with the plan's arrays: metadata from the plan itself, values from the data."""
    found = list(check_plan(store, deep=True))
    if hopeless := [problem for problem in found if problem.remedy == "replan"]:
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
    """Delete what is no part of the format, listed again: the check may have taken hours, and others work meanwhile."""
    refuse_busy(store.backend)
    for problem in check_strays(Store.open(store.backend)):
        if problem.signal is None:
            store.backend.delete(problem.where)


def _units_to_redo(store: Store, name: str, problems: Sequence[Problem]) -> list[int]:
    """Return the units that are wrong, or all that are done if nothing says any more how these shared prompts."""
    units = {problem.unit for problem in problems if problem.unit is not None}
    if any(problem.where == sharing_key(name) for problem in problems):
        units.update(store.signal(name).committed_units())
    return sorted(units)


def _repair_signal(store: Store, name: str, job: ExtractJob, units: Sequence[int]) -> None:
    try:
        view = store.signal(name)
    except StorageError:
        raise  # nothing is lost, it only cannot be seen now
    except GraceStoreError as error:
        raise StoreError(
            f"{error} What the signal was made with is lost, so it cannot be redone: delete "
            f"{store.location}/signals/{name} and extract it again."
        ) from error
    if units:
        # Before any commit is withdrawn: what cannot be done again must not be undone.
        model = job.model or view.signal.origin["model"]
        adapter = job.adapter or view.signal.origin.get("adapter")
        check_same(view, model, ExtractSpec(), job.options, model_door(job.door), adapter)
        open_dataset(store, job.data or None).close()
    with hold(store.backend, name):
        rewrite_signal_metadata(view)
        drop_damaged_sharing(view)
        withdraw_units(view, units)
