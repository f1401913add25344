"""grace-store fidelity"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grace_store.base.text import counted
from grace_store.cli.console import print_json
from grace_store.cli.options import (
    OUT_FILE,
    as_json,
    device_option,
    grace_options,
    images_option,
    moved_data_option,
    ratio_option,
    score_spec,
    store_argument,
)
from grace_store.cli.progress import ProgressDisplay

if TYPE_CHECKING:
    from grace_store.artifacts.fidelity_document import FidelityDocument

EPILOG = """\b
Examples:
  grace-store fidelity traces.zarr --samples 64
  grace-store fidelity traces.zarr --model ./model --signal checkpoint-100 --layers 4 --figure fidelity.svg
"""


@click.command(epilog=EPILOG)
@store_argument
@click.option("--model", type=click.Path(), help="Model of the signal, if it has moved. [default: where it was]")
@click.option("--adapter", type=click.Path(), help="Adapter of the signal, if it has moved. [default: where it was]")
@click.option("--signal", help="Signal to measure, of kind proxy. [default: the only one]")
@click.option(
    "--samples",
    "num_samples",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Number of random samples whose gradients are computed.",
)
@ratio_option
@grace_options
@click.option(
    "--layers",
    type=click.IntRange(1),
    help="Measure each of this many groups of layers by itself, too. [default: all layers together]",
)
@click.option(
    "--lora/--no-lora",
    default=True,
    show_default=True,
    help="Measure over the adapter's own parameters, too, if there is one.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed that draws the samples and the intervals.",
)
@moved_data_option
@images_option
@device_option
@click.option("--threads", type=click.IntRange(1), help="CPU threads of the model. [default: cores, at most 8]")
@click.option("--out", type=OUT_FILE, help="JSON file for every number behind the result. [default: not written]")
@click.option(
    "--figure",
    type=click.Path(dir_okay=False, path_type=Path),
    help="SVG file for a picture of the result. [default: not drawn]",
)
@as_json
def fidelity(
    store: str,
    model: str | None,
    layers: int | None,
    data: tuple[str, ...],
    device: str,
    threads: int | None,
    out: Path | None,
    figure: Path | None,
    *,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure how well GRACE's proxy follows whole gradients.

    Every segment of a few samples takes a backward pass. The alignments of steps with answer and history are computed
    from these gradients, over the parameters that make the last hidden state and over those of the adapter, and
    compared with the proxy's.
    """
    from grace_store.artifacts.outputs import check_results
    from grace_store.base.settings import RunOptions
    from grace_store.curate.fidelity import FidelityRequest
    from grace_store.curate.fidelity import fidelity as run
    from grace_store.pages.fidelity_picture import write_fidelity

    spec = score_spec(settings)
    check_results(store, [out, figure])
    with ProgressDisplay(quiet=as_json) as display:
        request = FidelityRequest(
            spec=spec,
            model=model,
            num_layer_groups=layers or 0,
            data=data or None,
            options=RunOptions(device=device, threads=threads),
            **settings,
        )
        found = run(store, request, listener=display)
    write_fidelity(found, out, figure)
    if as_json:
        print_json(found.document.to_json())
        return
    _print(store, found.document)
    for path in filter(None, (out, figure)):
        click.echo(f"  written: {path}")


def _print(store: str, found: FidelityDocument) -> None:
    amount = f"{counted(found.num_samples, 'sample')}, {counted(found.num_steps, 'step')}"
    click.echo(f"{store}: the proxy of signal {found.signal} against gradients, {amount}")
    width = max(len("over parameters"), *map(len, found.spaces)) + 2
    columns = ("answer alignment", "history alignment", "value", f"best {found.ratio} shared")
    click.echo(f"  {'over parameters':<{width}}" + "".join(f"{name:>24}" for name in columns))
    for name, space in found.spaces.items():
        pairs = (space.answer_alignment, space.history_alignment, space.value)
        cells = [f"{each.correlation:.2f} ({each.low:.2f} to {each.high:.2f})" for each in pairs]
        cells.append(f"{space.chosen.jaccard:.2f} ({space.chosen.low:.2f} to {space.chosen.high:.2f})")
        click.echo(f"  {name:<{width}}" + "".join(f"{cell:>24}" for cell in cells))
    click.echo(
        f"  Rank correlations with 95 % intervals over samples; two random choices would share {found.by_chance:.2f}."
    )


COMMAND = fidelity
