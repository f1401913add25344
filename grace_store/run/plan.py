"""From files of records to a plan: scan, understand, freeze. Needs no model."""

import itertools
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from grace_store import __version__
from grace_store.base.errors import (
    GraceStoreError,
    NotAStore,
    NothingUsable,
    ResumeMismatch,
    SettingError,
    StoreError,
    UnknownFormat,
)
from grace_store.base.events import Listener, Scanned, Warned, ignore
from grace_store.base.files import refuse_file_above
from grace_store.base.settings import DataRequest, DataSpec, wishes_in
from grace_store.base.states import Reason, SetAside, Unusable
from grace_store.base.text import counted
from grace_store.data.dataset import Dataset
from grace_store.data.folders import name_files
from grace_store.data.record import Record
from grace_store.data.understand import check_spec, detect_format
from grace_store.read.records import check_files
from grace_store.run.scan import RecordOutcome, Understanding, Understood, processes_for, understood
from grace_store.run.seen_ids import SeenIds
from grace_store.store.backend import Backend, is_url, open_backend
from grace_store.store.keys import SAMPLES_GROUP
from grace_store.store.lock import Lease, hold
from grace_store.store.opened import Store
from grace_store.store.plan_writer import PlanWriter, check_claimable

RECORDS_TO_DETECT_FORMAT = 64
PLAN_WAIT_SECONDS = 24 * 3600.0
"""How long the other ranks of a job wait while one of them plans."""


def plan(
    data: Sequence[str | Path],
    store: str | Path,
    request: DataRequest | None = None,
    *,
    samples_per_unit: int | None = None,
    images: str | None = None,
    workers: int | None = 1,
    listener: Listener = ignore,
) -> Store:
    """Plan a store, or check that the one that is there was planned from the same data and settings.

    With a folder of images, say how many that records name are missing there. workers are processes that read records:
    1 is this one, None means as many as pay off. Neither changes the plan.
    """
    request = request or DataRequest()
    if images is not None and not Path(images).is_dir():
        raise SettingError(f"--images {images} is not a folder. Give the one that the image paths start from.")
    backend = open_backend(store)
    check_store_path(store)
    with Dataset.open(data) as dataset:
        if backend.read("zarr.json") is None:
            _check_unclaimed(backend)
            try:
                with hold(backend, "plan", wait_seconds=PLAN_WAIT_SECONDS) as lease:
                    if backend.read("zarr.json") is None:
                        num_processes = processes_for(dataset.num_bytes) if workers is None else workers
                        _write_plan(dataset, lease, request, samples_per_unit, images, num_processes, listener)
                        return Store.open(backend)
            except GraceStoreError:
                backend.prune()
                raise
        planned = Store.open(backend)
        check_request(planned, request, samples_per_unit)
        check_files(planned, dataset)
        return planned


def open_planned(store: str, request: DataRequest, samples_per_unit: int | None = None) -> Store | None:
    """Return a store that was planned before, with the settings that are wished now; None if there is none."""
    if open_backend(store).read("zarr.json") is None:
        return None
    planned = Store.open(store)
    check_request(planned, request, samples_per_unit)
    return planned


def _check_unclaimed(backend: Backend) -> None:
    """Refuse somebody else's folder before the lock, too: nothing, not even a lock, is written into one."""
    try:
        check_claimable(backend)
    except NotAStore:
        if backend.read("zarr.json") is None:  # and not a plan that another process has finished meanwhile
            raise


def check_store_path(store: str | Path) -> None:
    """Raise SettingError if a file, or a link to nothing, is where a store, which is a folder, would be."""
    if is_url(store):
        return
    place = Path(store).expanduser().absolute()
    if place.is_file():
        raise SettingError(f"{store} is a file, and a store is a folder. Give another --store.")
    if place.is_symlink() and not place.exists():
        raise SettingError(f"{store} is a link to {place.readlink()}, which is not there. Give another --store.")
    refuse_file_above(place)


def check_request(store: Store, request: DataRequest, samples_per_unit: int | None = None) -> None:
    """Raise ResumeMismatch if a wish differs from what was frozen."""
    plan = store.plan
    frozen = plan.spec.model_dump()
    wrong = [
        f"{name.replace('_', '-')}: planned {frozen[name]!r}, now {wish!r}"
        for name, wish in wishes_in(request).items()
        if frozen[name] != wish and not (name == "format" and wish == "auto")
    ]
    if samples_per_unit not in (None, plan.samples_per_unit):
        wrong.append(f"unit-samples: planned {plan.samples_per_unit}, now {samples_per_unit}")
    if wrong:
        raise ResumeMismatch(
            f"{store.location} was planned with other settings:\n  "
            + "\n  ".join(wrong)
            + "\nLeave those options out to use the plan, or choose a new --store."
        )


def _write_plan(
    dataset: Dataset,
    lease: Lease,
    request: DataRequest,
    samples_per_unit: int | None,
    images: str | None,
    num_processes: int,
    listener: Listener,
) -> None:
    def progress(num_records: int, num_bytes: int) -> None:
        listener(Scanned(num_records, num_bytes, dataset.num_bytes))

    records = dataset.scan(progress)
    head = list(itertools.islice(records, RECORDS_TO_DETECT_FORMAT))
    spec = resolve_data_spec(dataset, head, request)
    writer = PlanWriter(lease.backend)
    scanner = _Scanner(writer, Understanding(tuple(file.name for file in dataset.files), spec, images))
    scanner.take_all(itertools.chain(head, records), num_processes)
    lease.confirm()  # of two plans, unlike of two units, one is wrong: neither finish nor discard another run's
    if writer.num_samples == 0:
        writer.discard()
        raise NothingUsable(scanner.nothing_usable())
    writer.finish(spec, dataset.summary(), samples_per_unit, f"grace-store {__version__}")
    if scanner.num_images_missing:
        missing = counted(scanner.num_images_missing, "image")
        listener(Warned(f"{missing} named by records could not be found in {images}."))


def rewrite_plan_arrays(store: Store, dataset: Dataset) -> None:
    """Write the plan's arrays again from the data they were made from; raise StoreError if they come out otherwise."""
    plan = store.plan
    with tempfile.TemporaryDirectory(prefix="grace-store-plan-") as scratch:
        again = open_backend(Path(scratch) / "again.zarr")
        writer = PlanWriter(again)
        # By the planned paths: data that was moved keeps its ids.
        names = tuple(name_files([Path(file.path) for file in plan.files]))
        _Scanner(writer, Understanding(names, plan.spec)).take_all(dataset.scan())
        planned = writer.finish(plan.spec, plan.files, plan.samples_per_unit, plan.created_by)
        if planned.model_copy(update={"format_version": plan.format_version}) != plan:
            raise StoreError(
                f"The plan of {store.location} is damaged, and this version of grace-store plans the same data "
                f"differently. Repair it with the version that made it ({plan.created_by}), or move the store away and "
                "run `grace-store extract` into a new one."
            )
        for key in again.walk(SAMPLES_GROUP):
            value = again.read(key)
            if value is not None and value != store.backend.read(key):
                store.backend.write(key, value)
    store.backend.flush()


def resolve_data_spec(dataset: Dataset, head: Sequence[Record], request: DataRequest) -> DataSpec:
    """Return the settings that a plan freezes; a format that is not named is found from the first records."""
    wishes = wishes_in(request)
    if wishes.get("format", "auto") == "auto":
        wishes["format"] = found_format(dataset, head)
    check_spec(spec := DataSpec(**wishes))
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
        looked_at = f"none of {counted(len(head), 'record')} looked at can be read, so the format is not known"
        first = f"The first: {verdicts[0]}. One JSON object a line, in UTF-8, is wanted."
        raise UnknownFormat(f"{names}: {looked_at}. {first}")
    try:
        return detect_format(parsed)
    except UnknownFormat as error:
        raise UnknownFormat(f"{names}: {error}") from None


class _Scanner:
    """Writes down what becomes of records and remembers what a person would want to see if all fail."""

    def __init__(self, writer: PlanWriter, understanding: Understanding) -> None:
        self.num_images_missing = 0
        self._writer = writer
        self._understanding = understanding
        self._seen = SeenIds()
        self._example: tuple[Record, SetAside] | None = None

    def take_all(self, records: Iterable[Record], num_processes: int = 1) -> None:
        for block, outcomes in understood(records, self._understanding, num_processes):
            self._take(block, outcomes)

    def _take(self, records: Sequence[Record], outcomes: Sequence[RecordOutcome]) -> None:
        ids = [outcome.sample.sample_id for outcome in outcomes if isinstance(outcome, Understood)]
        were_seen = iter(self._seen.add(ids).tolist())
        for record, outcome in zip(records, outcomes, strict=True):
            if isinstance(outcome, Understood) and next(were_seen):
                outcome = SetAside(Reason.DUPLICATE_ID, f"id {outcome.sample.sample_id!r} was used before")
            if isinstance(outcome, SetAside):
                self._example = self._example or (record, outcome)
                self._writer.add_set_aside(record.row, outcome.reason, outcome.detail)
            else:
                self.num_images_missing += outcome.num_images_missing
                self._writer.add(outcome.sample)

    def nothing_usable(self) -> str:
        counts = ", ".join(f"{reason} {count}" for reason, count in sorted(self._writer.set_aside.items()))
        if self._example is None:
            return f"There are no records in {', '.join(self._understanding.names)}."
        record, why = self._example
        spec = self._understanding.spec
        example = record.raw[:400].decode(errors="replace")
        return (
            f"No record of {', '.join(self._understanding.names)} can be used ({counts}).\n"
            f"Read as format {spec.format!r}, steps by {spec.splitter!r}, answer by {spec.answer!r}, "
            f"at least {spec.min_steps} steps.\n"
            f"First record, set aside because of {why}:\n  {example!r}\n"
            "Name another --format, --splitter or --answer, or lower --min-steps."
        )
