"""grace-store duplicates"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.base.errors import SettingError
from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import harmless, print_result, where_line
from grace_store.cli.options import (
    FILE,
    NATURAL,
    OUT_PARQUET,
    PATH,
    PLACE,
    as_table,
    command,
    given,
    option,
    said,
    stacked,
)
from grace_store.cli.progress import ProgressDisplay
from grace_store.data.formats import FORMATS
from grace_store.data.passages import DEFAULT_NGRAM, DEFAULT_SHARE
from grace_store.likeness.duplicate_groups import DEFAULT_FLOOR, DEFAULT_THRESHOLD, KEEPS

BESIDE_FROM = ("source", "out", "threshold", "keep", "scores", "as_json")
"""What --from has a use for."""
ONLY_AGAINST = ("ngram", "share", "format", "map")
BESIDE_AGAINST = ("store", "out", "against", "data", "threads", "as_json", *ONLY_AGAINST)
"""What --against may have a use for, beside settings of vectors."""
WORST_SHOWN = 3
KEPT = {"value": "highest value", "shortest": "shortest", "earliest": "earliest"}


against_options = stacked(
    option(
        "--against",
        "FILE|STORE",
        "Benchmark whose items are looked for in STORE: a file of questions, or a store extracted with the same model, "
        "whose vectors are compared, too. [default: samples are compared with each other]",
        many=True,
    ),
    option("--ngram", click.IntRange(2, 100), f"With --against, words in a run. [default: {DEFAULT_NGRAM}]"),
    option(
        "--share",
        click.FloatRange(0, 1, min_open=True),
        "With --against, share of the runs of words of an item's question, or of its solution, from which a sample has "
        f"the item in it. [default: {DEFAULT_SHARE}]",
    ),
    option("--format", click.Choice(list(FORMATS)), "Format of the benchmark's records. [default: recognised]"),
    option(
        "--map",
        "PART=FIELD",
        "Field of the benchmark's records that holds a part: prompt, response, answer, options, id. May be repeated. "
        "[default: by the names that benchmarks usually have]",
        many=True,
        callback=as_table,
    ),
)


@command(
    "grace-store duplicates traces.zarr --out duplicates.parquet",
    "grace-store duplicates traces.zarr --out duplicates.parquet --scores scores.parquet --threshold 0.97",
    "grace-store duplicates traces.zarr --out duplicates.parquet --subset subset.jsonl --keep shortest",
    "grace-store duplicates --from duplicates.parquet --threshold 0.98 --out stricter.parquet   # no new search",
    "grace-store duplicates s3://bucket/traces.zarr --out duplicates.parquet --engine ray --address auto",
    "grace-store duplicates traces.zarr --against test.jsonl --out against.parquet   # is a test set in it?",
    "grace-store duplicates traces.zarr --against test.zarr --against mmlu.parquet --out against.parquet",
)
@click.argument("store", type=click.Path(), required=False)
@option("--out", OUT_PARQUET, "Parquet file to write.", required=True)
@option("--threshold", float, f"Cosine from which samples are alike. [default: {DEFAULT_THRESHOLD}]")
@option("--floor", float, f"Cosine down to which --from may lower the threshold later. [default: {DEFAULT_FLOOR}]")
@option(
    "--keep",
    click.Choice(KEEPS),
    "Which sample of a group is kept: that with the highest value, the shortest or the earliest. [default: value with "
    "--scores, else earliest]",
)
@shared.scores("Table of scores, for --keep value and for --descriptor weighted. [default: none]")
@option("--subset", PATH, "Search only among these: a subset, a table of scores, or a file of ids. [default: all]")
@shared.where(" (with --scores also num_tokens, value, flags)")
@shared.search
@option("--seed", NATURAL, "Seed of the search and of a projection. [default: 0]")
@shared.engine
@option("--data", PLACE, "Dataset, if it has moved: texts are compared, too. [default: the files planned]", many=True)
@option("--from", FILE, "Table of duplicates to group again, without a search. [default: search STORE]", "source")
@against_options
def duplicates(
    store: str | None, out: Path, source: Path | None, scores: Path | None, *, as_json: bool, **settings: Any
) -> None:
    """Find samples that are alike, and choose one of each group.

    Samples are alike if they have the same text, or vectors that point the same way. The table has one row a sample:
    its group, the nearest sample and how similar it is, and whether it is kept. It holds all that is needed to group
    it again by any threshold from the floor up, with --from.

    With --engine ray the cluster reads and decodes the vectors; they are searched where the command runs.

    With --against, the samples of STORE are compared with the items of benchmarks instead. A sample has an item in it
    if its text has the item's question or solution, or enough runs of its words (case, punctuation, spacing and line
    breaks do not count), or if its vectors point the same way. The same words with other numbers are another question.
    `select --exclude-contaminated` never chooses samples that have an item in them.
    """
    from grace_store.artifacts.outputs import check_results

    benchmarks, only = settings.pop("against"), {name: settings.pop(name) for name in ONLY_AGAINST}
    check_results(
        store, [out], [scores, source, settings["subset"], *(Path(each) for each in benchmarks if "://" not in each)]
    )
    if benchmarks:
        _hold_against(store, benchmarks, out, settings | only, as_json=as_json)
        return
    if lonely := said(only):
        raise SettingError(f"--{next(iter(lonely))} is for benchmarks: give --against, too")
    if source is not None:
        if ignored := given(but=BESIDE_FROM):
            raise SettingError(f"--from does not search again and has no use for {', '.join(ignored)}")
        found = gs.regroup(source, threshold=settings["threshold"], keep=settings["keep"], scores=scores)
    elif store is None:
        raise click.UsageError("Missing argument 'STORE' (only --from works without it).")
    else:
        with ProgressDisplay(quiet=as_json) as display, shared.spread(settings, display) as pool:
            request = gs.DuplicatesRequest(scores=scores, **said(settings))
            found = gs.duplicates(store, request, threads=pool, listener=display)
    found.write(out)
    print_result(_result(found, out), _print, found, out, as_json=as_json)


def _hold_against(
    store: str | None, benchmarks: tuple[str, ...], out: Path, settings: dict[str, Any], *, as_json: bool
) -> None:
    """Compare the samples of a store with benchmarks, and tell what was found."""
    if store is None:
        raise click.UsageError("Missing argument 'STORE', whose samples are compared with --against.")
    _check_used(benchmarks)
    with ProgressDisplay(quiet=as_json) as display:
        threads = settings.pop("threads")
        names = gs.AgainstRequest.__dataclass_fields__
        request = gs.AgainstRequest(**said({name: value for name, value in settings.items() if name in names}))
        found = gs.against(store, benchmarks, request, threads=threads, listener=display)
    found.write(out)
    print_result(_against_result(found, out), _print_against, found, out, as_json=as_json)


def _check_used(benchmarks: tuple[str, ...]) -> None:
    """Refuse options that would change nothing of a comparison with these benchmarks."""
    from grace_store.curate.against import OF_FILES, OF_VECTORS, check_used

    others = {*BESIDE_AGAINST, *OF_VECTORS}
    if ignored := given(but=others):
        raise SettingError(f"--against has no use for {', '.join(ignored)}")
    check_used(benchmarks, given(but=others - {*OF_VECTORS}), given(but=others - {*OF_FILES}))


def _against_result(found: gs.AgainstTable, out: Path) -> dict[str, Any]:
    return {
        "out": str(out),
        "conclusion": found.conclusion,
        "num_matches": found.counts,
        "worst": {each.name: found.worst(WORST_SHOWN, each.name) for each in found.note.benchmarks},
        **found.note.to_json(),
    }


def _print_against(found: gs.AgainstTable, out: Path) -> None:
    note = found.note
    click.echo(harmless(found.conclusion))
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.counts.items() if count) or "none"
    click.echo(f"{out}: {counted(len(found), 'row')}, one for each sample and item ({kinds}).")
    of = f"{note.spec.share:g} of an item's runs of {note.spec.ngram} words"
    click.echo(f"  from {of}" + (f", or a cosine of {note.spec.cosine:g}" if note.signal else ""))
    width = max(len("benchmark"), *(len(each.name) for each in note.benchmarks))
    click.echo(f"  {'benchmark':<{width}}{'items':>8}{'found':>8}{'samples':>9}{'other numbers':>15}{'whole only':>12}")
    for each in note.benchmarks:
        counts = f"{each.num_items:>8}{each.num_found:>8}{each.num_samples:>9}{each.num_templates:>15}"
        click.echo(f"  {harmless(each.name):<{width}}{counts}{each.num_short:>12}")
    click.echo(
        "  found: items that samples have copies of; samples: those that have one. other numbers: samples with an "
        "item's words and\n  other numbers, which is no copy. whole only: items too short or too common to be found "
        "inside other text."
    )
    for each in note.benchmarks:
        for row in found.worst(WORST_SHOWN, each.name):
            _print_match(row)


def _print_match(row: dict[str, Any]) -> None:
    """Show a match side by side: what the sample has, and the item."""
    where = "" if row["where"] is None else f", {row['part']} in its {row['where']}"
    told = f"{row['kind']} {row['strength']:.2f}: {row['sample_id']} (row {row['row']}) has {row['item_id']}{where}"
    click.echo(f"  {harmless(told)}")
    for name, text in (("sample", row["passage"]), ("item", row["item_text"])):
        if text is not None:
            click.echo(f"    {name:<7}{harmless(text)}")


def _result(found: gs.DuplicateTable, out: Path) -> dict[str, Any]:
    return {
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


def _print(found: gs.DuplicateTable, out: Path) -> None:
    kept = KEPT[found.note.spec.keep]
    click.echo(found.conclusion)
    click.echo(
        f"{out}: {counted(len(found), 'sample')}, {int((found.group >= 0).sum())} of them in "
        f"{counted(found.num_groups, 'group')} from {found.threshold:g} up; {int((~found.keep).sum())} dropped, the "
        f"{kept} of each group kept."
    )
    click.echo(where_line(found.note.where), nl=False)
    same = "text" if found.note.exact_by == "text" else "record"
    click.echo(f"  {int(found.exact.sum())} with the same {same} as another")
    if found.note.num_zero:
        click.echo(f"  {found.note.num_zero} with a vector of zeros, which is like no other")
    click.echo(f"  {_search_in_words(found.note)}")
    if found.note.partial:
        signal = found.note.signal
        click.echo(f"  partial: {signal.num_units} of {found.note.num_units} units of {signal.name}")
    click.echo(f"  {'threshold':>9}{'groups':>9}{'in groups':>11}{'dropped':>9}")
    for count in found.counts():
        mark = "  <" if count.threshold == found.threshold else ""
        click.echo(f"  {count.threshold:>9g}{count.num_groups:>9}{count.num_in_groups:>11}{count.num_dropped:>9}{mark}")


def _search_in_words(note: gs.DuplicatesNote) -> str:
    recall = note.search.recall
    if recall is None:
        return "every sample was compared with every other"
    if recall.share is None:
        return f"searched by cells; none of {recall.num_queries} random samples is like another"
    return (
        f"searched by cells: recall {recall.share:.4f} ({recall.num_found} of {recall.num_true} pairs of "
        f"{recall.num_queries} random samples)"
    )
