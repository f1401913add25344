"""grace-store duplicates"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.base.errors import SettingError
from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import filter_lines, print_result, print_rows
from grace_store.cli.options import FILE, NATURAL, OUT_PARQUET, PATH, PLACE, command, given, only_given, option
from grace_store.cli.progress import ProgressDisplay
from grace_store.likeness.duplicate_groups import DEFAULT_FLOOR, DEFAULT_THRESHOLD, KEEPS
from grace_store.scoring.provenance import check_results

BESIDE_FROM = ("source", "out", "threshold", "keep", "scores", "as_json")
"""Parameters that can be given together with --from."""


@command(
    "grace-store duplicates traces.zarr --out duplicates.parquet",
    "grace-store duplicates traces.zarr --out duplicates.parquet --scores scores.parquet --threshold 0.97",
    "grace-store duplicates traces.zarr --out duplicates.parquet --subset subset.jsonl --keep shortest",
    "grace-store duplicates --from duplicates.parquet --threshold 0.98 --out stricter.parquet   # no new search",
    "grace-store duplicates s3://bucket/traces.zarr --out duplicates.parquet --engine ray --address auto",
)
@shared.optional_store
@option("--out", OUT_PARQUET, "Parquet file to write.", required=True)
@option("--threshold", float, f"Smallest cosine of similar samples. [default: {DEFAULT_THRESHOLD}]")
@option("--floor", float, f"Smallest threshold that --from can use later. [default: {DEFAULT_FLOOR}]")
@option(
    "--keep",
    click.Choice(KEEPS),
    "Sample of a group to keep: the sample with the highest value, the shortest sample or the earliest sample. "
    "[default: value with --scores, else earliest]",
)
@shared.scores("Table of scores, for --keep value and for --descriptor weighted. [default: none]")
@option("--subset", PATH, "Search only these samples: a subset, a table of scores, or a file of ids. [default: all]")
@shared.where(" (with --scores also num_tokens, value, flags)")
@shared.search
@option("--seed", NATURAL, "Seed of the search and of the projection. [default: 0]")
@shared.engine
@option(
    "--data",
    PLACE,
    "Dataset file or folder, if the dataset has moved. Texts are also compared. [default: the planned files]",
    many=True,
)
@option("--from", FILE, "Table of duplicates to group again without a search. [default: search STORE]", "source")
def duplicates(
    store: str | None, out: Path, source: Path | None, scores: Path | None, *, as_json: bool, **settings: Any
) -> None:
    """Find groups of similar samples, and keep one of each group.

    Samples are similar if they have the same text, or vectors that point the same way. The table has one row for each
    sample: its group, the nearest sample, the cosine with that sample, and whether the sample is kept. With --from,
    the samples of a table are grouped again, by any threshold from the floor up.

    With --engine ray, the cluster reads and decodes the vectors. The search runs on this machine.
    """
    check_results(store, [out], [scores, source, settings["subset"], settings["labels"]])
    if source is not None:
        if ignored := given(but=BESIDE_FROM):
            raise SettingError(f"--from does not search again: leave {', '.join(ignored)} out")
        found = gs.regroup(source, threshold=settings["threshold"], keep=settings["keep"], scores=scores)
    elif store is None:
        raise click.UsageError("Missing argument 'STORE' (only --from works without it).")
    else:
        with ProgressDisplay(quiet=as_json) as display, shared.open_workers(settings, display) as threads:
            pool = shared.take_pool(store, settings, threads)
            found = gs.duplicates(pool, scores=scores, **only_given(settings), listener=display)
    found.write(out)
    result = {
        "out": str(out),
        "conclusion": found.conclusion,
        "num_samples": len(found),
        "num_exact": int(found.exact.sum()),
        "num_groups": found.num_groups,
        "num_in_groups": int((found.group >= 0).sum()),
        "num_kept": int(found.keep.sum()),
        "num_dropped": int((~found.keep).sum()),
        "thresholds": [asdict(count) for count in found.counts()],
        **found.note.to_json(),
    }
    print_result(result, _print, found, out, as_json=as_json)


def _print(found: gs.DuplicateTable, out: Path) -> None:
    kept = "highest value" if found.note.spec.keep == "value" else found.note.spec.keep
    click.echo(found.conclusion)
    click.echo(
        f"{out}: {counted(len(found), 'sample')}, {int((found.group >= 0).sum())} of them in "
        f"{counted(found.num_groups, 'group')} from {found.threshold:g} up; {int((~found.keep).sum())} dropped, the "
        f"{kept} of each group kept."
    )
    click.echo(filter_lines(found.note), nl=False)
    same = "text" if found.note.exact_by == "text" else "record"
    click.echo(f"  {int(found.exact.sum())} with the same {same} as another")
    if found.note.num_zero:
        click.echo(f"  {found.note.num_zero} with a vector of zeros, which is similar to no other")
    search, recall = "every sample was compared with every other", found.note.search.recall
    if recall is not None and recall.share is None:
        search = f"searched by cells; none of {recall.num_queries} random samples is similar to another"
    elif recall is not None:
        pairs = f"{recall.num_found} of {recall.num_true} pairs of {recall.num_queries} random samples"
        search = f"searched by cells: recall {recall.share:.4f} ({pairs})"
    click.echo(f"  {search}")
    if found.note.partial:
        signal = found.note.signal
        click.echo(f"  partial: {signal.num_units} of {found.note.num_units} units of {signal.name}")
    rows = [["threshold", "groups", "in groups", "dropped", ""]]
    for count in found.counts():
        counts = (count.num_groups, count.num_in_groups, count.num_dropped)
        rows.append([f"{count.threshold:g}", *map(str, counts), "<" if count.threshold == found.threshold else ""])
    print_rows(rows)
