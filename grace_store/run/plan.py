"""From files of records to a plan: scan, understand, freeze. Needs no model."""

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grace_store import __version__
from grace_store.base.errors import (
    DatasetChanged,
    GraceStoreError,
    NotAStore,
    NothingUsable,
    ResumeMismatch,
    SettingError,
    StoreError,
    UnknownFormat,
)
from grace_store.base.events import Listener, Note, Progressed, Warned, ignore
from grace_store.base.files import refuse_file_above
from grace_store.base.metadata import Plan
from grace_store.base.settings import DataSpec, setting_text
from grace_store.base.states import Unusable
from grace_store.base.text import counted
from grace_store.data.dataset import Dataset
from grace_store.data.folders import name_files
from grace_store.data.mapping import MAPPED, check_part_names, names_trace
from grace_store.data.parse_records import check_spec, detect_format
from grace_store.data.record import Record
from grace_store.pool.records import check_files
from grace_store.run.record_tally import RecordTally, advise, loss_in_words, remedy, tally_records
from grace_store.run.scan import Understanding, processes_for
from grace_store.store.backend import Backend, is_url, open_backend
from grace_store.store.keys import SAMPLES_GROUP
from grace_store.store.lock import Lease, hold
from grace_store.store.metadata_backup import find_plan_copy
from grace_store.store.opened import Store
from grace_store.store.plan_writer import PlanWriter, check_claimable, is_begun, replace_plan, staged

RECORDS_TO_DETECT_FORMAT = 64
PLAN_WAIT_SECONDS = 24 * 3600.0
"""How long the other ranks of a job wait while one of them plans."""
_READING = ("format", "map")
_READ_AGAIN = (
    "such files can only be read from the beginning on, and gathered questions have their records all over them, so "
    "whatever reads records starts them again and again. If they are large, plan them decompressed, Parquet as JSON "
    "lines or Arrow."
)


def plan(
    data: Sequence[str | Path],
    store: str | Path,
    request: DataSpec | None = None,
    *,
    samples_per_unit: int | None = None,
    images: str | None = None,
    workers: int | None = 1,
    anew: bool = False,
    listener: Listener = ignore,
) -> Store:
    """Plan a store, or check that the one that is there was planned from the same data and settings.

    With anew, a plan from other data or settings is replaced if the store has no signal yet; what is not given comes
    from it. With a folder of images, say how many that records name are missing there. workers are processes that read
    records: 1 is this one, None means as many as pay off. Neither changes the plan.
    """
    check_images(images)
    backend = open_backend(store)
    check_store_path(store)
    with Dataset.open(data) as dataset:
        num_processes = processes_for(dataset.num_bytes) if workers is None else workers
        job = _Planning(dataset, request or DataSpec(), samples_per_unit, images, num_processes, listener)
        if backend.read("zarr.json") is None:
            _check_unclaimed(backend)
            try:
                with hold(backend, "plan", wait_seconds=PLAN_WAIT_SECONDS) as lease:
                    if backend.read("zarr.json") is None:
                        return job.write(lease)
            except GraceStoreError:
                backend.prune()
                raise
        planned = Store.open(backend)
        try:
            return job.check(planned)
        except (ResumeMismatch, DatasetChanged):
            if not anew or is_begun(planned):
                raise
        with hold(backend, "plan", wait_seconds=PLAN_WAIT_SECONDS) as lease:
            return job.write_anew(lease)


def check_images(images: str | None) -> None:
    """Raise SettingError unless the folder of images is one."""
    if images is not None and not Path(images).is_dir():
        raise SettingError(f"--images {images} is not a folder. Give the one that the image paths start from.")


@dataclass(frozen=True, slots=True)
class _Planning:
    """What is to be planned, and how."""

    dataset: Dataset
    request: DataSpec
    samples_per_unit: int | None
    images: str | None
    num_processes: int
    listener: Listener

    def check(self, planned: Store) -> Store:
        """Return a store that was planned from the same data and settings, or raise."""
        check_request(planned, self.request, self.samples_per_unit)
        check_files(planned, self.dataset)
        return planned

    def write(self, lease: Lease) -> Store:
        """Plan where there is no plan; a replacement that was cut short goes on from what it was to replace."""
        previous = find_plan_copy(lease.backend)
        self._write(PlanWriter(lease.backend), lease, previous)
        return Store.open(lease.backend)

    def write_anew(self, lease: Lease) -> Store:
        """Replace a plan that has no signal, once the new one is complete."""
        planned = Store.open(lease.backend)
        try:
            return self.check(planned)  # another run may have planned just that, before this one got the lock
        except (ResumeMismatch, DatasetChanged):
            if is_begun(planned):
                raise
        with staged(lease) as stage:
            self._write(PlanWriter(stage), lease, planned.plan)
            replace_plan(lease.backend, stage)
        again = Store.open(lease.backend)
        changes = "; ".join(_changes(planned.plan, again.plan))
        self.listener(Note(f"Planned anew, as nothing was extracted yet: {changes}."))
        return again

    def _write(self, writer: PlanWriter, lease: Lease, previous: Plan | None) -> None:
        records = scan(self.dataset, self.listener)
        head = list(itertools.islice(records, RECORDS_TO_DETECT_FORMAT))
        spec = resolve_data_spec(self.dataset, head, merged_request(previous, self.dataset, self.request))
        understanding = Understanding(tuple(file.name for file in self.dataset.files), spec, self.images)
        tally = tally_records(itertools.chain(head, records), understanding, self.num_processes, writer)
        lease.confirm()  # of two plans, unlike of two units, one is wrong: neither finish nor discard another run's
        if tally.num_planned == 0:
            writer.discard()
            raise NothingUsable(_nothing_usable(tally))
        writer.finish(spec, self.dataset.summary(), self.samples_per_unit, f"grace-store {__version__}")
        self._warn(tally)

    def _warn(self, tally: RecordTally) -> None:
        if tally.num_questions is not None:
            samples, questions = counted(tally.num_planned, "sample"), counted(tally.num_questions, "question")
            self.listener(Note(f"Gathered {samples} of {questions}."))
            if names := ", ".join(file.name for file in self.dataset.files if file.is_read_forwards):
                self.listener(Warned(f"{names}: {_READ_AGAIN}"))
        if tally.num_images_missing:
            missing = counted(tally.num_images_missing, "image")
            self.listener(Warned(f"{missing} named by records could not be found in {self.images}."))
        if tally.loses_most:
            self.listener(Warned(loss_in_words(tally)))


def scan(dataset: Dataset, listener: Listener) -> Iterator[Record]:
    """Yield a dataset's records and tell how far it got."""

    def progress(num_records: int, num_bytes: int) -> None:
        listener(Progressed(f"Planning: {num_records} records read.", num_bytes, dataset.num_bytes))

    return dataset.scan(progress)


def merged_request(previous: Plan | None, dataset: Dataset, request: DataSpec) -> DataSpec:
    """Return a request with what was not given taken from a plan of the same files, changed or not.

    Format and mapping say together how a record is read: one that is given leaves nothing of the other. Gathering, if
    it is given, is by prompts unless a field is given with it.
    """
    if previous is None or [Path(file.path) for file in previous.files] != [file.path for file in dataset.files]:
        return request
    given = request.model_fields_set
    dropped = [] if given.isdisjoint(_READING) else [*_READING]
    return request.over(previous.spec, but=[*dropped, "group_by"] if "gather" in given else dropped)


def _changes(before: Plan, after: Plan) -> Iterator[str]:
    """Yield what differs between two plans."""
    was, now = before.spec.in_words(), after.spec.in_words()
    for name in {**was, **now}:
        if was.get(name) != now.get(name):
            yield f"{name.replace('_', '-')} {was.get(name, 'not said')} became {now.get(name, 'not said')}"
    if [file.sha256 for file in before.files] != [file.sha256 for file in after.files]:
        yield "the data is another"
    if before.samples_per_unit != after.samples_per_unit:
        yield f"unit-samples {before.samples_per_unit} became {after.samples_per_unit}"
    yield f"{counted(after.num_samples, 'sample')} instead of {before.num_samples}"


def open_planned(store: str, request: DataSpec, samples_per_unit: int | None = None) -> Store | None:
    """Return a store that was planned before, with the settings that are given now; None if there is none."""
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
        raise SettingError(f"{store} is a file, and a store is a folder. Give another place for the store.")
    if place.is_symlink() and not place.exists():
        raise SettingError(f"{store} is a link to {place.readlink()}, which is not there. Give another place for it.")
    refuse_file_above(place)


def check_request(store: Store, request: DataSpec, samples_per_unit: int | None = None) -> None:
    """Raise ResumeMismatch if a given setting is not as it was frozen."""
    plan, given = store.plan, request.given()
    if request.gather:
        given.setdefault("group_by", None)  # which means prompts and images
    wrong = [
        f"{name.replace('_', '-')}: planned {_quoted(frozen)}, now {_quoted(now)}"
        for name, now in given.items()
        if (frozen := getattr(plan.spec, name)) != now and not (name == "format" and now == "auto")
    ]
    if samples_per_unit not in (None, plan.samples_per_unit):
        wrong.append(f"unit-samples: planned {plan.samples_per_unit}, now {samples_per_unit}")
    if wrong:
        again = "" if is_begun(store) else " Nothing is extracted yet, so `grace-store plan` with them plans it anew."
        raise ResumeMismatch(
            f"{store.location} was planned with other settings:\n  "
            + "\n  ".join(wrong)
            + f"\nLeave those options out to use the plan, or choose a new store.{again}"
        )


def _quoted(setting: object) -> str:
    if setting is None or isinstance(setting, dict | tuple):
        return setting_text(setting or {}) or "none"
    return repr(setting)


def rewrite_plan_arrays(store: Store, dataset: Dataset) -> None:
    """Write the plan's arrays again from the data they were made from; raise StoreError if they come out otherwise."""
    plan = store.plan
    with tempfile.TemporaryDirectory(prefix="grace-store-plan-") as scratch:
        again = open_backend(Path(scratch) / "again.zarr")
        writer = PlanWriter(again)
        # By the planned paths: data that was moved keeps its ids.
        names = tuple(name_files([Path(file.path) for file in plan.files]))
        tally_records(dataset.scan(), Understanding(names, plan.spec), 1, writer)
        planned = writer.finish(plan.spec, plan.files, plan.samples_per_unit, plan.created_by)
        if planned != plan:
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


def resolve_data_spec(dataset: Dataset, head: Sequence[Record], request: DataSpec) -> DataSpec:
    """Return the settings that a plan freezes; a format that is not named is found from the first records."""
    check_part_names(request.map)  # before the format is looked for, which the part that was meant might decide
    given = request.given()
    if given.get("format", "auto") == "auto":
        given["format"] = MAPPED if names_trace(request.map) else found_format(dataset, head)
    check_spec(spec := DataSpec(**given).whole())
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


def _nothing_usable(tally: RecordTally) -> str:
    names = ", ".join(tally.understanding.names)
    if not tally.examples:
        return f"There are no records in {names}."
    counts = ", ".join(f"{reason} {count}" for reason, count in sorted(tally.set_aside.items()))
    record, why = min(tally.examples.values(), key=lambda example: example[0].row)
    spec = tally.understanding.spec
    example = record.raw[:400].decode(errors="replace")
    return (
        f"No record of {names} can be used ({counts}).\n"
        f"Read as format {spec.format!r}, steps by {spec.splitter!r}, answer by {spec.answer!r}, "
        f"at least {spec.min_steps} steps.\n"
        f"First record, set aside because of {why}:\n  {example!r}\n"
        f"{remedy(tally, advise(tally))} `grace-store plan --dry-run` shows how records are read."
    )
