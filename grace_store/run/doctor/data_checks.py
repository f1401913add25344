"""Check that the records and their images can be used."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from grace_store.base.arrays import Float32Array as Vectors
from grace_store.base.errors import StorageError
from grace_store.base.events import Listener, Progressed, ignore
from grace_store.base.settings import DataSpec, ExtractSpec
from grace_store.base.states import Reason, Unusable
from grace_store.base.text import counted
from grace_store.data.dataset import Dataset
from grace_store.data.expand import Expansion
from grace_store.data.folders import default_image_folder
from grace_store.data.record import Record
from grace_store.data.sample import Sample
from grace_store.data.tables import open_table
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extractor_protocol import Extractor
from grace_store.run.plan import RECORDS_TO_DETECT_FORMAT, open_planned, resolve_data_spec
from grace_store.run.record_tally import RecordTally, advise, ask_for_min_steps, remedy
from grace_store.run.scan import Understanding

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check, in a sentence, with a remedy."""

    check: str
    verdict: Verdict
    text: str
    remedy: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    brief: str = ""
    """A short form of the text for the conclusion; the text itself if empty."""


@dataclass(slots=True)
class Seen:
    """Results of earlier checks that later checks need."""

    samples: list[Sample] = field(default_factory=list)
    num_expected: int = 0
    """Estimated number of samples in the whole dataset."""
    spec: ExtractSpec | None = None
    extractor: Extractor | None = None
    few: list[Sample] = field(default_factory=list)
    """A few samples of various lengths that can be extracted."""
    alone: Vectors | None = None
    """Vectors of these few samples, each extracted in a batch of its own."""
    listener: Listener = ignore

    def progress(self, text: str) -> None:
        """Report the progress of a check."""
        self.listener(Progressed(text, 0, 0))


def is_go(findings: Sequence[CheckResult]) -> bool:
    """Return whether the run may start."""
    return all(finding.verdict != "fail" for finding in findings)


def conclusion(findings: Sequence[CheckResult]) -> str:
    """Return in one sentence whether the run may start, with every warning."""
    if failed := [finding.check for finding in findings if finding.verdict == "fail"]:
        return f"Not ready: fix {', '.join(failed)} first."
    warned = [finding.brief or finding.text for finding in findings if finding.verdict == "warn"]
    return f"Ready, with warnings: {'; '.join(warned)}." if warned else "Ready."


def finding_lines(findings: Sequence[CheckResult]) -> Iterator[str]:
    """Yield one line for each result, followed by its remedy."""
    for finding in findings:
        yield f"{finding.verdict:<5}{finding.check:<10}{finding.text.removesuffix('.')}."
        if finding.remedy and finding.verdict != "ok":
            yield f"{'':<15}{finding.remedy}"


def num_chars(sample: Sample) -> int:
    """Return the number of characters in a sample's turns and response."""
    return len(sample.response) + sum(len(turn.text) for turn in sample.turns)


NUM_RECORDS = 1024
"""Number of records to read. Dataset.scan reports the bytes read at every multiple of this number."""
NUM_IMAGES = 64
"""Number of images to open."""


def examine_data(job: ExtractJob, seen: Seen) -> CheckResult:
    """Count the first records that can be used, and the reasons why the others cannot."""
    read_bytes = 0

    def progress(_num_records: int, num_bytes: int) -> None:
        nonlocal read_bytes
        read_bytes = num_bytes

    planned = _planned(job)
    with Dataset.open(job.data, Expansion.of(job.data_request if planned is None else planned)) as dataset:
        scan = dataset.scan(progress)
        records = list(islice(scan, NUM_RECORDS))
        more = next(scan, None) is not None
        spec = planned or resolve_data_spec(dataset, records[:RECORDS_TO_DETECT_FORMAT], job.data_request)
        understanding = Understanding(tuple(file.name for file in dataset.files), spec)
        tally = RecordTally(understanding)
        for record in records:
            try:
                sample = understanding.sample(record, fields := record.parse())
            except Unusable as why:
                tally.take(record, why.why)
                continue
            seen.samples.append(sample)
            tally.take(record, understanding.planned(record, sample, fields))
        num_records = _num_records(dataset, read_bytes, records) if more else len(records)
    share = len(seen.samples) / len(records) if records else 0.0
    seen.num_expected = round(num_records * share)
    about = "about " if more else ""
    others = "".join(f", {count} {reason}" for reason, count in tally.set_aside.most_common())
    text = (
        f"{len(seen.samples)} of the first {counted(len(records), 'record')} can be used as {spec.format}{others}; "
        f"{about}{counted(num_records, 'record')} in all, {about}{counted(seen.num_expected, 'sample')}"
    )
    figures = {"num_records": num_records, "num_looked_at": len(records), "num_usable": len(seen.samples)}
    if share >= 0.5:
        return CheckResult("data", "ok", text, "", figures)
    what_to_do = ask_for_min_steps(tally) if tally.needs_min_steps else remedy(tally, advise(tally))
    if tally.needs_min_steps or not seen.samples:
        seen.samples.clear()
        return CheckResult("data", "fail", text, f"{what_to_do} No model was loaded.", figures)
    return CheckResult("data", "warn", text, what_to_do, figures, _why_unusable(tally))


def _why_unusable(tally: RecordTally) -> str:
    """Return the number of unusable records, with the reasons and the options that decide."""
    options: dict[str, str] = {
        Reason.TOO_FEW_STEPS: f" (--min-steps {tally.settings.min_steps})",
        Reason.TOO_MANY_STEPS: f" (--max-steps {tally.settings.max_steps})",
    }
    counts = [
        f"{'' if len(tally.set_aside) == 1 else f'{count} '}{reason}{options.get(reason, '')}"
        for reason, count in tally.set_aside.most_common()
    ]
    return f"{tally.num_set_aside} of {counted(tally.num_records, 'record')} cannot be used: {', '.join(counts)}"


def _planned(job: ExtractJob) -> DataSpec | None:
    """Return the settings of the store's plan; None if there is no plan."""
    try:
        planned = open_planned(job.store, job.data_request) if job.store else None
    except StorageError:
        return None  # the check of the place reports this
    return None if planned is None else planned.plan.spec


def _num_records(dataset: Dataset, read_bytes: int, records: Sequence[Record]) -> int:
    """Estimate the number of records: tables know their rows; for text, it follows from the bytes read so far."""
    known = text_bytes = 0
    for file in dataset.files:
        if file.is_table:
            with closing(open_table(file.path, file.kind)) as table:
                known += table.num_rows
        else:
            text_bytes += file.num_bytes
    num_rows = len({(record.file, record.offset) for record in records})  # fewer than records if lists are expanded
    return round(known * len(records) / num_rows + text_bytes * NUM_RECORDS / max(read_bytes, 1))


def examine_images(job: ExtractJob, seen: Seen) -> CheckResult | None:
    """Check that the images of the samples exist and can be decoded."""
    refs = [ref for sample in seen.samples for ref in sample.images][:NUM_IMAGES]
    if not refs or job.request.text_only:
        return None
    from grace_store.data.image_files import ImageFolder  # this needs Pillow, which the other checks do not

    folder = job.images or default_image_folder(job.data)
    images = ImageFolder(folder)
    bad: list[Unusable] = []
    for ref in refs:
        try:
            images.open(ref)
        except Unusable as why:
            bad.append(why)
    num_bad, counts = len(bad), Counter(why.reason for why in bad).most_common()
    reasons = "".join(f", {count} {reason}" for reason, count in counts)
    text = f"{len(refs) - num_bad} of {counted(len(refs), 'image')} can be read from {folder}{reasons}"
    figures = {"num_images": len(refs), "num_unusable": num_bad}
    if not num_bad:
        return CheckResult("images", "ok", text, "", figures)
    remedy = f"The first: {bad[0].detail}. Give --images with the folder that image paths start from."
    return CheckResult("images", "fail" if 2 * num_bad > len(refs) else "warn", text, remedy, figures)
