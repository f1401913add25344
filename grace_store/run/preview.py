"""Show how a dataset would be planned, before anything is written."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from grace_store.base.events import Listener, ignore
from grace_store.base.settings import DataSpec
from grace_store.base.states import flag_lines
from grace_store.base.text import counted, percent
from grace_store.data.dataset import Dataset
from grace_store.data.parse_records import chosen_format
from grace_store.run.plan import check_images, merged_request, tally_dataset
from grace_store.run.record_tally import RecordTally, advise, ask_for_min_steps
from grace_store.store.backend import open_backend
from grace_store.store.opened import Store

MOST_BARS = 16
"""Largest number of bars; with more numbers of steps, several numbers share a bar."""
TEXT_CHARS = 160
STEPS_SHOWN = 12


def preview(
    data: Sequence[str | Path],
    request: DataSpec | None = None,
    *,
    store: str | Path | None = None,
    images: str | None = None,
    workers: int | None = 1,
    listener: Listener = ignore,
) -> RecordTally:
    """Count the records that `plan` would plan or set aside, and write nothing.

    If the store has a plan, settings that are not given come from it. `to_json()` of the result has everything that
    `grace-store plan --dry-run --json` prints.
    """
    check_images(images)
    backend = None if store is None else open_backend(store)
    planned = Store.open(backend).plan if backend is not None and backend.read("zarr.json") is not None else None
    with Dataset.open(data) as dataset:
        merged = merged_request(planned, dataset, request or DataSpec())
        return tally_dataset(dataset, merged, images, workers, listener)


def preview_lines(found: RecordTally) -> Iterator[str]:
    """Yield the preview as lines of text; they may hold control characters from records."""
    settings = ", ".join(f"{name.replace('_', '-')} {text}" for name, text in found.settings.in_words().items())
    yield f"{found.num_planned} of {counted(found.num_records, 'record')} would be planned. Nothing is written."
    yield f"Read as {found.settings.format} ({chosen_format(found.settings).description})."
    yield f"Settings: {settings}."
    if found.settings.expand:
        yield f"Each element of {found.settings.expand!r} counts as a record."
    yield from found.several_in_words()
    if found.num_questions is not None:
        yield f"Samples of {counted(found.num_questions, 'question')} would be gathered."
    if found.num_images_missing:
        yield f"{counted(found.num_images_missing, 'image')} named by records could not be found."
    for section in (_histogram, _kept, _reasons, _unread_keys, _flags, _trace_lines):
        lines = list(section(found))
        yield from ["", *lines] if lines else []
    if found.needs_min_steps:
        yield from ("", ask_for_min_steps(found))
    elif found.loses_most:
        lost = f"{found.num_set_aside} of {counted(found.num_records, 'record')}"
        yield ""
        yield f"Most records would be set aside: {lost}. {advise(found) or 'No tested setting keeps more'}."


def _histogram(found: RecordTally) -> Iterator[str]:
    """Yield a bar for each number of steps, or for each range of numbers."""
    yield f"Steps of {counted(found.num_steps.total(), 'trace')}:"
    if not found.num_steps:
        return
    low, high = min(found.num_steps), max(found.num_steps)
    width = -(-(high - low + 1) // MOST_BARS)
    groups = [range(start, min(start + width, high + 1)) for start in range(low, high + 1, width)]
    counts = [sum(found.num_steps[steps] for steps in group) for group in groups]
    for group, count in zip(groups, counts, strict=True):
        name = str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}"
        yield f"  {name:>9}  {count:>9}  {'█' * -(-40 * count // max(counts))}"


def _kept(found: RecordTally) -> Iterator[str]:
    """Yield the number of records that each --min-steps would keep: up to 10, every tenth, and the current one."""
    yield f"Records that --min-steps would keep, of {counted(found.num_records, 'record')}:"
    for min_steps, num_kept in found.kept_by():
        is_set = min_steps == found.settings.min_steps
        if is_set or min_steps <= 10 or min_steps % 10 == 0:
            # The plan keeps only the first of several records with one id.
            kept = found.num_planned if is_set else num_kept
            share = percent(kept / max(found.num_records, 1))
            yield f"  {min_steps:>9}  {kept:>9}  {share:>9}{'  current setting' if is_set else ''}"


def _reasons(found: RecordTally) -> Iterator[str]:
    yield "Set aside, with the first record of each kind:" if found.set_aside else "No record is set aside."
    for each in found.first_set_aside():
        name = "" if each["sample_id"] is None else f", id {_short(each['sample_id'])}"
        yield f"  {each['count']:>9}  {each['reason']}"
        yield f"{'':13}{each['place']}{name}: {_short(each['detail']) or 'no details'}"
        yield f"{'':13}{_short(each['record'])}"


def _unread_keys(found: RecordTally) -> Iterator[str]:
    if found.unread_keys:
        yield "Keys that no reader understands yet, and how many records have each:"
    for key, count in found.unread_keys.most_common():
        yield f"  {count:>9}  {key:<18} --ignore-key {key} reads records without it"


def _flags(found: RecordTally) -> Iterator[str]:
    lines = flag_lines(found.flagged)
    yield "Doubtful texts, by flag:" if lines else "No text is flagged."
    yield from (f"  {line}" for line in lines)


def _trace_lines(found: RecordTally) -> Iterator[str]:
    traces = list(found.first_traces())
    yield "How traces are split:" if traces else "No trace can be split."
    for each in traces:
        note = "" if each["is_planned"] else ", set aside for its number of steps"
        yield f"  {_short(each['sample_id'])} (row {each['row']}, {counted(len(each['steps']), 'step')}{note})"
        yield f"    prompt   {_short(each['prompt'])}"
        shown = list(enumerate(each["steps"], start=1))
        gap = len(shown) - STEPS_SHOWN
        for number, step in shown if gap <= 0 else shown[: STEPS_SHOWN - 1]:
            yield f"    step {number:<3} {_short(step)}"
        if gap > 0:
            yield f"    ...      {counted(gap, 'step')} more"
            yield f"    step {len(shown):<3} {_short(each['steps'][-1])}"
        yield f"    answer   {_short(each['answer'])}"


def _short(text: str) -> str:
    """Return text on one line, with line breaks as \\n, cut after TEXT_CHARS characters."""
    spelled = text.strip().replace("\n", "\\n").replace("\t", "\\t")
    return spelled if len(spelled) <= TEXT_CHARS else f"{spelled[:TEXT_CHARS]}..."
