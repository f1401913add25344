"""grace-store sweep"""

from pathlib import Path
from typing import Any

import grace_store as gs
from grace_store.cli import shared
from grace_store.cli.console import show
from grace_store.cli.options import FILE, OUT_FOLDER, TEXT, command, option, stacked
from grace_store.cli.progress import ProgressDisplay
from grace_store.scoring.sweep_settings import sweep_of

AXES = {
    "measure": "Measures, each scored alone: a list such as grace,loss:lowest,hit_rate. [default: grace]",
    "alpha": "Weights of the answer: a list (0.3,0.7) or a range (0.1:0.9:0.1). [default: 0.7]",
    "history": "List of histories, such as uniform,window:3,ema:0.8. [default: uniform]",
    "target": "List of targets, such as answer,trace,suffix. [default: answer]",
    "aggregation": "List of aggregations: mean, min, last, length_weighted, quantile:Q. [default: mean]",
}
"""Options for the settings of a sweep, with their help."""


@command(
    "grace-store sweep traces.zarr --out sweep --alpha 0.1:0.9:0.1 --history uniform,window:3,ema:0.8",
    "grace-store sweep traces.zarr --out sweep --signal each --signal all",
    "grace-store sweep traces.zarr --out sweep --grid jobs/sweeps/ablations.toml",
    "grace-store sweep s3://bucket/traces.zarr --out sweep --alpha 0.1:0.9:0.1 --engine ray --address auto",
)
@shared.store
@option("--out", OUT_FOLDER, "Folder to write. An earlier sweep in this folder is replaced.", "folder", required=True)
@option("--grid", FILE, "TOML file with the settings of the sweep. [default: the given options]")
@stacked(*(option(f"--{name}", TEXT, help, many=True) for name, help in AXES.items()))
@option(
    "--signal",
    "NAME[=WEIGHT][,...]",
    "Signals to score: one signal, several signals together (a,b=2), each signal alone (each), or all together (all). "
    "[default: the only signal]",
    many=True,
)
@option(
    "--ratio",
    TEXT,
    "Share of the samples to choose. The sweep measures how much the choices overlap. [default: 0.2]",
    many=True,
)
@shared.where()
@shared.moved_data
@shared.partial
@shared.threads
@shared.engine
def sweep(store: str, folder: Path, grid: Path | None, *, as_json: bool, **settings: Any) -> None:
    """Score a store with many settings at once, and compare them.

    All combinations of the settings are scored in one pass over the store. The command writes values.parquet (row, and
    a column for each combination), samples.parquet, summary.parquet and overlap.parquet to the folder. `report --sweep`
    draws overlap and rank correlation.
    """
    axes = {name: ",".join(settings[name]) for name in AXES if settings[name]}
    spec = sweep_of(axes, settings.pop("signal"), settings["ratio"], grid)
    is_replaced = folder.is_dir() and any(folder.iterdir())
    with ProgressDisplay(quiet=as_json) as display, shared.open_workers(settings, display) as threads:
        found = gs.sweep(shared.take_pool(store, settings, threads), spec, out=folder, listener=display).finding()
    replaced = " (the earlier sweep there is replaced)" if is_replaced else ""
    written = f"{folder}: values.parquet, samples.parquet, summary.parquet, overlap.parquet{replaced}"
    show(found.model_copy(update={"notes": (*found.notes, written)}), as_json=as_json)
