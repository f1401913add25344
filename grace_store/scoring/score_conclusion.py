"""The conclusion of a table of scores in words: length, ties, flags, and what to do next."""

from grace_store.base.arrays import IntArray
from grace_store.base.text import counted
from grace_store.scoring.score_table import ScoreTable
from grace_store.values.length_bias import MUCH, SLIGHT, explained_by_lengths, explained_text, is_vague
from grace_store.values.ranking import budget, num_tied

BEST = "0.2"
"""The share of a table that the conclusion calls the best."""


def conclude_scores(table: ScoreTable, *, what_next: bool = True) -> str:
    """Return how far values follow length; with what_next, whether the best traces are flagged, and what to do next."""
    ranked = table.ranked()
    if not len(ranked):
        flags = ", ".join(f"{count} {name}" for name, count in table.flag_counts.items())
        why = f": the flags say why ({flags})" if flags else ""
        return f"None of {counted(len(table), 'sample')} has a value{why}."
    explained, pearson = explained_by_lengths(table.value, table.lengths, table.question)
    of_all = "" if len(ranked) == len(table) else f" of {len(table)}"
    is_length = table.note.spec.is_length
    learned = () if table.note.learned is None else (table.note.learned.in_words,)
    told = [*learned, explained_text(explained, None if is_length else pearson, of_all)]
    is_clear = explained.high > MUCH and explained.low > SLIGHT and not is_vague(explained)
    steps = _next_steps(table, ranked, follows_length=is_clear and not is_length) if what_next else []
    return " ".join([*told, *steps])


def _next_steps(table: ScoreTable, ranked: IntArray, *, follows_length: bool) -> list[str]:
    best = ranked[: budget(BEST, len(ranked))]
    of_best = f"the best {len(best)}"
    tied = num_tied(table.comparable(), ranked, len(best)) if table.capability is None else 0
    told = ties_text(f"The last of {of_best} has", tied)
    alone = only_traces_text(table, best, of_best)
    if num_flagged := table.num_flagged(best):
        known = table.known_trace_flags
        first = [name for name in table.table["flags"][int(ranked[0])].as_py() if name in known]
        top = f"The highest value belongs to a trace flagged {', '.join(first)}, and " if first else ""
        flagged = f"{num_flagged} of {of_best} {'are' if num_flagged > 1 else 'is'} flagged"
        of_all = f"{table.num_flagged(ranked)} of all {len(ranked)}"
        return [*told, *alone, f"{top}{flagged} ({of_all}): `select --exclude-flagged` leaves flagged traces out."]
    step = "next, `select` keeps the best."
    if follows_length:
        step = "`audit` shows more of length, and `select --control length` ranks without it."
    return [*told, *(alone or [f"None of {of_best} is flagged; {step}"])]


def ties_text(last: str, num: int, what: str = "sample") -> list[str]:
    """Return a sentence about samples that have the same value as the last one chosen, if there are any."""
    return [f"{last} the same value as {counted(num, f'more {what}')}; the earlier records are taken."] if num else []


def only_traces_text(table: ScoreTable, rows: IntArray, which: str) -> list[str]:
    """Return a sentence about those of some rows that are the only trace of their question, if there are any."""
    num = int(table.is_flagged(["only_trace"])[rows].sum())
    alone = f"{num} of {which} {'is' if num == 1 else 'are'} the only trace of a question, of which nothing is known"
    return [f"{alone}: `select --exclude-flagged only_trace` leaves such traces out."] if num else []
