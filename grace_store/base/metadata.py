"""Documents in stores: the plan, a signal, a commit, the totals. To change one is to change schemas/FORMAT.md."""

import hashlib
from typing import Literal

from pydantic import Field

from grace_store.base.settings import DataSpec, DecimalText, ExtractSpec, Frozen, Whole
from grace_store.base.states import Reason
from grace_store.base.text import canonical_json

FormatVersion = Literal["2.0"]
FORMAT_VERSION: FormatVersion = "2.0"
"""Of stores and of the documents beside results."""

SharedImages = Literal["image", "sample"]


def other_version(where: str, found: object, remedy: str) -> str:
    """Return the words that refuse what has another version of the format; remedy is a sentence on what to do."""
    has = "says no version" if found is None else f"has version {str(found)[:40]}"
    return f"{where} {has} of the format, and this grace-store reads {FORMAT_VERSION} only. {remedy}"


class DataFile(Frozen):
    """One file of the dataset, identified by its content."""

    path: str
    kind: str
    num_bytes: int
    num_records: int
    sha256: str


class Plan(Frozen):
    """What planning froze. The samples themselves are arrays beside it."""

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
    """Segment rows that every unit has room for, a multiple of the inner chunk."""
    gram_per_unit: int
    """Packed Gram entries that every unit has room for."""
    samples_sha256: str
    """Digest over every plan array, in the order FORMAT.md gives."""
    flagged: dict[str, int]
    """How many samples have each flag of the text."""
    created_by: str

    def content_digest(self) -> str:
        """Return a digest of the planned samples and how they were made, wherever files and store lie."""
        content = {"samples": self.samples_sha256, "spec": self.spec.model_dump(mode="json")}
        return hashlib.sha256(canonical_json(content)).hexdigest()

    @property
    def units(self) -> range:
        """The numbers of all units."""
        return range(self.num_units)

    def unit_of(self, sample: int) -> int:
        """Return the unit that a sample is in."""
        return sample // self.samples_per_unit

    def unit_range(self, unit: int) -> tuple[int, int]:
        """Return the half-open range of samples in a unit."""
        start = unit * self.samples_per_unit
        return start, min(start + self.samples_per_unit, self.num_samples)


class Signal(Frozen):
    """One named set of vectors, with Grams where they are of segments."""

    name: str
    spec: Whole[ExtractSpec]
    plan_sha256: str
    origin: dict[str, str] = Field(default_factory=dict)
    """Where the model lay and what software ran: for people, never compared."""

    def identity(self) -> str:
        """Return the digest of what the numbers depend on: everything but the origin."""
        return hashlib.sha256(canonical_json(self.model_dump(mode="json", exclude={"origin"}))).hexdigest()


class Sharing(Frozen):
    """Whether samples of a signal share prompts and images, as a probe of its model at load found that they can."""

    prompts: bool
    """Whether a prompt that several samples of a unit have runs once for all of them."""
    difference: DecimalText | None = None
    """Largest relative difference of a hidden state with shared prompts in the probe; None if none was measured."""
    fault: str | None = None
    """Why prompts are not shared."""
    images: SharedImages | None = None
    """What goes through the vision tower once for a unit: each image, or all images of a sample together. None: the
    model sees no images, or each batch runs its own."""
    images_difference: DecimalText | None = None
    """The same difference with shared images."""
    images_fault: str | None = None
    """Why images are not shared one by one, or not at all."""
    allowed: DecimalText
    """The largest difference that is allowed of either."""

    def in_words(self) -> str:
        """Return what is shared and what the probe found, in one line."""
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
    """How samples of a signal share prompts and images: kept by the first run, followed by all later ones."""

    signal_sha256: str
    sharing: Sharing


class ChunkDigest(Frozen):
    """Size and content of one chunk file."""

    num_bytes: int
    sha256: str


class SampleSetAside(Frozen):
    """A sample of a unit that has no vectors."""

    sample: int
    reason: Reason
    detail: str = ""


class Commit(Frozen):
    """A unit is done. Written last; nothing in it but a split depends on when, where or how often the unit was run."""

    unit: int
    signal_sha256: str
    num_samples: int
    num_done: int
    num_tokens: int
    images_sha256: str | None = None
    """SHA-256 over the digests of the images behind the vectors; None without images."""
    set_aside: tuple[SampleSetAside, ...] = ()
    split: tuple[int, ...] | None = None
    """Numbers of samples in the passes that the unit took, in their order, if a pass of the frozen size did not fit
    into memory; None if all did."""
    chunks: dict[str, ChunkDigest]


class Completion(Frozen):
    """Every unit of a signal is committed: the totals, so that nobody has to add up again."""

    signal_sha256: str
    num_units: int
    num_done: int
    set_aside: dict[str, int]
    num_tokens: int
    num_bytes: int
    commits_sha256: str
