"""grace-store select"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.base.errors import SettingError
from grace_store.base.files import check_name
from grace_store.base.finding import UNKNOWN, LabelsFile, WhereNote
from grace_store.base.states import HYGIENE, HYGIENE_FLAGS
from grace_store.base.text import counted
from grace_store.choose.exports import EXPORTS
from grace_store.choose.select import subset_paths
from grace_store.choose.selection import SIZES
from grace_store.cli import shared
from grace_store.cli.console import escape_controls, filter_lines, print_result, print_rows
from grace_store.cli.options import FILE, OUT_PATH, PLACE, SCORES, TEXT, As, command, only_given, option, options_of
from grace_store.cli.progress import ProgressDisplay
from grace_store.scoring.provenance import check_outputs
from grace_store.values.diverse_orders import METHODS, DiversitySpec
from grace_store.values.length_bias import LENGTHS

GROUPS_SHOWN = 20
GROUPS_WRITTEN = 1000
"""Maximum number of groups in the JSON result. A field can have a different value for each sample."""


@command(
    "grace-store select scores.parquet --ratio 0.2 --out subset.jsonl",
    'grace-store select scores.parquet --ratio 0.05 --ratio 0.1 --out "subset-{ratio}.jsonl"   # each within the next',
    "grace-store select scores.parquet --count 5000 --as ms-swift --images ./images --out train.jsonl",
    "grace-store select scores.parquet --by num_steps --control length --out subset.jsonl",
    "grace-store select scores.parquet --where 'is_correct and \"meta.level\" > 2' --by source,level --out sub.jsonl",
    "grace-store select scores.parquet --exclude-flagged --ratio 0.2 --out subset.jsonl",
    "grace-store select scores.parquet --exclude-flagged repeated_steps,cut_off --out subset.jsonl",
    "grace-store select scores.parquet --exclude-contaminated against.parquet --out subset.jsonl",
    "grace-store select scores.parquet --diversity facility --weight 0.3 --out subset.jsonl",
    "grace-store select scores.parquet --per-group 1 --out best-of-n.jsonl          # the best trace of each question",
    "grace-store select scores.parquet --per-group 0.5 --ratio 0.2 --out subset.jsonl",
    "grace-store select scores.parquet --weights weights.parquet --as ms-swift --out train.jsonl   # with step weights",
    "grace-store select scores.parquet --as trl-pairs --margin 0.1 --out pairs.jsonl   # best and worst of each",
    "grace-store select scores.parquet --as trl-pairs --labels a.csv --right \"verdict = 'good'\" --out pairs.jsonl",
)
@click.argument("scores", type=SCORES)
@option(
    "--ratio",
    TEXT,
    "Share of the samples to keep. Each share makes one file. [default: 0.2; with --per-group or pairs, 1]",
    many=True,
)
@option("--count", int, "Number of samples to keep. [default: --ratio decides]", many=True)
@option("--threshold", float, "Smallest value to keep. [default: --ratio decides]")
@option(
    "--out", OUT_PATH, "File (.jsonl, .json, .parquet) or folder. {ratio} stands for the ratio or count.", required=True
)
@option(
    "--as",
    click.Choice(list(EXPORTS)),
    "Format to write: the original records, conversations for a trainer, a Hugging Face datasets folder, records with "
    "step scores, the samples' ids, or pairs of a chosen and a rejected response for a trainer.",
    "as_format",
    default="source",
)
@option(
    "--weights",
    FILE,
    "Table of step weights that `weights` wrote. --as ms-swift takes any weights. --as axolotl takes only the weights "
    "0 and 1. [default: all tokens have the same weight]",
)
@option(
    "--model",
    PLACE,
    "With --weights, the model to train. Text is divided only where the model's tokenizer keeps the same tokens. "
    "[default: text is divided at line ends and before spaces]",
)
@option(
    "--exclude-flagged",
    "[NAME,...]",
    f"Leave out samples with these flags. Without names, the flags are {', '.join(HYGIENE_FLAGS)}. [default: no sample "
    "is left out]",
    many=True,
    is_flag=False,
    flag_value=HYGIENE,
)
@option(
    "--exclude-contaminated",
    FILE,
    "Table that `contamination` wrote. Samples that contain items of benchmarks are left out. [default: no sample is "
    "left out]",
)
@option(
    "--by",
    "FIELD[,...]",
    "Fields of the records, or num_steps, such as source,level. Samples with the same values make a group. Each group "
    "has the same share of the subset as of all samples. [default: none]",
)
@shared.where(shared.KNOWN_BY_SCORES)
@option(
    "--per-group",
    "N|SHARE",
    "Keep at most the best N traces of each question, or a share of its traces, such as 0.5. 1 keeps the best trace "
    "of each question. [default: all traces]",
)
@option(
    "--margin",
    click.FloatRange(0),
    "With --as *-pairs, smallest difference between the two values of a pair. [default: any difference]",
)
@shared.right
@shared.group_by
@option(
    "--control",
    click.Choice(["length", *LENGTHS]),
    "Measure of length whose effect is removed from values by regression. length stands for all measures. [default: "
    "none]",
    many=True,
)
@option("--diversity", click.Choice(METHODS), "Method of a diverse selection. [default: rank by value alone]")
@options_of(
    DiversitySpec,
    only=["weight", "similarity", "balance", "seed"],
    differing={
        "weight": As(default="0.25 for facility, 0.5 for mmr, 1 for clusters"),
        "similarity": As(default="the threshold of --duplicates, or 0.95"),
        "balance": As(default="equal"),
        "seed": As(default="0"),
    },
)
@option("--duplicates", FILE, "With --diversity dedup, table that `duplicates` wrote. [default: a new search]")
@shared.clusters
@shared.threads
@option("--store", PLACE, "Scored store, if the store has moved. [default: the earlier place]")
@shared.moved_data
@shared.images
def select(scores: Path, out: Path, as_format: Any, *, as_json: bool, **settings: Any) -> None:
    """Write the best samples of a table of scores to a training set.

    N is the number of samples that have a value, meet --where and are not left out by an --exclude option. The subset
    has exactly ceil(ratio N) of them. Of equal values, the earlier record is kept. Samples are written in the order of
    their records, as JSON lines, or as an array if OUT ends in .json. The note OUT.spec.json has the subset's settings.

    --diversity trades value for less redundancy, with the same number of samples. dedup: keep the best of each group of
    near-duplicates, and use the others last. clusters: give each cluster a budget and fill it with the best samples.
    facility, mmr: choose samples one by one, by their value and by how much they add to the coverage (facility) or
    differ from the samples chosen before (mmr).

    Traces of one question have the same prompt and images, or the same value of --group-by. With --per-group, --ratio
    is a share of the remaining samples. A pair is the best trace of a question and its worst trace with another
    response. --ratio and --count keep the pairs with the largest difference. With --right, a pair is the best right
    trace of a question and its worst wrong trace; questions without both are left out.
    """
    check_name(out, *EXPORTS[as_format].formats)
    sizes = _sizes(settings)
    selection, places = _selection(settings, as_format), {"store": settings.pop("store"), "data": settings.pop("data")}
    places["data"] = places["data"] or None
    with ProgressDisplay(quiet=as_json) as display:
        ranking = gs.rank_samples(scores, selection, **places, threads=settings.pop("threads"), listener=display)
    subsets = {name: ranking.take(**size) for name, size in sizes.items()}
    subsets = subsets or {str(taken.spec.ratio): taken for taken in [ranking.take()]}
    paths = subset_paths(out, list(subsets))
    tables = (
        (selection.duplicates, "the table of duplicates"),
        (selection.exclude_contaminated, "the table of benchmark items"),
        (selection.labels, "the labels"),
    )
    check_outputs(paths, [(Path(path), what) for path, what in tables if isinstance(path, str)])
    results = [
        _result(size, subset, gs.export(subset, path, as_format=as_format, **settings, **places))
        for path, (size, subset) in zip(paths, subsets.items(), strict=True)
    ]
    shown = results[0] if len(results) == 1 else results
    print_result(shown, _print, results, list(subsets.values()), as_json=as_json)


def _sizes(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Remove the sizes from the settings, and return each one by its name in files; empty without any."""
    given = {name: settings.pop(name) for name in SIZES}
    given["threshold"] = () if given["threshold"] is None else (given["threshold"],)
    if sum(map(bool, given.values())) > 1:
        raise SettingError("give one of --ratio, --count and --threshold")
    if any(len(set(each)) < len(each) for each in given.values()):
        raise SettingError("the same ratio or count is given twice")
    return {str(size): {name: size} for name, each in given.items() for size in each}


def _selection(settings: dict[str, Any], as_format: str) -> gs.Selection:
    """Remove the selection's settings from a command's parameters, and return the selection."""
    asked = {name: settings.pop(name) for name in gs.Selection.model_fields if name in settings}
    diversity = {name: settings.pop(name) for name in DiversitySpec.model_fields if name in settings}
    asked["exclude_flagged"] = [name for names in asked["exclude_flagged"] for name in names.split(",")]
    if EXPORTS[as_format].is_of_pairs:
        asked["margin"] = 0.0 if asked["margin"] is None and asked["right"] is None else asked["margin"]
    elif lonely := only_given({name: asked[name] for name in ("margin", "right")}):
        pairs = ", ".join(name for name in EXPORTS if EXPORTS[name].is_of_pairs)
        raise SettingError(f"--{next(iter(lonely))} needs a format for pairs: give --as with one of {pairs}")
    if asked["diversity"] is not None:
        asked["diversity"] = DiversitySpec.parse(method=asked["diversity"], **diversity)
    elif lonely := only_given({**diversity, "duplicates": asked["duplicates"]}):
        option = {"num_clusters": "clusters"}.get(name := next(iter(lonely)), name)
        raise SettingError(f"--{option} needs --diversity: give --diversity, too")
    return gs.Selection.parse(**asked)


def _result(size: str, subset: gs.Subset, exported: gs.Exported) -> dict[str, Any]:
    found: dict[str, Any] = {
        "out": str(exported.out),
        "conclusion": subset.conclusion,
        "kept": size,
        "num_samples": len(subset),
        "num_with_value": subset.num_with_value,
        "num_excluded": subset.excluded.counts if subset.excluded else {},
        "num_contaminated": subset.excluded.num_contaminated if subset.excluded else 0,
        "threshold": subset.threshold if subset.is_by_value else None,
        "smallest_value": subset.threshold,
        "num_tied": subset.num_tied,
        "files": [str(file) for file in exported.files],
        "notes": exported.notes,
    }
    if isinstance(where := subset.spec.where, WhereNote):
        found["where"] = where.model_dump()
    if isinstance(labels := subset.spec.labels, LabelsFile):
        found["labels"] = labels.model_dump()
    if subset.groups:
        found["num_groups"] = len(subset.groups)
        found["groups"] = [asdict(each) | {"share": each.share} for each in subset.groups[:GROUPS_WRITTEN]]
    return found


def _print(results: list[dict[str, Any]], subsets: list[gs.Subset]) -> None:
    for result, subset in zip(results, subsets, strict=True):
        # If not only the value decides, some samples from the smallest chosen value on are not chosen.
        is_of_pairs = subset.rejected is not None
        control = ", length taken out" if subset.spec.control else ""
        smallest = f"smallest {'margin' if is_of_pairs else 'value'} kept {result['smallest_value']:.4f}{control}"
        least = smallest if result["threshold"] is None else f"value {result['threshold']:.4f} and above"
        of = counted(result["num_with_value"], "pair" if is_of_pairs else "sample")
        click.echo(escape_controls(subset.conclusion))
        click.echo(f"{result['out']}: {result['num_samples']} of {of}, {least}.")
        click.echo(filter_lines(subset.spec, subset.num_with_value), nl=False)
        for note in result["notes"]:
            click.echo(f"  {escape_controls(note)}")
        if subset.groups:
            _print_groups(subset)


def _print_groups(subset: gs.Subset) -> None:
    rows = [[subset.spec.by or "group", "pool", "chosen", "share", "by value"]]
    for each in subset.groups[:GROUPS_SHOWN]:
        share = UNKNOWN if not each.pool else f"{100 * each.share:.1f} %"
        rows.append([each.group, str(each.pool), str(each.chosen), share, str(each.by_value)])
    print_rows(rows if subset.spec.by else [row[:-1] for row in rows])
    if len(subset.groups) > GROUPS_SHOWN:
        rest = subset.groups[GROUPS_SHOWN:]
        pool, chosen = sum(each.pool for each in rest), sum(each.chosen for each in rest)
        click.echo(f"  and {counted(len(rest), 'smaller group')}: {chosen} of {counted(pool, 'sample')} chosen")
