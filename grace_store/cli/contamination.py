"""grace-store contamination"""

from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import escape_controls, print_result, print_rows
from grace_store.cli.options import NATURAL, OUT_PARQUET, as_table, command, only_given, option
from grace_store.cli.progress import ProgressDisplay
from grace_store.data.formats.known_formats import FORMATS
from grace_store.data.passages import DEFAULT_NGRAM, DEFAULT_SHARE
from grace_store.likeness.duplicate_groups import DEFAULT_THRESHOLD
from grace_store.scoring.provenance import check_results

WORST_SHOWN = 3


@command(
    "grace-store contamination traces.zarr --against test.jsonl --out against.parquet   # is a test set in it?",
    "grace-store contamination traces.zarr --against test.zarr --against mmlu.parquet --out against.parquet",
)
@shared.store
@option(
    "--against",
    "FILE|STORE",
    "Benchmark to look for in STORE: a file of questions, or a store that was extracted with the same model. The "
    "vectors of a store are also compared.",
    many=True,
    required=True,
)
@option("--out", OUT_PARQUET, "Parquet file to write.", required=True)
@option("--ngram", click.IntRange(2, 100), f"Number of words in an n-gram. [default: {DEFAULT_NGRAM}]")
@option(
    "--share",
    click.FloatRange(0, 1, min_open=True),
    "Smallest share of the word n-grams of the question, or of the solution, of an item that counts as a match. "
    f"[default: {DEFAULT_SHARE}]",
)
@option("--threshold", float, f"Smallest cosine with an item that counts as a match. [default: {DEFAULT_THRESHOLD}]")
@option(
    "--format", click.Choice(list(FORMATS)), "Format of the benchmark's records. [default: recognised from the records]"
)
@option(
    "--map",
    "PART=FIELD",
    "Field of the benchmark's records that holds a part. PART is prompt, response, answer, options or id. You can give "
    "this option several times. [default: the usual field names of benchmarks]",
    many=True,
    callback=as_table,
)
@shared.search
@option("--seed", NATURAL, "With --descriptor projected, seed of the projection. [default: 0]")
@shared.moved_data
def contamination(store: str, against: tuple[str, ...], out: Path, *, as_json: bool, **settings: Any) -> None:
    """Find samples that contain items of benchmarks.

    A sample contains an item if the sample's text has the item's question or solution, or enough of its word n-grams.
    Case, punctuation, spacing and line breaks do not count. The same words with other numbers are another question. A
    sample also contains an item if the vectors of both point the same way. The table has one row for each pair of
    sample and item. `select --exclude-contaminated` never chooses samples that contain an item.
    """
    check_results(store, [out], [Path(each) for each in against if "://" not in each])
    with ProgressDisplay(quiet=as_json) as display:
        pool = shared.take_pool(store, settings, settings.pop("threads"))
        found = gs.contamination(pool, against, **only_given(settings), listener=display)
    found.write(out)
    worst = {each.name: found.worst(WORST_SHOWN, each.name) for each in found.note.benchmarks}
    result = {"out": str(out), "conclusion": found.conclusion, "num_matches": found.counts, "worst": worst}
    print_result(result | found.note.to_json(), _print, found, out, as_json=as_json)


def _print(found: gs.AgainstTable, out: Path) -> None:
    note = found.note
    click.echo(escape_controls(found.conclusion))
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.counts.items() if count) or "none"
    click.echo(f"{out}: {counted(len(found), 'row')}, one for each pair of sample and item ({kinds}).")
    least = f"{note.spec.share:g} of an item's n-grams of {note.spec.ngram} words"
    click.echo(f"  a match has at least {least}" + (f", or a cosine of {note.spec.cosine:g}" if note.signal else ""))
    rows = [["benchmark", "items", "found", "samples", "other numbers", "whole only"]]
    for each in note.benchmarks:
        counts = (each.num_items, each.num_found, each.num_samples, each.num_templates, each.num_short)
        rows.append([each.name, *map(str, counts)])
    print_rows(rows)
    click.echo(
        "  found: items that samples contain. samples: samples that contain an item. other numbers: samples with an "
        "item's words\n  but other numbers, which do not count as copies. whole only: items too short or too common to "
        "be found inside other text."
    )
    for each in note.benchmarks:
        for row in found.worst(WORST_SHOWN, each.name):
            where = "" if row["where"] is None else f", {row['part']} in its {row['where']}"
            pair = f"{row['sample_id']} (row {row['row']}) has {row['item_id']}{where}"
            click.echo(f"  {row['kind']} {row['strength']:.2f}: {escape_controls(pair)}")
            for name, text in (("sample", row["passage"]), ("item", row["item_text"])):
                if text is not None:
                    click.echo(f"    {name:<7}{escape_controls(text)}")
