"""grace-store plan"""

from typing import Any

import click

import grace_store as gs
from grace_store.base.events import Event, Warned
from grace_store.base.states import flag_lines
from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import escape_controls, log, print_result
from grace_store.cli.options import COUNT, PLACE, command, config_option, flag, option, pick
from grace_store.cli.progress import ProgressDisplay
from grace_store.data.formats.known_formats import FORMATS
from grace_store.data.formats.mapped import MAPPED_FORMAT
from grace_store.run.preview import preview_lines

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
        text = escape_controls("\n".join(preview_lines(found)))
        print_result(found.to_json(), click.echo, text, as_json=as_json)
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
