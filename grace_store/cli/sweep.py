"""grace-store sweep"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

import grace_store as gs
from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import fields_of, number, out, print_result, where_line
from grace_store.cli.options import FILE, OUT_FOLDER, TEXT, command, option, said
from grace_store.cli.progress import ProgressDisplay


@command(
    "grace-store sweep traces.zarr --out sweep --alpha 0.1:0.9:0.1 --history uniform,window:3,ema:0.8",
    "grace-store sweep traces.zarr --out sweep --signal each --signal all",
    "grace-store sweep traces.zarr --out sweep --grid jobs/sweeps/ablations.toml",
    "grace-store sweep s3://bucket/traces.zarr --out sweep --alpha 0.1:0.9:0.1 --engine ray --address auto",
)
@shared.store
@option("--out", OUT_FOLDER, "Folder to write; an earlier sweep there is replaced.", "folder", required=True)
@option("--grid", FILE, "TOML file with the settings to sweep over. [default: those of the options]")
@option("--alpha", TEXT, "Weights of the answer: a list (0.3,0.7) or a range (0.1:0.9:0.1). [default: 0.7]")
@option("--history", TEXT, "List of histories, such as uniform,window:3,ema:0.8. [default: uniform]")
@option("--target", TEXT, "List of targets, such as answer,trace,suffix. [default: answer]")
@option("--aggregation", TEXT, "List of aggregations: mean, min, last, length_weighted, quantile:Q. [default: mean]")
@option(
    "--signal",
    "NAME[=WEIGHT][,...]",
    "Signals to score by: one, several together (a,b=2), each by itself (each), or all together (all). [default: the "
    "only one]",
    many=True,
)
@option("--ratio", TEXT, "Share of the samples whose overlap between settings is measured. [default: 0.2]", many=True)
@shared.where()
@shared.moved_data
@shared.partial
@shared.threads
@shared.engine
def sweep(store: str, folder: Path, grid: Path | None, partial: bool, *, as_json: bool, **settings: Any) -> None:
    """Score a store by many settings at once, and compare them.

    Every combination of the settings is scored in one pass. The folder gets values.parquet (row, and a column for each
    setting), samples.parquet, summary.parquet, overlap.parquet, and overlap and rank correlation as pictures.
    """
    from grace_store.curate.sweep_settings import sweep_of

    axes = {name: settings[name] for name in ("alpha", "history", "target", "aggregation")}
    spec = sweep_of(said(axes), settings["signal"], settings["ratio"], grid)
    is_replaced = folder.is_dir() and any(folder.iterdir())
    with ProgressDisplay(quiet=as_json) as display, shared.spread(settings, display) as pool:
        wanted = {"where": settings["where"], "data": settings["data"] or None, "partial": partial}
        found = gs.sweep(store, spec, out=folder, **wanted, threads=pool, listener=display)
    result = {"out": str(folder), "replaced": is_replaced, "partial": found.note.partial}
    result |= {} if found.note.where is None else {"where": found.note.where.model_dump()}
    result |= fields_of(found, "conclusion", "num_samples", "num_ranked", "ratios", "summary")
    print_result(result, _print, found, folder, is_replaced, as_json=as_json)


def _print(found: gs.Sweep, folder: Path, is_replaced: bool) -> None:
    click.echo(found.conclusion)
    title = f"{counted(len(found.settings), 'setting')} over {counted(found.num_samples, 'sample')}"
    table = Table(title=title, title_justify="left")
    table.add_column("setting", no_wrap=True)
    for name in ("mean", "sd", "length", "K", f"overlap {found.ratios[0]}"):
        table.add_column(name, justify="right")
    for i, row in enumerate(found.summary):
        numbers = [row["mean"], row["standard_deviation"], row["correlation_with_length"]]
        numbers += [row["correlation_with_num_steps"], row["overlap_with_default"]]
        table.add_row(found.labels[i], *(number(each, missing="") for each in numbers))
    out.print(table)
    out.print(
        "mean, sd: of the values. length, K: correlation of the value with the response's length and the number of "
        "steps. overlap: of the best samples with those of the default setting (Jaccard)."
    )
    out.print(where_line(found.note.where), end="", markup=False)
    if found.note.partial:
        out.print("partial: the store is not finished.")
    replaced = " (the earlier sweep there is replaced)" if is_replaced else ""
    out.print(f"{folder}: values.parquet, summary.parquet, overlap.parquet, *.svg{replaced}", markup=False)
