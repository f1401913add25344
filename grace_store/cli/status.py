"""grace-store status"""

from __future__ import annotations

import click

import grace_store as gs
from grace_store.base.text import counted, size
from grace_store.cli import shared
from grace_store.cli.console import harmless, print_json
from grace_store.cli.options import TEXT, command, flag, option


@command(
    "grace-store status traces.zarr",
    "grace-store status traces.zarr --list                         # every record that was set aside, and why",
)
@shared.store
@option("--signal", TEXT, "Signal whose samples are counted. [default: the least finished one]")
@flag("--list", "List every record that was set aside, with the reason.", "list_all")
def status(store: str, signal: str | None, *, list_all: bool, as_json: bool) -> None:
    """Count the records that are planned, done and set aside."""
    from grace_store.run.status import set_aside_rows

    opened = gs.open_store(store)
    counts = gs.status(opened, signal)
    if as_json:
        listed = {"set_aside_records": list(set_aside_rows(opened, counts.signal))} if list_all else {}
        print_json(counts.model_dump(mode="json") | listed)
        return
    click.echo(f"{store}: {counted(counts.num_records, 'record')}")
    click.echo(f"  {counts.num_done:>9} done{f' in signal {counts.signal}' if counts.signal else ''}")
    click.echo(f"  {counts.num_planned:>9} planned, to be done")
    click.echo(f"  {counts.num_set_aside:>9} set aside")
    for reason, number in counts.set_aside.items():
        click.echo(f"  {'':>9}   {number} {reason}")
    for name, each in counts.signals.items():
        state = "complete" if each.is_complete else f"{each.num_units_done} of {counted(each.num_units, 'unit')}"
        click.echo(f"  signal {name}: {state}, {counted(each.num_done, 'sample')}, {size(each.num_bytes)}")
    if not counts.signals:
        click.echo("  no signal yet: run `grace-store extract`")
    if list_all:
        for record in set_aside_rows(opened, counts.signal):
            click.echo(f"  row {record['row']} ({record['place']}): {record['reason']}: {harmless(record['detail'])}")
