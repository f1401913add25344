"""grace-store demo"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from grace_store.cli.console import log, out, print_json
from grace_store.cli.options import LocalPath, as_json

NUM_SHOWN = 5
WIDTH_OF_THE_REST = 57
"""What all columns but the question take."""


@click.command(epilog="\b\nExample:\n  grace-store demo --out demo-output")
@click.option("--out", "folder", default="demo-output", show_default=True, type=LocalPath(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path), help="Another model. [default: SmolLM2-135M-Instruct]")
@click.option("--ratio", default="0.2", show_default=True, help="Share of the traces to keep.")
@as_json
@click.pass_context
def demo(ctx: click.Context, folder: Path, model: Path | None, ratio: str, *, as_json: bool) -> None:
    """Plan, extract, score, select and report on the traces that ship with grace-store.

    64 worked problems of twelve kinds, half of them flawed in known ways, and a real language model on the CPU.
    """
    from grace_store.example import FOLDER, demo_model

    traces = FOLDER / "traces.jsonl"
    store, scores, subset = folder / "demo.zarr", folder / "scores.parquet", folder / "subset.jsonl"
    report = folder / "report.html"
    folder.mkdir(parents=True, exist_ok=True)
    # The text of every problem says what its figure shows, so a text model can do without.
    extract = ["--store", store, "--model", model or demo_model(), "--text-only"]
    for arguments in (
        ["plan", traces, "--store", store],
        ["extract", *extract],
        ["score", store, "--out", scores],
        ["select", scores, "--ratio", ratio, "--out", subset],
        *([["report", store, "--scores", scores, "--subset", subset, "--out", report]] if _can_report() else []),
    ):
        # What the steps print is for people; with --json, stdout belongs to the one result at the end.
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            _run(ctx, arguments)
    ranking = _ranking(scores, traces)
    made = {"store": str(store), "scores": str(scores), "subset": str(subset)}
    if _can_report():
        made["report"] = str(report)
    else:
        log.print("No report was written: it needs plotly. Run `pip install 'grace-store[report]'`.", markup=False)
    if as_json:
        print_json(made | {"ranking": ranking})
        return
    _show(ranking)
    best = ranking[0]["sample_id"]
    for name, place in made.items():
        out.print(f"{name.capitalize():<7} {place}", markup=False, soft_wrap=True)
    out.print(f"Look closer: grace-store inspect {store} {best}", markup=False, soft_wrap=True)


def _can_report() -> bool:
    return find_spec("plotly") is not None


def _run(ctx: click.Context, arguments: Sequence[Any]) -> None:
    """Run a command as the user would type it, and show it as such."""
    words = [str(argument) for argument in arguments]
    log.print(f"\n$ grace-store {shlex.join(words)}", style="bold", markup=False, soft_wrap=True)
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    command = root.get_command(ctx, words[0])
    assert command is not None
    with command.make_context(words[0], words[1:], parent=ctx) as sub:
        command.invoke(sub)


def _ranking(scores: Path, traces: Path) -> list[dict[str, Any]]:
    """Return the samples from best to worst, with what the demo knows of each."""
    from grace_store.artifacts.score_table import read_scores
    from grace_store.values.ranking import rank

    known: dict[str, dict[str, Any]] = {}
    for line in traces.read_text(encoding="utf-8").splitlines():
        if line.endswith("}"):
            record = json.loads(line)
            known.setdefault(record["id"], record)
    table = read_scores(scores)
    ids, values = table.sample_id, table.value
    return [
        {"sample_id": ids[i], "value": float(values[i]), "quality": known[ids[i]]["quality"],
         "question": known[ids[i]]["instruction"]}
        for i in rank(values, table.row).tolist()
    ]  # fmt: skip


def _show(ranking: list[dict[str, Any]]) -> None:
    table = Table(title=f"\nThe best and the worst {NUM_SHOWN} of {len(ranking)} traces", title_justify="left")
    for name in ("rank", "value"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("trace", "quality", "question"):
        table.add_column(name, no_wrap=True)
    room = max(20, out.width - WIDTH_OF_THE_REST)
    for place, entry in enumerate(ranking, start=1):
        if place <= NUM_SHOWN or place > len(ranking) - NUM_SHOWN:
            question = entry["question"]
            question = question if len(question) <= room else question[: room - 1] + "…"
            cells = (str(place), f"{entry['value']:.4f}", entry["sample_id"], entry["quality"], question)
            table.add_row(*cells, end_section=place == NUM_SHOWN)
    out.print(table)
    by_quality: dict[str, list[float]] = {}
    for entry in ranking:
        by_quality.setdefault(entry["quality"], []).append(entry["value"])
    means = sorted(((sum(values) / len(values), name) for name, values in by_quality.items()), reverse=True)
    out.print("Mean value by quality: " + ", ".join(f"{name} {mean:.3f}" for mean, name in means))
    out.print("(A small model without warm-up is a weak judge of a wrong number: this shows the tool, not the method.)")
