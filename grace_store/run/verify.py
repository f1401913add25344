"""Check that a store is intact and that the model would write the same numbers again; repair a damaged store."""

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
from grace_store.store.backend import completion_key, open_backend, sharing_key
from grace_store.store.check import Problem, check_plan, check_signal, check_strays, listed_sizes, remedy_of_lost
from grace_store.store.lock import hold, refuse_busy
from grace_store.store.metadata_backup import find_plan_copy, restore_documents
from grace_store.store.opened import SignalView, Store
from grace_store.store.plan_writer import plan_documents
from grace_store.store.storages import stored_form
from grace_store.store.unit_writer import drop_damaged_sharing, withdraw_units, write_metadata

UNITS_AGAIN = 2
REEXTRACTION_TOLERANCE = 1e-3
"""Largest relative difference of Gram entries that machines, batch sizes or kernels may cause."""
REEXTRACTION_VECTOR_TOLERANCE = 5e-2
"""The same for gradient vectors: the last stored bit may differ, and a backward pass in bfloat16 adds an error."""


def verify(store: Store | str | Path, *, deep: bool = False, signals: Sequence[str] | None = None) -> Iterator[Problem]:
    """Yield the problems with metadata, sizes and counts; with deep, also check every byte."""
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
    """Check a store or one of its signals. With a job, also extract a few units again if no problem was found.

    Return the problems, and separately the units that are missing only because a signal is not finished.
    """
    names = [store.signal(signal).name] if signal else store.signal_names
    problems: list[Problem] = []
    units_to_do: list[Problem] = []
    for problem in verify(store, deep=deep, signals=names):
        is_missing_unit = problem.remedy == "extract" and problem.unit is not None and problem.signal is not None
        # A signal without totals was never finished.
        is_to_do = is_missing_unit and store.backend.size(completion_key(str(problem.signal))) is None
        (units_to_do if is_to_do else problems).append(problem)
    if again is not None and not problems:
        for name in names:
            problems.extend(verify_against_model(store.signal(name), again, num_units, listener))
    return problems, units_to_do


def describe_problems(problems: Sequence[Problem]) -> Iterator[str]:
    """Yield one line for each problem, but only one line for all missing units of a signal."""
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
    """Extract a few random committed units again and compare the new numbers with the stored ones."""
    door = model_door(job.door)
    model, adapter = check_same(view, job.model, ExtractSpec(), job.options, door, job.adapter)
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
                signals = extractor.compute(extractor.prepare(loader.load(unit)[0])).result()
            if signals.images_sha256 != view.commit(unit).images_sha256:
                text = "the images of the unit have changed since the unit was extracted"
            else:
                try:
                    text = _difference(view, unit, signals)
                except Corrupt as error:
                    text = str(error)
            if text:
                yield Problem(view.name, unit, view.key, text, "repair")


def _difference(view: SignalView, unit: int, signals: UnitOutcome) -> str:
    """Return in words how much new and stored numbers of a unit differ; empty if by no more than is allowed."""
    if isinstance(signals, SampleSignals):
        worst, allowed, what = _largest_turn(view, unit, signals), REEXTRACTION_VECTOR_TOLERANCE, "vectors"
    else:
        assert isinstance(signals, UnitSignals)
        worst, allowed, what = _largest_difference(view, unit, signals.segment_vector), REEXTRACTION_TOLERANCE, "Grams"
    text = f"after a second extraction, the {what} differ by {worst:.1e} (at most {allowed:.0e} is allowed)"
    return "" if worst <= allowed else text  # a NaN is a difference


def _largest_turn(view: SignalView, unit: int, signals: SampleSignals) -> float:
    """Return the largest relative distance between stored vectors and new vectors in the same stored form."""
    stored = view.unit_vectors(unit).astype(np.float64)
    fresh = stored_form(signals.sample_vector, view.signal.spec.storage).astype(np.float64)
    norm = np.maximum(np.linalg.norm(fresh, axis=1), np.linalg.norm(stored, axis=1))
    turn = np.linalg.norm(stored - fresh, axis=1) / np.where(norm > 0, norm, 1.0)
    known, now = view.unit_array("sample_norm", unit).astype(np.float64), signals.sample_norm.astype(np.float64)
    longer = np.abs(known - now) / np.where(now > 0, now, 1.0)
    return float(np.concatenate((turn, longer)).max(initial=0.0))


def _largest_difference(view: SignalView, unit: int, vectors: Float32Array) -> float:
    """Return the largest difference between stored Grams and the Grams of new vectors, relative to the norms."""
    worst, row = 0.0, 0
    for sample in range(*view.store.plan.unit_range(unit)):
        stored = view.gram(sample)
        rows = vectors[row : (row := row + len(stored))].astype(np.float64)
        fresh = rows @ rows.T
        scale = float(np.sqrt(np.outer(np.diag(fresh), np.diag(fresh))).max())
        largest = float(np.abs(stored - fresh).max())
        worst = float(np.maximum(worst, largest / scale if scale != 0 else largest != 0))  # keeps a NaN
    return worst


def repair(job: ExtractJob, listener: Listener = ignore, stop: threading.Event | None = None) -> list[Problem]:
    """Repair all problems that a deep check finds, and return them. Those with the remedy "by hand" are left.

    The job's model, data and options are used instead of those that a signal names.
    """
    backend = open_backend(job.store)
    if find_plan_copy(backend) is None:
        Store.open(backend)  # raises with the reason before anything is written
    refuse_busy(backend)
    with hold(backend, "plan"):
        mended = [Problem(name, None, key, text, "repair") for name, key, text in restore_documents(backend)]
    mended += _repair_plan(Store.open(backend), job, listener)
    store = Store.open(backend)
    found = list(verify(store, deep=True))
    # The check may have taken hours, and other runs may have written meanwhile: list the stray files again.
    refuse_busy(backend)
    for problem in check_strays(Store.open(backend)):
        if problem.signal is None and problem.remedy == "delete":
            backend.delete(problem.where)
    for name in sorted({problem.signal for problem in [*mended, *found] if problem.signal}):
        mine = [problem for problem in found if problem.signal == name]
        wrong_units = {problem.unit for problem in mine if problem.unit is not None}
        if any(problem.where == sharing_key(name) for problem in mine):
            # Nothing tells any more how the committed units shared prompts, so all are extracted again.
            wrong_units.update(store.signal(name).committed_units())
        units = sorted(wrong_units)
        listener(Note(f"{name}: {counted(len(mine), 'problem')}; units to redo: {ranges(units) or 'none'}."))
        _repair_signal(store, name, job, units)
        extract(replace(job, signal=name), listener, stop)
    return mended + found


def _repair_plan(store: Store, job: ExtractJob, listener: Listener) -> list[Problem]:
    """Write damaged parts of the plan's arrays again: metadata from the plan, values from the data."""
    found = list(check_plan(store, deep=True))
    if hopeless := [problem for problem in found if problem.remedy == "replan"]:
        raise StoreError(
            f"The plan of {store.location} is damaged ({hopeless[0].where}: {hopeless[0].text}), so nobody can tell "
            "which rows belong to which sample. Move the store away and run `grace-store extract` into a new one."
        )
    if not found:
        return []
    with hold(store.backend, "plan"):
        documents = plan_documents(store.plan)
        for key in {problem.where for problem in found} & documents.keys():
            store.backend.write(key, documents[key])
        store.backend.flush()
        if any(check_plan(Store.open(store.backend), deep=True)):
            listener(Note("The plan's arrays are damaged. Reading the data to write the arrays again."))
            with open_dataset(store, job.data or None) as dataset:
                rewrite_plan_arrays(store, dataset)
    return found


def _repair_signal(store: Store, name: str, job: ExtractJob, units: Sequence[int]) -> None:
    try:
        view = store.signal(name)
    except StorageError:
        raise  # the signal is not lost, only out of reach at the moment
    except GraceStoreError as error:
        raise StoreError(
            f"{error} The settings of the signal are lost, so the signal cannot be repaired. Delete "
            f"{store.location}/signals/{name} and extract the signal again."
        ) from error
    if units:
        # Before any commit is withdrawn, make sure that the units can be extracted again.
        check_same(view, job.model, ExtractSpec(), job.options, model_door(job.door), job.adapter)
        open_dataset(store, job.data or None).close()
    with hold(store.backend, name):
        write_metadata(view.store, view.signal)
        drop_damaged_sharing(view)
        withdraw_units(view, units)
