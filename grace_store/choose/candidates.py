"""Candidates: the samples of a table without excluded flags and benchmark items, and the best traces of a question.

The two responses of a pair are never the same text. If the worst trace of a question is a copy of the best one, the
worst of the other traces takes its place.
"""

import math
import shlex
from collections.abc import Callable, Sequence

import numpy as np

from grace_store.base.arrays import BitArray, BoolArray, FloatArray, IntArray, renumber
from grace_store.base.errors import DataError, GraceStoreError, SettingError
from grace_store.base.events import Listener, Warned
from grace_store.base.finding import LabelsNote
from grace_store.base.states import HYGIENE, named_flags
from grace_store.base.text import counted
from grace_store.choose.contamination_table import AgainstLike, AgainstTable, read_against
from grace_store.choose.selection import Excluded, Selection
from grace_store.pool.label_columns import LabelColumns, join_labels
from grace_store.pool.labels import format_labels
from grace_store.pool.records import SampleRecords
from grace_store.pool.sample_fields import SampleFields
from grace_store.scoring.notes import AgainstNote
from grace_store.scoring.score_table import ScoreTable
from grace_store.values.ranking import comparable, rank
from grace_store.values.within_groups import PerGroup, best_and_worst, best_of_groups


def exclude(table: ScoreTable, flags: Sequence[str], against: AgainstLike | AgainstNote | None) -> Excluded:
    """Return the samples of a table that must not be chosen."""
    has_value = np.isfinite(table.value)
    names = _known(table, flags) if flags else ()
    is_flagged = table.is_flagged(names) if names else np.zeros(len(table), dtype=np.bool_)
    counts = {name: int((table.is_flagged([name]) & has_value).sum()) for name in names}
    num_flagged = int((is_flagged & has_value).sum())
    if isinstance(against, AgainstNote):
        raise DataError(
            "The note of the subset does not list the samples that were left out as contaminated, so the same "
            "rules cannot be applied. Select the subset again."
        )
    if against is None:
        return Excluded(is_flagged, names, num_flagged, counts)
    found = against if isinstance(against, AgainstTable) else read_against(against)
    if found.note.plan_sha256 != table.note.plan_sha256:
        raise DataError(
            f"The table of benchmark items{f' {found.path}' if found.path else ''} was made from another plan than the "
            f"scores: it belongs to {found.note.store}. Run `grace-store contamination {table.note.store}` to compare "
            "the samples that were scored."
        )
    is_contaminated = np.isin(table.row, found.contaminated)
    num_contaminated = int((is_contaminated & has_value).sum())
    rows = tuple(found.contaminated.tolist())
    return Excluded(is_flagged | is_contaminated, names, num_flagged, counts, found.note, num_contaminated, rows)


def _known(table: ScoreTable, names: Sequence[str]) -> tuple[str, ...]:
    """Return the flags with these names; raise SettingError if the table does not say which samples have them.

    `hygiene` means the flags of traces that the table has.
    """
    flags = named_flags([each for name in names for each in (table.known_trace_flags if name == HYGIENE else [name])])
    if missing := [name for name in flags if name not in table.known_flags]:
        raise SettingError(
            f"the {table.what} does not say which samples are flagged {', '.join(missing)}: only measures that read "
            f"Grams, such as grace, find these flags. The table has the flags {', '.join(table.known_trace_flags)}."
        )
    return flags


def questions_of(
    table: ScoreTable, selection: Selection, read: Callable[[str | None], IntArray]
) -> tuple[IntArray, str | None]:
    """Return the number of the question of each row of a table, and the field of the records that names the question.

    Both are None if samples are not chosen within questions. read returns the questions by a field of the records; it
    is called if the table does not have them.
    """
    if selection.per_group is not None and selection.is_of_pairs:
        raise SettingError("every question gives one pair: leave --per-group out")
    if selection.per_group is not None:
        PerGroup.parse(selection.per_group)
    if selection.margin is not None and not (math.isfinite(selection.margin) and selection.margin >= 0):
        raise SettingError(f"margin {selection.margin:g} is not a number of at least 0")
    if (by := selection.group_by) not in (None, table.note.questions_by):
        return read(by), by
    # Numbered again from 0: a table that another program wrote may have any numbers.
    return renumber(table.question), table.note.questions_by


Responses = Callable[[IntArray], BitArray]
"""A function from rows of a table to a number for each row. Rows with the same response text share a number."""


def choose_in_questions(
    table: ScoreTable,
    selection: Selection,
    question: IntArray,
    value: FloatArray,
    responses: Responses,
    labelled: tuple[BoolArray, BoolArray] | None,
    listener: Listener,
) -> tuple[FloatArray, IntArray | None, str]:
    """Choose traces within their questions by the values of the rows of a table.

    labelled says which rows are right and which are wrong. Then a pair is the best right and the worst wrong trace.
    Returns the values of the chosen rows, NaN for all others (for pairs, the best value minus the worst value); for
    pairs, the row of the table that each row is preferred to, or -1; and a text that says what was chosen.
    """
    compared = comparable(value, question, table.row)
    ranking = rank(compared, table.row)
    num_questions = len(np.unique(question[ranking]))
    pool = f"{counted(len(ranking), 'trace')} of {counted(num_questions, 'question')}"
    if len(ranking) == num_questions:
        listener(Warned("No question has two traces with a value, so traces of one question cannot be compared."))
    if selection.per_group is not None:
        kept = np.full(len(value), np.nan)
        best = best_of_groups(ranking, question, PerGroup.parse(selection.per_group))
        kept[best] = value[best]
        return kept, None, f"at most {selection.per_group} of the traces of a question: {len(best)} of {pool}"
    of_kinds = "best and the worst trace"
    if labelled is not None:
        of_kinds = "best right and the worst wrong trace"
        ranking, pool = _with_both(question, ranking, labelled, pool)
    margin = -math.inf if selection.margin is None else selection.margin
    kept, rejected, copies = _pairs(question, (value, compared), ranking, margin, responses, labelled)
    least = f" by at least {selection.margin:g}" if selection.margin else ""
    differ = f" whose values differ{least}" if selection.margin is not None or labelled is None else ""
    what = f"{counted(int(np.isfinite(kept).sum()), 'pair')} of the {of_kinds} of a question{differ}"
    if labelled is not None and (num_without := int((np.isfinite(table.value) & ~(labelled[0] | labelled[1])).sum())):
        pool += f"; {counted(num_without, 'trace')} without a label left out"
    return kept, rejected, f"{what}, from {pool}{copies}"


def _with_both(
    question: IntArray, ranking: IntArray, labelled: tuple[BoolArray, BoolArray], pool: str
) -> tuple[IntArray, str]:
    """Return the rows of questions that have right and wrong traces, right ones first, and the counts in words."""
    right, wrong = (ranking[which[ranking]] for which in labelled)
    both = np.intersect1d(question[right], question[wrong])
    if not len(both):
        raise DataError("no question has both a right and a wrong trace, so there are no pairs.")
    num_without = len(np.unique(question[ranking])) - len(both)
    rows = np.concatenate([right, wrong])
    left_out = f", {num_without} of them without both a right and a wrong trace" if num_without else ""
    return rows[np.isin(question[rows], both)], pool + left_out


def _pairs(
    group: IntArray,
    values: tuple[FloatArray, FloatArray],
    ranking: IntArray,
    least: float,
    responses: Responses,
    labelled: tuple[BoolArray, BoolArray] | None,
) -> tuple[FloatArray, IntArray, str]:
    """Return the margin and the rejected row of each pair, both at the chosen row, and a text about copies.

    values are as they are, and without noise: traces that are equal without noise have a margin of 0. With labels, the
    ranking has all right rows first, so that the last row of a question is a wrong one.
    """
    value, compared = values

    def margins(best: IntArray, worst: IntArray) -> FloatArray:
        return np.where(compared[best] != compared[worst], value[best] - value[worst], 0.0)

    best, worst = best_and_worst(ranking, group)
    is_wide = _is_wide(margins(best, worst), least)
    # Only questions with a large enough margin are read.
    ranking = ranking[np.isin(group[ranking], group[best[is_wide]])]
    said = responses(ranking)
    num_copies = int((said[best[is_wide]] == said[worst[is_wide]]).sum())
    num_questions = int(is_wide.sum())
    best, worst = best_and_worst(ranking, group, said)
    if labelled is not None:  # a right trace with another text is no rejected response
        best, worst = best[labelled[1][worst]], worst[labelled[1][worst]]
    margin = margins(best, worst)
    is_wide = _is_wide(margin, least, " and whose responses are different texts")
    kept, rejected = np.full(len(value), np.nan), np.full(len(value), -1)
    kept[best[is_wide]], rejected[best[is_wide]] = margin[is_wide], worst[is_wide]
    if not num_copies:
        return kept, rejected, ""
    num_without = num_questions - int(is_wide.sum())
    told = f"; in {counted(num_copies, 'question')} the worst trace has the same response as the best one"
    others = f"{num_copies - num_without} with the worst of the other traces in its place"
    return kept, rejected, f"{told}: {others}, {num_without} without a pair"


def _is_wide(margin: FloatArray, least: float, also: str = "") -> BoolArray:
    """Return which margins are large enough, or raise if none is; also is a further condition for the message."""
    is_wide = (margin > min(least, 0)) & (margin >= least)
    if not is_wide.any():
        found = f"; the largest difference is {margin.max():.6g}" if len(margin) else ""
        by = f"by {least:g}" if least > 0 else "at all"
        raise DataError(f"no question has two traces whose values differ {by}{also}, so there are no pairs{found}.")
    return is_wide


LABEL_FIELDS = ("is_correct", "correct", "is_right", "right", "passed")
"""Names of fields that usually say whether a trace is right."""


Fields = Callable[[IntArray, LabelColumns | None], SampleFields]
"""A function from rows of a table and the labels of all its rows to the fields of these rows."""


def warning_of_labels(table: ScoreTable, given: LabelColumns | None, fields: Fields, rejected: IntArray) -> str:
    """Return a warning of pairs whose chosen trace is wrong and rejected trace right, by labels that are known.

    They are the labels that the values were learned from, else those of the format, else a field with a usual name.
    Labels that were given or learned from, but say nothing of the pairs, are named, too. Empty without any.
    """
    chosen = np.flatnonzero(rejected >= 0)
    rows, place = np.unique([chosen, rejected[chosen]], return_inverse=True)
    learned, noted, labels = table.note.learned, table.note.labels, given
    untold = "" if given is None else "--labels was given without --right, so no pair was compared with the labels."
    try:
        if learned and noted and (given is None or given.note.sha256 != noted.sha256):
            labels = join_labels(noted, table.table["sample_id"])
        found = fields(rows, labels)
        right, condition = _is_right(learned.labels) if learned else _usual_right(found.records())
        is_right, is_wrong, _ = found.truth(condition, "--right")
    except (GraceStoreError, OSError) as error:  # a field that cannot be read as a label is none
        if learned:
            untold = f"No pair was compared with the labels that the values were learned from: {error}"
        is_right = is_wrong = np.zeros(0, dtype=np.bool_)
    if not (is_right | is_wrong).any():
        return untold
    better, worse = place.reshape(2, -1)
    if not (num := int((is_wrong[better] & is_right[worse]).sum())):
        return ""
    of = f"In {num} of {counted(len(chosen), 'pair')} the chosen trace is wrong and the rejected one right"
    more = "" if labels is given or noted is None else f"--labels {shlex.quote(noted.path)} "
    return f"{of}, by {right}. To choose only right traces, give {more}--right {shlex.quote(right)}."


def _is_right(labels: LabelsNote) -> tuple[str, str]:
    """Return the condition of a right trace, as a user writes it and as it is tried."""
    conditions = {"first_wrong": f'"{labels.field}" = -1', "wrong_steps": f'json_array_length("{labels.field}") = 0'}
    right = conditions.get(labels.says, labels.field)
    return right, right


def _usual_right(records: SampleRecords) -> tuple[str, str]:
    """Return the condition of a right trace, by the labels of the format or by a field with a usual name, or raise."""
    if (known := format_labels(records.store)) is not None:
        return _is_right(known)
    for names in ([] if records.labels is None else records.labels.names, records.first_fields()):
        if right := next((name for name in LABEL_FIELDS if name in names), None):
            return right, f"iif({right} in (0, 1), {right}, null)"  # letters are answers, and no labels
    raise SettingError("no field has a name by which labels are known")
