"""grace-store plan"""

from collections.abc import Iterator
from typing import Any

import click

import grace_store as gs
from grace_store.base.events import Event, Warned
from grace_store.base.states import flag_lines
from grace_store.base.text import counted, percent
from grace_store.cli import shared
from grace_store.cli.console import escape_controls, log, print_result
from grace_store.cli.options import COUNT, PLACE, command, config_option, flag, option, pick
from grace_store.cli.progress import ProgressDisplay
from grace_store.data.formats.known_formats import FORMATS
from grace_store.data.formats.mapped import MAPPED_FORMAT
from grace_store.data.parse_records import chosen_format
from grace_store.run.record_tally import RecordTally, advise, ask_for_min_steps

_DESCRIBED = (*FORMATS.values(), MAPPED_FORMAT)
FORMAT_LIST = "\n".join(["\b\nFormats:", *(f"  {each.name}: {each.description}" for each in _DESCRIBED)])
MARKERS = """
\b
Steps by a marker: --splitter 'marker:REGEX' begins a step at every line that matches
the regular expression at its start. With 'marker:\\(\\d+\\)' the response
    (1) 3 bags of 4 apples are 12.
        That is a dozen.
    (2) Two are eaten, so 10 are left.
    Answer: 10
has two steps, one of two lines and one of one line. With --answer 'marker:^Answer:',
the answer begins at its last line."""


@command(
    "grace-store plan traces.zarr traces.jsonl --dry-run           # look first: nothing is written",
    "grace-store plan traces.zarr traces.jsonl",
    "grace-store plan traces.zarr traces/ --splitter lines --answer 'marker:^Final answer:'",
    "grace-store plan traces.zarr samples-*.jsonl --gather         # traces of one prompt share its work",
    "grace-store plan aqua.zarr aqua.json --map prompt=question --map options=options \\\n"
    "      --map response=rationale --map answer=correct --min-steps 2",
    about=f"{FORMAT_LIST}\n{MARKERS}\n\n",
)
@shared.store
@click.argument("data", nargs=-1, required=True, type=click.Path())
@flag(
    "--dry-run",
    "Write nothing. Show how the records are read, which records are set aside, and how many traces --min-steps keeps.",
)
@option("--images", PLACE, "Folder of the images. Missing images are reported. [default: images are not checked]")
@option(
    "--workers",
    COUNT,
    "Number of processes that read records. [default: depends on the number of cores and the size of DATA]",
)
@shared.data_spec
@config_option
def plan(store: str, data: tuple[str, ...], dry_run: bool, *, as_json: bool, **wishes: Any) -> None:
    """Read a dataset and write the plan of a new store.

    STORE is the path or bucket URL of the new store. DATA are files or folders. This command is optional: `extract`
    also plans a new store. Records that cannot be used are set aside with a reason, and `status` counts them. Until a
    signal is extracted, other settings or data replace the plan. Settings that are not given stay as they were planned.
    """
    request = gs.DataSpec(**pick(wishes, gs.DataSpec))
    reading = {"images": wishes["images"], "workers": wishes["workers"]}
    if dry_run:
        with ProgressDisplay() as display:
            found = gs.preview(data, request, store=store, **reading, listener=display)
        print_result(found.to_json(), click.echo, escape_controls("\n".join(preview_lines(found))), as_json=as_json)
        return
    with _RememberedWarnings() as heard:
        sizes = {"samples_per_unit": wishes["unit_samples"]}
        planned = gs.plan(data, store, request, **reading, **sizes, anew=True, listener=heard)
    print_result(gs.status(planned).model_dump(mode="json"), _print, store, planned, heard.warnings, as_json=as_json)


class _RememberedWarnings(ProgressDisplay):
    """A display that also remembers warnings, because the command repeats them at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, Warned):
            self.warnings.append(event.text)


def _print(store: str, planned: gs.Store, warnings: list[str]) -> None:
    frozen = planned.plan
    log.print(f"Read as {frozen.spec.format}.", markup=False)
    units = counted(frozen.num_units, "unit")
    click.echo(f"{store}: {frozen.num_samples} of {counted(frozen.num_records, 'record')} planned in {units}.")
    for reason, count in frozen.set_aside.items():
        click.echo(f"  {count} set aside: {reason}")
    for line in flag_lines(frozen.flagged):
        click.echo(f"  {line}")
    for text in warnings:
        click.echo(escape_controls(text))
    if not warnings and 2 * frozen.num_samples < frozen.num_records:
        click.echo("Most records are set aside. The same command with --dry-run shows why, and what would keep them.")


# ---------------------------------------------------------------- the text of --dry-run

MOST_BARS = 16
"""Largest number of bars; with more numbers of steps, several numbers share a bar."""
TEXT_CHARS = 160
STEPS_SHOWN = 12


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
