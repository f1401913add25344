"""What doctor is asked, what its checks find, and what they learn for those after them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from grace_store.base.arrays import Float32Array as Vectors
from grace_store.base.settings import DataRequest, ExtractRequest, ExtractSpec, RunOptions
from grace_store.data.sample import Sample
from grace_store.run.model_door import PROXY, Extractor

Verdict = Literal["ok", "warn", "fail"]


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
        """Whether the run may start, in one sentence that repeats every warning."""
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
    reference: str = "grace_store.model.autograd_check"
    """The module that knows autograd, the device's memory, and how trainers prepare images."""


@dataclass(slots=True)
class Seen:
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


def finding_lines(examination: Examination) -> Iterator[str]:
    """Yield one line for each finding, and what to change below it."""
    for finding in examination.findings:
        yield f"{finding.verdict:<5}{finding.check:<10}{finding.text.removesuffix('.')}."
        if finding.remedy and finding.verdict != "ok":
            yield f"{'':<15}{finding.remedy}"


def num_chars(sample: Sample) -> int:
    """Return how much text a sample is."""
    return len(sample.response) + sum(len(turn.text) for turn in sample.turns)
