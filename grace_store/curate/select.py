"""From a scores table to subsets: rank, then keep the beginning of the ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from grace_store.artifacts.against_table import AgainstLike
from grace_store.artifacts.arrow_arrays import arrow_numbers
from grace_store.artifacts.filtered_scores import filter_scores, groups_of
from grace_store.artifacts.notes import ChosenDiversity, SubsetSpec, WhereNote
from grace_store.artifacts.score_table import ScoresLike, ScoreTable, read_scores
from grace_store.base.arrays import BoolArray, FloatArray, IntArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Warned, ignore
from grace_store.base.text import counted
from grace_store.curate.conclusions import SubsetChoice, conclude_choice
from grace_store.curate.exclusions import Excluded, exclude
from grace_store.curate.group_counts import GroupCount, group_sizes, rise_and_fall
from grace_store.curate.question_choice import QuestionChoice, Questions, questions_of
from grace_store.values.diversity_spec import DiversityMethod, DiversitySpec
from grace_store.values.length_bias import LENGTHS, Length, residuals
from grace_store.values.ranking import Ratio, at_least, budget, rank, stratified_rank

DiversityChoice = DiversityMethod | DiversitySpec
DEFAULT_RATIO = "0.2"


@dataclass(frozen=True, slots=True, repr=False)
class Subset:
    """The samples chosen from a table."""

    scores: ScoreTable
    ranked: IntArray
    """Rows of the table, the best first."""
    num_with_value: int
    """Samples that it was chosen from: those with a value, without what was excluded."""
    threshold: float
    """The smallest value that was kept, of those ranked by."""
    spec: SubsetSpec
    """How it was chosen."""
    notes: tuple[str, ...] = ()
    """What the user should know."""
    groups: tuple[GroupCount, ...] = ()
    """With strata or a filter, how many samples of each group were chosen."""
    excluded: Excluded | None = None
    """What was left out for its flags, or for items of benchmarks."""
    conclusion: str = ""
    """What was chosen, in a sentence or two."""
    rejected: IntArray | None = None
    """Of pairs, the row of the table that each of the ranked ones is preferred to."""

    @property
    def chosen(self) -> IntArray:
        """Rows of the table in the order of the records."""
        return self.ranked[np.argsort(self.scores.row[self.ranked])]

    @property
    def row(self) -> IntArray:
        """The chosen samples' rows in the dataset, ascending."""
        return self.scores.row[self.chosen]

    @property
    def rejected_row(self) -> IntArray | None:
        """Of pairs, the rows in the dataset of what each of the chosen samples, by ascending row, is preferred to."""
        if self.rejected is None:
            return None
        row = self.scores.row
        return row[self.rejected[np.argsort(row[self.ranked])]]

    @property
    def sample_id(self) -> list[str]:
        """The chosen samples' ids, in the order of the records."""
        chosen = arrow_numbers(self.chosen, pa.int64())
        ids: list[str] = self.scores.table["sample_id"].take(chosen).to_pylist()
        return ids

    def to_pandas(self) -> Any:
        """Return the chosen rows of the table, the best first, as a pandas DataFrame."""
        return self.scores.table.take(self.ranked).to_pandas()

    def __len__(self) -> int:
        return len(self.ranked)

    def __repr__(self) -> str:
        return f"<Subset: {len(self)} of {counted(self.num_with_value, 'sample')} by {self.scores.method}>"


@dataclass(frozen=True, slots=True)
class Diversified:
    """What made a ranking diverse."""

    choice: ChosenDiversity
    """The method and its settings."""
    by_value: IntArray
    """Rows of the table in the order of value alone."""
    num_distinct: int | None = None
    """How many samples are left without near-duplicates, if those were looked for."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """All samples of a table that have a value, in the order they would be chosen."""

    scores: ScoreTable
    value: FloatArray
    """What is ranked by: the values, or what is left of them after a control."""
    ranked: IntArray
    by: str | None
    control: tuple[Length, ...]
    excluded: Excluded | None = None
    diversified: Diversified | None = None
    is_balanced: bool = False
    """Whether every beginning of the ranking has the table's capabilities in equal numbers, as far as they go."""
    where: WhereNote | None = None
    """What the samples had to pass."""
    groups: Sequence[object] | None = None
    """With strata, that of every row of the table."""
    questions: QuestionChoice | None = None
    """What was chosen within questions first."""

    @property
    def default_ratio(self) -> str:
        """The share that is kept where nothing else is said: all of what was chosen within questions."""
        return DEFAULT_RATIO if self.questions is None else "1"

    def take(self, *, ratio: Ratio | None = None, count: int | None = None, threshold: float | None = None) -> Subset:
        """Return the best ceil(ratio N), the best count, or those that reach a threshold: one of the three."""
        said = (ratio, count, threshold)
        if sum(each is not None for each in said) != 1:
            raise SettingError("give one of ratio, count and threshold")
        if ratio is not None:
            kept = self.ranked[: budget(ratio, len(self.ranked))]
        elif count is not None:
            if not 1 <= count <= len(self.ranked):
                raise SettingError(
                    f"count {count} is not between 1 and {len(self.ranked)}, the number of samples that have a value"
                )
            kept = self.ranked[:count]
        else:
            assert threshold is not None  # since one of the three is given
            kept = self._reaching(threshold)
        spec = SubsetSpec(
            ratio=None if ratio is None else str(ratio),
            count=count,
            threshold=threshold,
            exclude_flagged=() if self.excluded is None else self.excluded.flags,
            exclude_contaminated=None if self.excluded is None else self.excluded.against,
            by=self.by,
            control=self.control,
            diversity=None if self.diversified is None else self.diversified.choice,
            balanced="capability" if self.is_balanced else None,
            where=self.where,
            **({} if self.questions is None else self.questions.spec),
        )
        least = float(self.value[kept].min())
        counts = self._counts(kept)
        told = conclude_choice(SubsetChoice(self.scores, kept, self._pool(), spec), self._told(counts))
        notes = self._notes(kept)
        rejected = None if self.questions is None else self.questions.rejected_by(kept)
        return Subset(self.scores, kept, len(self.ranked), least, spec, notes, counts, self.excluded, told, rejected)

    def _pool(self) -> IntArray:
        """Return the rows that there were to choose from; of questions, those that others of them were chosen over."""
        if self.questions is None:
            return self.ranked
        ranked = self.scores.ranked()
        return ranked if self.excluded is None else ranked[~self.excluded.is_out[ranked]]

    def _counts(self, kept: IntArray) -> tuple[GroupCount, ...]:
        """Return how many samples of each group were chosen, the largest group first."""
        if self.groups is not None:
            best = rank(self.value, self.scores.row)[: len(kept)]
            pool, chosen, by_value = (group_sizes(self.groups, rows) for rows in (self.ranked, kept, best))
            return tuple(GroupCount(name, size, chosen[name], by_value[name]) for name, size in pool.most_common())
        if self.where is None:
            return ()
        left_out = self.where.num_samples - self.where.num_kept
        also = "" if self.excluded is None else ", not excluded" if self.excluded.against else ", not flagged"
        return (
            GroupCount(
                f"kept by --where{also}",
                len(self.ranked),
                len(kept),
                len(kept),
            ),
            GroupCount("left out by it", left_out, 0, 0),
        )

    def _told(self, counts: Sequence[GroupCount]) -> list[str]:
        """Say which groups would rise and fall if value alone decided."""
        if self.by is None:
            return []
        told = rise_and_fall(self.by, {each.group: (each.by_value, each.pool) for each in counts}, would=True)
        return [f"Every {self.by} keeps its share of the pool. {told}"]

    def _reaching(self, threshold: float) -> IntArray:
        if self.by is not None:
            raise SettingError("a threshold has no meaning inside strata: give --ratio or --count with --by")
        if self.diversified is not None:
            raise SettingError("a threshold leaves no choice to diversity: give --ratio or --count")
        if self.is_balanced:
            raise SettingError("a threshold has no meaning where capabilities are balanced: give --ratio or --count")
        kept = at_least(self.value, threshold, self.ranked)
        if not len(kept):
            largest = float(self.value[self.ranked].max())
            raise SettingError(f"no sample reaches threshold {threshold:g}: the largest value is {largest:.6g}")
        return kept

    def _notes(self, kept: IntArray) -> tuple[str, ...]:
        """Say what was excluded, what diversity cost, and where it could not be had."""
        left = f"ratios are shares of the {len(self.ranked)} that remain"
        reasons = [str(each) for each in (self.excluded, self.questions) if each is not None]
        if reasons:
            reasons[-1] += f"; {left}"
        return (*reasons, *self._diversity_notes(kept))

    def _diversity_notes(self, kept: IntArray) -> tuple[str, ...]:
        if self.diversified is None or not len(kept):
            return ()
        best = self.diversified.by_value[: len(kept)]
        num_both = len(np.intersect1d(kept, best, assume_unique=True))
        mean, most = float(self.value[kept].mean()), float(self.value[best].mean())
        notes = [
            f"diversity by {self.diversified.choice.method}: mean value {mean:.4f}, {most:.4f} for the best "
            f"{len(best)} by value alone, of which {num_both} are here"
        ]
        num_distinct = self.diversified.num_distinct
        if num_distinct is not None and num_distinct < len(kept):
            notes.append(
                f"{num_distinct} samples are left without near-duplicates, so {len(kept) - num_distinct} of those "
                "fill the budget, the best first"
            )
        return tuple(notes)


@dataclass(frozen=True, slots=True)
class SubsetSizes:
    """Shares, numbers of samples, or a least value: one of the three. With none of them, the ranking's default."""

    ratios: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    threshold: float | None = None

    def __post_init__(self) -> None:
        if sum(map(bool, (self.ratios, self.counts, self.threshold is not None))) > 1:
            raise SettingError("give one of --ratio, --count and --threshold")
        if any(len(set(each)) < len(each) for each in (self.ratios, self.counts)):
            raise SettingError("the same ratio or count is given twice")

    def take(self, ranking: Ranking) -> dict[str, Subset]:
        """Return the subset of each size, by the size as it is written."""
        if self.threshold is not None:
            return {str(self.threshold): ranking.take(threshold=self.threshold)}
        if self.counts:
            return {str(count): ranking.take(count=count) for count in self.counts}
        return {ratio: ranking.take(ratio=ratio) for ratio in self.ratios or (ranking.default_ratio,)}


def subset_paths(out: Path, sizes: Sequence[str]) -> list[Path]:
    """Return one file name for each size: {ratio} in the name stands for it, or else it is added if there are several.

    >>> [path.name for path in subset_paths(Path("subset.jsonl"), ["0.1", "0.2"])]
    ['subset-0.1.jsonl', 'subset-0.2.jsonl']
    """
    if "{ratio}" in out.name:
        return [out.with_name(out.name.replace("{ratio}", size)) for size in sizes]
    if len(sizes) == 1:
        return [out]
    return [out.with_name(f"{out.stem}-{size}{out.suffix}") for size in sizes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRequest:
    """In which order samples are chosen."""

    by: str | None = None
    """A field of the records (dots lead inside), num_steps, or several that commas join: every subset has the strata
    that their values make in their natural shares."""
    exclude_flagged: Sequence[str] = ()
    """Names of flags; samples with one of them are left out before anything else. "hygiene" is all flags of traces."""
    exclude_contaminated: AgainstLike | None = None
    """A table by ``grace-store duplicates --against``; samples that have items of benchmarks in them are left out."""
    control: Sequence[str] = ()
    """Lengths that are taken out of the values first; "length" is all three."""
    diversity: DiversityChoice | None = None
    """dedup, clusters, facility, mmr, or a spec: an order that trades value against redundancy."""
    duplicates: str | Path | None = None
    """A table by ``grace-store duplicates`` whose groups dedup takes, in place of a search of its own."""
    per_group: str | int | None = None
    """At most this number of each question's traces, the best of them, or this share (a text or number with a point):
    1 is the best of each question."""
    margin: float | None = None
    """Choose pairs: the best trace of each question, with the worst one that has another response as rejected, if their
    values differ by at least this, and at all. Pairs are ranked by that difference."""
    group_by: str | None = None
    """For both, the field of the records that names the question; None for what the table was scored by, or else the
    same prompt and images."""
    where: str | None = None
    """Rank only what this keeps: a condition in SQL over fields of the records, id, row, num_steps, num_tokens, value
    and flags. A share is then a share of what is kept."""
    store: str | None = None
    """Where the store is now, if it moved."""
    data: Sequence[str] | None = None
    """Where the dataset is now, if it moved."""


@dataclass(frozen=True, slots=True)
class Rules:
    """A request as it applies to one table: what may be chosen, and in which order once samples have values."""

    request: RankRequest
    scores: ScoreTable
    """The rows that the filter keeps."""
    where: WhereNote | None
    control: tuple[Length, ...]
    excluded: Excluded | None
    questions: Questions | None
    groups: Sequence[object] | None
    """With strata, that of every row of the table."""

    @classmethod
    def of(cls, scores: ScoreTable, request: RankRequest) -> Self:
        """Apply a request to a table; raise if it has no meaning there, or leaves nothing to choose."""
        table, where = filter_scores(scores, request.where, request.store, request.data)
        control = _controls(request.control, table)
        excluded = exclude(table, request.exclude_flagged, request.exclude_contaminated)
        by = request.by
        if table.capability is not None and (by is not None or request.diversity is not None):
            raise SettingError(
                f"{table.method} balances capabilities, which {'--by' if by else '--diversity'} would undo: leave it "
                "out, or take a table of another method"
            )
        rules = cls(request, table, where, control, excluded, None, None)
        if not rules.is_possible.any():
            place, left = table.path or "The table", "" if excluded is None else f" left ({excluded})"
            raise DataError(f"{place} has no sample with a value{left}, so there is nothing to select.")
        groups = None if by is None else groups_of(table, by, request.store, request.data)
        return replace(rules, questions=questions_of(table, request), groups=groups)

    @property
    def is_possible(self) -> BoolArray:
        """Which rows of the table may be chosen: those that have a value and are not excluded."""
        has_value = np.isfinite(self.scores.value)
        return has_value if self.excluded is None else has_value & ~self.excluded.is_out

    @property
    def value(self) -> FloatArray:
        """The values to rank by: those of the table, without what is excluded, and after a control."""
        value = self.scores.value
        if self.excluded is not None:
            value = np.where(self.excluded.is_out, np.nan, value)
        return residuals(value, self.scores.lengths, self.control) if self.control else value

    def rank(self, value: FloatArray, *, threads: int | None = None, listener: Listener = ignore) -> Ranking:
        """Rank the samples as if these were their values, NaN for a sample that may not be chosen."""
        table, groups, by = self.scores, self.groups, self.request.by
        questions = None if self.questions is None else self.questions.choose(value, listener)
        value = value if questions is None else questions.value
        ranked = table.ranked(value) if groups is None else stratified_rank(value, groups, table.row)
        if groups is not None and len(set(groups)) == len(groups) > 1:
            listener(Warned(f"Every sample has a {by} of its own, so --by changes nothing: the best are kept."))
        ranking = Ranking(
            table,
            value,
            ranked,
            by,
            self.control,
            self.excluded,
            is_balanced=table.capability is not None,
            where=self.where,
            groups=groups,
            questions=questions,
        )
        diversity = self.request.diversity
        if diversity is None:
            return ranking
        from grace_store.curate.diversify import diversify  # needs faiss, which nothing else here does

        spec = diversity if isinstance(diversity, DiversitySpec) else DiversitySpec.parse(method=diversity)
        return diversify(ranking, spec, self.request, threads=threads, listener=listener)


def rank_samples(
    scores: ScoresLike, request: RankRequest | None = None, *, threads: int | None = None, listener: Listener = ignore
) -> Ranking:
    """Rank the samples of a table by value, ties to the earlier record; never one whose value is not finite.

    A table with capabilities is ranked in turns, the best of each one, then the second best, and so on: every subset
    has equal numbers of them, and what one cannot fill goes to the others.
    """
    table = scores if isinstance(scores, ScoreTable) else read_scores(scores, steps=False)
    rules = Rules.of(table, request or RankRequest())
    return rules.rank(rules.value, threads=threads, listener=listener)


def select(
    scores: ScoresLike,
    request: RankRequest | None = None,
    *,
    ratio: Ratio | None = None,
    count: int | None = None,
    threshold: float | None = None,
    threads: int | None = None,
    listener: Listener = ignore,
) -> Subset:
    """Choose the best samples of a table: a share (0.2 unless said otherwise), a number, or all that reach a value.

    Of what is chosen within questions (per_group, margin), all unless said otherwise.
    """
    ranking = rank_samples(scores, request, threads=threads, listener=listener)
    if ratio is None and count is None and threshold is None:
        ratio = ranking.default_ratio
    return ranking.take(ratio=ratio, count=count, threshold=threshold)


def _controls(control: Sequence[str], table: ScoreTable) -> tuple[Length, ...]:
    if unknown := [name for name in control if name != "length" and name not in LENGTHS]:
        raise SettingError(f"control {unknown[0]!r} is none of length, {', '.join(LENGTHS)}")
    known = table.lengths if control else {}
    if missing := [name for name in control if name != "length" and name not in known]:
        raise SettingError(f"the table does not know the {missing[0]} of its samples, only {', '.join(known)}")
    return tuple(name for name in LENGTHS if name in known and (name in control or "length" in control))
