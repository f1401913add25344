"""The conclusion of a judgement in words: which signals agree with the labels, or whether labels are too few."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grace_store.base.finding import NARROW, WIDE, Cell, Estimate, Finding
from grace_store.base.text import counted, first_few
from grace_store.pool.pool import Pool
from grace_store.values.methods.method import ScoreSpec, parse_measure
from grace_store.values.roc import CHANCE

Row = Mapping[str, Cell]
"""A row for one measure: its name as "measure", and estimates by the names of columns."""

ENOUGH_LABELS = 20
"""Fewest right labels, wrong labels and questions for intervals that can be trusted."""
SURE = 0.05
"""Probability that at least one signal is wrongly called better than chance."""
ENOUGH_PAIRS = 100
"""Fewest pairs with the same position and length for an area with position and length held fixed."""
FEWEST_PAIRS = 20
"""Fewest pairs for an area that is shown."""
GRACE = "grace"
BAD, UNCLEAR, GOOD = "bad", "unclear", "good"
"""Levels of news."""


@dataclass(frozen=True, slots=True)
class JudgedItems:
    """The results of all measures on steps, or on whole traces."""

    of: Literal["steps", "traces"]
    num_right: int
    num_wrong: int
    num_questions: int
    measures: tuple[dict[str, Cell], ...]
    """A row for each measure."""
    kinds: Mapping[str, int]
    """Kinds of error, with their numbers of wrong items."""
    by_kind: tuple[dict[str, Cell], ...]
    """A row for each measure, with an area for each kind of error."""
    chance_of_first_errors: float | None = None
    """The F1 of a blind judge that calls each step wrong with the same probability, at the best probability."""


def conclude_judged(items: JudgedItems) -> str:
    """Return the conclusion from the results of all measures."""
    measured = [each for each in items.measures if each["signal"] is not None]
    stored = [each for each in measured if math.isfinite(headline(items, each).value)]
    if not stored or (short := _too_few(items, stored)):
        return short if stored else "No stored signal has a value for these labels."
    return " ".join([_areas(items, stored), *_first_errors(items)])


def best_measure(judged: Sequence[JudgedItems], *, has_groups: bool) -> tuple[Row | None, bool]:
    """Return the measure to choose by, if one is shown to see the labels, and whether to choose within questions.

    Traces decide before steps, because traces are chosen, unless their labels are too few. has_groups says whether most
    traces share their question with another trace: otherwise a choice within questions would keep most of them unseen.
    """
    for items in reversed(judged):
        measured = [each for each in items.measures if each["signal"] is not None]
        stored = [each for each in measured if math.isfinite(headline(items, each).value)]
        if not stored or _too_few(items, stored):
            continue
        above = [each for each in stored if _is_above(each, items, stored)]
        within = [each for each in above if _is_above(each, items, stored, "same_question")]
        if within and (has_groups or items.of == "steps"):
            return max(within, key=lambda each: _estimate(each, "same_question").value), items.of == "traces"
        return max(above, key=lambda each: headline(items, each).value, default=None), False
    return None, False


def how_to_choose(
    judged: Sequence[JudgedItems], pool: Pool, settings: ScoreSpec, question: str | None, *, has_groups: bool
) -> str:
    """Return the commands that choose by what was found in a pool, or that nothing was found.

    question is the field that names questions.
    """
    best, is_within = best_measure(judged, has_groups=has_groups)
    if best is None:
        what = " and ".join(each.of for each in judged)
        return f"No way of choosing follows from this: no measure was shown to put right {what} above wrong ones."
    where = "" if pool.kept is None else pool.kept.where
    score = ["grace-store", "score", pool.store.location, *(["--where", where] if where else [])]
    if (labels := pool.label_columns) is not None:
        is_read = labels.are_in(where) or (is_within and question in labels.names)
        score += ["--labels", labels.note.path] if is_read else []
    data = [word for path in pool.data or () for word in ("--data", str(Path(path).absolute()))]
    score += [*(["--partial"] if pool.partial else []), *data, "--measure", str(best["of"])]
    score += ["--signal", str(best["signal"])] if len(pool.store.signal_names) > 1 else []
    defaults = ScoreSpec()
    for name in sorted(ScoreSpec(measure=(str(best["of"]),)).used):
        if (given := getattr(settings, name)) != getattr(defaults, name):
            score += [f"--{name.replace('_', '-')}", *([] if given is True else [str(given)])]
    if is_within:  # --within group alone means the prompt
        score += ["--within", question or "group", *(["--group-by", "group"] if question == "group" else [])]
    select = ["grace-store", "select", "scores.parquet", *data, "--exclude-flagged"]
    select += ["--per-group", "1"] if is_within else ["--ratio", "0.2"]
    commands = (
        f"`{shlex.join([*score, '--out', 'scores.parquet'])}`, then `{shlex.join([*select, '--out', 'subset.jsonl'])}`"
    )
    return f"To choose by {best['of']}: {commands}. With `score --learn`, these labels can weigh all measures together."


def judge_measure(found: Finding, measure: str, signals: Sequence[str]) -> tuple[str, str]:
    """Return how well a measure of some signals does in a judgement: a level, and a verb with the areas."""
    told, level, areas = [], UNCLEAR, ("all_pairs", "held_fixed")
    kinds: tuple[Literal["steps", "traces"], ...] = ("steps", "traces")
    for of in kinds:
        rows = [dict(row) for row in found.tables.get(of, ()) if row.get("signal") is not None]
        stored = [row for row in rows if all(isinstance(row.get(each), Estimate) for each in areas)]
        if mine := [row for row in stored if row.get("of") == measure and row["signal"] in signals]:
            names = (f"num_right_{of}", f"num_wrong_{of}", "num_questions")
            right, wrong, asked = (int(str(found.numbers.get(name) or 1)) for name in names)
            items = JudgedItems(of, right, wrong, asked, tuple(stored), {}, ())
            is_above = any(_is_above(row, items, stored) for row in mine)
            is_at_chance = all(headline(items, row).low <= CHANCE for row in mine)
            # Traces are chosen, so their level counts where both were judged.
            level = UNCLEAR if _too_few(items, stored) else GOOD if is_above else BAD if is_at_chance else UNCLEAR
            told.append(f"{headline(items, mine[0]).text(2)} for {of}")
    return level, f"has {' and '.join(told)}" if told else "was not judged"


def headline(items: JudgedItems, row: Row) -> Estimate:
    """Return the area for conclusions: with position and length held fixed, if there are enough pairs."""
    return _estimate(row, "held_fixed" if holds_fixed(items) else "all_pairs")


def holds_fixed(items: JudgedItems) -> bool:
    """Return whether there are enough pairs to hold position and length fixed."""
    stored = [each for each in items.measures if each["signal"] is not None]
    return all(_estimate(each, "held_fixed").num >= ENOUGH_PAIRS for each in stored)


def _estimate(row: Row, name: str) -> Estimate:
    cell = row[name]
    assert isinstance(cell, Estimate)
    return cell


def _too_few(items: JudgedItems, stored: Sequence[Row]) -> str:
    """Return why the labels are too few for a conclusion; empty if they are enough."""
    half_width = max(headline(items, each).half_width for each in stored)
    fewest = min(items.num_right, items.num_wrong, items.num_questions)
    if fewest >= ENOUGH_LABELS and (half_width <= WIDE or any(_is_above(each, items, stored) for each in stored)):
        return ""
    told = (
        f"{items.num_right} right and {items.num_wrong} wrong {items.of} of {counted(items.num_questions, 'question')}"
    )
    said = f"Too few labels to say whether a stored signal tells wrong {items.of} from right ones: {told}"
    if not math.isfinite(half_width):
        return f"{said} have no intervals. At least {ENOUGH_LABELS} questions are wanted."
    grow = max((half_width / NARROW) ** 2, ENOUGH_LABELS / fewest)
    wanted = math.ceil(items.num_questions * grow / 10) * 10
    best, above_chance = max(stored, key=lambda each: headline(items, each).low), ""
    if headline(items, best).low > CHANCE:
        chance = f"the best of {len(stored)} may do so by chance" if len(stored) > 1 else "that may be chance"
        above_chance = f" That of {best['measure']} lies above 0.50 in the table, but with so few labels {chance}."
    return (
        f"{said} leave intervals of {half_width:.2f} to either side.{above_chance} About {wanted} questions like these "
        f"would narrow them to {NARROW:.2f}."
    )


def _is_above(measure: Row, items: JudgedItems, stored: Sequence[Row], name: str | None = None) -> bool:
    """Return whether a measure is better than chance in the headline or a column, corrected for their number."""
    area = headline(items, measure) if name is None else _estimate(measure, name)
    return area.low > CHANCE and (area.p_value or 0.0) * len(stored) <= SURE


def _is_below(measure: Row, items: JudgedItems, num_compared: int) -> bool:
    area = headline(items, measure)
    return area.high < CHANCE and (area.p_value or 0.0) * num_compared <= SURE


def _areas(items: JudgedItems, stored: Sequence[Row]) -> str:
    place = "position" if items.of == "steps" else "number of steps"
    fixed = f", with {place} and length held fixed" if holds_fixed(items) else ""
    ordered = sorted(stored, key=lambda each: -headline(items, each).value)
    above = [each for each in ordered if _is_above(each, items, stored)]
    below = [each for each in reversed(ordered) if _is_below(each, items, len(stored)) and each["of"] != GRACE]
    if not above and below:
        told = f"{_capital(below[0])} puts wrong {items.of} above right ones{fixed}: "
        told += headline(items, below[0]).text(2)
        judged = parse_measure(str(below[0]["of"]))
        other = judged._replace(way="lowest" if judged.way == "highest" else "highest").bare
        return f"{told}. Judge {other} instead (--measure {other})." + _of_grace(items, ordered, above)
    if not above:
        best = headline(items, ordered[0]).text(2)
        told = f"No stored signal tells wrong {items.of} from right ones better than chance (0.50){fixed}"
        return f"{told}; the best, {ordered[0]['measure']}, has {best}." + _of_grace(items, ordered, above)
    best = f"{_capital(above[0])} tells wrong {items.of} from right ones better than chance (0.50){fixed}"
    told = f"{best}: {headline(items, above[0]).text(2)}."
    others = [str(each["measure"]) for each in above[1:]]
    also = f" So {'do' if len(others) > 1 else 'does'} {first_few(others, 4)}." if others else ""
    return told + also + _of_grace(items, ordered, above)


def _of_grace(items: JudgedItems, ordered: Sequence[Row], above: Sequence[Row]) -> str:
    """Return a sentence about GRACE's scores, unless the conclusion names them already."""
    grace = [each for each in ordered if each["of"] == GRACE]
    if not grace or any(each in above for each in grace) or (not above and ordered[0] in grace):
        return ""
    does = f"puts wrong {items.of} above right ones:" if _is_below(grace[0], items, len(grace)) else "has"
    return f" {_capital(grace[0])} {does} {headline(items, grace[0]).text(2)}."


def _first_errors(items: JudgedItems) -> list[str]:
    stored = [each for each in items.measures if each["signal"] is not None and "first_errors" in each]
    chance = items.chance_of_first_errors
    if not stored or chance is None or chance != chance:
        return []
    best = max(stored, key=lambda each: _estimate(each, "first_errors").value)
    first = _estimate(best, "first_errors")
    if first.low > chance and (first.p_value or 0.0) * len(stored) <= SURE:
        found = f"{_capital(best)} finds first errors best, with an F1 of {first.text(2)}"
        return [f"{found}; by chance it is {chance:.2f}."]
    told = f"None finds first errors better than chance (F1 {chance:.2f}); the best, {best['measure']}"
    luck = f", which can be luck where {len(stored)} are tried" if first.low > chance else ""
    return [f"{told}, has {first.text(2)}{luck}."]


def _capital(row: Row) -> str:
    text = str(row["measure"])
    return "GRACE" + text[len(GRACE) :] if text.startswith(GRACE) else text[:1].upper() + text[1:]
