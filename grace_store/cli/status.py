"""grace-store status"""

import click

import grace_store as gs
from grace_store.base.settings import short
from grace_store.base.text import counted, size
from grace_store.cli import shared
from grace_store.cli.console import escape_controls, print_json
from grace_store.cli.options import TEXT, command, flag, option
from grace_store.run.status import set_aside_rows

FILES_SHOWN = 20


@command(
    "grace-store status traces.zarr",
    "grace-store status traces.zarr --list                         # every record that was set aside, and why",
)
@shared.store
@option("--signal", TEXT, "Signal to count. [default: the signal with the fewest finished units]")
@flag("--list", "List every record that was set aside, with the reason.", "list_all")
def status(store: str, signal: str | None, *, list_all: bool, as_json: bool) -> None:
    """Show the progress, settings and sources of a store.

    The output has the counts, then each signal with its model and settings, then the plan with its files and settings.
    --json has the complete documents, with all digests.
    """
    opened = gs.open_store(store)
    found = gs.status(opened, signal)
    if as_json:
        listed = {"set_aside_records": list(set_aside_rows(opened, found.signal))} if list_all else {}
        print_json(found.model_dump(mode="json") | listed)
        return
    click.echo(f"{store}: {counted(found.num_records, 'record')}")
    click.echo(f"  {found.num_done:>9} done{f' in signal {found.signal}' if found.signal else ''}")
    click.echo(f"  {found.num_planned:>9} planned, to be done")
    click.echo(f"  {found.num_set_aside:>9} set aside")
    for reason, number in found.set_aside.items():
        click.echo(f"  {'':>9}   {number} {reason}")
    for name, who in found.running.items():
        click.echo(f"  a run is under way: {name}, by {escape_controls(who)}")
    for name in found.signals:
        _print_signal(found, name)
    if not found.signals:
        click.echo("  no signal yet: run `grace-store extract`")
    plan = found.plan
    units = f"{counted(plan.num_units, 'unit')} of {plan.samples_per_unit}"
    click.echo(
        f"  plan: {counted(plan.num_samples, 'sample')} in {units}; format {plan.format_version}, {plan.created_by}"
    )
    for file in plan.files[:FILES_SHOWN]:
        amount = f"{counted(file.num_records, 'record')}, {size(file.num_bytes)}"
        click.echo(f"    {file.path}: {amount}, sha256 {file.sha256[:12]}…")
    if len(plan.files) > FILES_SHOWN:
        click.echo(f"    and {len(plan.files) - FILES_SHOWN} more files, which --json lists")
    click.echo("    " + ", ".join(f"{name} {text}" for name, text in plan.spec.in_words().items()))
    if list_all:
        for record in set_aside_rows(opened, found.signal):
            click.echo(
                f"  row {record['row']} ({record['place']}): {record['reason']}: {escape_controls(record['detail'])}"
            )


def _print_signal(found: gs.Status, name: str) -> None:
    counts, document = found.signals[name], found.documents[name]
    state = "complete" if counts.is_complete else f"{counts.num_units_done} of {counted(counts.num_units, 'unit')}"
    click.echo(f"  signal {name}: {state}, {counted(counts.num_done, 'sample')}, {size(counts.num_bytes)}")
    spec = document.spec
    per = "sample" if spec.is_per_sample else "segment"
    click.echo(f"    {spec.kind}, {spec.model.architecture}, a vector of {spec.vector_size} per {per}")
    click.echo(f"    model {document.origin.get('model', '?')}, weights {short(spec.model.weights)}")
    if spec.model.adapter is not None:
        click.echo(f"    adapter {document.origin.get('adapter', '?')}, {short(spec.model.adapter)}")
    settings = spec.model_dump(exclude={"model", "kind", "gradient"}, exclude_none=True)
    if spec.gradient is not None:
        settings |= spec.gradient.model_dump(exclude_none=True)
    click.echo("    " + ", ".join(f"{key} {short(value)}" for key, value in settings.items()))
    if (sharing := found.sharing.get(name)) is not None:
        click.echo(f"    {sharing.in_words()}")
    if (damage := found.damaged_sharing.get(name)) is not None:
        click.echo(f"    damaged: {damage}")
