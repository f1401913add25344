"""grace-store sweep"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from grace_store.base.errors import SettingError
from grace_store.base.text import counted
from grace_store.cli.console import ProgressDisplay, out, print_json
from grace_store.cli.options import LocalPath, as_json, engine_options, spread, store_argument
from grace_store.cli.scoring import partial_option, threads_option

EPILOG = """\b
Examples:
  grace-store sweep traces.zarr --out sweep --alpha 0.1:0.9:0.1 --history uniform,window:3,ema:0.8
  grace-store sweep traces.zarr --out sweep --signal each --signal all
  grace-store sweep traces.zarr --out sweep --grid jobs/sweeps/ablations.toml
  grace-store sweep s3://bucket/traces.zarr --out sweep --alpha 0.1:0.9:0.1 --engine ray --address auto
"""


@click.command(epilog=EPILOG)
@store_argument
@click.option(
    "--out", "folder", required=True, type=LocalPath(file_okay=False, path_type=Path),
    help="A new folder, or that of an earlier sweep, which is replaced.",
)  # fmt: skip
@click.option("--grid", type=click.Path(dir_okay=False, path_type=Path), help="Take the grids from a TOML file.")
@click.option("--alpha", help="A list (0.3,0.7) or a range (0.1:0.9:0.1). [default: 0.7]")
@click.option("--history", help="A list, such as uniform,window:3,ema:0.8. [default: uniform]")
@click.option("--target", help="A list of answer, trace, suffix. [default: answer]")
@click.option("--aggregation", help="A list, such as mean,min. [default: mean]")
@click.option(
    "--signal", multiple=True, metavar="NAME[=WEIGHT][,...]",
    help="May be repeated, each one choice: a name, several together (a,b=2), each, or all. [default: the only one]",
)  # fmt: skip
@click.option("--ratio", multiple=True, help="Share whose overlap is told; may be repeated. [default: 0.2]")
@partial_option
@threads_option
@engine_options
@as_json
def sweep(
    store: str, folder: Path, grid: Path | None, signal: tuple[str, ...], ratio: tuple[str, ...], partial: bool,
    threads: int | None, engine: str, address: str | None, *, as_json: bool, **axes: Any,
) -> None:  # fmt: skip
    """Score STORE by every combination of settings in one pass, and say how they differ.

    The folder gets values.parquet (setting, row, value), samples.parquet, summary.parquet, overlap.parquet, and
    overlap and rank correlation as pictures.
    """
    from grace_store.curate.sweep import sweep_settings
    from grace_store.curate.sweep_settings import load_grid
    from grace_store.values.grid import SweepSpec

    said: dict[str, Any] = {name: value for name, value in axes.items() if value is not None}
    if signal:
        said["signal"] = signal
    if grid is not None and (twice := [f"--{name}" for name in said if name != "signal"]):
        raise SettingError(f"--grid says it all: leave out {', '.join(twice)}, or write it in {grid}")
    spec = load_grid(grid) if grid is not None else SweepSpec.parse(grid=[said])
    if grid is not None and signal:
        if any(each.signal for each in spec.grid):
            raise SettingError(f"{grid} names signals itself: leave out --signal, or write it there")
        spec = SweepSpec.parse(**spec.model_dump() | {"grid": [each.model_dump() | said for each in spec.grid]})
    if ratio:
        spec = SweepSpec.parse(**spec.model_dump() | {"ratio": ratio})
    is_replaced = folder.is_dir() and any(folder.iterdir())
    with ProgressDisplay(quiet=as_json) as display, spread(engine, address, threads, display) as pool:
        found = sweep_settings(store, spec, folder, partial=partial, threads=pool, listener=display)
    if as_json:
        print_json(
            {
                "out": str(folder),
                "replaced": is_replaced,
                "num_samples": found.num_samples,
                "num_ranked": found.num_ranked,
                "ratios": found.ratios,
                "summary": found.summary,
                "partial": found.made_by["partial"],
            }
        )
        return
    title = f"{counted(len(found.settings), 'setting')} over {counted(found.num_samples, 'sample')}"
    table = Table(title=title, title_justify="left")
    table.add_column("setting", no_wrap=True)
    for name in ("mean", "sd", "length", "K", f"overlap {found.ratios[0]}"):
        table.add_column(name, justify="right")
    for i, row in enumerate(found.summary):
        numbers = [row["mean"], row["standard_deviation"], row["correlation_with_length"]]
        numbers += [row["correlation_with_num_steps"], float(found.jaccard[0, 0, i])]
        table.add_row(found.labels[i], *("" if number != number else f"{number:.3f}" for number in numbers))
    out.print(table)
    out.print("length, K: correlation of the value with them. overlap: of the best samples with the first setting's.")
    if found.made_by["partial"]:
        out.print("partial: the store is not finished.")
    replaced = " (the earlier sweep there is replaced)" if is_replaced else ""
    out.print(f"{folder}: values.parquet, summary.parquet, overlap.parquet, *.svg{replaced}", markup=False)
