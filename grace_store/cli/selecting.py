"""grace-store select, compare"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from grace_store.base.errors import SettingError
from grace_store.base.text import counted
from grace_store.cli.console import ProgressDisplay, harmless, print_json
from grace_store.cli.console import out as console
from grace_store.cli.diversifying import similar_options
from grace_store.cli.options import LocalPath, as_json, images_option, stacked
from grace_store.cli.scoring import threads_option

if TYPE_CHECKING:
    from grace_store.curate.compare import Change
    from grace_store.curate.select import Subset
    from grace_store.values.diversity_spec import DiversitySpec

EPILOG = """\b
Examples:
  grace-store select scores.parquet --ratio 0.2 --out subset.jsonl
  grace-store select scores.parquet --ratio 0.05 --ratio 0.1 --out "subset-{ratio}.jsonl"   # each within the next
  grace-store select scores.parquet --count 5000 --as ms-swift --images ./images --out train.jsonl
  grace-store select scores.parquet --by num_steps --control length --out subset.jsonl
  grace-store select scores.parquet --diversity facility --weight 0.3 --out subset.jsonl
"""
FORMATS = ("source", "ms-swift", "llama-factory", "datasets", "steps", "ids")
CONTROLS = ("length", "step_length", "response_length", "num_steps")

diversity_options = stacked(
    click.option("--diversity", type=click.Choice(["dedup", "clusters", "facility", "mmr"]), help="See above."),
    click.option("--weight", type=float, help="Diversity's, 0 to 1. [default: 0.25 facility, 0.5 mmr, 1 clusters]"),
    click.option("--similarity", type=float, help="For dedup: from which cosine on. [default: the table's, or 0.95]"),
    click.option(
        "--duplicates", type=click.Path(dir_okay=False, path_type=Path),
        help="For dedup: a table by `grace-store duplicates`, in place of a search.",
    ),
    click.option("--balance", type=click.Choice(["equal", "sqrt", "proportional"]), help="Clusters' budgets."),
    similar_options,
    click.option("--seed", type=click.IntRange(0), help="Of the clusters. [default: 0]"),
    threads_option,
)  # fmt: skip


@click.command(epilog=EPILOG)
@click.argument("scores", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--ratio", multiple=True, help="Share of the samples to keep; may be repeated. [default: 0.2]")
@click.option("--count", multiple=True, type=int, help="Keep so many instead; may be repeated.")
@click.option("--threshold", type=float, help="Keep all that reach this value instead.")
@click.option("--out", required=True, type=LocalPath(path_type=Path), help="The subset; {ratio} stands for the ratio.")
@click.option(
    "--as", "as_format", type=click.Choice(FORMATS), default="source", show_default=True,
    help="Records as they stand; conversations for a trainer; a Hugging Face datasets folder; records with step "
    "scores; or ids.",
)  # fmt: skip
@click.option("--by", help="Keep the shares of a record's field, or of num_steps, as they are.")
@click.option("--control", multiple=True, type=click.Choice(CONTROLS), help="Rank by what is left without length.")
@diversity_options
@click.option("--store", type=click.Path(), help="Where the store is now. [default: where it was scored]")
@click.option("--data", multiple=True, type=click.Path(), help="Where the dataset is now.")
@images_option
@as_json
def select(
    scores: Path, ratio: tuple[str, ...], count: tuple[int, ...], threshold: float | None, out: Path, as_format: Any,
    by: str | None, control: tuple[str, ...], store: str | None, data: tuple[str, ...], images: str | None,
    diversity: str | None, duplicates: Path | None, threads: int | None, *, as_json: bool, **diverse: Any,
) -> None:  # fmt: skip
    """Write the best samples of SCORES, in the order of their records.

    ceil(ratio N) of the N samples that have a value, exactly; ties go to the earlier record. What made the subset is
    written beside it, in OUT.spec.json.

    --diversity trades value against redundancy for the same number of samples. dedup: near-duplicates last, the best
    of each group kept. clusters: equal budgets for clusters, the best by value inside. facility, mmr: greedily, what
    is valuable and covers samples not yet covered, or is unlike what is chosen.
    """
    from grace_store.artifacts.outputs import check_outputs
    from grace_store.curate.exports.export_kind import export_subset
    from grace_store.curate.select import rank_samples

    if sum(map(bool, (ratio, count, threshold is not None))) > 1:
        raise SettingError("give one of --ratio, --count and --threshold")
    spec = _diversity_spec(diversity, diverse, duplicates)
    with ProgressDisplay(quiet=as_json) as display:
        ranking = rank_samples(
            scores, by=by, control=control, store=store, data=data or None, diversity=spec, duplicates=duplicates,
            threads=threads, listener=display,
        )  # fmt: skip
    subsets: list[tuple[str, Subset]] = []
    if threshold is not None:
        subsets = [(str(threshold), ranking.take(threshold=threshold))]
    elif count:
        subsets = [(str(number), ranking.take(count=number)) for number in count]
    else:
        subsets = [(each, ranking.take(ratio=each)) for each in ratio or ("0.2",)]
    results: list[dict[str, Any]] = []
    paths = _paths(out, [label for label, _ in subsets])
    if duplicates is not None:
        check_outputs(paths, [(duplicates, "the table of duplicates")])
    for path, (label, subset) in zip(paths, subsets, strict=True):
        exported = export_subset(subset, path, as_format, store=store, data=data or None, images=images)
        results.append(
            {
                "out": str(path),
                "kept": label,
                "num_samples": len(subset),
                "num_with_value": subset.num_with_value,
                "threshold": subset.threshold if subset.is_all_above else None,
                "smallest_value": subset.threshold,
                "files": [str(file) for file in exported.files],
                "notes": exported.notes,
            }
        )
    if as_json:
        print_json(results[0] if len(results) == 1 else results)
        return
    for result in results:
        # Where more than the value decided, there are others above the smallest one that were not chosen.
        smallest = f"smallest value kept {result['smallest_value']:.4f}" + (", length taken out" if control else "")
        least = smallest if result["threshold"] is None else f"value {result['threshold']:.4f} and above"
        of = counted(result["num_with_value"], "sample")
        click.echo(f"{result['out']}: {result['num_samples']} of {of}, {least}.")
        for note in result["notes"]:
            click.echo(f"  {harmless(note)}")


def _diversity_spec(method: str | None, settings: dict[str, Any], duplicates: Path | None) -> DiversitySpec | None:
    from grace_store.values.diversity_spec import DiversitySpec

    if method is not None:
        return DiversitySpec.parse(method=method, **settings)
    said = [name for name, value in {**settings, "duplicates": duplicates}.items() if value is not None]
    if said:
        option = {"num_clusters": "clusters"}.get(said[0], said[0])
        raise SettingError(f"--{option} is of diversity: give --diversity, too")
    return None


def _paths(out: Path, labels: Sequence[str]) -> list[Path]:
    """Return one name for each subset."""
    if len(set(labels)) < len(labels):
        raise SettingError("the same ratio or count is given twice")
    if "{ratio}" in out.name:
        return [out.with_name(out.name.replace("{ratio}", label)) for label in labels]
    if len(labels) == 1:
        return [out]
    return [out.with_name(f"{out.stem}-{label}{out.suffix}") for label in labels]


@click.command(epilog="\b\nExample:\n  grace-store compare uniform.jsonl ema.jsonl --out changes.jsonl")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--ratio", help="For tables of scores: share of the samples to compare. [default: 0.2]")
@click.option("--show", type=click.IntRange(0), default=10, show_default=True, help="How many changes to list.")
@click.option("--out", type=LocalPath(dir_okay=False, path_type=Path), help="Write all changes, as JSON lines.")
@as_json
def compare(a: Path, b: Path, ratio: str | None, show: int, out: Path | None, *, as_json: bool) -> None:
    """Say what subset B has that A has not, what it lacks, and why.

    A and B are subsets that `select` wrote, or tables of scores.
    """
    from grace_store.artifacts.outputs import check_results
    from grace_store.base.files import write_lines
    from grace_store.curate.compare import compare_subsets

    check_results(None, [out], [a, b])
    found = compare_subsets(a, b, ratio=ratio)
    if out is not None:
        both = [("entered", found.entered), ("left", found.left)]
        lines = (json.dumps({"change": word, **asdict(each)}).encode() for word, some in both for each in some)
        write_lines(out, lines)
    if as_json:
        print_json(
            {
                "a": str(a),
                "b": str(b),
                "num_a": found.num_a,
                "num_b": found.num_b,
                "num_both": found.num_both,
                "num_entered": len(found.entered),
                "num_left": len(found.left),
                "jaccard": found.jaccard,
                "entered": [asdict(change) for change in found.entered[:show]],
                "left": [asdict(change) for change in found.left[:show]],
                "notes": found.notes,
            }
        )
        return
    of_a = counted(found.num_a, "sample")
    click.echo(f"{a}: {of_a}, {b}: {found.num_b}, both: {found.num_both}, Jaccard {found.jaccard:.3f}")
    for note in found.notes:
        click.echo(f"  {harmless(note)}")
    for word, changes in (("entered", found.entered), ("left", found.left)):
        if changes:
            console.print(_changes(f"{len(changes)} {word}", changes[:show]))


def _changes(title: str, changes: Sequence[Change]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("sample", "K", "value in A", "rank in A", "value in B", "rank in B", "why"):
        table.add_column(name, justify="left" if name in ("sample", "why") else "right", overflow="fold")
    for change in changes:
        values = (change.value_a, change.rank_a, change.value_b, change.rank_b)
        shown = ("" if each is None else f"{each:.4f}" if isinstance(each, float) else str(each) for each in values)
        table.add_row(escape(harmless(change.sample_id)), str(change.num_steps), *shown, escape(harmless(change.why)))
    return table
