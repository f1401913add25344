"""grace-store support"""

from pathlib import Path

import click

import grace_store as gs
from grace_store.base.files import write_text
from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import print_json
from grace_store.cli.options import OUT_JSON, command, option


@command(
    "grace-store support traces.zarr --out support.json            # after a run that failed",
    "grace-store support --json                                    # this machine and its devices alone",
)
@shared.optional_store
@option("--out", OUT_JSON, "JSON file to send.", default="support.json")
def support(store: str | None, out: Path, *, as_json: bool) -> None:
    """Write a file about a failed run, without any trace's text.

    The file has versions, devices with a short probe of each device, the settings of STORE and the logs of its last
    runs. It has no names of folders, and only those environment variables that choose devices. Read the file before you
    send it.
    """
    found = gs.support(store)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    write_text(out, found.model_dump_json(indent=1) + "\n")
    listed = found.devices["listed"]
    for each in listed:
        click.echo(f"  device {each['device']} {each.get('name', '')}: {each['probe']}")
    if not listed:
        click.echo(f"  no accelerator: {found.devices.get('failure', 'torch sees a CPU only')}")
    click.echo(f"{out}: {counted(len(listed), 'device')}, the logs of {counted(len(found.runs), 'run')}.")
