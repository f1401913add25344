"""Choose subsets from a table of scores: apply a selection to the table, rank the samples, and keep the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from grace_store.base.arrays import BitArray, BoolArray, FloatArray, IntArray, find_rows
from grace_store.base.documents import read_document
from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Listener, Warned, ignore
from grace_store.base.files import sidecar_of
from grace_store.base.finding import LabelsFile, WhereNote
from grace_store.base.text import counted
from grace_store.choose.candidates import choose_in_questions, exclude, questions_of, warning_of_labels
from grace_store.choose.choice_conclusion import conclude_choice, group_name, group_sizes, rise_and_fall
from grace_store.choose.contamination_table import AgainstTable
from grace_store.choose.selection import SIZES, Excluded, GroupCount, Selection, Subset, SubsetNote
from grace_store.data.sample_digests import response_digest
from grace_store.pool.label_columns import LabelColumns, refuse_unread
from grace_store.pool.pool import Pool
from grace_store.pool.records import digest_samples
from grace_store.pool.sample_fields import SampleFields
from grace_store.scoring.notes import AgainstNote
from grace_store.scoring.provenance import fields_of, filter_scores, moved_labels, open_store_of
from grace_store.scoring.score_table import ScoresLike, ScoreTable, read_scores
from grace_store.values.length_bias import LENGTHS, residuals
from grace_store.values.random_values import random_values
from grace_store.values.ranking import Ratio, at_least, budget, num_tied, rank, stratified_rank


@dataclass(frozen=True, slots=True)
class Ranking:
    """All samples of a table that have a value, in the order in which they are chosen."""

    rules: Rules
    value: FloatArray
    """The values that samples are ranked by: values, residuals after a control, or margins of pairs."""
    ranked: IntArray
    in_questions: str = ""
    """A text about the choice within questions; empty without such a choice."""
    rejected: IntArray | None = None
    """For pairs, the row of the table that each row is preferred to; -1 for rows that are not chosen."""
    warning: str = ""
    """A warning of pairs that labels contradict."""
    by_value: IntArray | None = None
    """For a diverse ranking, rows of the table in the order of value alone."""
    num_distinct: int | None = None
    """Number of samples without near-duplicates, if a search or table found near-duplicates."""

    @property
    def scores(self) -> ScoreTable:
        """The rows of the table that the filter keeps."""
        return self.rules.scores

    @property
    def selection(self) -> Selection:
        """The rules of the choice, with all names resolved."""
        return self.rules.selection

    def take(self, *, ratio: Ratio | None = None, count: int | None = None, threshold: float | None = None) -> Subset:
        """Return the best ceil(ratio N) samples, the best count samples, or all samples that reach a threshold.

        Give one of the three; without any of them, the selection gives the size.
        """
        sizes = {"ratio": None if ratio is None else str(ratio), "count": count, "threshold": threshold}
        is_said = any(size is not None for size in sizes.values())
        spec = (self.selection.model_copy(update=sizes) if is_said else self.selection).sized
        kept = self._kept(spec)
        least = float(self.value[kept].min())
        compared, by, about_groups, tied = self.scores.comparable(self.value), self.selection.by, [], 0
        best = kept if by is None else rank(compared, self.scores.row)[: len(kept)]
        if spec.diversity is None:
            tied = num_tied(compared, self.ranked, len(kept), self.rules.stratum)
        if by is not None:
            about_groups = [f"{self._shares(by, kept)} {self._by_value_alone(by, best)}"]
        pool = self.ranked
        if self.selection.is_in_questions:  # with the traces that lost to another trace of their question
            pool = self.scores.ranked()
            pool = pool[self.rules.is_possible[pool]]
        told = conclude_choice(self.scores, kept, pool, spec, about_groups, tied)
        notes, excluded, counts = self._notes(kept), self.rules.excluded, self._counts(kept, best)
        rejected = None if self.rejected is None else self.rejected[kept]
        return Subset(self.scores, kept, len(self.ranked), least, spec, notes, counts, excluded, told, rejected, tied)

    def _kept(self, spec: Selection) -> IntArray:
        """Return the prefix of the ranking that has the size of a selection."""
        if spec.threshold is not None:
            return self._reaching(spec.threshold)
        if spec.count is None:
            return self.ranked[: budget(spec.ratio or "", len(self.ranked))]
        if not 1 <= spec.count <= len(self.ranked):
            raise SettingError(
                f"count {spec.count} is not between 1 and {len(self.ranked)}, the number of samples that have a value"
            )
        return self.ranked[: spec.count]

    def _counts(self, kept: IntArray, best: IntArray) -> tuple[GroupCount, ...]:
        """Return the number of chosen samples, and of the best by value, of each group, the largest group first."""
        groups, where = self.rules.groups, self.selection.where
        if groups is not None:
            pool, chosen, by_value = (group_sizes(groups, rows) for rows in (self.ranked, kept, best))
            return tuple(GroupCount(name, size, chosen[name], by_value[name]) for name, size in pool.most_common())
        if not isinstance(where, WhereNote):
            return ()
        left_out = GroupCount("left out by it", where.num_samples - where.num_kept, 0, 0)
        return GroupCount("kept by --where", where.num_kept, len(kept), len(kept)), left_out

    def _shares(self, by: str, kept: IntArray) -> str:
        """Return how well the chosen samples keep the shares of the groups."""
        assert self.rules.groups is not None
        num, filled = (len(group_sizes(self.rules.groups, rows)) for rows in (self.ranked, kept))
        few = f", as nearly as possible with {counted(len(kept), 'sample')}: {num - filled} of {num} groups have none"
        return f"Every {by} keeps its share of the pool{few if filled < num else ''}."

    def _by_value_alone(self, by: str, best: IntArray) -> str:
        """Return which groups would rise or fall if values alone chose as many samples, the best."""
        assert self.rules.groups is not None
        names = [group_name(self.rules.groups[i]) for i in self.ranked.tolist()]
        return rise_and_fall(by, names, np.isin(self.ranked, best), self.scores.question[self.ranked], would=True)

    def _reaching(self, threshold: float) -> IntArray:
        if self.selection.by is not None:
            raise SettingError("--threshold cannot be combined with --by: give --ratio or --count")
        if self.selection.diversity is not None:
            raise SettingError("--threshold cannot be combined with --diversity: give --ratio or --count")
        if self.scores.capability is not None:
            raise SettingError(
                "--threshold cannot be used with a method that balances capabilities: give --ratio or --count"
            )
        kept = at_least(self.scores.comparable(self.value), threshold, self.ranked)
        if not len(kept):
            largest = float(self.value[self.ranked].max())
            raise SettingError(f"no sample reaches threshold {threshold:g}: the largest value is {largest:.6g}")
        return kept

    def _notes(self, kept: IntArray) -> tuple[str, ...]:
        """Return remarks on excluded samples, on the value that diversity costs, and on near-duplicates kept."""
        notes = [] if self.rules.excluded is None else [str(self.rules.excluded)]
        notes += [self.in_questions] if self.in_questions else []
        if notes:
            notes[-1] += f"; ratios are shares of the {len(self.ranked)} that remain"
        notes += [self.warning] if self.warning else []
        diversity = self.selection.diversity
        if diversity is None or self.by_value is None or not len(kept):
            return tuple(notes)
        best = self.by_value[: len(kept)]
        num_both = len(np.intersect1d(kept, best, assume_unique=True))
        mean, most = float(self.value[kept].mean()), float(self.value[best].mean())
        notes.append(
            f"diversity by {diversity.method}: mean value {mean:.4f}, {most:.4f} for the best "
            f"{len(best)} by value alone, of which {num_both} are here"
        )
        if self.num_distinct is not None and self.num_distinct < len(kept):
            notes.append(
                f"{self.num_distinct} samples are left without near-duplicates, so {len(kept) - self.num_distinct} of "
                "those fill the budget, the best first"
            )
        return tuple(notes)


def subset_paths(out: Path, sizes: Sequence[str]) -> list[Path]:
    """Return a file name for each size. The size replaces {ratio} in the name, or is added if there are several sizes.

    >>> [path.name for path in subset_paths(Path("subset.jsonl"), ["0.1", "0.2"])]
    ['subset-0.1.jsonl', 'subset-0.2.jsonl']
    """
    if "{ratio}" in out.name:
        return [out.with_name(out.name.replace("{ratio}", size)) for size in sizes]
    if len(sizes) == 1:
        return [out]
    return [out.with_name(f"{out.stem}-{size}{out.suffix}") for size in sizes]


@dataclass(frozen=True, slots=True)
class Rules:
    """A selection applied to one table: the candidates, and the order in which they are chosen."""

    selection: Selection
    """The selection with the names resolved that are known before samples are ranked."""
    scores: ScoreTable
    """The rows that the filter keeps."""
    fields: SampleFields
    """The fields and labels of these rows."""
    excluded: Excluded | None
    groups: Sequence[object] | None = None
    """The stratum of every row of the table, if the selection has strata."""
    question: IntArray | None = None
    """The number of the question of every row of the table, if traces are chosen within questions."""
    store: str | None = None
    """Where the store is now, if it moved."""
    data: Sequence[str] | None = None
    """Where the dataset is now, if it moved."""
    labelled: tuple[BoolArray, BoolArray] | None = None
    """Which rows of the table are right and which are wrong, if pairs of a right and a wrong trace are chosen."""

    @classmethod
    def of(
        cls,
        scores: ScoreTable,
        selection: Selection,
        store: str | None = None,
        data: Sequence[str] | None = None,
        listener: Listener = ignore,
    ) -> Self:
        """Apply a selection to a table; raise if the selection does not fit the table, or leaves no candidates."""
        where, by = selection.where, selection.by
        is_read = where is not None or by is not None or selection.is_in_questions
        refuse_unread(selection.labels, "--where, --by, --per-group or a format of pairs", is_read=is_read)
        sql = where.sql if isinstance(where, WhereNote) else where
        table, fields, kept = filter_scores(scores, sql, store, data, selection.labels)
        if table.capability is not None and (by is not None or selection.diversity is not None):
            option = "--by" if by else "--diversity"
            raise SettingError(
                f"method {table.method} balances capabilities, and {option} would undo this: leave {option} out, or "
                "use a table of another method"
            )
        known, wanted = table.lengths if selection.control else {}, [*selection.control]
        if unknown := [name for name in wanted if name != "length" and name not in LENGTHS]:
            raise SettingError(f"unknown value {unknown[0]!r} of --control: use one of length, {', '.join(LENGTHS)}")
        if missing := [name for name in wanted if name != "length" and name not in known]:
            raise SettingError(f"the table has no column {missing[0]} to control for: use one of {', '.join(known)}")
        control = tuple(name for name in LENGTHS if name in known and (name in wanted or "length" in wanted))
        resolved: dict[str, Any] = {"where": kept, "control": control, "labels": fields.labels and fields.labels.note}
        excluded = None
        if selection.exclude_flagged or selection.exclude_contaminated is not None:
            excluded = exclude(table, selection.exclude_flagged, selection.exclude_contaminated)
            resolved |= {"exclude_flagged": excluded.flags, "exclude_contaminated": excluded.against}
        rules = cls(selection, table, fields, excluded, store=store, data=data)
        if not rules.is_possible.any():
            place, left = table.path or "The table", "" if excluded is None else f" left ({excluded})"
            raise DataError(f"{place} has no sample with a value{left}, so there is nothing to select.")
        question = None
        if selection.is_in_questions:
            question, resolved["group_by"] = questions_of(table, selection, lambda by: fields.records().questions(by))
        elif selection.group_by is not None:
            raise SettingError(
                "--group-by names the field that identifies a question: also give --per-group, or select pairs"
            )
        groups = None if by is None else fields.groups(by)
        selection = selection.model_copy(update=resolved)
        rules = replace(rules, selection=selection, groups=groups, question=question)
        return rules if selection.right is None else replace(rules, labelled=fields.right(selection.right, listener))

    @property
    def is_possible(self) -> BoolArray:
        """Whether each row of the table is a candidate: it has a value and a needed label, and is not excluded."""
        has_value = np.isfinite(self.scores.value)
        if self.labelled is not None:
            has_value &= self.labelled[0] | self.labelled[1]
        return has_value if self.excluded is None else has_value & ~self.excluded.is_out

    @property
    def value(self) -> FloatArray:
        """The values to rank by: NaN for excluded rows, and residuals after a control."""
        value = self.scores.value
        if self.excluded is not None or self.labelled is not None:
            value = np.where(self.is_possible, value, np.nan)
        lengths = [name for name in LENGTHS if name in self.selection.control]
        return residuals(value, self.scores.lengths, lengths) if lengths else value

    @property
    def stratum(self) -> IntArray:
        """The number of the stratum, or of the capability, of each row of the table; all 0 if there are none."""
        kinds = self.groups if self.groups is not None else self.scores.capability
        if kinds is None:
            return np.zeros(len(self.scores), dtype=np.int64)
        codes: dict[object, int] = {}
        return np.array([codes.setdefault(kind, len(codes)) for kind in kinds], dtype=np.int64)

    def rank(
        self, value: FloatArray | None = None, *, threads: int | None = None, listener: Listener = ignore
    ) -> Ranking:
        """Rank the samples by their values, or by other values, which are NaN for samples that must not be chosen."""
        table, groups = self.scores, self.groups
        value, told, rejected, warning = self.value if value is None else value, "", None, ""
        if self.question is not None:
            value, rejected, told = choose_in_questions(
                table, self.selection, self.question, value, self._responses, self.labelled, listener
            )
            # Random draws and replays, which nobody listens to, need no warning and spare reading the labels.
            if rejected is not None and self.labelled is None and listener is not ignore:
                warning = warning_of_labels(table, self.fields.labels, self._fields_at, rejected)
        ranked = table.ranked(value)
        if groups is not None:
            ranked = stratified_rank(table.comparable(value), groups, table.row)
        if groups is not None and len(set(groups)) == len(groups) > 1:
            by = self.selection.by
            listener(Warned(f"Every sample has a different {by}, so --by changes nothing: the best samples are kept."))
        if self.selection.diversity is None:
            return Ranking(self, value, ranked, told, rejected, warning)
        from grace_store.choose.duplicates import check_diverse, diverse_order  # reads vectors

        check_diverse(self.selection, self.selection.diversity)
        pool = Pool(open_store_of(table, self.store), partial=True, data=self.data, threads=threads)
        order, used, num_distinct = diverse_order(table, ranked, self.selection, pool, listener=listener)
        rules = replace(self, selection=self.selection.model_copy(update=used))
        return Ranking(rules, value, ranked[order], told, rejected, warning, ranked, num_distinct)

    def _fields_at(self, rows: IntArray, labels: LabelColumns | None) -> SampleFields:
        """Return the fields of some rows of the table; labels are those of all rows."""
        table = replace(self.scores, table=self.scores.table.take(rows))
        return fields_of(table, self.store, self.data, None if labels is None else labels.at(rows))

    def _responses(self, rows: IntArray) -> BitArray:
        """Return a number for each row of the table. Among the given rows, the same response has the same number."""
        row = self.scores.row
        store = open_store_of(self.scores, self.store)
        positions, place = np.unique(store.positions_of(row[rows]), return_inverse=True)
        said = np.zeros(len(row), dtype=np.uint64)
        said[rows] = digest_samples(store, self.data, positions, response_digest)[place]
        return said

    def random_like(self, seed: int, among: IntArray | None = None) -> IntArray:
        """Return dataset rows in the order in which the rules choose them when values are random.

        among has the dataset rows that may be chosen, if not all. Samples that the rules leave out, such as further
        traces of a question, are not returned.
        """
        row, is_possible = self.scores.row, self.is_possible
        if among is not None:
            is_possible = is_possible & np.isin(row, among)
        return row[self.rank(np.where(is_possible, random_values(seed, row), np.nan)).ranked]


def rank_samples(
    scores: ScoresLike,
    selection: Selection | None = None,
    *,
    store: str | None = None,
    data: Sequence[str] | None = None,
    threads: int | None = None,
    listener: Listener = ignore,
) -> Ranking:
    """Rank the samples of a table by value, ties to the earlier record; leave out samples without a finite value.

    A table with capabilities is ranked in turns: the best sample of each capability, then the second best, and so on.
    Every prefix has equal counts until one capability runs out. store and data say where these are now, if they moved.
    """
    table = scores if isinstance(scores, ScoreTable) else read_scores(scores, steps=False)
    return Rules.of(table, selection or Selection(), store, data, listener).rank(threads=threads, listener=listener)


def select(
    scores: ScoresLike,
    selection: Selection | None = None,
    *,
    store: str | None = None,
    data: Sequence[str] | None = None,
    threads: int | None = None,
    listener: Listener = ignore,
    **changes: Any,
) -> Subset:
    """Choose samples of a table by a selection; changes are fields of the selection, such as ratio, count or by.

    >>> select("scores.parquet", ratio=0.2, by="source")  # doctest: +SKIP
    """
    wanted = selection or Selection()
    if not changes.keys().isdisjoint(SIZES):
        changes = dict.fromkeys(SIZES) | changes
    wanted = (wanted.changed(**changes) if changes else wanted).sized
    return rank_samples(scores, wanted, store=store, data=data, threads=threads, listener=listener).take()


def read_subset(path: Path, ratio: Ratio | None = None) -> Subset:
    """Read a subset that ``select`` wrote, or choose the best samples of a table of scores."""
    sidecar = sidecar_of(path)
    if not sidecar.is_file():
        if path.is_file() and path.suffix != ".parquet":
            raise DataError(f"{path} has no {sidecar.name} beside it, so the selection is unknown. Select again.")
        return replace(select(read_scores(path, steps=False), ratio=ratio), path=path)
    note = read_document(sidecar, SubsetNote)
    scores = _table_of(path, note)
    ranked, is_there = find_rows(scores.row, np.array(note.rows, dtype=np.int64))
    rejected, is_known = find_rows(scores.row, np.array(note.rejected_rows or (), dtype=np.int64))
    if not (is_there.all() and is_known.all() and len(np.unique(ranked)) == note.num_samples):
        raise DataError(f"{scores.path} does not hold all samples of {path}, so it is another table. Select again.")
    spec, against = note.spec, note.spec.exclude_contaminated
    if isinstance(against, AgainstNote) and note.contaminated_rows is not None:
        table = AgainstTable.of_rows(note.contaminated_rows, against)
        spec = spec.model_copy(update={"exclude_contaminated": table})
    return Subset(
        scores,
        ranked,
        note.num_with_value,
        note.smallest_value,
        spec,
        conclusion=note.conclusion or "",
        rejected=None if note.rejected_rows is None else rejected,
        path=path,
    )


def replay_subset(
    subset: Subset, store: str | None = None, data: Sequence[str] | None = None, labels: str | Path | None = None
) -> Rules:
    """Return the rules that chose a subset; raise DataError if they would choose other samples now.

    store, data and labels say where these are now, if they moved.
    """
    spec = subset.spec
    if isinstance(spec.labels, LabelsFile):  # subsets of one trial may have been chosen with and without labels
        spec = spec.model_copy(update={"labels": moved_labels(spec.labels, labels, "")})
    rules = Rules.of(subset.scores, spec, store, data)
    if num_others := len(np.setxor1d(rules.rank().take().row, subset.row)):
        where = "The subset" if subset.path is None else f"{subset.path}"
        remedy = ", without a table of --duplicates." if subset.spec.duplicates else "."
        raise DataError(
            f"{where} cannot be chosen again by the rules in its note: {counted(num_others, 'sample')} would be "
            f"added or removed. So random subsets by the same rules are not possible. Select the subset again{remedy}"
        )
    return rules


def _table_of(path: Path, note: SubsetNote) -> ScoreTable:
    if note.scores_path is None:
        raise DataError(
            f"{path} was chosen from a table in memory. Write the table to a file, then select from the file."
        )
    where = Path(note.scores_path)
    beside = path.parent / where.name
    where = where if where.is_file() or not beside.is_file() else beside
    if not where.is_file():
        raise DataError(
            f"{path} was chosen from {where}, but this file no longer exists. Put the file back, or score again."
        )
    scores = read_scores(where, steps=False)
    if scores.note != note.scores:
        raise DataError(f"{where} now holds other scores than those {path} was chosen from. Select again.")
    return scores
