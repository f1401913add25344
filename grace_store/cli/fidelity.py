"""grace-store fidelity"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import print_result
from grace_store.cli.options import COUNT, NATURAL, OUT_JSON, OUT_SVG, PLACE, TEXT, command, option
from grace_store.cli.progress import ProgressDisplay


@command(
    "grace-store fidelity traces.zarr --samples 64",
    "grace-store fidelity traces.zarr --model ./model --signal checkpoint-100 --layers 4 --figure fidelity.svg",
)
@shared.store
@option("--model", PLACE, "Model of the signal, if it has moved. [default: where it was]")
@option("--adapter", PLACE, "Adapter of the signal, if it has moved. [default: where it was]")
@option("--signal", TEXT, "Signal to measure, of kind proxy. [default: the only one]")
@option("--samples", COUNT, "Number of random samples whose gradients are computed.", "num_samples", default=64)
@shared.ratio
@shared.grace
@option("--layers", COUNT, "Measure each of this many groups of layers by itself, too. [default: all layers together]")
@option("--lora/--no-lora", bool, "Measure over the adapter's own parameters, too, if there is one.", default=True)
@option("--seed", NATURAL, "Seed that draws the samples and the intervals.", default=0)
@shared.moved_data
@shared.images
@shared.device
@option("--threads", COUNT, "CPU threads of the model. [default: cores, at most 8]")
@option("--out", OUT_JSON, "JSON file for every number behind the result. [default: not written]")
@option("--figure", OUT_SVG, "SVG file for a picture of the result. [default: not drawn]")
def fidelity(store: str, out: Path | None, figure: Path | None, *, as_json: bool, **settings: Any) -> None:
    """Measure how well GRACE's proxy follows whole gradients.

    Every segment of a few samples takes a backward pass. The alignments of steps with answer and history are computed
    from these gradients, over the parameters that make the last hidden state and over those of the adapter, and
    compared with the proxy's.
    """
    from grace_store.artifacts.outputs import check_results
    from grace_store.curate.fidelity import write_fidelity

    spec = shared.take_score_spec(settings)
    check_results(store, [out, figure])
    with ProgressDisplay(quiet=as_json) as display:
        options = gs.RunOptions(device=settings.pop("device"), threads=settings.pop("threads"))
        layers, data = settings.pop("layers") or 0, settings.pop("data") or None
        request = gs.FidelityRequest(spec=spec, num_layer_groups=layers, data=data, options=options, **settings)
        found = gs.fidelity(store, request, listener=display)
    write_fidelity(found, out, figure)
    written = [path for path in (out, figure) if path is not None]
    print_result(found.document.to_json(), _print, store, found.document, written, as_json=as_json)


def _print(store: str, found: gs.FidelityDocument, written: list[Path]) -> None:
    from grace_store.curate.fidelity import shown_agreement

    click.echo(found.conclusion)
    amount = f"{counted(found.num_samples, 'sample')}, {counted(found.num_steps, 'step')}"
    click.echo(f"{store}: the proxy of signal {found.signal} against gradients, {amount}")
    width = max(len("over parameters"), *map(len, found.spaces)) + 2
    columns = ("answer alignment", "history alignment", "value", f"best {found.ratio} shared")
    click.echo(f"  {'over parameters':<{width}}" + "".join(f"{name:>24}" for name in columns))
    for name, space in found.spaces.items():
        pairs = (space.answer_alignment, space.history_alignment, space.value)
        cells = [shown_agreement(each) for each in pairs]
        cells.append(f"{space.chosen.jaccard:.2f} ({space.chosen.low:.2f} to {space.chosen.high:.2f})")
        click.echo(f"  {name:<{width}}" + "".join(f"{cell:>24}" for cell in cells))
    click.echo(
        f"  Rank correlations with 95 % intervals over samples; two random choices would share {found.by_chance:.2f}."
    )
    for path in written:
        click.echo(f"  written: {path}")
