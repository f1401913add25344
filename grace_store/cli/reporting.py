"""grace-store report"""

from __future__ import annotations

from pathlib import Path

import click

from grace_store.base.text import counted, size
from grace_store.cli.console import ProgressDisplay, print_json
from grace_store.cli.options import LocalPath, as_json, images_option, store_argument
from grace_store.cli.scoring import partial_option

EPILOG = """\b
Examples:
  grace-store report traces.zarr --out report.html
  grace-store report traces.zarr --out report.html --scores scores.parquet --subset subset.jsonl
  grace-store report traces.zarr --out report.html --scores grace.parquet --scores random.parquet
  grace-store report traces.zarr --out report.html --sweep sweep --figures figures
  grace-store report traces.zarr --out report.html --by is_correct --by source
"""

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(epilog=EPILOG)
@store_argument
@click.option("--out", required=True, type=LocalPath(dir_okay=False, path_type=Path), help="The HTML file.")
@click.option("--signal", multiple=True, metavar="NAME[=WEIGHT]", help="May be repeated. [default: the only one]")
@click.option(
    "--scores", multiple=True, type=_FILE,
    help="A table of scores; may be repeated, to compare methods. [default: scored by the defaults]",
)  # fmt: skip
@click.option(
    "--sweep", type=click.Path(file_okay=False, path_type=Path), help="What `sweep` wrote. [default: a small one]"
)
@click.option("--duplicates", type=_FILE, help="What `duplicates` wrote. [default: looked for among the traces shown]")
@click.option("--diversity", type=_FILE, help="What `diversity` wrote. [default: measured, of a pool not too large]")
@click.option("--subset", multiple=True, type=click.Path(path_type=Path), help="What `select` wrote; may be repeated.")
@click.option("--ratio", default="0.2", show_default=True, help="Share that counts as chosen without a --subset.")
@click.option(
    "--by", multiple=True, metavar="FIELD", help="Compare values by this field of the records; may be repeated."
)
@images_option
@click.option("--data", multiple=True, type=click.Path(), help="Where the dataset is now.")
@click.option(
    "--max-traces", type=click.IntRange(1), default=5000, show_default=True,
    help="Show at most so many traces: both ends of the ranking, chosen ones, and a random rest.",
)  # fmt: skip
@click.option(
    "--figures", type=click.Path(file_okay=False, path_type=Path),
    help="Write the figures to this folder too, as SVG and PNG.",
)  # fmt: skip
@partial_option
@as_json
def report(
    store: str, out: Path, signal: tuple[str, ...], scores: tuple[Path, ...], sweep: Path | None,
    duplicates: Path | None, diversity: Path | None, subset: tuple[Path, ...], ratio: str, by: tuple[str, ...],
    images: str | None, data: tuple[str, ...], max_traces: int, figures: Path | None, partial: bool, *, as_json: bool,
) -> None:  # fmt: skip
    """Write one HTML file about STORE that needs no network: counts, plots, and every trace step by step.

    Texts and images come from the dataset, if it is at hand. Traces are shown and never run: the page executes nothing
    but its own scripts and loads nothing.
    """
    from grace_store.pages.report import ReportRequest
    from grace_store.pages.report import report as write

    request = ReportRequest(
        signals=signal, scores=scores, sweep=sweep, duplicates=duplicates, diversity=diversity,
        subsets=subset, by=by, images=images,
        data=data or None, ratio=ratio, max_traces=max_traces, partial=partial,
    )  # fmt: skip
    with ProgressDisplay(quiet=as_json) as display:
        written = write(store, out, request, figures=figures, listener=display)
    if as_json:
        print_json(
            {
                "out": str(out),
                "num_bytes": written.num_bytes,
                "num_samples": written.num_samples,
                "num_traces": written.num_traces,
                "sections": written.sections,
                "figures": [str(path) for path in written.figures],
                "notes": written.notes,
            }
        )
        return
    click.echo(f"{out}: {written.num_traces} of {written.num_samples} traces, {size(written.num_bytes)}.")
    for note in written.notes:
        click.echo(f"  {note}")
    if written.figures:
        click.echo(f"{figures}: {counted(len(written.figures), 'file')}.")
