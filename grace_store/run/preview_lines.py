"""A preview of a plan as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from grace_store.base.flags import flag_lines
from grace_store.base.text import counted, percent
from grace_store.run.preview import Preview, ReasonExample, ShownTrace

BAR_CHARS = 40
MOST_BARS = 16
"""Numbers of steps that have a line of their own; more of them share lines."""
TEXT_CHARS = 160
STEPS_SHOWN = 12


def preview_lines(found: Preview) -> Iterator[str]:
    """Yield how a dataset would be planned; control characters of records are still in it."""
    settings = ", ".join(f"{name.replace('_', '-')} {text}" for name, text in found.settings.in_words().items())
    yield f"{found.num_planned} of {counted(found.num_records, 'record')} would be planned; nothing is written."
    yield f"Settings: {settings}."
    if found.num_questions is not None:
        yield f"Samples of {counted(found.num_questions, 'question')} would be gathered."
    if found.num_images_missing:
        yield f"{counted(found.num_images_missing, 'image')} named by records could not be found."
    for lines in (
        _histogram(found),
        _kept(found),
        _reasons(found.examples),
        *([_unread_keys(found.unread_keys)] if found.unread_keys else []),
        _flags(found),
        _traces(found.traces),
    ):
        yield ""
        yield from lines
    if 2 * found.num_set_aside > found.num_records:
        lost = f"{found.num_set_aside} of {counted(found.num_records, 'record')}"
        yield ""
        yield f"Most records would be set aside: {lost}. {found.advice or 'No other setting tried keeps more'}."


def _histogram(found: Preview) -> Iterator[str]:
    """Yield a bar for each number of steps, or for each few of them."""
    yield f"Steps of {counted(sum(found.num_steps.values()), 'trace')}:"
    if not found.num_steps:
        return
    low, high = min(found.num_steps), max(found.num_steps)
    width = -(-(high - low + 1) // MOST_BARS)
    groups = [range(start, min(start + width, high + 1)) for start in range(low, high + 1, width)]
    counts = [sum(found.num_steps.get(steps, 0) for steps in group) for group in groups]
    for group, count in zip(groups, counts, strict=True):
        name = str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}"
        yield f"  {name:>9}  {count:>9}  {'█' * -(-BAR_CHARS * count // max(counts))}"


def _kept(found: Preview) -> Iterator[str]:
    """Yield what each --min-steps would keep: all small ones, then fewer, and always the one that is set."""
    yield f"What --min-steps would keep of {counted(found.num_records, 'record')}:"
    for each in found.kept_by:
        is_set = each.min_steps == found.settings.min_steps
        if is_set or each.min_steps <= 10 or each.min_steps % 10 == 0:
            # As it would be planned: of several records with one id, the first is kept.
            kept = found.num_planned if is_set else each.num_kept
            share = percent(kept / max(found.num_records, 1))
            yield f"  {each.min_steps:>9}  {kept:>9}  {share:>9}{'  as it is set' if is_set else ''}"


def _reasons(examples: Sequence[ReasonExample]) -> Iterator[str]:
    yield "Set aside, with the first record of each kind:" if examples else "No record is set aside."
    for each in examples:
        name = "" if each.sample_id is None else f", id {_short(each.sample_id)}"
        yield f"  {each.count:>9}  {each.reason}"
        yield f"{'':13}{each.place}{name}: {_short(each.detail) or 'no more is known'}"
        yield f"{'':13}{_short(each.record)}"


def _unread_keys(counts: Mapping[str, int]) -> Iterator[str]:
    yield "Keys that no reader understands yet, and how many records have each:"
    for key, count in counts.items():
        yield f"  {count:>9}  {key:<18} --ignore-key {key} reads records without it"


def _flags(found: Preview) -> Iterator[str]:
    lines = flag_lines(found.flagged)
    yield "Doubtful texts, by flag:" if lines else "No text is flagged."
    yield from (f"  {line}" for line in lines)


def _traces(traces: Sequence[ShownTrace]) -> Iterator[str]:
    yield "How traces are split:" if traces else "No trace can be split."
    for each in traces:
        note = "" if each.is_planned else ", set aside for its number of steps"
        yield f"  {_short(each.sample_id)} (row {each.row}, {counted(len(each.steps), 'step')}{note})"
        yield f"    prompt   {_short(each.prompt)}"
        shown = list(enumerate(each.steps, start=1))
        gap = len(shown) - STEPS_SHOWN
        for number, step in shown if gap <= 0 else shown[: STEPS_SHOWN - 1]:
            yield f"    step {number:<3} {_short(step)}"
        if gap > 0:
            yield f"    ...      {counted(gap, 'step')} more"
            yield f"    step {len(shown):<3} {_short(each.steps[-1])}"
        yield f"    answer   {_short(each.answer)}"


def _short(text: str) -> str:
    """Return text on one line, line breaks spelled out, cut where it is long."""
    spelled = text.strip().replace("\n", "\\n").replace("\t", "\\t")
    return spelled if len(spelled) <= TEXT_CHARS else f"{spelled[:TEXT_CHARS]}..."
