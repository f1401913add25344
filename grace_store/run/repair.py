"""Mend a store: bring back its documents, redo bad units, delete strays. The same call resumes."""

import threading
from collections.abc import Sequence
from dataclasses import replace

from grace_store.base.errors import GraceStoreError, StorageError, StoreError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.settings import ExtractRequest
from grace_store.base.text import counted, ranges
from grace_store.read.records import open_dataset
from grace_store.run.extract import ExtractJob, extract
from grace_store.run.model_door import model_door
from grace_store.run.open_signal import check_same
from grace_store.run.plan import rewrite_plan_arrays
from grace_store.run.verify import verify
from grace_store.store.backend import Backend, open_backend
from grace_store.store.check import Problem, check_plan, check_strays
from grace_store.store.copies import has_plan_copy, restore_documents
from grace_store.store.keys import sharing_key
from grace_store.store.lock import hold, refuse_busy
from grace_store.store.opened import Store
from grace_store.store.plan_writer import plan_documents
from grace_store.store.unit_writer import drop_damaged_sharing, rewrite_signal_metadata, withdraw_units


def repair(job: ExtractJob, listener: Listener = ignore, stop: threading.Event | None = None) -> list[Problem]:
    """Mend and return all that a deep check finds; the job's model, data and options count before a signal's own."""
    backend = open_backend(job.store)
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
    if not has_plan_copy(backend):
        Store.open(backend)  # says what is wrong with it, before anything is written
    with hold(backend, "plan"):
        return [Problem(each.signal, None, each.key, each.text, "repair") for each in restore_documents(backend)]


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
        check_same(view, model, ExtractRequest(), job.options, model_door(job.door), adapter)
        open_dataset(store, job.data or None).close()
    with hold(store.backend, name):
        rewrite_signal_metadata(view)
        drop_damaged_sharing(view)
        withdraw_units(view, units)
