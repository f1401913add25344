"""grace-store repair"""

from __future__ import annotations

from typing import Any

import click

import grace_store as gs
from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import print_json, stoppable
from grace_store.cli.options import PLACE, command, option, pick
from grace_store.cli.progress import ProgressDisplay


@command("grace-store repair traces.zarr --model ./model")
@shared.store
@option("--model", PLACE, "Model folder or .gguf file, if it has moved. [default: where it was]")
@shared.moved_data
@shared.images
@shared.speed
def repair(store: str, model: str | None, data: tuple[str, ...], *, as_json: bool, **speed: Any) -> None:
    """Redo exactly what a deep verify finds broken.

    Broken units are extracted again, damaged metadata is written again, and files that killed runs left are deleted.
    """
    options = gs.RunOptions(**pick(speed, gs.RunOptions))
    job = gs.ExtractJob(store, model=model, data=data, options=options, images=speed["images"])
    with ProgressDisplay() as display, stoppable() as stop:
        mended = gs.repair(job, display, stop)
    if as_json:
        print_json({"store": store, "mended": [problem.to_json() for problem in mended]})
    else:
        click.echo(f"{store}: {counted(len(mended), 'problem')} mended." if mended else f"{store}: nothing to mend.")
