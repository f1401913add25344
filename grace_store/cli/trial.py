"""grace-store trial"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.base.training_settings import TrainingSpec, WarmupOptions
from grace_store.cli import shared
from grace_store.cli.console import show, stoppable
from grace_store.cli.options import (
    COUNT,
    FILE,
    OUT_FOLDER,
    PATH,
    PLACE,
    As,
    as_table,
    command,
    config_option,
    flag,
    option,
    options_of,
    pick,
    stacked,
)
from grace_store.cli.progress import ProgressDisplay
from grace_store.cli.warmup import speed
from grace_store.data.formats.known_formats import FORMATS
from grace_store.model.load.adapter_folder import require_peft
from grace_store.run.engines.engine import choose_engine
from grace_store.study.trial_documents import FOUND, OPTIONS, TrialSpec

trial_options = {name: As(f"--{option}") for name, option in OPTIONS.items()} | {"held_out": As("--held-out")}
seed = As(help="Seed of the held-out questions, of random subsets, and of the first round's training.")
recipe = stacked(
    options_of(TrialSpec, but=("training",), differing=trial_options),
    options_of(TrainingSpec, ExtractSpec, differing={"seed": seed, **shared.input_defaults}),
)
"""Options that change the numbers; frozen in OUT/plan.json."""


@command(
    "grace-store trial traces.zarr subset.jsonl --out trial --dry-run    # how many trainings, how long",
    "grace-store trial traces.zarr subset.jsonl other.jsonl --out trial --updates 200 --random 5 --seeds 3",
    "grace-store trial traces.zarr subset.jsonl --out trial --held-out test.jsonl",
    "grace-store trial traces.zarr subset.jsonl --weighted subset.jsonl weights.parquet --out trial",
    "grace-store trial --out trial                                       # go on after any interruption",
    "grace-store report traces.zarr --out report.html --finding trial/trial.json",
)
@shared.optional_store
@click.argument("subsets", type=PATH, nargs=-1, metavar="[SUBSET]...")
@option(
    "--weighted",
    (PATH, PATH),
    "Subset to train with step weights, and the table that `weights` wrote. [default: none]",
    many=True,
    metavar="SUBSET WEIGHTS",
)
@option("--out", OUT_FOLDER, "Folder for the results. An earlier trial in this folder is continued.", required=True)
@option("--model", PLACE, "Model to train. [default: the model of the scored signal]")
@recipe
@option(
    "--format",
    click.Choice(list(FORMATS)),
    "Format of a held-out file's records. [default: recognised from the records]",
)
@option(
    "--map",
    "PART=FIELD",
    "Field of a held-out file's records that holds a part. PART is prompt, response, steps, answer, options or id. You "
    "can give this option several times. [default: the format's own fields]",
    many=True,
    callback=as_table,
)
@shared.moved_data
@option("--labels", FILE, "File of labels that subsets were chosen with, if it has moved. [default: the earlier file]")
@shared.images
@option("--workers", COUNT, "Number of processes that share the trainings. [default: one per accelerator]")
@speed
@flag("--dry-run", "Train nothing. Print the number of trainings and their time, which is estimated from one update.")
@config_option
def trial(out: Path, *, dry_run: bool, as_json: bool, **wishes: Any) -> None:
    """Train on chosen and on random subsets, and compare the models.

    The trial runs small LoRA trainings of your own model, all with the same number of updates. It trains on each SUBSET
    that `select` chose from STORE (or on a list of ids, one per line), and on random subsets by the same rules. All
    models are measured on the same held-out traces. The results are tested after each seed, and the trial stops
    when the result is clear. The error rate is at most 5 %, also for a trial that stops early. After an interruption,
    the same command goes on. Processes with the same OUT share the trainings.
    """
    request, is_first = _request(wishes)
    if dry_run:
        from grace_store.study.trial import estimate_trial

        with ProgressDisplay(quiet=as_json) as display:
            cost = estimate_trial(out, request, listener=display)
        show(cost, as_json=as_json)
        return
    shown = ProgressDisplay(quiet=as_json or not is_first)
    with shown as display, stoppable("the updates of the trainings under way") as stop:
        found = gs.trial(out, request, listener=display, stop=stop)
    if is_first:
        show(found, as_json=as_json)
        click.echo(f"{out / FOUND}: the finding was written.", err=True)


def _request(wishes: dict[str, Any]) -> tuple[gs.TrialRequest, bool]:
    """Return the request, and whether this process prints the result."""
    require_peft()
    options = WarmupOptions(**pick(wishes, WarmupOptions))
    run, shard, engine = choose_engine(RunOptions(device=options.device), wishes["workers"], None)
    options = options.model_copy(update={"device": run.device})
    named = ("subsets", "weighted", "store", "model", "format", "map", "images", "labels")
    spec = TrialSpec(training=TrainingSpec(**pick(wishes, TrainingSpec)), **pick(wishes, TrialSpec))
    request = gs.TrialRequest(spec=spec, options=options, **{name: wishes[name] for name in named})
    return replace(request, data=wishes["data"] or None, devices=engine.devices), shard[0] == 0
