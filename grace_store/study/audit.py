"""Audit a table of scores: how values follow length, and which groups of samples have the highest values."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grace_store.base.arrays import IntArray, sum_by_sample
from grace_store.base.errors import StoreError
from grace_store.base.finding import Cell, Column, Estimate, Finding, Table, make_columns
from grace_store.base.text import counted, enumerated, percent, percent_more
from grace_store.choose.choice_conclusion import group_name, group_sizes, rise_and_fall
from grace_store.pool.label_columns import LabelsLike
from grace_store.pool.pool import Pool, stepwise_signals
from grace_store.pool.walk import SignalReader, SignalSamples
from grace_store.scoring.notes import ScoresNote
from grace_store.scoring.provenance import filter_scores, noted_pool, open_store_of
from grace_store.scoring.score_table import ScoreTable, read_scores
from grace_store.store.opened import Store
from grace_store.values.gram import is_step
from grace_store.values.intervals import ratio_over_questions, sums_by_question
from grace_store.values.length_bias import (
    LENGTH_WORDS,
    MIN_AUDITED,
    MORE,
    VAGUE,
    beyond_chance,
    chance_text,
    explained_by_lengths,
    explained_text,
    length_measures,
    residuals,
    step_measures,
)
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.ranking import Length, Ratio, budget, rank

SEEN = 0.01
"""Smallest change that is visible in the printed digits."""
GROUPS_SHOWN = 20
GROUPS_KEPT = 1000
"""Most groups in the finding; a field may have another value in each record."""


def audit(
    scores: ScoreTable | str | Path,
    *,
    ratio: Ratio = "0.2",
    by: str | None = None,
    where: str | None = None,
    store: str | None = None,
    data: Sequence[str] | None = None,
    labels: LabelsLike | None = None,
) -> Finding:
    """Measure how closely values follow the length of steps, the length of the response and the number of steps.

    by is a field of the records, num_steps, or several fields joined by commas: the groups are compared by their
    numbers of the best samples. where is a condition in SQL for samples, as in Selection. store and data say where
    these are now, if they moved. labels is a file with further fields.
    """
    table = scores if isinstance(scores, ScoreTable) else read_scores(scores)
    table = table.by_row()  # ties go to the earlier record
    table, fields, kept = filter_scores(table, where, store, data, labels)
    budget(ratio, 0)  # raises SettingError if this is not a ratio
    explained, _ = explained_by_lengths(table.value, table.lengths, table.question)
    measures = length_measures(table.value, table.lengths, float(ratio), table.question)
    is_enough = explained.num >= MIN_AUDITED
    tables = {"lengths": _lengths_table(measures, str(ratio), is_shown=is_enough)}
    if table.has_step_scores:
        steps = step_measures(table.flat("step_score"), table.flat("step_num_tokens"), table.num_steps)
        columns = make_columns(
            num_steps="steps", pooled="Pearson (log)", spearman="Spearman", within_sample="Pearson within one trace"
        )
        title = "Step score and step length"
        tables["steps"] = Table(title=title, columns=columns, rows=(dict(steps),), is_shown=is_enough)
    first_tokens, compared = _first_tokens(table, store)
    tables |= compared
    told = [conclude_audit(explained, measures, str(ratio), table.note), *([first_tokens] if first_tokens else [])]
    named = table.note.spec.measures if isinstance(table.note.spec, ScoreSpec) and not table.note.spec.learn else ()
    lowest = [each.name for each in named if each.way == "lowest"]
    if by is not None:
        groups = fields.groups(by)
        controlled = residuals(table.value, table.lengths, list(table.lengths))
        by_value, by_rest = (rank(table.comparable(value), table.row) for value in (table.value, controlled))
        num_best = budget(ratio, len(by_value))
        rows = (by_value, by_value[:num_best], by_rest[:num_best])
        sizes, best, after = (group_sizes(groups, each) for each in rows)
        counts = {name: (size, best[name], after[name]) for name, size in sizes.most_common()}
        tables["groups"] = _groups_table(counts, by, str(ratio))
        names = [group_name(groups[i]) for i in by_value.tolist()]
        told.append(rise_and_fall(by, names, np.arange(len(by_value)) < num_best, table.question[by_value]))
    return Finding(
        study="audit",
        pool=noted_pool(table.note, kept, fields.labels),
        settings={"ratio": str(ratio), "measure": table.method} | ({} if by is None else {"by": by}),
        conclusion=" ".join(told),
        numbers={"num_samples": explained.num, "enough_samples": is_enough, "variance_explained": explained},
        tables=tables,
        notes=(f"The lower the {enumerated(lowest)}, the higher the value.",) if lowest else (),
    )


def _first_tokens(table: ScoreTable, moved: str | None) -> tuple[str, dict[str, Table]]:
    """Compare first tokens with the others; nothing if the table's store is no longer at its place."""
    try:
        opened = open_store_of(table, moved)
    except (StoreError, OSError):
        if moved is not None:
            raise
        return "", {}
    return compare_first_tokens(opened, table.note.signals, table.row)


def compare_first_tokens(store: Store, signals: Iterable[str], row: IntArray) -> tuple[str, dict[str, Table]]:
    """Return a sentence about first tokens, and its table, for samples of some dataset rows.

    The losses are those of the first signal with steps; without such a signal, sentence and table are empty.
    """
    name = next((name for name in signals if name in stepwise_signals(store)), None)
    if name is None or not len(row):
        return "", {}
    wanted = np.zeros(store.plan.num_samples, dtype=np.bool_)
    wanted[store.positions_of(row)] = True
    reader = SignalReader(store, (name,), wanted, reads=("loss", "first_loss"))
    found = SignalSamples.joined(list(reader.map(lambda block: block.signals[0])))
    of_steps = is_step(found.num_steps)
    tokens, loss, first = (
        each[of_steps].astype(np.float64)
        for each in (found.num_tokens, found.statistic["loss"], found.statistic["first_loss"])
    )
    steps = found.num_steps.astype(np.float64)
    all_loss, first_loss = (sum_by_sample(found.num_steps, each) for each in (loss * tokens, first))
    num_tokens = sum_by_sample(found.num_steps, tokens)
    if not all_loss.sum() > 0 or num_tokens.sum() == steps.sum():
        return "", {}
    first_loss, steps, all_loss, num_tokens = sums_by_question(
        Pool(store).questions(found.sample), (first_loss, steps, all_loss, num_tokens)
    )
    firsts = ratio_over_questions(first_loss, steps, len(found.sample), scale="plain")
    others = ratio_over_questions(all_loss - first_loss, num_tokens - steps, len(found.sample), scale="plain")
    share = ratio_over_questions(first_loss, all_loss, len(found.sample))
    of_tokens = float(steps.sum() / num_tokens.sum())
    rows = (
        {"tokens": "first of a step", "share": of_tokens, "loss": firsts, "share_of_loss": share},
        {"tokens": "others", "share": 1 - of_tokens, "loss": others, "share_of_loss": None},
    )
    columns = make_columns(
        tokens="tokens of steps",
        share=Column(heading="share of tokens", is_share=True),
        loss="mean loss",
        share_of_loss=Column(heading="share of the loss", is_share=True),
    )
    about = "Intervals are over questions. The last column is the share of first tokens in the traces' mean loss."
    told = (
        f"The first token of a step has a mean loss of {firsts.value:.2f}, the other tokens have {others.value:.2f}: "
        f"first tokens are {percent(of_tokens)} of the tokens and make up {share.text(is_share=True)} of the loss."
    )
    return told, {"first_tokens": Table(title="First tokens of steps", columns=columns, rows=rows, about=about)}


def _lengths_table(measures: Mapping[Length, Mapping[str, float]], ratio: str, *, is_shown: bool) -> Table:
    columns = {
        "length": "value and",
        "pearson": "Pearson (log)",
        "spearman": "Spearman",
        "partial": "partial",
        "spearman_after_control": "controlled",
        "kept_over_all": f"kept {ratio} / all",
        "kept_over_all_after_control": "controlled",
    }
    return Table(
        title="Value and length",
        columns={name: Column(heading=heading, digits=2 if "kept" in name else 3) for name, heading in columns.items()},
        rows=tuple({"length": name, **each} for name, each in measures.items()),
        about="partial: with the other lengths held fixed. controlled: after `select --control length`. "
        f"kept: mean length of the best {ratio} over that of all.",
        is_shown=is_shown,
    )


def _groups_table(counts: Mapping[str, tuple[int, int, int]], by: str, ratio: str) -> Table:
    """Return a row for each group: its samples with a value, and how many are among the best, also after control."""
    rows: list[dict[str, Cell]] = [
        {"group": name, "num_samples": num, "best": best, "share": best / num, "best_after_control": after}
        for name, (num, best, after) in counts.items()
    ]
    more = len(rows) - GROUPS_SHOWN
    return Table(
        title=f"Groups of {by}",
        columns=make_columns(
            group=by,
            num_samples="samples",
            best=f"best {ratio}",
            share=Column(heading="share", is_share=True),
            best_after_control="controlled",
        ),
        rows=tuple(rows[:GROUPS_KEPT]),
        about=f"{counted(more, 'smaller group')} more." if more > 0 else "",
        num_shown=GROUPS_SHOWN,
    )


# ---------------------------------------------------------------- the conclusion

Measures = Mapping[Length, Mapping[str, float]]
"""Measures of the relation of values to each length, as length_measures returns them."""


def conclude_audit(explained: Estimate, measures: Measures, ratio: str, note: ScoresNote) -> str:
    """Return sentences: how values by a method follow length, how long the best are, and why control made it worse."""
    pearson = {name: each["pearson"] for name, each in measures.items()}
    told = explained_text(explained, None if note.spec.is_length else pearson, by=f" by {note.title}")
    if note.spec.is_length or explained.num < MIN_AUDITED or all(math.isnan(each) for each in pearson.values()):
        return told
    return " ".join([told, *_kept(measures, ratio), *_grown(measures, ratio)])


def _kept(measures: Measures, ratio: str) -> list[str]:
    """Return a sentence about the length of the best samples against all, before and after control."""
    varying = {
        name: (each["kept_over_all"], each["kept_by_chance"])
        for name, each in measures.items()
        if not math.isnan(each["pearson"]) and each["kept_by_chance"] > 0
    }
    if not varying:
        return []
    name = max(varying, key=lambda each: beyond_chance(*varying[each]))
    if beyond_chance(*varying[name]) <= 1:
        is_vague = max(by_chance for _, by_chance in varying.values()) > VAGUE
        return [] if is_vague else [f"The best {ratio} are neither longer nor shorter than random choices are."]
    kept = (measures[name][each] for each in ("kept_over_all", "kept_over_all_after_control"))
    before, after = (percent_more(each, *MORE[name]) for each in kept)
    chance = chance_text(varying[name][1])
    return [f"The best {ratio} have {before} than all ({chance}); after `select --control length`, {after}."]


@dataclass(frozen=True, slots=True)
class _Growth:
    """One measure of how values follow a length, before and after control."""

    name: Length
    before: float
    after: float
    neutral: float
    """The measure if values do not follow the length."""
    by_chance: float

    @property
    def size(self) -> float:
        return abs(self.after - self.neutral) - abs(self.before - self.neutral)

    @property
    def is_chance(self) -> bool:
        return abs(self.after - self.neutral) <= self.by_chance

    def told(self, ratio: str) -> str:
        words = LENGTH_WORDS[self.name]
        if self.neutral:
            moved = f"{self.before:.2f} -> {self.after:.2f}"
            return f"In {words}, the best {ratio} differ more from all after control than before ({moved} of all)"
        moved = f"{self.before:.3f} -> {self.after:.3f}"
        return f"Ranks of values follow {words} more after control than before ({moved})"


def _grown(measures: Measures, ratio: str) -> list[str]:
    """Return the reason why values follow a length more after control than before; nothing if they do not."""
    growths = []
    for name, each in measures.items():
        kept = each["kept_over_all"], each["kept_over_all_after_control"]
        growths.append(_Growth(name, *kept, 1.0, each["kept_by_chance"]))
        growths.append(_Growth(name, each["spearman"], each["spearman_after_control"], 0.0, each["ranks_by_chance"]))
    grown = [each for each in growths if each.size > SEEN]
    if not grown:
        return []
    most = max(grown, key=lambda each: (not each.is_chance, each.neutral, each.size))
    if most.is_chance:
        return [f"{most.told(ratio)}, which is no more than chance."]
    straight = "control takes out only what goes in a straight line with the logarithms of lengths"
    return [f"{most.told(ratio)}: {straight}, and {_left(most, measures[most.name])}."]


def _left(growth: _Growth, measures: Mapping[str, float]) -> str:
    """Return how values still follow a length after control: by their spread, in a curve, or in another way."""
    curve = abs(measures["curve_after_control"])
    is_longer = growth.after > growth.neutral
    spread = measures["spread_after_control"] if is_longer else -measures["spread_after_control"]
    if growth.neutral and spread > max(measures["spread_by_chance"], curve):
        which = MORE[growth.name][0 if is_longer else 1]
        return f"values of traces with {which} also spread more, so that more of the highest are among them"
    if curve > measures["curve_by_chance"]:
        return "values follow this length in a curve"
    return "the highest values follow this length in another way than the rest"
