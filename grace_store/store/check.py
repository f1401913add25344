"""Find what is wrong with a store: missing, truncated, flipped, miscounted, foreign. Mends nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from grace_store.errors import Corrupt
from grace_store.metadata import STATE_DONE, Commit
from grace_store.store import layout
from grace_store.store.encode import ArrayEncoder
from grace_store.store.layout import COMMITS, COMPLETIONS, LEDGER, LOCKS, RUNS, SAMPLES, SIGNALS, TMP
from grace_store.store.plan_writer import combined_digest, update_digest
from grace_store.store.sealed import from_bytes, group_bytes
from grace_store.store.store import SignalView, Store
from grace_store.store.unit_writer import count_set_aside, rotation_chunks
from grace_store.store.vectors import packed_grams

Remedy = Literal["repair", "extract", "replan", "delete"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where, and what mends it."""

    signal: str | None
    unit: int | None
    where: str
    text: str
    remedy: Remedy

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check_plan(store: Store, *, deep: bool) -> Iterator[Problem]:
    """Check the plan's arrays: metadata and presence, and with deep every value against the digest."""

    def problem(where: str, text: str) -> Problem:
        return Problem(None, None, where, text, "replan")

    plan = store.plan
    arrays = layout.sample_arrays(plan.num_samples, sum(plan.set_aside.values()))
    if plan.num_records != plan.num_samples + sum(plan.set_aside.values()):
        yield problem("zarr.json", "records are not the sum of samples and records set aside")
    documents = {f"{SAMPLES}/{key}": value for key, value in ArrayEncoder(arrays).metadata.items()}
    documents |= {f"{group}/zarr.json": group_bytes() for group in (SAMPLES, SIGNALS, LEDGER)}
    for key, text in _wrong_documents(store, documents):
        yield problem(key, text)
    digests: list[str] = []
    for array in arrays:
        digest = hashlib.sha256()
        for start in range(0, array.shape[0], array.chunks[0]):
            key = f"{SAMPLES}/{layout.chunk_key(array.name, len(array.dims), start // array.chunks[0])}"
            if store.backend.size(key) is None:
                yield problem(key, "chunk is missing")
            elif deep:
                try:
                    stop = min(start + array.chunks[0], array.shape[0])
                    update_digest(digest, store.column(array.name, start, stop))
                except Corrupt as error:
                    yield problem(key, str(error))
        digests.append(digest.hexdigest())
    if deep and combined_digest(digests) != plan.samples_sha256:
        yield problem(SAMPLES, "the plan's arrays do not match the digest in the plan")


def check_signal(view: SignalView, *, deep: bool) -> Iterator[Problem]:
    """Check one signal: every unit committed, every chunk of the right size, and with deep of the right content."""
    store, plan = view.store, view.store.plan
    if view.signal.plan_sha256 != plan.digest():
        yield Problem(view.name, None, view.key, "the signal belongs to another plan", "delete")
    documents = {f"{view.key}/{key}": value for key, value in ArrayEncoder(view.arrays).metadata.items()}
    for key, text in _wrong_documents(store, documents):
        yield Problem(view.name, None, key, text, "repair")
    if view.signal.spec.storage == "int4":
        yield from _check_rotation(view)
    commits: list[Commit] = []
    committed = set(view.committed_units())
    for unit in range(plan.num_units):
        if unit not in committed:
            yield Problem(view.name, unit, layout.commit_key(view.name, unit), "unit is not committed", "extract")
            continue
        try:
            commits.append(view.commit(unit))
        except Corrupt as error:
            yield Problem(view.name, unit, layout.commit_key(view.name, unit), str(error), "repair")
            continue
        for where, text in _wrong_unit(view, commits[-1], deep=deep):
            yield Problem(view.name, unit, where, text, "repair")
    for unit in sorted(committed - set(range(plan.num_units))):
        yield Problem(view.name, unit, layout.commit_key(view.name, unit), "the plan has no such unit", "delete")
    yield from _check_completion(view, commits)


def check_strays(store: Store) -> Iterator[Problem]:
    """Report files that the format does not know, such as what a killed run left half-written."""
    known = ("zarr.json", f"{SAMPLES}/", f"{LEDGER}/zarr.json", f"{RUNS}/", f"{LOCKS}/", f"{SIGNALS}/zarr.json")
    signals = tuple(
        prefix
        for name in store.signal_names
        for prefix in (f"{SIGNALS}/{name}/", f"{COMMITS}/{name}/", f"{COMPLETIONS}/{name}.json")
    )
    live = tuple(f"{TMP}/{name.removesuffix('.json')}/" for name in store.backend.names(LOCKS))
    for key in store.backend.walk():
        if not key.startswith(known + signals + live):
            yield Problem(None, None, key, "no part of the format; left by an interrupted run?", "delete")


def _wrong_documents(store: Store, expected: dict[str, bytes]) -> Iterator[tuple[str, str]]:
    for key, value in expected.items():
        try:
            found = from_bytes(store.backend.read(key), key)
        except Corrupt as error:
            yield key, str(error)
            continue
        if found != json.loads(value):
            yield key, "metadata differs from what the plan implies"


def _wrong_unit(view: SignalView, commit: Commit, *, deep: bool) -> Iterator[tuple[str, str]]:
    backend = view.store.backend
    expected = {layout.chunk_key(a.name, len(a.dims), commit.unit) for a in view.arrays if a.is_per_unit}
    for name in sorted(expected ^ set(commit.chunks)):
        yield f"{view.key}/{name}", "the commit does not list the chunks of the format"
    start, stop = layout.unit_range(view.store.plan, commit.unit)
    if commit.num_samples != stop - start or commit.num_done + len(commit.set_aside) != commit.num_samples:
        yield layout.commit_key(view.name, commit.unit), "samples done and set aside do not add up"
    sound = True
    for name, chunk in commit.chunks.items():
        key = f"{view.key}/{name}"
        size = backend.size(key)
        if size is None:
            sound = False
            yield key, "chunk is missing"
        elif size != chunk.num_bytes:
            sound = False
            yield key, f"chunk has {size} bytes, {chunk.num_bytes} were written"
        elif deep and hashlib.sha256(backend.read(key) or b"").hexdigest() != chunk.sha256:
            sound = False
            yield key, "chunk's content is not what was written"
    if deep and sound:
        yield from _wrong_content(view, commit)


def _wrong_content(view: SignalView, commit: Commit) -> Iterator[tuple[str, str]]:
    """Check that what the chunks say fits together: states with the commit, Grams with float32 vectors."""
    where = f"{view.key} unit {commit.unit}"
    try:
        state = view.unit_array("sample_state", commit.unit)
        if int((state == STATE_DONE).sum()) != commit.num_done:
            yield where, f"{int((state == STATE_DONE).sum())} samples are done, the commit says {commit.num_done}"
        for array in view.arrays:
            if array.is_per_unit:
                view.unit_array(array.name, commit.unit)
        if view.signal.spec.storage == "float32":
            start, stop = layout.unit_range(view.store.plan, commit.unit)
            num_segments = view.store.column("sample_num_steps", start, stop).astype(np.int64) + 1
            grams = packed_grams(view.unit_vectors(commit.unit), num_segments)
            if not np.array_equal(grams, view.unit_array("sample_gram", commit.unit)[: len(grams)]):
                yield where, "Grams are not those of the vectors"
    except Corrupt as error:
        yield where, str(error)


def _check_rotation(view: SignalView) -> Iterator[Problem]:
    """Check the three arrays that int4 vectors are decoded with; they follow from the vector size alone."""
    for name, value in rotation_chunks(view.arrays, view.vector_size).items():
        if view.store.backend.read(f"{view.key}/{name}") != value:
            yield Problem(view.name, None, f"{view.key}/{name}", "rotation is missing or damaged", "repair")


def _check_completion(view: SignalView, commits: list[Commit]) -> Iterator[Problem]:
    key = layout.completion_key(view.name)
    whole = len(commits) == view.store.plan.num_units
    try:
        completion = view.completion()
    except Corrupt as error:
        yield Problem(view.name, None, key, str(error), "repair")
        return
    if completion is None:
        if whole:
            yield Problem(view.name, None, key, "all units are there, their totals are not", "extract")
        return
    if whole and (
        completion.commits_sha256 != combined_digest(commit.digest() for commit in commits)
        or completion.set_aside != count_set_aside(commits)
        or completion.num_done != sum(commit.num_done for commit in commits)
    ):
        yield Problem(view.name, None, key, "the totals are not those of the commits", "repair")
