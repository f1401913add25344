"""Documents in stores: plan, signals, commits, totals. A change to a document needs a change to schemas/FORMAT.md."""

from typing import Literal

from pydantic import Field

from grace_store.base.settings import DataSpec, DecimalText, ExtractSpec, Frozen, Whole
from grace_store.base.states import Reason
from grace_store.base.text import json_sha256

FormatVersion = Literal["2.1"]
FORMAT_VERSION: FormatVersion = "2.1"
"""Version of the format of stores and of documents."""

SharedImages = Literal["image", "sample"]


def other_version(where: str, found: object, remedy: str) -> str:
    """Return the message about a store or document with another version of the format."""
    has = "says no version" if found is None else f"has version {str(found)[:40]}"
    return f"{where} {has} of the format, but this grace-store reads only version {FORMAT_VERSION}. {remedy}"


class DataFile(Frozen):
    """One file of the dataset, identified by its content."""

    path: str
    kind: str
    num_bytes: int
    num_records: int
    sha256: str


class Plan(Frozen):
    """The plan of a store. The planned samples are arrays beside it."""

    format: Literal["grace-store"] = "grace-store"
    format_version: FormatVersion = FORMAT_VERSION
    spec: Whole[DataSpec]
    files: tuple[DataFile, ...]
    num_records: int
    num_samples: int
    set_aside: dict[str, int]
    samples_per_unit: int
    num_units: int
    rows_per_unit: int
    """Capacity of a unit in segment rows, a multiple of the inner chunk."""
    gram_per_unit: int
    """Capacity of a unit in packed Gram entries."""
    tokens_per_unit: int
    """Capacity of a unit in rows of the token table, a multiple of the inner chunk."""
    samples_sha256: str
    """Digest over all plan arrays, in the order that FORMAT.md gives."""
    flagged: dict[str, int]
    """Number of samples with each text flag."""
    created_by: str

    def content_digest(self) -> str:
        """Return a digest of the planned samples and the settings, independent of the places of files and store."""
        return json_sha256({"samples": self.samples_sha256, "spec": self.spec.model_dump(mode="json")})

    @property
    def units(self) -> range:
        """The numbers of all units."""
        return range(self.num_units)

    def unit_of(self, sample: int) -> int:
        return sample // self.samples_per_unit

    def unit_range(self, unit: int) -> tuple[int, int]:
        """Return the half-open range of samples in a unit."""
        start = unit * self.samples_per_unit
        return start, min(start + self.samples_per_unit, self.num_samples)


class Signal(Frozen):
    """A named set of vectors of all samples; vectors of segments come with Grams."""

    name: str
    spec: Whole[ExtractSpec]
    plan_sha256: str
    origin: dict[str, str] = Field(default_factory=dict)
    """Paths of model, adapter and images, and versions of the software: for people, never compared."""

    def identity(self) -> str:
        """Return the digest of everything that the numbers depend on, which is all but the origin."""
        return json_sha256(self.model_dump(mode="json", exclude={"origin"}))


class Sharing(Frozen):
    """Whether samples of a signal share prompts and images, by a probe of the model at load."""

    prompts: bool
    """Whether a prompt of several samples in a unit runs once for all of them."""
    difference: DecimalText | None = None
    """Largest relative difference of a hidden state with shared prompts in the probe; None if not measured."""
    fault: str | None = None
    """Reason why prompts are not shared."""
    images: SharedImages | None = None
    """Whether the vision tower runs once per unit for each image, or for all images of a sample together. None: the
    model sees no images, or they are not shared."""
    images_difference: DecimalText | None = None
    """The same difference with shared images."""
    images_fault: str | None = None
    """Reason why images are shared only by sample, or not at all."""
    allowed: DecimalText
    """Largest allowed value of both differences."""

    def in_words(self) -> str:
        """Return in one line what is shared and the probe's differences."""
        prompts = f"shared{self._measured(self.difference)}" if self.prompts else f"not shared: {self.fault}"
        words = [f"prompts {prompts}"]
        if self.images is not None:
            shared = "each image" if self.images == "image" else "the images of a sample together"
            words.append(f"{shared} once for a unit{self._measured(self.images_difference)}")
        elif self.images_fault is not None:
            words.append(f"images not shared: {self.images_fault}")
        return "; ".join(words)

    def _measured(self, difference: float | None) -> str:
        return "" if difference is None else f" (a probe differed by {difference:.1e}, at most {self.allowed:.0e})"


class SharingDocument(Frozen):
    """How samples of a signal share prompts and images. The first run writes this, and later runs follow it."""

    signal_sha256: str
    sharing: Sharing


class ChunkDigest(Frozen):
    """Size and content of one chunk file."""

    num_bytes: int
    sha256: str


class SampleSetAside(Frozen):
    """A sample without vectors, with the reason."""

    sample: int
    reason: Reason
    detail: str = ""


class Commit(Frozen):
    """The commit of a unit, written last. Only split depends on when, where or how often the unit was run."""

    unit: int
    signal_sha256: str
    num_samples: int
    num_done: int
    num_tokens: int
    images_sha256: str | None = None
    """SHA-256 over the digests of the samples' images; None without images."""
    set_aside: tuple[SampleSetAside, ...] = ()
    split: tuple[int, ...] | None = None
    """Number of samples in each pass, in order, if a pass of the frozen size did not fit into memory; else None."""
    chunks: dict[str, ChunkDigest]


class Completion(Frozen):
    """The totals of a signal, written when all its units are committed."""

    signal_sha256: str
    num_units: int
    num_done: int
    set_aside: dict[str, int]
    num_tokens: int
    num_bytes: int
    commits_sha256: str
