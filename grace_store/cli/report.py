"""grace-store report"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.base.text import counted, size
from grace_store.cli import shared
from grace_store.cli.console import escape_controls, print_json
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
@option("--signal", "NAME[=WEIGHT]", "Signal to report on. [default: the only signal]", "signals", many=True)
@option(
    "--scores",
    FILE,
    "Table of scores. Several tables are compared. [default: the measure grace with default settings]",
    many=True,
)
@option("--sweep", FOLDER, "Folder that `sweep` wrote. [default: a small sweep is computed]")
@option("--duplicates", FILE, "Table that `duplicates` wrote. [default: a search among the traces on the page]")
@option(
    "--finding", FILE, "Finding to show: a file that a study wrote with --out. [default: none]", "findings", many=True
)
@option("--against", FILE, "Table that `contamination` wrote. [default: none]")
@option("--warmup", FOLDER, "Folder that `warmup` wrote. The report shows the losses of the warm-up. [default: none]")
@option("--subset", PATH, "Subset that `select` wrote. [default: the best samples, by --ratio]", "subsets", many=True)
@option("--ratio", TEXT, "Without --subset, share of the best samples that counts as the subset.", default="0.2")
@option(
    "--by",
    "FIELD[,...]",
    "Field of the records. Samples with the same value make a group, and the groups are compared. With several fields "
    "(source,level), samples of a group have the same values of all fields. [default: none]",
    many=True,
)
@option(
    "--fields",
    "FIELD[,...]",
    "Fields of the records to show with the traces and to filter by. '' means no fields. [default: the fields of "
    "--by, or else a few fields with short values that differ between traces]",
)
@shared.where(shared.KNOWN_BY_SCORES)
@shared.images
@shared.moved_data
@option(
    "--max-traces",
    COUNT,
    "Maximum number of traces on the page: the best, the worst, chosen and random traces.",
    default=5000,
)
@option("--figures", OUT_FOLDER, "Folder for the figures as SVG and PNG files. [default: no files]")
@shared.partial
def report(store: str, out: Path, data: tuple[str, ...], figures: Path | None, *, as_json: bool, **wishes: Any) -> None:
    """Write one HTML page with plots, and with traces step by step.

    The page needs no network: it loads no other file and runs only its own scripts. Texts and images come from the
    dataset, if the dataset can be read. Markup in texts is shown as text.
    """
    with ProgressDisplay(quiet=as_json) as display:
        request = gs.ReportRequest(**wishes, data=data or None)
        written = gs.report(store, out, request, figures=figures, listener=display)
    if as_json:
        print_json(asdict(written) | {"out": str(out), "figures": [str(path) for path in written.figures]})
        return
    for each in written.verdict:
        level = f"[{each['level']}] " if each["level"] != each["topic"] else ""
        click.echo(escape_controls(f"{level}{each['sentence']}"))
    click.echo(f"{out}: {written.num_traces} of {counted(written.num_samples, 'trace')}, {size(written.num_bytes)}.")
    for note in written.notes:
        click.echo(f"  {note}")
    if written.figures:
        click.echo(f"{figures}: {counted(len(written.figures), 'file')}.")
