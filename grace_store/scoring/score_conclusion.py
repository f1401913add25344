"""The conclusion of a table of scores in words: length, flags, and what to do next."""

from grace_store.base.arrays import IntArray
from grace_store.base.text import counted
from grace_store.scoring.score_table import ScoreTable
from grace_store.values.length_bias import MUCH, explained_by_lengths, explained_text, is_vague
from grace_store.values.ranking import budget

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
    follows_length = explained.high > MUCH and not is_vague(explained)
    learned = () if table.note.learned is None else (table.note.learned.in_words,)
    told = [*learned, explained_text(explained, pearson, of_all)]
    return " ".join([*told, _next_step(table, ranked, follows_length=follows_length)] if what_next else told)


def _next_step(table: ScoreTable, ranked: IntArray, *, follows_length: bool) -> str:
    best = ranked[: budget(BEST, len(ranked))]
    if num_flagged := table.num_flagged(best):
        known = table.known_trace_flags
        first = [name for name in table.table["flags"][int(ranked[0])].as_py() if name in known]
        top = f"The highest value belongs to a trace flagged {', '.join(first)}, and " if first else ""
        of_best = f"{num_flagged} of the best {len(best)} {'are' if num_flagged > 1 else 'is'} flagged"
        of_all = f"{table.num_flagged(ranked)} of all {len(ranked)}"
        return f"{top}{of_best} ({of_all}): `select --exclude-flagged` leaves flagged traces out."
    clean = f"None of the best {len(best)} is flagged; "
    if follows_length:
        return f"{clean}`audit` shows more of length, and `select --control length` ranks without it."
    return f"{clean}next, `select` keeps the best."
