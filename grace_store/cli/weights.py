"""grace-store weights"""

from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.cli import shared
from grace_store.cli.console import show
from grace_store.cli.options import OUT_PARQUET, command, only_given, option, options_of
from grace_store.cli.progress import ProgressDisplay
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.weightings import WEIGHTINGS, WeightsSpec

SCORE_SETTINGS = ("measure", "alpha", "history", "target")
MEASURE = (
    "Measure of steps, as NAME:WAY; `score --help` lists the names. The method scores takes only grace. "
    "[default: grace]"
)
METHOD_LIST = "\n".join(["\b\nMethods:", *(f"  {name}: {each.about}" for name, each in WEIGHTINGS.items())])


@command(
    "grace-store weights traces.zarr --out weights.parquet",
    "grace-store weights traces.zarr --out weights.parquet --signal early=1 --signal late=3",
    "grace-store weights traces.zarr --out weights.parquet --method scores --alpha 0.5",
    "grace-store weights traces.zarr --out weights.parquet --method drop --drop-share 0.25",
    "grace-store weights traces.zarr --out weights.parquet --method drop --measure loss:lowest",
    "grace-store select scores.parquet --weights weights.parquet --as ms-swift --out train.jsonl",
    about=METHOD_LIST + "\n\n",
)
@shared.store
@option("--out", OUT_PARQUET, "Parquet file to write.", required=True)
@option("--signal", "NAME[=WEIGHT]", "Signal to use, and its weight. [default: the only signal]", many=True)
@option("--method", click.Choice(list(WEIGHTINGS)), "Method of weighting steps; see the list below.", default="fit")
@options_of(WeightsSpec, only=["drop_share", "answer_weight"])
@options_of(ScoreSpec, only=SCORE_SETTINGS, differing=shared.own_score(MEASURE))
@shared.where()
@shared.moved_data
@shared.partial
@shared.threads
def weights(store: str, out: Path, *, as_json: bool, **settings: Any) -> None:
    """Make a table of step weights: how much to train on each step.

    A step weight multiplies the loss of each token of the step. The mean weight over the tokens of a sample's steps is
    1. The answer's weight is 1, or --answer-weight. The method drop gives only 0 and 1, so that trainers can use masks.

    `select --weights` writes the chosen samples with their weights, for trainers that read weights. --measure, --alpha,
    --history and --target set how the methods scores and drop score steps.
    """
    pool = shared.take_pool(store, settings, settings.pop("threads"))
    scores = ScoreSpec.parse(**only_given({name: settings.pop(name) for name in SCORE_SETTINGS}))
    spec = WeightsSpec.parse(scores=scores, **{name: value for name, value in settings.items() if value is not None})
    with ProgressDisplay(quiet=as_json) as display:
        found = gs.weights(pool, spec, out=out, listener=display)
    show(found, as_json=as_json)
