"""grace-store score, select"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from grace_store.cli.console import print_json
from grace_store.cli.options import as_json, store_argument


@click.command(epilog="\b\nExample:\n  grace-store score traces.zarr --out scores.parquet --history ema:0.8")
@store_argument
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The Parquet table.")
@click.option("--signal", help="Which signal. [default: the only one]")
@click.option("--alpha", type=float, default=0.7, show_default=True, help="Weight of the answer against history.")
@click.option("--history", default="uniform", show_default=True, help="uniform, window:W or ema:B.")
@click.option("--target", type=click.Choice(["answer", "trace", "suffix"]), default="answer", show_default=True)
@click.option("--partial", is_flag=True, help="Score what is there of an unfinished signal.")
@as_json
def score(
    store: str, out: Path, signal: str | None, alpha: float, history: str, target: str, *, partial: bool, as_json: bool
) -> None:
    """Make a table of step scores and values from a store, without model or GPU."""
    from grace_store.job.scoring import score as run
    from grace_store.score import ScoreSpec
    from grace_store.store import Store

    spec = ScoreSpec.parse(alpha=alpha, history=history, target=target)
    num_samples = run(Store.open(store).signal(signal), spec, out, partial=partial)
    result: dict[str, Any] = {"out": str(out), "num_samples": num_samples, "spec": spec.model_dump(mode="json")}
    if as_json:
        print_json(result)
    else:
        click.echo(f"{out}: {num_samples} samples scored.")


@click.command(epilog="\b\nExample:\n  grace-store select scores.parquet --ratio 0.2 --out subset.jsonl")
@click.argument("scores", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--ratio", default="0.2", show_default=True, help="Share of the samples to keep.")
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The subset.")
@click.option(
    "--as", "as_format", type=click.Choice(["source", "ids"]), default="source", show_default=True,
    help="Records as they stand in the dataset, or ids.",
)  # fmt: skip
@click.option("--data", multiple=True, type=click.Path(), help="Where the dataset is now.")
@as_json
def select(scores: Path, ratio: str, out: Path, as_format: Any, data: tuple[str, ...], *, as_json: bool) -> None:
    """Write the best samples of SCORES as the user's own records."""
    from grace_store.job.selecting import select as run

    subset = run(scores, ratio, out, as_format, data or None)
    result = {
        "out": str(out),
        "num_samples": len(subset.chosen),
        "num_with_value": subset.num_with_value,
        "threshold": subset.threshold,
    }
    if as_json:
        print_json(result)
    else:
        click.echo(
            f"{out}: {len(subset.chosen)} of {subset.num_with_value} samples, value {subset.threshold:.4f} and above."
        )
