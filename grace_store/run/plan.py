"""Turn files of records into a plan, or show how they would be planned. Needs no model."""

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
    SettingNeeded,
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
from grace_store.data.expand import Expansion
from grace_store.data.folders import name_files
from grace_store.data.mapping import MAPPED, check_part_names, names_trace
from grace_store.data.parse_records import check_spec, detect_format
from grace_store.data.record import Record
from grace_store.pool.records import check_files
from grace_store.run.record_tally import RecordTally, advise, ask_for_min_steps, loss_in_words, remedy, tally_records
from grace_store.run.scan import Understanding, processes_for
from grace_store.store.backend import SAMPLES_GROUP, is_url, open_backend
from grace_store.store.lock import Lease, hold
from grace_store.store.metadata_backup import find_plan_copy
from grace_store.store.opened import Store
from grace_store.store.plan_writer import PlanWriter, check_claimable, is_begun, replace_plan, staged

RECORDS_TO_DETECT_FORMAT = 64
PLAN_WAIT_SECONDS = 24 * 3600.0
"""How long the other ranks of a job wait while one rank plans."""
_READING = ("format", "map")
"""Settings that together decide how a record is read."""


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
    """Plan a store, or check that an existing store was planned from the same data and settings.

    With anew, a plan from other data or settings is replaced if the store has no signal yet. Settings that are not
    given then come from the old plan. With a folder of images, count the images that records name and that are not
    in the folder. workers is the number of processes that read records: 1 is this process alone, None means as many
    as are useful. Neither images nor workers change the plan.

    If min_steps is not given and its default would set aside more than half of the records, raise SettingNeeded.
    """
    check_images(images)
    backend = open_backend(store)
    check_store_path(store)
    with Dataset.open(data) as dataset:
        job = _Planning(dataset, request or DataSpec(), samples_per_unit, images, workers, listener)
        if backend.read("zarr.json") is None:
            try:
                # Before the lock, too: nothing, not even a lock, is written into somebody else's folder.
                check_claimable(backend)
            except NotAStore:
                if backend.read("zarr.json") is None:  # another process may have finished a plan meanwhile
                    raise
            try:
                with hold(backend, "plan", wait_seconds=PLAN_WAIT_SECONDS) as lease:
                    if backend.read("zarr.json") is None:
                        # The settings of a plan whose replacement was cut short still count. The writer deletes it.
                        previous = find_plan_copy(backend)
                        job.write(PlanWriter(backend), lease, previous)
                        return Store.open(backend)
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


def preview(
    data: Sequence[str | Path],
    request: DataSpec | None = None,
    *,
    store: str | Path | None = None,
    images: str | None = None,
    workers: int | None = 1,
    listener: Listener = ignore,
) -> RecordTally:
    """Count the records that `plan` would plan or set aside, and write nothing.

    If the store has a plan, settings that are not given come from it. `to_json()` of the result has everything that
    `grace-store plan --dry-run --json` prints.
    """
    check_images(images)
    backend = None if store is None else open_backend(store)
    planned = Store.open(backend).plan if backend is not None and backend.read("zarr.json") is not None else None
    with Dataset.open(data) as dataset:
        merged = merged_request(planned, dataset, request or DataSpec())
        return tally_dataset(dataset, merged, images, workers, listener)


def check_images(images: str | None) -> None:
    """Raise SettingError if images is given and is not a folder."""
    if images is not None and not Path(images).is_dir():
        raise SettingError(f"--images {images} is not a folder. Give the folder that the image paths start from.")


@dataclass(frozen=True, slots=True)
class _Planning:
    """A dataset to plan, with its settings."""

    dataset: Dataset
    request: DataSpec
    samples_per_unit: int | None
    images: str | None
    workers: int | None
    listener: Listener

    def check(self, planned: Store) -> Store:
        """Return a store that was planned from the same data and settings, or raise."""
        check_request(planned, self.request, self.samples_per_unit)
        check_files(planned, self.dataset)
        return planned

    def write_anew(self, lease: Lease) -> Store:
        """Replace the plan of a store without signals, once the new plan is complete."""
        planned = Store.open(lease.backend)
        try:
            return self.check(planned)  # another run may have made the same plan before this run got the lock
        except (ResumeMismatch, DatasetChanged):
            if is_begun(planned):
                raise
        with staged(lease) as stage:
            self.write(PlanWriter(stage), lease, planned.plan)
            replace_plan(lease.backend, stage)
        again = Store.open(lease.backend)
        changes = "; ".join(_changes(planned.plan, again.plan))
        self.listener(Note(f"Planned again, because nothing was extracted yet: {changes}."))
        return again

    def write(self, writer: PlanWriter, lease: Lease, previous: Plan | None) -> None:
        """Write a plan; settings that are not given come from a previous plan of the same files."""
        request = merged_request(previous, self.dataset, self.request)
        tally = tally_dataset(self.dataset, request, self.images, self.workers, self.listener, writer)
        lease.confirm()  # two runs may write different plans, so this run must not finish or discard the other's
        if tally.num_planned == 0 or tally.needs_min_steps:
            writer.discard()
            if tally.needs_min_steps:
                raise SettingNeeded(f"{ask_for_min_steps(tally)} Nothing was planned.")
            raise NothingUsable(_nothing_usable(tally))
        writer.finish(tally.settings, self.dataset.summary(), self.samples_per_unit, f"grace-store {__version__}")
        if tally.num_questions is not None:
            samples, questions = counted(tally.num_planned, "sample"), counted(tally.num_questions, "question")
            self.listener(Note(f"Gathered {samples} of {questions}."))
            forwards = [file.name for file in self.dataset.files if file.compression or file.kind == "parquet"]
            if names := ", ".join(forwards):
                text = (
                    f"{names}: files of this kind can only be read from the beginning. The records of one gathered "
                    "question lie far apart, so every later command reads the files many times. If the files are "
                    "large, decompress them and plan again; convert Parquet to JSON lines or Arrow."
                )
                self.listener(Warned(text))
        if tally.num_images_missing:
            missing = counted(tally.num_images_missing, "image")
            self.listener(Warned(f"{missing} named by records could not be found in {self.images}."))
        for text in tally.several_in_words():
            self.listener(Warned(text))
        if tally.loses_most:
            self.listener(Warned(loss_in_words(tally)))


def tally_dataset(
    dataset: Dataset,
    request: DataSpec,
    images: str | None,
    workers: int | None,
    listener: Listener,
    writer: PlanWriter | None = None,
) -> RecordTally:
    """Resolve the settings, then read, count and write the samples of a dataset, and report the progress."""

    def progress(num_records: int, num_bytes: int) -> None:
        listener(Progressed(f"Planning: {num_records} records read.", num_bytes, dataset.num_bytes))

    dataset.expansion = Expansion.of(request)
    records = dataset.scan(progress)
    head = list(itertools.islice(records, RECORDS_TO_DETECT_FORMAT))
    if request.expand and head and not dataset.num_expanded:
        raise SettingError(
            f"No list in the field {request.expand!r} of --expand (records tried: {len(head)}). Give the name of a "
            "field that holds a list of responses, or leave --expand out."
        )
    spec = resolve_data_spec(dataset, head, request)
    understanding = Understanding(tuple(file.name for file in dataset.files), spec, images)
    num_processes = processes_for(dataset.num_bytes) if workers is None else workers
    return tally_records(itertools.chain(head, records), understanding, num_processes, writer)


def merged_request(previous: Plan | None, dataset: Dataset, request: DataSpec) -> DataSpec:
    """Return a request in which settings that were not given come from a plan of the same files, changed or not.

    Format and mapping decide together how a record is read. If one of them is given, the plan's other one does not
    count. If gather is given, samples are gathered by prompt unless group_by is given too.
    """
    if previous is None or [Path(file.path) for file in previous.files] != [file.path for file in dataset.files]:
        return request
    given = request.model_fields_set
    dropped = [] if given.isdisjoint(_READING) else [*_READING]
    return request.over(previous.spec, but=[*dropped, "group_by"] if "gather" in given else dropped)


def _changes(before: Plan, after: Plan) -> Iterator[str]:
    was, now = before.spec.in_words(), after.spec.in_words()
    for name in {**was, **now}:
        if was.get(name) != now.get(name):
            yield f"{name.replace('_', '-')} {was.get(name, 'not given')} became {now.get(name, 'not given')}"
    if [file.sha256 for file in before.files] != [file.sha256 for file in after.files]:
        yield "the data changed"
    if before.samples_per_unit != after.samples_per_unit:
        yield f"unit-samples {before.samples_per_unit} became {after.samples_per_unit}"
    yield f"{counted(after.num_samples, 'sample')} instead of {before.num_samples}"


def open_planned(store: str, request: DataSpec, samples_per_unit: int | None = None) -> Store | None:
    """Return a store that has a plan, after a check of the given settings; None if there is no plan yet."""
    if open_backend(store).read("zarr.json") is None:
        return None
    planned = Store.open(store)
    check_request(planned, request, samples_per_unit)
    return planned


def check_store_path(store: str | Path) -> None:
    """Raise SettingError if the path of a store, which is a folder, is a file or a broken link."""
    if is_url(store):
        return
    if (place := Path(store).expanduser().absolute()).is_file():
        raise SettingError(f"{store} is a file, but a store is a folder. Give another place for the store.")
    if place.is_symlink() and not place.exists():
        raise SettingError(
            f"{store} is a link to {place.readlink()}, but that folder does not exist. Give another place for the "
            "store."
        )
    refuse_file_above(place)


def check_request(store: Store, request: DataSpec, samples_per_unit: int | None = None) -> None:
    """Raise ResumeMismatch if a given setting differs from the plan's."""
    plan, given = store.plan, request.given()
    if request.gather:
        given.setdefault("group_by", None)  # None means prompts and images
    wrong = [
        f"{name.replace('_', '-')}: planned {_quoted(frozen)}, now {_quoted(now)}"
        for name, now in given.items()
        if (frozen := getattr(plan.spec, name)) != now and not (name == "format" and now == "auto")
    ]
    if samples_per_unit not in (None, plan.samples_per_unit):
        wrong.append(f"unit-samples: planned {plan.samples_per_unit}, now {samples_per_unit}")
    if wrong:
        again = " Nothing is extracted yet, so `grace-store plan` with these options can plan the store again."
        raise ResumeMismatch(
            f"{store.location} was planned with other settings:\n  "
            + "\n  ".join(wrong)
            + f"\nLeave these options out to use the plan, or choose a new store.{'' if is_begun(store) else again}"
        )


def _quoted(setting: object) -> str:
    if setting is None or isinstance(setting, dict | tuple):
        return setting_text(setting or {}) or "none"
    return repr(setting)


def rewrite_plan_arrays(store: Store, dataset: Dataset) -> None:
    """Write the plan's arrays again from the planned data; raise StoreError if the arrays would differ."""
    plan = store.plan
    with tempfile.TemporaryDirectory(prefix="grace-store-plan-") as scratch:
        again = open_backend(Path(scratch) / "again.zarr")
        writer = PlanWriter(again)
        # By the planned paths, so that samples keep their ids after the data was moved.
        names = tuple(name_files([Path(file.path) for file in plan.files]))
        tally_records(dataset.scan(), Understanding(names, plan.spec), 1, writer)
        if writer.finish(plan.spec, plan.files, plan.samples_per_unit, plan.created_by) != plan:
            raise StoreError(
                f"The plan of {store.location} is damaged, and this version of grace-store plans the same data "
                f"differently. Repair the plan with the version that wrote it ({plan.created_by}), or move the store "
                "away and run `grace-store extract` into a new one."
            )
        for key in again.walk(SAMPLES_GROUP):
            if (value := again.read(key)) is not None and value != store.backend.read(key):
                store.backend.write(key, value)
    store.backend.flush()


def resolve_data_spec(dataset: Dataset, head: Sequence[Record], request: DataSpec) -> DataSpec:
    """Return the settings that a plan freezes; if no format is given, detect it from the first records."""
    check_part_names(request.map)  # first, as a wrong part name could lead to another format
    if (given := request.given()).get("format", "auto") == "auto":
        given["format"] = MAPPED if names_trace(request.map) else found_format(dataset, head)
    check_spec(spec := DataSpec(**given).whole())
    return spec


def found_format(dataset: Dataset, head: Sequence[Record]) -> str:
    """Detect the format of a dataset's first records; the error names the dataset's files."""
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
        unread = f"the format is unknown, because no record can be read (records tried: {len(head)})"
        raise UnknownFormat(f"{names}: {unread}. The first: {verdicts[0]}. Each line must be one JSON object in UTF-8.")
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
    spec = tally.settings
    return (
        f"No record of {names} can be used ({counts}).\n"
        f"Read as format {spec.format!r}, steps by {spec.splitter!r}, answer by {spec.answer!r}, "
        f"at least {spec.min_steps} steps.\n"
        f"First record, set aside because of {why}:\n  {record.raw[:400].decode(errors='replace')!r}\n"
        f"{remedy(tally, advise(tally))} `grace-store plan --dry-run` shows how records are read."
    )
