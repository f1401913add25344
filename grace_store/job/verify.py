"""Is the store what was written, and would the model write it again? And the way back: repair."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from grace_store.config import ExtractRequest, RunOptions
from grace_store.errors import Corrupt, GraceStoreError, StoreError
from grace_store.events import Listener, Note, ignore
from grace_store.job.dataset import UnitLoader, image_folder, open_dataset
from grace_store.job.extract import ExtractJob, extract
from grace_store.job.extractor import PROXY, model_door
from grace_store.job.signals import check_same
from grace_store.store import (
    Problem,
    SignalView,
    Store,
    check_plan,
    check_signal,
    check_strays,
    hold,
    refuse_busy,
    rewrite_signal_metadata,
    withdraw_units,
)

REEXTRACTION_TOLERANCE = 1e-3
"""Largest relative difference of a Gram's entries between two machines, batch sizes or kernels."""


def verify(store: Store, *, deep: bool = False, signals: Sequence[str] | None = None) -> Iterator[Problem]:
    """Yield what is wrong: with metadata, sizes and counts, and with deep every byte."""
    yield from check_plan(store, deep=deep)
    for name in signals or store.signal_names:
        try:
            view = store.signal(name)
        except Corrupt as error:
            yield Problem(name, None, f"signals/{name}/zarr.json", str(error), "delete")
            continue
        yield from check_signal(view, deep=deep)
    yield from check_strays(store)


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
            worst = _largest_difference(view, unit, signals.segment_vector)
            if worst > REEXTRACTION_TOLERANCE:
                text = f"extracted again, its Grams differ by {worst:.1e} (at most {REEXTRACTION_TOLERANCE:.0e})"
                yield Problem(view.name, unit, view.key, text, "repair")


def _largest_difference(view: SignalView, unit: int, vectors: npt.NDArray[np.float32]) -> float:
    """Return the largest difference between stored Grams and those of the vectors, relative to the norms."""
    start = unit * view.store.plan.samples_per_unit
    worst, row = 0.0, 0
    for sample in range(start, min(start + view.store.plan.samples_per_unit, view.store.plan.num_samples)):
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
    store: Store, job: ExtractJob, listener: Listener = ignore, stop: threading.Event | None = None
) -> list[Problem]:
    """Mend everything that a deep check finds and return it: redo bad units, rewrite metadata, delete strays."""
    refuse_busy(store.backend)
    found = list(verify(store, deep=True))
    hopeless = [problem for problem in found if problem.remedy == "replan"]
    if hopeless:
        raise StoreError(
            f"The plan of {store.location} itself is damaged ({hopeless[0].where}: {hopeless[0].text}), so there is no "
            "telling which rows are whose. Move the store away and run `grace-store extract` into a new one."
        )
    _delete_strays(store)
    for name in sorted({problem.signal for problem in found if problem.signal}):
        mine = [problem for problem in found if problem.signal == name]
        units = sorted({problem.unit for problem in mine if problem.unit is not None})
        listener(Note(f"{name}: {len(mine)} problems; units to redo: {units or 'none'}."))
        _repair_signal(store, name, job, units)
        extract(replace(job, location=store.location, signal=name), listener, stop)
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
