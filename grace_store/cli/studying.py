"""grace-store stability, fidelity"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grace_store.base.text import counted
from grace_store.cli.console import ProgressDisplay, print_json
from grace_store.cli.options import LocalPath, as_json, images_option, store_argument
from grace_store.cli.scoring import grace_options, partial_option, threads_option

if TYPE_CHECKING:
    from grace_store.curate.fidelity import Fidelity
    from grace_store.curate.stability import Stability
    from grace_store.values.survival import Survival

EPILOG = """\b
Examples:
  grace-store stability traces.zarr --ratio 0.2
  grace-store stability traces.zarr --signal checkpoint-100 --against seed-2 --against checkpoint-25
"""


@click.command(epilog=EPILOG)
@store_argument
@click.option("--signal", help="The signal to choose by. [default: the only one]")
@click.option("--against", multiple=True, help="Another signal; may be repeated. [default: all others]")
@click.option("--ratio", default="0.2", show_default=True, help="Share that is chosen.")
@grace_options
@click.option("--draws", type=click.IntRange(1), default=200, show_default=True, help="For the intervals.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the draws.")
@partial_option
@threads_option
@as_json
def stability(
    store: str, signal: str | None, against: tuple[str, ...], ratio: str, draws: int, seed: int, partial: bool,
    threads: int | None, *, as_json: bool, **settings: Any,
) -> None:  # fmt: skip
    """Say how much of a subset survives what might have come out otherwise.

    The same choice by other signals in STORE (another checkpoint, warm-up seed or warm-up size), from vectors stored
    with less precision, and with each trace's steps drawn anew. 1 is the same subset.
    """
    from dataclasses import asdict

    from grace_store.curate.stability import measure_stability
    from grace_store.values.score_spec import ScoreSpec

    found = measure_stability(
        store,
        ScoreSpec.parse(**{name: value for name, value in settings.items() if value is not None}),
        signal=signal,
        against=against or None,
        ratio=ratio,
        draws=draws,
        seed=seed,
        partial=partial,
        threads=threads,
    )
    if as_json:
        print_json({"store": store, **asdict(found)})
        return
    _show(store, found)


def _show(store: str, found: Stability) -> None:
    of = counted(found.num_samples, "sample")
    click.echo(f"{store}: the best {found.num_chosen} of {of} by signal {found.signal}")
    rows: list[tuple[str, Survival]] = [(f"signal {name}", each) for name, each in found.signals.items()]
    rows += [(f"from vectors as {name}", each) for name, each in found.storages.items()]
    rows += [("steps drawn anew", found.steps)] if found.steps is not None else []
    width = max([len("two random subsets"), *(len(name) for name, _ in rows)]) + 2
    click.echo(f"  {'shared with':<{width}}{'Jaccard':>8}{'95 %':>18}{'samples':>10}")
    for name, each in rows:
        span = f"{each.low:.3f} to {each.high:.3f}"
        click.echo(f"  {name:<{width}}{each.jaccard:>8.3f}{span:>18}{each.num_samples:>10}")
    click.echo(f"  {'two random subsets':<{width}}{found.by_chance:>8.3f}")
    if found.skipped:
        click.echo(f"  Left out, with one vector a sample and no steps: {', '.join(found.skipped)}.")
    if not found.signals:
        click.echo(
            "  There is no other signal with steps: `warmup --seed 1 --out other`, then `extract --adapter other`, "
            "adds one."
        )


FIDELITY_EPILOG = """\b
Examples:
  grace-store fidelity traces.zarr --samples 64
  grace-store fidelity traces.zarr --model ./model --signal checkpoint-100 --layers 4 --figure fidelity.svg
"""


@click.command(epilog=FIDELITY_EPILOG)
@store_argument
@click.option("--model", type=click.Path(), help="Where the signal's model is now. [default: where it was]")
@click.option("--adapter", type=click.Path(), help="Where its adapter is now. [default: where it was]")
@click.option("--signal", help="The proxy signal to audit. [default: the only one]")
@click.option("--samples", "num_samples", type=click.IntRange(1), default=64, show_default=True, help="How many.")
@click.option("--ratio", default="0.2", show_default=True, help="Share that is chosen.")
@grace_options
@click.option("--layers", type=click.IntRange(1), help="Also for each of so many groups of layers.")
@click.option("--lora/--no-lora", default=True, help="Also over the adapter's own parameters, if there is one.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Which samples, and the draws.")
@click.option("--data", multiple=True, type=click.Path(), help="Where the dataset is now, if it moved.")
@images_option
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads. [default: up to 8]")
@click.option("--out", type=LocalPath(dir_okay=False, path_type=Path), help="Write every number behind it as JSON.")
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture of it as SVG.")
@as_json
def fidelity(
    store: str, num_samples: int, layers: int | None, data: tuple[str, ...], device: str, threads: int | None,
    out: Path | None, figure: Path | None, *, as_json: bool, **settings: Any,
) -> None:  # fmt: skip
    """Say how well the proxy follows whole parameter gradients, on samples of STORE.

    For each sample a backward pass a segment: the true alignments of steps with answer and history, over the
    parameters that make the last hidden state and over those of the adapter, against the proxy's.
    """
    from grace_store.artifacts.outputs import check_results
    from grace_store.base.settings import RunOptions
    from grace_store.curate.fidelity import measure_fidelity
    from grace_store.pages.fidelity_picture import document, write_fidelity
    from grace_store.values.score_spec import ScoreSpec

    names = ("alpha", "history", "target", "without_answer", "aggregation")
    spec = ScoreSpec.parse(**{name: value for name in names if (value := settings.pop(name)) is not None})
    check_results(store, [out, figure])
    with ProgressDisplay(quiet=as_json) as display:
        found = measure_fidelity(
            store, settings.pop("model"), spec, num_samples=num_samples, num_layer_groups=layers or 0,
            data=data or None, options=RunOptions(device=device, threads=threads), listener=display, **settings,
        )  # fmt: skip
    write_fidelity(found, out, figure)
    if as_json:
        click.echo(document(found, raw=False), nl=False)
        return
    _show_fidelity(store, found)
    for path in (out, figure):
        if path is not None:
            click.echo(f"  written: {path}")


def _show_fidelity(store: str, found: Fidelity) -> None:
    click.echo(
        f"{store}: the proxy of signal {found.signal} against gradients, {found.num_samples} samples, "
        f"{found.num_steps} steps"
    )
    width = max(len("over parameters"), *map(len, found.spaces)) + 2
    columns = ("answer alignment", "history alignment", "value", f"best {found.ratio} shared")
    click.echo(f"  {'over parameters':<{width}}" + "".join(f"{name:>24}" for name in columns))
    for name, space in found.spaces.items():
        pairs = (space.answer_alignment, space.history_alignment, space.value)
        cells = [f"{each.correlation:.2f} ({each.low:.2f} to {each.high:.2f})" for each in pairs]
        cells.append(f"{space.chosen.jaccard:.2f} ({space.chosen.low:.2f} to {space.chosen.high:.2f})")
        click.echo(f"  {name:<{width}}" + "".join(f"{cell:>24}" for cell in cells))
    click.echo(
        f"  Rank correlations with 95 % intervals over samples; random choices would share {found.by_chance:.2f}."
    )
