"""Measures as documents: what ``grace-store diversity``, ``stability`` and ``fidelity`` write with ``--out``."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from grace_store.artifacts.notes import PointsNote, WhereNote
from grace_store.base.documents import Count, Document, Number
from grace_store.base.errors import SettingError
from grace_store.base.settings import Frozen
from grace_store.likeness.coverage import RandomInterval
from grace_store.values.agreement import Agreement, Survival


class RandomSubsets(Frozen):
    """What random subsets of a size have."""

    share_touched: RandomInterval
    expected_share_touched: Number
    """The exact mean, over all subsets of that size."""
    entropy: RandomInterval
    vendi: RandomInterval
    nearest_distance: RandomInterval


class SubsetDiversity(Frozen):
    """How diverse one subset is. What cannot be said is NaN."""

    name: str
    num_samples: Count
    num_without_direction: Count
    """Samples whose vector is zero: they are in no cluster and have no neighbour."""
    mean_value: Number
    num_touched: Count
    """Clusters that have at least one of its samples."""
    share_touched: Number
    entropy: Number
    """Of how the samples fall into clusters, over log K: 1 if evenly."""
    vendi: Number
    """Effective number of different samples."""
    vendi_num_samples: Count
    """How many samples the Vendi score is taken over: all, or some drawn at random."""
    nearest_distance: Number
    """Mean of 1 - cos to the nearest other of the subset."""
    share_alike: float | None = None
    """Share of the samples that have a near-duplicate in the subset: another at a cosine of 0.95 or more. None below
    two samples, and in a document of an earlier release."""
    random: RandomSubsets | None = None
    """None for the pool itself."""


class ClusterShare(Frozen):
    """One cluster: its samples' values, and how many of them each subset has."""

    cluster: Count
    num_samples: Count
    mean_value: Number
    example: str
    """Id of the sample nearest to the cluster's centre."""
    num_chosen: tuple[Count, ...]
    representation: tuple[Number, ...]
    """For each subset, the cluster's share of it over its share of the pool: 1 is as at random."""


class TradePoint(Frozen):
    """One method with one weight."""

    method: str
    weight: Number
    mean_value: Number
    value_lost: Number
    """Share of what choosing by value gains over choosing at random: 0 is nothing, 1 is all of it."""
    share_touched: Number
    entropy: Number
    """Of how the samples fall into clusters, over log K."""


class TradeCurve(Frozen):
    """Value lost against coverage gained at one budget."""

    ratio: str
    num_samples: Count
    best: TradePoint
    """By value alone."""
    random: TradePoint
    """What random subsets have on average."""
    points: tuple[TradePoint, ...]


class Diversity(PointsNote):
    """Subsets of a pool side by side: the whole document that ``grace-store diversity --out`` writes."""

    words: ClassVar[str] = "a measure of diversity"
    maker: ClassVar[str] = "diversity"

    kind: Literal["diversity"] = "diversity"
    num_samples: Count
    num_clusters: Count
    compared: tuple[str, ...]
    """Names of the subsets."""
    seed: int
    num_random: Count
    pool: SubsetDiversity
    subsets: tuple[SubsetDiversity, ...]
    clusters: tuple[ClusterShare, ...]
    """Numbered as they are; the first cluster is the first here."""
    curve: TradeCurve | None = None
    conclusion: str = ""
    """What it means, in a sentence or two; empty in a document of an earlier release."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        shares = [share for each in self.clusters for share in (each.num_chosen, each.representation)]
        if len(self.clusters) != self.num_clusters or any(len(share) != len(self.subsets) for share in shares):
            raise SettingError("clusters and subsets do not go together")
        return self

    def represented(self, subset: int, count: int = 5) -> tuple[list[ClusterShare], list[ClusterShare]]:
        """Return the clusters that a subset has the most too many samples of, and those it has the most too few of."""

        def excess(each: ClusterShare) -> float:
            # Chosen beyond what would be as at random; a cluster without any lacks all it should have.
            share = self.subsets[subset].num_samples / max(self.pool.num_samples, 1)
            return each.num_chosen[subset] - each.num_samples * share

        ordered = sorted(self.clusters, key=excess)
        over = [each for each in reversed(ordered) if each.representation[subset] > 1]
        return over[:count], [each for each in ordered if each.representation[subset] < 1][:count]


class StabilityDocument(Document):
    """What of one choice survives other signals, less precision and other steps."""

    words: ClassVar[str] = "a measure of stability"
    maker: ClassVar[str] = "stability"

    kind: Literal["stability"] = "stability"
    store: str
    plan_sha256: str
    conclusion: str
    """A sentence or two for people."""
    signal: str
    ratio: str
    num_samples: Count
    num_chosen: Count
    by_chance: Number
    """What two random choices of that size would share."""
    signals: dict[str, Survival]
    """The same settings with another signal."""
    storages: dict[str, Survival]
    """The same choice from vectors stored with less precision."""
    steps: Survival | None = None
    """Each sample's steps drawn again from its own."""
    skipped: tuple[str, ...] = ()
    """Other signals that have no steps."""
    where: WhereNote | None = None
    """What the samples had to pass, if there was a filter."""


class SpaceFidelity(Frozen):
    """How the proxy agrees with the gradients over one set of parameters."""

    answer_alignment: Agreement
    history_alignment: Agreement
    value: Agreement
    chosen: Survival
    """How much the two choices share."""


class SampleAlignments(Frozen):
    """The scores of one sample by one set of inner products."""

    value: Number
    answer_alignment: tuple[Number, ...]
    history_alignment: tuple[Number, ...]


class FidelitySample(Frozen):
    """One sample by the proxy, and by each set of parameters."""

    sample_id: str
    scores: dict[str, SampleAlignments]


class FidelityDocument(Document):
    """The proxy's alignments against those of parameter gradients, over the same samples."""

    words: ClassVar[str] = "a measure of fidelity"
    maker: ClassVar[str] = "fidelity"

    kind: Literal["fidelity"] = "fidelity"
    store: str
    plan_sha256: str
    signal: str
    num_samples: Count
    num_steps: Count
    ratio: str
    by_chance: Number
    """What two random choices of that size would share."""
    spaces: dict[str, SpaceFidelity]
    conclusion: str = ""
    """What it means, in a sentence or two; empty in a document of an earlier release."""
    samples: tuple[FidelitySample, ...] | None = None
    """Every number behind it."""
