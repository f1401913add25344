"""grace-store trial"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import grace_store as gs
from grace_store.artifacts.trial_documents import FOUND, OPTIONS, SubsetPair, TrialSpec, conclusions_of
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.base.text import counted
from grace_store.cli import shared
from grace_store.cli.console import print_json, print_result, print_rows, stoppable
from grace_store.cli.options import (
    COUNT,
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
from grace_store.data.formats import FORMATS
from grace_store.model.lora.recipe import TrainingRequest, TrainingSpec, WarmupOptions

if TYPE_CHECKING:
    from grace_store.curate.trial import TrialEstimate

OWN = {
    **{name: As(f"--{option}") for name, option in OPTIONS.items()},
    "held_out": As("--held-out"),
    "by": As(default="random subsets follow the subset's own rules alone"),
}
recipe = stacked(
    options_of(TrialSpec, but=("training",), differing=OWN),
    options_of(
        TrainingRequest,
        TrainingSpec,
        ExtractSpec,
        differing={
            "seed": As(help="Seed of the held-out questions, of random subsets, and of the first round's training."),
            **shared.reading,
        },
    ),
)
"""What changes the numbers; frozen in OUT/plan.json."""


@command(
    "grace-store trial subset.jsonl --out trial --dry-run            # what it would cost",
    "grace-store trial subset.jsonl other.jsonl --out trial --updates 200 --random 5 --seeds 3",
    "grace-store trial subset.jsonl --out trial --held-out test.jsonl --by kind",
    "grace-store trial subset.jsonl --weighted subset.jsonl weights.parquet --out trial",
    "grace-store trial --out trial                                   # go on after any interruption",
    "grace-store report traces.zarr --out report.html --trial trial/trial.json",
)
@click.argument("subsets", type=PATH, nargs=-1, metavar="[SUBSET]...")
@option(
    "--weighted",
    (PATH, PATH),
    "Subset to train with step weights, and the table of them that `weights` wrote. [default: none]",
    many=True,
    metavar="SUBSET WEIGHTS",
)
@option("--out", OUT_FOLDER, "Folder for the trainings' results; an earlier trial there goes on.", required=True)
@option("--store", PLACE, "Store of the subsets, if it has moved, or for lists of ids. [default: where it was]")
@option("--model", PLACE, "Model to train. [default: the one that the scores' signal was extracted with]")
@recipe
@option("--format", click.Choice(list(FORMATS)), "Format of a held-out file's records. [default: recognised]")
@option(
    "--map",
    "PART=FIELD",
    "Field of a held-out file's records that holds a part: prompt, response, steps, answer, options, id. May be "
    "repeated. [default: the format's own fields]",
    many=True,
    callback=as_table,
)
@shared.moved_data
@shared.images
@option("--workers", COUNT, "Processes that share the trainings. [default: one for each accelerator, if several]")
@speed
@flag("--dry-run", "Say how many trainings there are and how long they take, from one update; train nothing.")
@config_option
def trial(out: Path, *, dry_run: bool, as_json: bool, **wishes: Any) -> None:
    """Train on subsets and on random ones, and compare the models.

    Small LoRA trainings of your own model, all with the same number of updates: on each SUBSET that `select` wrote,
    and on random subsets that follow the rules it was chosen by. All models are measured on the same held-out traces.
    The answer is looked at after each seed, and the trial ends when it is clear; the error rate of 5 % holds wherever
    it ends. After an interruption the same command goes on. Processes that are started with the same OUT share the
    trainings.
    """
    from grace_store.curate.trial import estimate_trial

    request, is_first = _request(wishes)
    if dry_run:
        with ProgressDisplay(quiet=as_json) as display:
            cost = estimate_trial(out, request, listener=display)
        print_result(_cost(cost), click.echo, str(cost), as_json=as_json)
        return
    shown = ProgressDisplay(quiet=as_json or not is_first)
    with shown as display, stoppable("the updates of the trainings under way") as stop:
        found = gs.trial(out, request, listener=display, stop=stop)
    if not is_first:
        return
    if as_json:
        print_json({"out": str(out), **found.to_json()})
    else:
        _print(found, out)


def _request(wishes: dict[str, Any]) -> tuple[gs.TrialRequest, bool]:
    """Return what was asked for, and whether this process is to say what comes out."""
    from grace_store.model.load.adapter_folder import require_peft
    from grace_store.run.engines.choice import choose_engine

    require_peft()
    options = WarmupOptions(**pick(wishes, WarmupOptions))
    chosen = choose_engine(RunOptions(device=options.device), wishes["workers"], None)
    options = options.model_copy(update={"device": chosen.options.device})
    named = (
        "subsets",
        "weighted",
        "store",
        "model",
        "format",
        "map",
        "images",
        *(name for name in TrialSpec.model_fields if name != "training"),
    )
    request = gs.TrialRequest(
        training=TrainingRequest(**pick(wishes, TrainingRequest)),
        options=options,
        **{name: wishes[name] for name in named},
    )
    return replace(request, data=wishes["data"] or None, devices=chosen.engine.devices), chosen.shard[0] == 0


def _cost(cost: TrialEstimate) -> dict[str, Any]:
    return {
        "num_runs": cost.num_runs,
        "num_done": cost.num_done,
        "num_devices": cost.num_devices,
        "num_updates": cost.cost.num_updates,
        "update_seconds": cost.cost.update_seconds,
        "run_seconds": cost.cost.run_seconds,
        "seconds": cost.seconds,
    }


def _print(found: gs.Trial, out: Path) -> None:
    for sentence in conclusions_of(found.subsets, found.questions_conclusion, found.pairs):
        click.echo(sentence)
    amount = f"{counted(found.num_runs, 'training')} of {found.spec.num_updates} updates"
    early = f", {found.num_most_runs - found.num_runs} not needed" if found.num_runs < found.num_most_runs else ""
    click.echo(f"\n{out}: {amount}{early}; {counted(found.num_items, 'held-out item')}")
    left_out = f"{found.num_held_out_samples} of the {counted(found.num_pool, 'sample')} of the pool"
    click.echo(f"  {left_out} ask held-out questions, so no model was trained on them")
    rows = [["subset", "trained on", "questions", "seeds", "loss", "random subsets", "difference, 95 %"]]
    for each in found.subsets:
        low, high = min(each.random_losses), max(each.random_losses)
        losses = [f"{each.heldout_loss:.4f}", f"{low:.4f} to {high:.4f}", str(each.difference)]
        rows.append([each.name, str(each.num_trained), str(each.num_questions), str(each.num_rounds), *losses])
    print_rows(rows)
    click.echo(
        "  Loss per token of held-out responses, mean over seeds; below 0 the subset trains better models. Intervals "
        "hold for all subsets and looks\n  together, over held-out items, seeds and random draws, the subset itself "
        "counting as one draw of its way of choosing."
    )
    if found.pairs is not None:
        _print_pairs(found.pairs)
    if found.spec.generate:
        _print_answers(found)
    click.echo(f"  written: {out / FOUND}")


def _print_pairs(pairs: Sequence[SubsetPair]) -> None:
    """Print the subsets against each other."""
    click.echo("\n  The subsets against each other:")
    rows = [["subset", "against", "seeds of both", "difference, 95 %"]]
    print_rows(rows + [[each.first, each.second, str(each.num_rounds), str(each.difference)] for each in pairs])
    click.echo(
        "  Below 0 the first trains better models. These comparisons are not part of the error rate that the looks "
        "above keep; their own\n  intervals hold 95 % for all pairs together, each subset counting as one draw of its "
        "way of choosing."
    )


def _print_answers(found: gs.Trial) -> None:
    """Print how many of the models' own answers are right, if enough items say what is right."""
    rows = [["subset", "right", "random subsets", "difference, 95 %"]]
    for each in found.subsets:
        if each.random_shares_right is not None:
            low, high = min(each.random_shares_right), max(each.random_shares_right)
            rows.append([each.name, f"{each.share_right:.3f}", f"{low:.3f} to {high:.3f}", str(each.right_difference)])
    if len(rows) > 1:
        click.echo("\n  Right answers:")
        print_rows(rows)
