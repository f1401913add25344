"""grace-store judge"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import harmless, out, print_result, print_rows
from grace_store.cli.options import COUNT, NATURAL, OUT_JSON, TEXT, command, option
from grace_store.cli.progress import ProgressDisplay


@command(
    "grace-store judge traces.zarr --label is_correct",
    "grace-store judge processbench.zarr --out judgement.json",
)
@shared.store
@option(
    "--label",
    TEXT,
    "Field of the records that says whether a trace is right: true or false, or a number. [default: the labels that "
    "the format names]",
)
@option("--threshold", float, "With --label, the number from which on a trace is right. [default: the larger of two]")
@option(
    "--first-wrong", TEXT, "Field with the number of the first wrong step, from 0; -1 for none. [default: not used]"
)
@option("--wrong-steps", TEXT, "Field with a list of the wrong steps' numbers, from 1. [default: not used]")
@option(
    "--kind",
    TEXT,
    "Field that names kinds of error; each is judged by itself, too. [default: that of the format, if any]",
)
@option("--question", TEXT, "Field that traces of one question share. [default: the prompt]")
@option("--signal", TEXT, "Signal to judge. [default: all that have steps]", "signals", many=True)
@shared.grace
@shared.where()
@option("--samples", COUNT, "Most samples to judge; of more, these are drawn at random.", "max_samples", default=10_000)
@option("--draws", COUNT, "Random draws of questions behind each interval.", default=400)
@option("--seed", NATURAL, "Seed of all random draws.", default=0)
@shared.moved_data
@shared.partial
@shared.threads
@option("--out", OUT_JSON, "JSON file for the result. [default: not written]")
def judge(store: str, out: Path | None, *, as_json: bool, **settings: Any) -> None:
    """Measure how well stored signals agree with labels.

    Labels say which traces are right, or which steps are wrong. Each signal is judged by the share of pairs, one right
    and one wrong, in which the right one scores better (the area under the ROC): over all pairs, over pairs of the
    same question, and over pairs with the same position and similar length. Stores of ProcessBench or PRMBench need no
    option: their labels are known.
    """
    from grace_store.artifacts.outputs import check_results
    from grace_store.base.documents import write_document

    spec, threads = shared.take_score_spec(settings), settings.pop("threads")
    check_results(store, [out])
    signals, data = settings.pop("signals") or None, settings.pop("data") or None
    request = gs.JudgeRequest(spec=spec, signals=signals, data=data, **settings)
    with ProgressDisplay(quiet=as_json) as display:
        found = gs.judge(store, request, threads=threads, listener=display)
    if out is not None:
        write_document(out, found)
    print_result(found.to_json(), _print, store, found, out, as_json=as_json)


def _print(store: str, found: gs.Judgement, out: Path | None) -> None:
    from grace_store.curate.verdict import FEWEST_PAIRS

    for items in found.judged:
        click.echo(items.conclusion)
    for items in found.judged:
        of = f"{items.num_right} right and {items.num_wrong} wrong {items.of}"
        click.echo(f"\n{store}: {of} of {counted(items.num_questions, 'question')}, by the field {found.labels.field}")
        _print_areas(items)
        _print_kinds(items.measures)
    click.echo(
        "\n  Share of pairs in which the right one has the better score, with 95 % intervals over questions; 0.50 is "
        "chance.\n  held fixed: only pairs with the same position (of traces: number of steps) and similar length "
        f"(the same fourth of the lengths there). both: of the same question, too. -: fewer than {FEWEST_PAIRS} pairs."
    )
    if any(items.chance_of_first_errors is not None for items in found.judged):
        click.echo(
            "  F1: of ProcessBench, for finding the first wrong step; the threshold of each half of the questions is "
            "the best one on the other half."
        )
    if found.skipped:
        click.echo(f"  Left out, with one vector a sample and no steps: {', '.join(found.skipped)}.")
    if out is not None:
        click.echo(f"  written: {out}")


def _print_areas(items: Any) -> None:
    from grace_store.curate.verdict import shown_area

    rows = []
    for each in items.measures:
        areas = (each.across, each.within, each.across_fixed, each.within_fixed)
        rows.append([each.name, each.better, *map(shown_area, areas)])
        if (first := each.first_errors) is not None:
            rows[-1].append(f"{first.f1:.2f} ({first.low:.2f} to {first.high:.2f})")
    header = ["measure", "better is", "all pairs", "same question", "held fixed", "both"]
    chance = ["chance", "", "0.50", "0.50", "0.50", "0.50"]
    if items.chance_of_first_errors is not None:
        header.append("F1")
        chance.append(f"{items.chance_of_first_errors:.2f}")
    print_rows([header, *rows, chance])


def _print_kinds(measures: Sequence[Any]) -> None:
    from grace_store.curate.verdict import FEWEST_PAIRS, shown_area

    if not measures[0].kinds:
        return
    kinds = [kind for kind, area in measures[0].kinds.items() if area.num_pairs >= FEWEST_PAIRS]
    if not kinds:
        click.echo("\n  No kind of error has enough pairs with the same position and length.")
        return
    click.echo("\n  By kind of error, position and length held fixed:")
    counts = [f"{harmless(kind)} ({measures[0].kinds[kind].num_wrong})" for kind in kinds]
    rows = [[each.name, *(shown_area(each.kinds[kind]) for kind in kinds)] for each in measures]
    for table in fitting([["measure", *counts], *rows], out.width if out.is_terminal else None):
        print_rows(table)


def fitting(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[list[list[str]]]:
    """Yield a table as tables below each other that fit into a width, each with the first column.

    >>> list(fitting([["a", "bb", "cc"]], 9))
    [[['a', 'bb']], [['a', 'cc']]]
    """
    sizes = [2 + max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    columns = [0]
    for column in range(1, len(sizes)):
        if width is not None and len(columns) > 1 and sum(sizes[each] for each in columns) + sizes[column] > width:
            yield [[row[each] for each in columns] for row in rows]
            columns = [0]
        columns.append(column)
    yield [[row[each] for each in columns] for row in rows]
