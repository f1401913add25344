"""Find problems of a store: missing, truncated, changed, miscounted or foreign files. Repairs nothing."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from grace_store.base.arrays import Array, offsets_of
from grace_store.base.errors import Corrupt
from grace_store.base.metadata import Commit
from grace_store.base.states import STATE_CODES, STATE_DONE
from grace_store.store import layout
from grace_store.store.array_group import ArrayEncoder
from grace_store.store.backend import (
    COMMITS,
    COMPLETIONS,
    GROUPS,
    LOCKS,
    PLAN_COPY,
    RUNS,
    SAMPLES_GROUP,
    TMP,
    commit_key,
    completion_key,
    sharing_key,
    signal_copy_key,
    signal_key,
)
from grace_store.store.digested_json import from_bytes, group_bytes
from grace_store.store.metadata_backup import wrong_copy
from grace_store.store.opened import SignalView, Store, is_commit_name
from grace_store.store.plan_writer import combined_digest, plan_documents, update_digest
from grace_store.store.storages import packed_grams
from grace_store.store.unit_writer import Totals, digest_of

Remedy = Literal["repair", "extract", "replan", "delete", "by hand"]
Sizes = Mapping[str, int]
"""Key and size of every file of a store."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, its place and its remedy."""

    signal: str | None
    unit: int | None
    where: str
    text: str
    remedy: Remedy

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def listed_sizes(store: Store) -> Sizes:
    """List a store once, for all checks; a file takes about 250 bytes of memory."""
    # The listing has the ledger first, so that it contains all chunks of a unit that is committed in the meantime.
    return dict(store.backend.sizes())


def check_plan(store: Store, *, deep: bool, sizes: Sizes | None = None) -> Iterator[Problem]:
    """Check the plan's arrays, with deep every value. sizes, here and below, is an existing listing of the store."""

    def problem(where: str, text: str, remedy: Remedy = "repair") -> Problem:
        return Problem(None, None, where, text, remedy)

    plan = store.plan
    if plan.num_records != plan.num_samples + sum(plan.set_aside.values()):
        yield problem("zarr.json", "the number of records is not the sum of samples and records set aside", "replan")
    for key, text in _wrong_documents(store, plan_documents(plan)):
        yield problem(key, text)
    if wrong := wrong_copy(store.backend, plan):
        yield problem(*wrong)
    sizes = listed_sizes(store) if sizes is None else sizes
    digests: list[str] = []
    for array in layout.plan_arrays(plan):
        digest = hashlib.sha256()
        for start in range(0, array.shape[0], array.chunks[0]):
            if not sizes.get(key := f"{SAMPLES_GROUP}/{array.chunk_key(start // array.chunks[0])}"):
                yield problem(key, "chunk is empty or no regular file" if key in sizes else "chunk is missing")
            elif deep:
                try:
                    update_digest(digest, store.column(array.name, start, min(start + array.chunks[0], array.shape[0])))
                except Corrupt as error:
                    yield problem(key, str(error))
        digests.append(digest.hexdigest())
    if deep and combined_digest(digests) != plan.samples_sha256:
        yield problem(SAMPLES_GROUP, "the plan's arrays do not match the digest in the plan")


def check_signal(view: SignalView, *, deep: bool, sizes: Sizes | None = None) -> Iterator[Problem]:
    """Check one signal: the commit of every unit, the size of every chunk, and with deep its content."""
    store, plan = view.store, view.store.plan
    if view.signal.plan_sha256 != plan.digest():
        yield Problem(view.name, None, view.key, "the signal belongs to another plan", "delete")
    documents = {f"{view.key}/{key}": value for key, value in ArrayEncoder(view.arrays).metadata.items()}
    documents[f"{view.key}/zarr.json"] = group_bytes(view.signal)
    wrong = list(_wrong_documents(store, documents))
    copy = wrong_copy(store.backend, view.signal)
    for key, text in [*wrong, *([copy] if copy else [])]:
        yield Problem(view.name, None, key, text, "repair")
    yield from _check_constants(view)
    sizes = listed_sizes(store) if sizes is None else sizes
    committed = set(_committed_units(view.name, sizes))
    yield from _check_sharing(view, is_begun=bool(committed))
    sums = Totals()
    # With wrong metadata no unit can be read, but the units themselves may be intact.
    yield from _check_units(view, sizes, committed, sums, deep=deep, readable=not wrong)
    for unit in sorted(committed - set(plan.units)):
        yield Problem(view.name, unit, commit_key(view.name, unit), "the plan has no such unit", "delete")
    yield from _check_completion(view, sums)


def _committed_units(signal: str, sizes: Sizes) -> Iterator[int]:
    folder = f"{COMMITS}/{signal}/"
    for key in sizes:
        if key.startswith(folder) and is_commit_name(name := key.removeprefix(folder)):
            yield int(name.removesuffix(".json"))


def _check_units(
    view: SignalView, sizes: Sizes, committed: set[int], sums: Totals, *, deep: bool, readable: bool
) -> Iterator[Problem]:
    """Check the units of the plan one by one, and add their intact commits to sums."""
    units = view.store.plan.units
    commits = view.store.backend.read_all(commit_key(view.name, unit) for unit in units if unit in committed)
    for unit in units:
        key = commit_key(view.name, unit)
        if unit not in committed:
            yield Problem(view.name, unit, key, "unit is not committed", "extract")
            continue
        try:
            commit = view.parsed_commit(unit, next(commits))
        except Corrupt as error:
            yield Problem(view.name, unit, key, str(error), "repair")
            continue
        sums.add(commit)
        damage = list(_wrong_unit(view, commit, sizes))
        if deep:
            # Only chunks of the right size; each is read once for all checks.
            chunks = commit.chunks
            names = [name for name in chunks if sizes.get(f"{view.key}/{name}") == chunks[name].num_bytes]
            values = view.store.backend.read_all(f"{view.key}/{name}" for name in names)
            raws = {name: raw or b"" for name, raw in zip(names, values, strict=True)}
            changed = [name for name, raw in raws.items() if digest_of(raw) != chunks[name]]
            damage += [(f"{view.key}/{name}", "the chunk has changed since it was written") for name in changed]
            damage += _wrong_content(view, commit, raws) if readable and not damage else []
        for where, text in damage:
            yield Problem(view.name, unit, where, text, "repair")


def check_strays(store: Store, sizes: Sizes | None = None) -> Iterator[Problem]:
    """Report files that are not part of the format, such as half-written files of a killed run."""
    backend = store.backend
    sizes = listed_sizes(store) if sizes is None else sizes
    totals = {file.removesuffix(".json") for file in backend.names(COMPLETIONS) if file.endswith(".json")}
    lost = sorted({*backend.names(COMMITS), *totals} - set(store.signal_names))
    for name in lost:
        text = "the metadata of the signal is missing, although units were committed"
        yield Problem(name, None, f"{signal_key(name)}/zarr.json", text, remedy_of_lost(store, name))
    known = {"zarr.json", PLAN_COPY, *(f"{group}/zarr.json" for group in GROUPS)}
    known.update(f"{SAMPLES_GROUP}/{key}" for key in layout.array_keys(layout.plan_arrays(store.plan)))
    # Other checks report files below these prefixes, or the format does not describe them.
    beyond = [f"{RUNS}/", f"{LOCKS}/", *(f"{TMP}/{name.removesuffix('.json')}/" for name in backend.names(LOCKS))]
    beyond += [f"{signal_key(name)}/" for name in lost]
    for name in [*store.signal_names, *lost]:
        known.update((completion_key(name), signal_copy_key(name), sharing_key(name)))
        known.update(commit_key(name, unit) for unit in _committed_units(name, sizes))
    for name in store.signal_names:
        try:
            view = store.signal(name)
        except Corrupt:
            beyond.append(f"{signal_key(name)}/")
            continue
        known.update(f"{view.key}/{key}" for key in ("zarr.json", *layout.array_keys(view.arrays)))
    for key in sizes:
        if key not in known and not key.startswith(tuple(beyond)):
            is_ours = backend.is_ours(key)
            origin = "an interrupted run may have left this file"
            text = origin if is_ours else "a link leads to this file, so delete it yourself if nobody needs it"
            yield Problem(None, None, key, f"not part of the format; {text}", "delete" if is_ours else "by hand")


def remedy_of_lost(store: Store, signal: str) -> Remedy:
    """Return the remedy for a signal whose document is damaged or missing."""
    return "delete" if store.backend.size(signal_copy_key(signal)) is None else "repair"


def _wrong_documents(store: Store, expected: dict[str, bytes]) -> Iterator[tuple[str, str]]:
    for key, value in expected.items():
        try:
            found = from_bytes(store.backend.read(key), key)
        except Corrupt as error:
            yield key, str(error)
            continue
        if specified(found) != specified(json.loads(value)):
            yield key, "metadata differs from the plan"


def specified(metadata: Any) -> Any:
    """Return metadata without the values that the format does not fix: the compression level and the descriptions."""
    if isinstance(metadata, list):
        return [specified(value) for value in metadata]
    if not isinstance(metadata, dict):
        return metadata
    is_open = {"level": int, "about": str}
    return {key: None if isinstance(each, is_open.get(key, ())) else specified(each) for key, each in metadata.items()}


def _wrong_unit(view: SignalView, commit: Commit, sizes: Sizes) -> Iterator[tuple[str, str]]:
    expected = {array.chunk_key(commit.unit) for array in view.arrays if array.is_per_unit}
    for name in sorted(expected ^ set(commit.chunks)):
        yield f"{view.key}/{name}", "the commit does not list the chunks of the format"
    start, stop = view.store.plan.unit_range(commit.unit)
    if commit.num_samples != stop - start or commit.num_done + len(commit.set_aside) != commit.num_samples:
        yield commit_key(view.name, commit.unit), "the numbers of samples done and set aside do not add up"
    for name, chunk in commit.chunks.items():
        key = f"{view.key}/{name}"
        if (size := sizes.get(key)) is None:
            yield key, "chunk is missing"
        elif size != chunk.num_bytes:
            yield key, f"chunk has {size} bytes, but {chunk.num_bytes} were written"


def _wrong_content(view: SignalView, commit: Commit, raws: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """Check that the chunks are consistent: the states with the commit, the Grams with float32 vectors."""
    where = f"{view.key} unit {commit.unit}"
    start, stop = view.store.plan.unit_range(commit.unit)
    state = np.full(stop - start, STATE_DONE, dtype=np.uint8)
    try:
        arrays = {
            array.name: view.chunks.decoded(array.name, commit.unit, raws[array.chunk_key(commit.unit)])
            for array in view.arrays
            if array.is_per_unit
        }
        for why in commit.set_aside:
            state[why.sample - start] = STATE_CODES[why.reason]
        if not np.array_equal(state, arrays["sample_state"]):
            yield where, "the states of the samples differ from the commit"
        if view.signal.spec.has_token_table:
            yield from _wrong_table(view, commit.unit, arrays)
        if view.per_sample:
            yield from _wrong_lengths(view, commit.unit, arrays)
        elif view.storage.is_exact:
            num_segments = view.store.column("sample_num_steps", start, stop).astype(np.int64) + 1
            vectors = view.decode(arrays)
            grams, bound = packed_grams(vectors, num_segments), packed_grams(np.abs(vectors), num_segments)
            # Not bit by bit: another machine may sum in another order.
            if not np.isclose(arrays["sample_gram"][: len(grams)], grams, rtol=1e-6, atol=1e-6 * bound).all():
                yield where, "the Grams do not match the vectors"
    except (Corrupt, IndexError) as error:
        yield where, str(error)


def _wrong_table(view: SignalView, unit: int, arrays: Mapping[str, Array]) -> Iterator[tuple[str, str]]:
    """Check that a sample has a row for each token of its segments, or none, and that the rows cover its response."""
    start, stop = view.store.plan.unit_range(unit)
    rows = offsets_of(arrays["sample_num_token_rows"])
    segments = offsets_of(view.store.column("sample_num_steps", start, stop) + 1)
    num_tokens = np.diff(offsets_of(arrays["segment_num_tokens"])[segments])
    num_characters = np.diff(offsets_of(arrays["token_num_characters"])[rows])
    has_rows = np.diff(rows) > 0
    covered = np.where(has_rows, view.store.column("sample_num_characters", start, stop), 0)
    if not (np.array_equal(np.diff(rows), num_tokens * has_rows) and np.array_equal(num_characters, covered)):
        yield f"{view.key} unit {unit}", "the rows of the token table do not match the tokens of the segments"


def _wrong_lengths(view: SignalView, unit: int, arrays: Mapping[str, Array]) -> Iterator[tuple[str, str]]:
    """Check that each vector per sample has the right length: 1 if normalised, else the stored norm."""
    gradient = view.signal.spec.gradient
    assert gradient is not None
    norm = arrays["sample_norm"].astype(np.float64)
    stated = norm > 0 if gradient.normalise else norm
    # Compression shortens a vector slightly; int4 most, by less than a tenth.
    if not np.isclose(np.linalg.norm(view.decode(arrays).astype(np.float64), axis=1), stated, rtol=0.1).all():
        yield f"{view.key} unit {unit}", "the lengths of the vectors differ from the stored norms"


def _check_constants(view: SignalView) -> Iterator[Problem]:
    """Check the values of the arrays that decode vectors; their bytes depend on the compressor."""
    for name, (_, values, _) in view.storage.constants().items():
        try:
            text = "" if np.array_equal(view.constant(name), values) else "the values differ from the format"
        except Corrupt as error:
            text = str(error)
        if text:
            yield Problem(view.name, None, f"{view.key}/{name}", text, "repair")


def _check_sharing(view: SignalView, *, is_begun: bool) -> Iterator[Problem]:
    text = "the result of the probe for shared prompts is missing, so all units must be computed again"
    try:
        if view.sharing() is not None or not (view.signal.spec.share_prompts and is_begun):
            return
    except Corrupt as error:
        text = str(error)
    yield Problem(view.name, None, sharing_key(view.name), text, "repair")


def _check_completion(view: SignalView, sums: Totals) -> Iterator[Problem]:
    is_whole, text = sums.num_units == view.store.plan.num_units, ""
    remedy: Remedy = "repair"
    try:
        if (completion := view.completion()) is None and is_whole:
            text, remedy = "all units are committed, but their totals are missing", "extract"
        elif completion is not None and is_whole and completion != sums.completion(view.signal):
            text = "the totals differ from the commits"
    except Corrupt as error:
        text = str(error)
    if text:
        yield Problem(view.name, None, completion_key(view.name), text, remedy)
