"""Check the store's place, the installed libraries, the space on disk, the memory and the speed."""

import os
import shutil
import tempfile
import time
import uuid
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import numpy as np

from grace_store.base.errors import StorageError
from grace_store.base.files import sync_file, sync_folder
from grace_store.base.metadata import DataFile, Signal
from grace_store.base.settings import DataSpec, ExtractSpec, ModelIdentity, Storage
from grace_store.base.states import UnitSignals
from grace_store.base.text import duration, size
from grace_store.run.doctor.data_checks import CheckResult, Seen, num_chars
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extractor_protocol import reference_of
from grace_store.store.backend import Backend, is_url, open_backend
from grace_store.store.check import check_signal
from grace_store.store.layout import PlannedSample
from grace_store.store.opened import Store
from grace_store.store.plan_writer import PlanWriter
from grace_store.store.storages import STORAGES, storage_of, stored_form
from grace_store.store.unit_writer import UnitWriter, complete_signal, create_signal

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_OTHER_FOLDER = "Choose another place for the store."
_OTHER_BUCKET = "Fix this problem, or choose another place for the store."


def existing_folder(place: Path) -> Path:
    """Return the nearest existing folder above a path."""
    return next(folder for folder in place.parents if folder.exists())


def main_memory() -> tuple[int, int] | None:
    """Return the free and the total bytes of host memory for this process; None if they are not known.

    Both the machine and the control group limit the memory.
    """
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        free, total = (int(lines[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError):
        return None
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return free, total
    return min(free, max(limit - used, 0)), min(total, limit)


def try_storage(url: str) -> CheckResult:
    """Check that a bucket supports what a store needs, with a test object that is deleted afterwards."""
    backend = open_backend(url)
    key = f".doctor-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        try:
            return _try_object(backend, key)
        finally:
            backend.delete(key)
    except StorageError as error:
        return CheckResult("place", "fail", str(error), _OTHER_BUCKET)


def _try_object(backend: Backend, key: str) -> CheckResult:
    url, alone = backend.location, "Never let two runs write the same units at once."
    is_new, is_new_again = backend.write_new(key, b"1"), backend.write_new(key, b"2")
    found, names = backend.read(key), backend.names("")
    if not is_new or key not in names or found is None:
        text = f"{url} does not return an object right after it was written"
        return CheckResult("place", "fail", text, _OTHER_BUCKET)
    if is_new_again:
        text = f"{url} overwrites objects although a store forbids this, so runs may not notice each other"
        return CheckResult("place", "warn", text, alone)
    with suppress(StorageError):
        if backend.renew(key, found):
            return CheckResult("place", "ok", f"{url} writes, lists, reads and deletes objects, and refuses duplicates")
    text = f"{url} does not allow a lock to be renewed, so a long run may look like a dead one"
    return CheckResult("place", "warn", text, alone)


def try_place(place: Path) -> CheckResult:
    """Check that a folder can rename, link and sync, with test files beside the store's place that are deleted."""
    folder = existing_folder(place)
    name = f".{place.name}.doctor-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    first, second = folder / f"{name}.a", folder / f"{name}.b"
    slight: list[str] = []
    try:
        for path, content in ((first, b"1"), (second, b"2")):
            path.write_bytes(content)
            sync_file(path)
        os.replace(first, second)  # noqa: PTH105 - what the store calls
        if second.read_bytes() != b"1":
            return CheckResult("place", "fail", f"{folder} does not let a rename replace a file", _OTHER_FOLDER)
        if not sync_folder(folder):
            slight.append(f"{folder} cannot sync folders, so a power cut may delete the newest files")
        try:
            first.hardlink_to(second)
        except OSError as error:
            slight.append(f"{folder} has no hard links ({error.strerror}), so locks are less safe")
        else:
            with suppress(FileExistsError):
                first.hardlink_to(second)
                text = f"{folder} lets two runs create the same file, so their results could mix"
                return CheckResult("place", "fail", text, _OTHER_FOLDER)
    except OSError as error:
        text = f"{folder} does not support what a store needs: {error.strerror or error}"
        return CheckResult("place", "fail", text, _OTHER_FOLDER)
    finally:
        first.unlink(missing_ok=True)
        second.unlink(missing_ok=True)
    if slight:
        return CheckResult("place", "warn", "; ".join(slight), "Use a local disk or another network file system.")
    return CheckResult("place", "ok", f"{folder} supports files, links, renames and syncs")


NUM_STEPS, VECTOR_SIZE = 2, 24
"""Number of steps and length of the vectors of the test sample."""


def try_storages(place: Path) -> dict[Storage, str]:
    """Write a test sample's vectors in every storage to a store, read them again, and return the faults.

    Raise OSError if the place cannot be written to.
    """
    faults: dict[Storage, str] = {}
    for storage in STORAGES:
        try:
            if not place.exists():
                writer = PlanWriter(open_backend(place))
                writer.add(PlannedSample("probe", 0, 0, 0, 1, bytes(16), NUM_STEPS))
                file = DataFile(path="probe.jsonl", kind="jsonl", num_bytes=1, num_records=1, sha256="0" * 64)
                writer.finish(DataSpec(format="explicit", min_steps=1), [file], None, "grace-store doctor")
            fault = _read_back(Store.open(place), storage)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - an incompatible release of a library may raise anything
            fault = f"{type(error).__name__}: {error}"
        if fault:
            faults[storage] = fault
    return faults


def _read_back(store: Store, storage: Storage) -> str:
    """Write vectors in a storage and read them again; return the fault in words, or nothing."""
    num_rows = NUM_STEPS + 1
    vectors = np.random.default_rng(0).standard_normal((num_rows, VECTOR_SIZE)).astype(np.float32)
    model = ModelIdentity(
        architecture="Probe", hidden_size=VECTOR_SIZE, vocab_size=2, config="0", weights="0", tokenizer="0"
    )
    spec = ExtractSpec(model=model, rendering="plain", storage=storage)
    view = create_signal(store, Signal(name=storage, spec=spec, plan_sha256=store.plan.digest()))
    signals = UnitSignals.of_vectors(vectors, np.ones(num_rows, np.int32), 1)
    UnitWriter(view).write(0, signals, np.array([[row, row + 1] for row in range(num_rows)], np.int32))
    complete_signal(view)
    if problem := next(check_signal(view, deep=True), None):
        return problem.text
    # zarr reads a sample's vectors, this package's own decoder those of a whole unit.
    found = view.vectors(0), view.unit_vectors(0)[:num_rows]
    is_same = all(np.array_equal(each, stored_form(vectors, storage)) for each in found)
    return "" if is_same else "the numbers read differ from the numbers written"


def examine_vectors(job: ExtractJob, _: Seen) -> CheckResult:
    """Check that vectors of every storage are read as they were written, with the installed libraries."""
    try:
        with tempfile.TemporaryDirectory(prefix="grace-store-doctor-") as folder:
            faults = try_storages(Path(folder) / "store.zarr")
    except OSError as error:
        text = f"the temporary folder cannot be written to: {error.strerror or error}"
        return CheckResult("vectors", "warn", text, "Set TMPDIR to a folder with free space.")
    by = ", ".join(f"{name} {version(name)}" for name in ("zarr", "numcodecs", "numpy"))
    if not faults:
        return CheckResult("vectors", "ok", f"{', '.join(STORAGES)}: {by} reads the same numbers that it wrote")
    text = "; ".join(f"{storage} cannot be read after it is written ({fault})" for storage, fault in faults.items())
    remedy = f"Install other versions than {by}. Run `grace-store support` and send its output."
    return CheckResult("vectors", "fail", text, remedy)


SEGMENT_BYTES, SAMPLE_BYTES, TABLE_SHARE = 44, 128, 3
"""Bytes of a segment and of a sample beside vectors and Gram (statistics, spans, ids), and of the token table for each
byte of a response: a token has 12 bytes there, and about 4 in the text."""


def examine_place(job: ExtractJob, _: Seen) -> CheckResult:
    """Check that the file system or bucket at the store's place supports what a store needs."""
    if not job.store:
        return CheckResult(
            "place", "warn", "no STORE was given, so its place was not checked", "Give a STORE to check its place."
        )
    return try_storage(job.store) if is_url(job.store) else try_place(Path(job.store).expanduser().absolute())


def examine_disk(job: ExtractJob, seen: Seen) -> CheckResult | None:
    """Check that the store will fit on the disk; a bucket has no limit."""
    if not job.store or is_url(job.store) or seen.spec is None or not seen.samples:
        return None
    segments = np.array([sample.num_segments for sample in seen.samples], dtype=np.float64)
    storage = storage_of(seen.spec)
    per_vector = storage.num_columns * np.dtype(storage.dtype).itemsize + SEGMENT_BYTES
    per_sample = float((segments * per_vector + 2 * segments * (segments + 1) + SAMPLE_BYTES).mean())
    if seen.spec.has_token_table:
        per_sample += TABLE_SHARE * float(np.mean([len(sample.response.encode()) for sample in seen.samples]))
    expected = int(per_sample * seen.num_expected)
    place = Path(job.store).expanduser().absolute()
    free = shutil.disk_usage(place if place.exists() else existing_folder(place)).free
    text = f"vectors as {seen.spec.storage} need about {size(expected)}; {size(free)} are free"
    figures = {"expected_bytes": expected, "free_bytes": free}
    if expected > free:
        remedy = "Free some space, or choose another place for the store or a smaller --storage (int4 is half of int8)."
        return CheckResult("disk", "fail", text, remedy, figures)
    if expected > 0.8 * free:
        return CheckResult("disk", "warn", text, "The space may become too small if other files grow.", figures)
    return CheckResult("disk", "ok", text, "", figures)


def examine_speed(job: ExtractJob, seen: Seen) -> CheckResult | None:
    """Estimate how long the run will take."""
    if seen.extractor is None or not seen.few:
        return None
    began = time.perf_counter()
    made = seen.extractor.compute(seen.extractor.prepare(seen.few)).result()
    seconds = max(time.perf_counter() - began, 1e-9)
    # The samples of the whole dataset may be longer than these few.
    chars, few_chars = (np.mean([num_chars(each) for each in some]) for some in (seen.samples, seen.few))
    rate = float(len(seen.few) / seconds * job.num_workers * few_chars / chars)
    total = seen.num_expected / rate
    devices = f" on {job.num_workers} devices" if job.num_workers > 1 else ""
    tokens = f"{made.num_tokens / seconds:.0f} tokens/s each"
    text = f"{rate:.1f} samples/s ({tokens}){devices}: about {duration(total)} in all"
    return CheckResult("speed", "ok", text, "", {"samples_per_second": rate, "seconds": total})


def examine_memory(job: ExtractJob, seen: Seen) -> CheckResult | None:
    """Check that memory is left beside the loaded model and a batch."""
    if seen.extractor is None:
        return None
    rooms: dict[str, tuple[int, int]] = {}
    if (host := main_memory()) is not None:
        rooms["main memory"] = host
    on_device = reference_of(job.door).device_memory(seen.extractor)
    rooms |= {f"the memory of {name}": room for name, room in on_device.items()}
    if not rooms:
        return None
    text = ", ".join(f"{size(free)} of {size(total)} of {what} left" for what, (free, total) in rooms.items())
    figures = {what.replace(" ", "_"): free for what, (free, _) in rooms.items()}
    if any(free < 0.1 * total for free, total in rooms.values()):
        remedy = "Lower --batch-tokens or --max-length, or free some memory."
        return CheckResult("memory", "warn", text, remedy, figures)
    return CheckResult("memory", "ok", text, "", figures)
