"""Does the store's place do what stores rely on, does all of it fit, and how long will it take?"""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.base.text import duration, size
from grace_store.run.doctor.findings import DoctorJob, Finding, Seen, num_chars
from grace_store.run.doctor.machine import Room, disk_room, main_memory, try_place, try_storage
from grace_store.store.backend import is_url
from grace_store.store.storages import storage_of

SEGMENT_BYTES, SAMPLE_BYTES = 32, 128
"""What a segment and a sample take beside vectors and Gram: statistics, spans, ids."""


def examine_place(job: DoctorJob, _: Seen) -> Finding:
    """Whether the file system or bucket at the store's place does what stores rely on."""
    if job.store is None:
        return Finding("place", "warn", "no --store was given, so its place was not looked at", "Give --store.")
    if is_url(job.store):
        return _examine_bucket(job.store)
    trouble = try_place(Path(job.store).expanduser().absolute())
    if trouble.fatal:
        return Finding("place", "fail", trouble.fatal, "Choose another place for --store.")
    if trouble.slight:
        return Finding("place", "warn", trouble.slight, "A local or another network file system does it in full.")
    return Finding("place", "ok", f"{trouble.folder} takes files, links, renames and syncs")


def _examine_bucket(url: str) -> Finding:
    trouble = try_storage(url)
    if trouble.fatal:
        return Finding("place", "fail", trouble.fatal, "Mend that, or choose another place for --store.")
    if trouble.slight:
        return Finding("place", "warn", trouble.slight, "Never let two runs write the same units at once.")
    return Finding("place", "ok", f"{url} takes, lists, gives back and deletes objects, and refuses a second of a name")


def examine_disk(job: DoctorJob, seen: Seen) -> Finding | None:
    """Whether what the run will write fits on the disk; a bucket has no end."""
    if job.store is None or is_url(job.store) or seen.spec is None or not seen.samples:
        return None
    segments = np.array([sample.num_segments for sample in seen.samples], dtype=np.float64)
    per_vector = storage_of(seen.spec).bytes_per_vector + SEGMENT_BYTES
    per_sample = float((segments * per_vector + 2 * segments * (segments + 1) + SAMPLE_BYTES).mean())
    expected = int(per_sample * seen.num_expected)
    room = disk_room(Path(job.store).expanduser().absolute())
    text = f"about {size(expected)} to write as {seen.spec.storage}, {size(room.free)} free"
    figures = {"expected_bytes": expected, "free_bytes": room.free}
    if expected > room.free:
        remedy = "Make room, choose another --store, or a smaller --storage (int4 takes half of int8)."
        return Finding("disk", "fail", text, remedy, figures)
    if expected > 0.8 * room.free:
        return Finding("disk", "warn", text, "It will be tight: other files may grow meanwhile.", figures)
    return Finding("disk", "ok", text, "", figures)


def examine_speed(job: DoctorJob, seen: Seen) -> Finding | None:
    """How long the run will take."""
    if seen.extractor is None or not seen.trial:
        return None
    began = time.perf_counter()
    made = seen.extractor.compute(seen.extractor.prepare(seen.trial)).result()
    seconds = max(time.perf_counter() - began, 1e-9)
    # The whole dataset's samples may be longer than those of the trial.
    chars, trial_chars = (np.mean([num_chars(each) for each in some]) for some in (seen.samples, seen.trial))
    rate = float(len(seen.trial) / seconds * job.num_workers * trial_chars / chars)
    total = seen.num_expected / rate
    devices = f" on {job.num_workers} devices" if job.num_workers > 1 else ""
    text = (
        f"{rate:.1f} samples/s ({made.num_tokens / seconds:.0f} tokens/s each){devices}: about {duration(total)} in all"
    )
    return Finding("speed", "ok", text, "", {"samples_per_second": rate, "seconds": total})


def examine_memory(job: DoctorJob, seen: Seen) -> Finding | None:
    """Whether memory is left beside the loaded model and a trial's batch."""
    if seen.extractor is None:
        return None
    rooms: dict[str, Room] = {}
    if (main := main_memory()) is not None:
        rooms["main memory"] = main
    reference: Any = importlib.import_module(job.reference)
    if (device := reference.device_memory(seen.extractor)) is not None:
        rooms["the GPU's memory"] = Room(*device)
    if not rooms:
        return None
    text = ", ".join(f"{size(room.free)} of {size(room.total)} of {what} left" for what, room in rooms.items())
    figures = {what.replace(" ", "_"): room.free for what, room in rooms.items()}
    if any(room.free < 0.1 * room.total for room in rooms.values()):
        return Finding("memory", "warn", text, "Lower --batch-tokens or --max-length, or free some.", figures)
    return Finding("memory", "ok", text, "", figures)
