"""grace-store report"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.base.text import counted, size
from grace_store.cli import shared
from grace_store.cli.console import print_result
from grace_store.cli.options import COUNT, FILE, FOLDER, OUT_FOLDER, OUT_HTML, PATH, TEXT, command, option
from grace_store.cli.progress import ProgressDisplay


@command(
    "grace-store report traces.zarr --out report.html",
    "grace-store report traces.zarr --out report.html --scores scores.parquet --subset subset.jsonl",
    "grace-store report traces.zarr --out report.html --scores grace.parquet --scores random.parquet",
    "grace-store report traces.zarr --out report.html --sweep sweep --figures figures",
    "grace-store report traces.zarr --out report.html --by is_correct --by source,level --fields level,author",
    "grace-store report traces.zarr --out report.html --finding judgement.json --finding stability.json",
    "grace-store report traces.zarr --out report.html --where \"source = 'a'\"",
)
@shared.store
@option("--out", OUT_HTML, "HTML file to write.", required=True)
@option("--signal", "NAME[=WEIGHT]", "Signal to report on. [default: the only one]", "signals", many=True)
@option("--scores", FILE, "Table of scores, to compare methods. [default: scored now, by GRACE's defaults]", many=True)
@option("--sweep", FOLDER, "Folder that `sweep` wrote. [default: a small sweep is made now]")
@option("--duplicates", FILE, "Table that `duplicates` wrote. [default: searched for now, among the traces shown]")
@option("--finding", FILE, "File that a study wrote with --out, to show. [default: none]", "findings", many=True)
@option("--against", FILE, "Table that `contamination` wrote, to show. [default: none]")
@option("--warmup", FOLDER, "Folder that `warmup` wrote, to show its losses. [default: none]")
@option("--subset", PATH, "Subset that `select` wrote. [default: the best by --ratio]", "subsets", many=True)
@option("--ratio", TEXT, "Share of the samples that counts as chosen without a --subset.", default="0.2")
@option(
    "--by",
    "FIELD[,...]",
    "Field of the records whose groups are compared by value; several (source,level) are combined. [default: none]",
    many=True,
)
@option(
    "--fields",
    "FIELD[,...]",
    "Fields of the records to show and filter by beside the traces; '' for none. [default: those of --by, or else a "
    "few with short values that tell traces apart]",
)
@shared.where(shared.KNOWN_BY_SCORES)
@shared.images
@shared.moved_data
@option("--max-traces", COUNT, "Most traces to show: both ends of the ranking, chosen ones, random ones.", default=5000)
@option("--figures", OUT_FOLDER, "Folder to write the figures to as well, as SVG and PNG. [default: page only]")
@shared.partial
def report(store: str, out: Path, data: tuple[str, ...], figures: Path | None, *, as_json: bool, **wishes: Any) -> None:
    """Write one HTML page of plots, and of traces step by step.

    The page needs no network: it loads nothing and runs nothing but its own scripts. Texts and images come from the
    dataset, if it can be read; whatever they contain is shown as text.
    """
    with ProgressDisplay(quiet=as_json) as display:
        request = gs.ReportRequest(**wishes, data=data or None)
        written = gs.report(store, out, request, figures=figures, listener=display)
    result = {"out": str(out), "figures": [str(path) for path in written.figures]}
    names = ("num_bytes", "num_samples", "num_traces", "sections", "notes")
    result |= {name: getattr(written, name) for name in names}
    print_result(result, _print, out, figures, written, as_json=as_json)


def _print(out: Path, figures: Path | None, written: gs.Report) -> None:
    traces = counted(written.num_samples, "trace")
    click.echo(f"{out}: {written.num_traces} of {traces}, {size(written.num_bytes)}.")
    for note in written.notes:
        click.echo(f"  {note}")
    if written.figures:
        click.echo(f"{figures}: {counted(len(written.figures), 'file')}.")
