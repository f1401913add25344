"""From files of records to a plan: scan, understand, freeze. Needs no model."""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from grace_store import __version__
from grace_store.config import DataRequest, DataSpec, said
from grace_store.data import Dataset, Record, check_spec, detect_format, name_files, understand
from grace_store.data.images import is_missing
from grace_store.errors import (
    GraceStoreError,
    NothingUsable,
    ResumeMismatch,
    SettingError,
    StoreError,
    UnknownFormat,
    Unusable,
)
from grace_store.events import Listener, Scanned, Warned, ignore
from grace_store.job.dataset import check_files
from grace_store.metadata import Plan, Reason
from grace_store.store import SAMPLES, Backend, PlannedSample, PlanWriter, Store, check_claimable, hold, open_backend
from grace_store.whole_files import refuse_file_above

RECORDS_TO_DETECT_FORMAT = 64
PLAN_WAIT_SECONDS = 24 * 3600.0
"""How long the other ranks of a job wait while one of them plans."""


def plan(
    paths: Sequence[str | Path],
    location: str | Path,
    request: DataRequest | None = None,
    *,
    samples_per_unit: int | None = None,
    images: str | None = None,
    listener: Listener = ignore,
) -> Store:
    """Plan a store, or check that the one that is there was planned from the same data and settings.

    With a folder of images, say how many of those that the records name are not there. That changes no plan: images
    are opened when a signal is extracted.
    """
    request = request or DataRequest()
    if images is not None and not Path(images).is_dir():
        raise SettingError(f"--images {images} is not a folder. Give the one that the image paths start from.")
    backend = open_backend(location)
    check_place(location)
    with Dataset.open(paths) as dataset:
        if backend.read("zarr.json") is None:
            # Before the lock, too: nothing, not even a lock, is written into somebody else's folder.
            check_claimable(backend)
            try:
                with hold(backend, "plan", wait_seconds=PLAN_WAIT_SECONDS):
                    if backend.read("zarr.json") is None:
                        _write_plan(dataset, backend, request, samples_per_unit, images, listener)
                        return Store.open(backend)
            except GraceStoreError:
                backend.prune()
                raise
        store = Store.open(backend)
        check_request(store.plan, request, store.location, samples_per_unit)
        check_files(store, dataset)
        return store


def check_place(location: str | Path) -> None:
    """Raise SettingError if a file is where a store, which is a folder, would be."""
    place = Path(location).expanduser().absolute()
    if place.is_file():
        raise SettingError(f"{location} is a file, and a store is a folder. Give another --store.")
    refuse_file_above(place)


def check_request(plan: Plan, request: DataRequest, location: str, samples_per_unit: int | None = None) -> None:
    """Raise ResumeMismatch if a wish differs from what was frozen."""
    frozen = plan.spec.model_dump()
    wrong = [
        f"{name.replace('_', '-')}: planned {frozen[name]!r}, now {wish!r}"
        for name, wish in said(request).items()
        if frozen[name] != wish and not (name == "format" and wish == "auto")
    ]
    if samples_per_unit not in (None, plan.samples_per_unit):
        wrong.append(f"unit-samples: planned {plan.samples_per_unit}, now {samples_per_unit}")
    if wrong:
        raise ResumeMismatch(
            f"{location} was planned with other settings:\n  "
            + "\n  ".join(wrong)
            + "\nLeave those options out to use the plan, or choose a new --store."
        )


def _write_plan(
    dataset: Dataset,
    backend: Backend,
    request: DataRequest,
    samples_per_unit: int | None,
    images: str | None,
    listener: Listener,
) -> None:
    def progress(num_records: int, num_bytes: int) -> None:
        listener(Scanned(num_records, num_bytes, dataset.num_bytes))

    records = dataset.scan(progress)
    head = list(itertools.islice(records, RECORDS_TO_DETECT_FORMAT))
    spec = _resolve(dataset, head, request)
    writer = PlanWriter(backend)
    scanner = _Scanner([file.name for file in dataset.files], spec, writer, images)
    for record in itertools.chain(head, records):
        scanner.take(record)
    if writer.num_samples == 0:
        writer.discard()
        raise NothingUsable(scanner.nothing_usable())
    writer.finish(spec, dataset.summary(), samples_per_unit, f"grace-store {__version__}")
    if scanner.num_images_missing:
        listener(Warned(f"{scanner.num_images_missing} images that records name are not in {images}."))


def rewrite_plan_arrays(store: Store, dataset: Dataset) -> None:
    """Write the plan's arrays again from the data they were made from; raise StoreError if they come out otherwise."""
    plan = store.plan
    with tempfile.TemporaryDirectory(prefix="grace-store-plan-") as scratch:
        again = open_backend(Path(scratch) / "again.zarr")
        writer = PlanWriter(again)
        # By the planned paths: data that was moved keeps its ids.
        scanner = _Scanner(name_files([Path(file.path) for file in plan.files]), plan.spec, writer, None)
        for record in dataset.scan():
            scanner.take(record)
        planned = writer.finish(plan.spec, plan.files, plan.samples_per_unit, plan.created_by)
        if planned.model_copy(update={"format_version": plan.format_version}) != plan:
            raise StoreError(
                f"The plan of {store.location} is damaged, and this version of grace-store plans the same data "
                f"differently. Repair it with the version that made it ({plan.created_by}), or move the store away and "
                "run `grace-store extract` into a new one."
            )
        for key in again.walk(SAMPLES):
            value = again.read(key)
            if value is not None and value != store.backend.read(key):
                store.backend.write(key, value)
    store.backend.flush()


def _resolve(dataset: Dataset, head: Sequence[Record], request: DataRequest) -> DataSpec:
    wishes = said(request)
    if wishes.get("format", "auto") == "auto":
        wishes["format"] = found_format(dataset, head)
    spec = DataSpec(**wishes)
    check_spec(spec)
    return spec


def found_format(dataset: Dataset, head: Sequence[Record]) -> str:
    """Return the format of a dataset's first records; raise, naming its files, when they have none."""
    names = ", ".join(str(file.path) for file in dataset.files)
    if not head:
        raise NothingUsable(f"There are no records in {names}.")
    parsed: list[dict[str, object]] = []
    verdicts: list[Unusable] = []
    for record in head:
        try:
            parsed.append(record.parse())
        except Unusable as why:
            verdicts.append(why)
    if not parsed:
        raise UnknownFormat(
            f"{names}: none of the first {len(head)} records can be read, so their format is not known. The first: "
            f"{verdicts[0]}. One JSON object a line, in UTF-8, is wanted."
        )
    try:
        return detect_format(parsed)
    except UnknownFormat as error:
        raise UnknownFormat(f"{names}: {error}") from None


class _Scanner:
    """Understands records one after the other and remembers what a person would want to see if all fail."""

    def __init__(self, names: Sequence[str], spec: DataSpec, writer: PlanWriter, images: str | None) -> None:
        self.num_images_missing = 0
        self._images = images
        self._names = names
        self._spec = spec
        self._writer = writer
        self._seen: set[bytes] = set()
        self._example: tuple[Record, Unusable] | None = None

    def take(self, record: Record) -> None:
        try:
            sample = understand(record, self._spec, self._names[record.file], record.row_in_file)
            fingerprint = hashlib.blake2b(sample.sample_id.encode(), digest_size=16).digest()
            if fingerprint in self._seen:
                raise Unusable(Reason.DUPLICATE_ID, f"id {sample.sample_id!r} was used before")
        except Unusable as why:
            self._example = self._example or (record, why)
            self._writer.add_set_aside(record.row, why.reason, why.detail)
            return
        self._seen.add(fingerprint)
        if self._images is not None:
            self.num_images_missing += sum(is_missing(ref, Path(self._images)) for ref in sample.images)
        self._writer.add(
            PlannedSample(
                sample_id=sample.sample_id,
                row=record.row,
                file=record.file,
                offset=record.offset,
                length=record.length,
                digest=record.digest,
                num_steps=sample.num_steps,
            )
        )

    def nothing_usable(self) -> str:
        counts = ", ".join(f"{reason} {count}" for reason, count in sorted(self._writer.set_aside.items()))
        if self._example is None:
            return f"There are no records in {', '.join(self._names)}."
        record, why = self._example
        example = record.raw[:400].decode(errors="replace")
        return (
            f"No record of {', '.join(self._names)} can be used ({counts}).\n"
            f"Read as format {self._spec.format!r}, steps by {self._spec.splitter!r}, answer by {self._spec.answer!r}, "
            f"at least {self._spec.min_steps} steps.\n"
            f"First record, set aside because of {why}:\n  {example!r}\n"
            "Name another --format, --splitter or --answer, or lower --min-steps."
        )
