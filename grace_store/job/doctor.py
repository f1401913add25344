"""Before a long run: will it work with this model, this data and this machine, and are its numbers right?

Looks and tries, and writes nothing: neither a plan nor a store, only files beside the store's place that are gone
again at once. Every check ends in ok, warn or fail; a fail says what to change.
"""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from grace_store.amounts import duration, size
from grace_store.config import DataRequest, DataSpec, ExtractRequest, ExtractSpec, RunOptions, said
from grace_store.data import Dataset, Record, Sample, check_spec, understand
from grace_store.data.folders import default_image_folder
from grace_store.data.image_files import ImageFolder
from grace_store.data.tables import open_table
from grace_store.errors import GraceStoreError, SettingError, Unusable
from grace_store.events import Listener, Note, ignore
from grace_store.job.extractor import PROXY, Extractor, model_door
from grace_store.job.machine import Room, disk_room, main_memory, try_place
from grace_store.job.planning import check_request, found_format
from grace_store.metadata import Reason
from grace_store.score import ScoreSpec, score_block
from grace_store.score.gram import pack
from grace_store.store import Store, open_backend
from grace_store.store.vectors import stored_form

NUM_RECORDS = 1024
"""Records looked at. Reading tells how many bytes it read at every multiple of this."""
NUM_IMAGES = 64
"""Images opened."""
NUM_TRIAL, TRIAL_CHARS = 8, 16_000
"""Samples run in batches of several sizes, and about how much text they may come to: a minute on a CPU."""
NUM_REFERENCE = 3
"""Samples held against autograd: the shortest of them."""
BATCH_LIMITS = {"float32": (1e-4, 1e-3), "bfloat16": (5e-2, 1e-1), "float16": (1e-2, 5e-2)}
"""Relative difference of a vector between batches from which to warn and to fail, by the model's dtype."""
STORAGE_WARNING = 2e-2
"""Change of a cosine between stored vectors from which to warn; scores do not depend on it."""
VECTOR_BYTES: dict[str, float] = {"float32": 4, "float16": 2, "int8": 1, "int4": 0.5}
SEGMENT_BYTES, SAMPLE_BYTES = 32, 128
"""What a segment and a sample take beside vectors and Gram: statistics, spans, ids."""

Verdict = Literal["ok", "warn", "fail"]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, in a sentence, and what to do about it."""

    check: str
    verdict: Verdict
    text: str
    remedy: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    brief: str = ""
    """What of a warning is repeated beside the verdict; the text unless given."""


@dataclass(frozen=True, slots=True)
class Examination:
    """Everything that was found, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def is_go(self) -> bool:
        return all(finding.verdict != "fail" for finding in self.findings)

    @property
    def conclusion(self) -> str:
        """Whether the run may start, in a sentence that keeps quiet about no warning."""
        if not self.is_go:
            failed = [finding.check for finding in self.findings if finding.verdict == "fail"]
            return f"Not yet: {', '.join(failed)} must be mended first."
        warned = [finding.brief or finding.text for finding in self.findings if finding.verdict == "warn"]
        return f"Go, but: {'; '.join(warned)}." if warned else "Go."


@dataclass(frozen=True, slots=True)
class DoctorJob:
    """What is to be run, as `extract` would be asked for it."""

    model: str
    data: tuple[str, ...]
    adapter: str | None = None
    store: str | None = None
    images: str | None = None
    data_request: DataRequest = field(default_factory=DataRequest)
    request: ExtractRequest = field(default_factory=ExtractRequest)
    options: RunOptions = field(default_factory=RunOptions)
    num_workers: int = 1
    """Devices that share the work."""
    door: str = PROXY
    reference: str = "grace_store.model.doctor"
    """The module that knows autograd and the device's memory."""


@dataclass(slots=True)
class _Seen:
    """What checks learn and later ones need."""

    samples: list[Sample] = field(default_factory=list)
    num_expected: int = 0
    """Samples that the whole dataset is likely to hold."""
    spec: ExtractSpec | None = None
    extractor: Extractor | None = None
    trial: list[Sample] = field(default_factory=list)
    """Samples of various lengths that can be extracted."""
    alone: Vectors | None = None
    """Their vectors, each sample by itself."""


def examine(job: DoctorJob, listener: Listener = ignore) -> Examination:
    """Run every check that can be run; one that fails ends those that need what it would have found."""
    seen = _Seen()
    checks: list[tuple[str, Callable[[DoctorJob, _Seen], Finding | None]]] = [
        ("data", _check_data), ("images", _check_images), ("place", _check_place), ("model", _check_model),
        ("samples", _check_samples), ("disk", _check_disk), ("gradient", _check_gradient), ("batches", _check_batches),
        ("storage", _check_storage), ("speed", _check_speed), ("memory", _check_memory),
    ]  # fmt: skip
    findings: list[Finding] = []
    for name, check in checks:
        listener(Note(f"Checking {name}."))
        try:
            found = check(job, seen)
        except GraceStoreError as error:
            found = Finding(name, "fail", str(error), "Mend that and run doctor again.")
        if found is not None:
            findings.append(found)
    return Examination(tuple(findings))


# ---------------------------------------------------------------- data and images


def _check_data(job: DoctorJob, seen: _Seen) -> Finding:
    """How many of the first records can be used, and why the others cannot."""
    read_bytes = 0

    def progress(_num_records: int, num_bytes: int) -> None:
        nonlocal read_bytes
        read_bytes = num_bytes

    with Dataset.open(job.data) as dataset:
        scan = dataset.scan(progress)
        records = list(islice(scan, NUM_RECORDS))
        more = next(scan, None) is not None
        spec = _data_spec(job, dataset, records)
        reasons: Counter[Reason] = Counter()
        for record in records:
            try:
                seen.samples.append(understand(record, spec, dataset.files[record.file].name, record.row_in_file))
            except Unusable as why:
                reasons[why.reason] += 1
        num_records = _num_records(dataset, read_bytes) if more else len(records)
    share = len(seen.samples) / len(records) if records else 0.0
    seen.num_expected = round(num_records * share)
    about = "about " if more else ""
    others = "".join(f", {count} {reason}" for reason, count in reasons.most_common())
    text = (
        f"{len(seen.samples)} of the first {len(records)} records can be used as {spec.format}{others}; "
        f"{about}{num_records} records in all, {about}{seen.num_expected} samples"
    )
    figures = {"num_records": num_records, "num_looked_at": len(records), "num_usable": len(seen.samples)}
    if not seen.samples:
        return Finding(
            "data", "fail", text, "Name another --format, --splitter or --answer, or lower --min-steps.", figures
        )
    if share >= 0.5:
        return Finding("data", "ok", text, "", figures)
    remedy = "Look at the reasons: --format, --splitter, --answer and --min-steps decide."
    return Finding("data", "warn", text, remedy, figures, _why_unusable(reasons, records, spec))


def _why_unusable(reasons: Counter[Reason], records: Sequence[Record], spec: DataSpec) -> str:
    """Return how many records cannot be used, and why, with the option that decides where there is one."""
    options = {
        Reason.TOO_FEW_STEPS: f" (--min-steps {spec.min_steps})",
        Reason.TOO_MANY_STEPS: f" (--max-steps {spec.max_steps})",
    }
    counts = [f"{'' if len(reasons) == 1 else f'{count} '}{reason}{options.get(reason, '')}"
              for reason, count in reasons.most_common()]  # fmt: skip
    return f"{reasons.total()} of {len(records)} records cannot be used: {', '.join(counts)}"


def _data_spec(job: DoctorJob, dataset: Dataset, records: Sequence[Record]) -> DataSpec:
    """Return the settings that a plan would freeze, or that the store's has frozen."""
    if job.store is not None and open_backend(job.store).read("zarr.json") is not None:
        store = Store.open(job.store)
        check_request(store.plan, job.data_request, store.location)
        return store.plan.spec
    wishes = said(job.data_request)
    if wishes.get("format", "auto") == "auto":
        wishes["format"] = found_format(dataset, records[:64])
    spec = DataSpec(**wishes)
    check_spec(spec)
    return spec


def _num_records(dataset: Dataset, read_bytes: int) -> int:
    """Return how many records a dataset is likely to have: tables say it, of text the bytes read so far tell."""
    known = 0
    text_bytes = 0
    for file in dataset.files:
        if file.is_table:
            with closing(open_table(file.path, file.kind)) as table:
                known += table.num_rows
        else:
            text_bytes += file.num_bytes
    per_record = max(read_bytes, 1) / NUM_RECORDS
    return known + round(text_bytes / per_record)


def _check_images(job: DoctorJob, seen: _Seen) -> Finding | None:
    """Whether the images that the samples name are there and can be decoded."""
    refs = [ref for sample in seen.samples for ref in sample.images][:NUM_IMAGES]
    if not refs or job.request.text_only:
        return None
    folder = job.images or default_image_folder(job.data)
    images = ImageFolder(folder)
    verdicts: Counter[str] = Counter()
    example = ""
    for ref in refs:
        try:
            images.open(ref)
        except Unusable as why:
            verdicts[why.reason] += 1
            example = example or why.detail
    num_bad = verdicts.total()
    what = "".join(f", {count} {reason}" for reason, count in verdicts.most_common())
    text = f"{len(refs) - num_bad} of {len(refs)} images can be read from {folder}{what}"
    figures = {"num_images": len(refs), "num_unusable": num_bad}
    if not num_bad:
        return Finding("images", "ok", text, "", figures)
    remedy = f"The first: {example}. Give the folder that image paths start from with --images."
    return Finding("images", "fail" if 2 * num_bad > len(refs) else "warn", text, remedy, figures)


# ---------------------------------------------------------------- the place of the store


def _check_place(job: DoctorJob, _: _Seen) -> Finding:
    """Whether the file system at the store's place does what stores rely on."""
    if job.store is None:
        return Finding("place", "warn", "no --store was given, so its place was not looked at", "Give --store.")
    if "://" in job.store:
        raise SettingError(f"--store {job.store}: only local places can be examined.")
    trouble = try_place(Path(job.store).expanduser().absolute())
    if trouble.fatal:
        return Finding("place", "fail", trouble.fatal, "Choose another place for --store.")
    if trouble.slight:
        return Finding("place", "warn", trouble.slight, "A local or another network file system does it in full.")
    return Finding("place", "ok", f"{trouble.folder} takes files, links, renames and syncs")


def _check_disk(job: DoctorJob, seen: _Seen) -> Finding | None:
    """Whether what the run will write fits on the disk."""
    if job.store is None or seen.spec is None or not seen.samples:
        return None
    segments = np.array([sample.num_segments for sample in seen.samples], dtype=np.float64)
    per_vector = VECTOR_BYTES[seen.spec.storage] * seen.spec.model.hidden_size + SEGMENT_BYTES
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


# ---------------------------------------------------------------- the model


def _check_model(job: DoctorJob, seen: _Seen) -> Finding:
    """Whether the model loads, with the checks that every loading makes."""
    door = model_door(job.door)
    spec = door.resolve_spec(job.model, job.request, job.options, adapter=job.adapter)
    images = job.images or default_image_folder(job.data)
    seen.extractor = door.open_extractor(job.model, spec, job.options, adapter=job.adapter, images=images)
    seen.spec = spec
    text = f"{spec.model.architecture}, {spec.dtype}, {spec.attention} attention, vectors of {spec.model.hidden_size}"
    return Finding("model", "ok", text + (f", with {job.adapter}" if job.adapter else ""))


def _check_samples(job: DoctorJob, seen: _Seen) -> Finding | None:
    """How many samples have tokens (and images) that the model takes."""
    if seen.extractor is None or not seen.samples:
        return None
    looked_at = _spread(seen.samples, 8 * NUM_TRIAL)
    set_aside = seen.extractor.prepare(looked_at).set_aside
    reasons = Counter(str(why.reason) for why in set_aside.values())
    seen.trial = _trial([sample for i, sample in enumerate(looked_at) if i not in set_aside])
    seen.num_expected = round(seen.num_expected * (1 - len(set_aside) / len(looked_at)))
    what = "".join(f", {count} {reason}" for reason, count in reasons.most_common())
    text = f"{len(looked_at) - len(set_aside)} of {len(looked_at)} samples can be extracted{what}"
    figures = {"num_looked_at": len(looked_at), "num_set_aside": len(set_aside)}
    if not set_aside:
        return Finding("samples", "ok", text, "", figures)
    remedy = next(iter(set_aside.values())).detail
    verdict: Verdict = "fail" if not seen.trial else "warn" if 20 * len(set_aside) > len(looked_at) else "ok"
    return Finding("samples", verdict, text, f"The first: {remedy}." if remedy else "", figures)


def _spread(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Return some samples, from the shortest to the longest."""
    ordered = sorted(samples, key=_num_chars)
    places = np.unique(np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int))
    return [ordered[place] for place in places]


def _trial(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples of various lengths, the longest left out until the rest is soon run; at least one."""
    ordered = sorted(samples, key=_num_chars)
    for stop in range(len(ordered), 0, -1):
        chosen = _spread(ordered[:stop], NUM_TRIAL)
        if sum(map(_num_chars, chosen)) <= TRIAL_CHARS:
            return chosen
    return ordered[:1]


def _num_chars(sample: Sample) -> int:
    return len(sample.response) + sum(len(turn.text) for turn in sample.turns)


def _check_gradient(job: DoctorJob, seen: _Seen) -> Finding | None:
    """Whether vectors are the gradients that autograd finds with the whole model."""
    if seen.extractor is None or seen.spec is None or not seen.trial:
        return None
    reference: Any = importlib.import_module(job.reference)
    shortest = seen.trial[:NUM_REFERENCE]
    worst = reference.autograd_difference(seen.extractor, shortest)
    limit = reference.TOLERANCE[seen.spec.dtype]
    text = f"vectors of {_samples(len(shortest))} differ from autograd's by {worst:.1e} (at most {limit:.0e})"
    figures = {"difference": worst, "limit": limit}
    if worst <= limit:
        return Finding("gradient", "ok", text, "", figures)
    remedy = "Try --dtype float32 or --attention eager; if it stays, this model cannot be used."
    return Finding("gradient", "fail", text, remedy, figures)


def _check_batches(job: DoctorJob, seen: _Seen) -> Finding | None:
    """Whether a sample's vectors depend on what shares its batch."""
    if seen.extractor is None or seen.spec is None or not seen.trial:
        return None
    groups = {size: _in_groups(seen.extractor, seen.trial, size) for size in sorted({1, 2, len(seen.trial)})}
    seen.alone, num_tokens = groups[1]
    norms = np.maximum(np.linalg.norm(seen.alone, axis=1), np.finfo(np.float32).tiny)
    worst = max(
        float((np.linalg.norm(vectors - seen.alone, axis=1) / norms).max(initial=0.0)) for vectors, _ in groups.values()
    )
    values = [_values(seen.trial, vectors, num_tokens) for vectors, _ in groups.values()]
    moved = float(np.max(np.ptp(np.stack(values), axis=0), initial=0.0))
    warn_at, fail_at = BATCH_LIMITS[seen.spec.dtype]
    text = (
        f"in batches of {', '.join(map(str, groups))} samples, vectors differ by {worst:.1e} and values by {moved:.1e} "
        f"({seen.spec.dtype}, {seen.spec.attention} attention)"
    )
    figures = {"difference": worst, "value_difference": moved, "limit": fail_at}
    if not worst <= fail_at:
        remedy = "Use --dtype float32, --attention eager or --no-packing, or --batch-tokens 1 (one sample at a time)."
        return Finding("batches", "fail", text, remedy, figures)
    verdict: Verdict = "warn" if worst > warn_at else "ok"
    return Finding("batches", verdict, text, "" if verdict == "ok" else "--dtype float32 is exact.", figures)


def _in_groups(
    extractor: Extractor, samples: Sequence[Sample], group: int
) -> tuple[Vectors, list[npt.NDArray[np.int32]]]:  # fmt: skip
    """Return the vectors of samples run so many at a time, in order, and each sample's token counts."""
    vectors: list[Vectors] = []
    num_tokens: list[npt.NDArray[np.int32]] = []
    for start in range(0, len(samples), group):
        some = samples[start : start + group]
        made: Any = extractor.compute(extractor.prepare(some)).result()
        vectors.append(made.segment_vector)
        stops = np.cumsum([sample.num_segments for sample in some])
        num_tokens += np.split(made.segment_num_tokens, stops[:-1])
    return np.concatenate(vectors), num_tokens


def _values(
    samples: Sequence[Sample], vectors: Vectors, num_tokens: Sequence[npt.NDArray[np.int32]]
) -> npt.NDArray[np.float64]:  # fmt: skip
    """Return each sample's value by the default settings."""
    stops = np.cumsum([sample.num_segments for sample in samples])
    parts = [rows.astype(np.float64) for rows in np.split(vectors, stops[:-1])]
    scored = [
        score_block(pack((rows @ rows.T)[None]), tokens[None], ScoreSpec()).value[0]
        for rows, tokens in zip(parts, num_tokens, strict=True)
    ]
    return np.array(scored)


def _check_storage(job: DoctorJob, seen: _Seen) -> Finding | None:
    """What the chosen storage does to cosines between the user's own vectors."""
    if seen.alone is None or seen.spec is None:
        return None
    exact, kept = (_cosines(vectors) for vectors in (seen.alone, stored_form(seen.alone, seen.spec.storage)))
    difference = np.abs(exact - kept)
    text = (
        f"{seen.spec.storage} changes cosines between vectors by {difference.mean():.1e} on average, at most "
        f"{difference.max():.1e}; scores come from exact Grams and do not change"
    )
    figures = {"mean": float(difference.mean()), "largest": float(difference.max())}
    if difference.max() > STORAGE_WARNING:
        return Finding(
            "storage", "warn", text, "For duplicates and diversity, --storage int8 or float16 is finer.", figures
        )
    return Finding("storage", "ok", text, "", figures)


def _cosines(vectors: Vectors) -> npt.NDArray[np.float64]:
    rows = vectors.astype(np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    return np.asarray(rows @ rows.T)


# ---------------------------------------------------------------- time and memory


def _check_speed(job: DoctorJob, seen: _Seen) -> Finding | None:
    """How long the run will take."""
    if seen.extractor is None or not seen.trial:
        return None
    began = time.perf_counter()
    made = seen.extractor.compute(seen.extractor.prepare(seen.trial)).result()
    seconds = max(time.perf_counter() - began, 1e-9)
    # The whole dataset's samples may be longer than those of the trial.
    chars, trial_chars = (np.mean([_num_chars(each) for each in some]) for some in (seen.samples, seen.trial))
    rate = float(len(seen.trial) / seconds * job.num_workers * trial_chars / chars)
    total = seen.num_expected / rate
    devices = f" on {job.num_workers} devices" if job.num_workers > 1 else ""
    text = (
        f"{rate:.1f} samples/s ({made.num_tokens / seconds:.0f} tokens/s each){devices}: about {duration(total)} in all"
    )
    return Finding("speed", "ok", text, "", {"samples_per_second": rate, "seconds": total})


def _check_memory(job: DoctorJob, seen: _Seen) -> Finding | None:
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


def _samples(count: int) -> str:
    return f"{count} sample{'' if count == 1 else 's'}"


def finding_lines(examination: Examination) -> Iterator[str]:
    """Yield one line for each finding, and what to change below it."""
    for finding in examination.findings:
        yield f"{finding.verdict:<5}{finding.check:<10}{finding.text}."
        if finding.remedy and finding.verdict != "ok":
            yield f"{'':<15}{finding.remedy}"
