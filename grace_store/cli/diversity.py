"""grace-store diversity"""

from pathlib import Path
from typing import Any

import grace_store as gs
from grace_store.base.errors import SettingError
from grace_store.cli import shared
from grace_store.cli.console import show
from grace_store.cli.options import COUNT, NATURAL, PATH, TEXT, choice, command, flag, only_given, option, parsed
from grace_store.cli.progress import ProgressDisplay
from grace_store.scoring.provenance import check_results
from grace_store.values.diverse_orders import Traded


@command(
    "grace-store diversity traces.zarr --subset plain.jsonl --subset diverse.jsonl",
    "grace-store diversity traces.zarr --scores scores.parquet --ratio 0.05 --ratio 0.2 --out diversity.json",
    "grace-store diversity traces.zarr --scores scores.parquet --ratio 0.2 --curve --out diversity.json",
)
@shared.store
@option(
    "--subset",
    PATH,
    "Subset that `select` wrote, or a table of scores. The top 20 % of a table count as its subset. [default: none]",
    "subsets",
    many=True,
)
@shared.scores(
    "Table with the pool's values. The best samples of the table are also measured as a subset. [default: none]"
)
@option(
    "--ratio", TEXT, "Share of the best samples of --scores that is measured as a subset. [default: 0.2]", many=True
)
@shared.clusters
@option("--random", COUNT, "Number of random subsets to compare with.", default=200)
@option("--seed", NATURAL, "Seed of the clusters and of the random subsets.", default=0)
@flag("--curve", "List how much value more coverage costs, at the first --ratio. `report --finding` draws the list.")
@option(
    "--method", choice(Traded), "Method of diverse selection in --curve. [default: all methods]", "methods", many=True
)
@option(
    "--weight",
    float,
    "Weight of diversity in --curve, from 0 to 1. [default: seven weights from 0 to 1]",
    "weights",
    many=True,
)
@option(
    "--show",
    NATURAL,
    "List at most this many clusters that are chosen too often, and as many that are chosen too rarely.",
    default=3,
)
@shared.out_finding
@shared.where(" (with --scores also num_tokens, value, flags)")
@shared.moved_data
@shared.partial
@shared.threads
def diversity(
    store: str, scores: Path | None, curve: bool, out: Path | None, *, as_json: bool, **settings: Any
) -> None:
    """Measure the diversity of subsets and its cost in value.

    Each subset is compared with the whole pool of samples and with random subsets of the same size. Coverage is the
    share of the clusters of the samples' vectors that a subset touches.
    """
    asked = only_given({name: settings.pop(name) for name in ("methods", "weights")})
    if asked and not curve:
        raise SettingError("--method and --weight need --curve: give --curve, too")
    choices = gs.curve_choices(seed=settings["seed"], **asked) if curve else ()
    check_results(store, [out], [scores, *settings["subsets"], settings["labels"]])
    settings["clusters"] = settings.pop("num_clusters")
    measured = parsed(gs.DiversitySettings, settings)
    pool = shared.take_pool(store, settings, settings.pop("threads"))
    with ProgressDisplay(quiet=as_json) as display:
        found = gs.diversity(pool, settings=measured, scores=scores, curve=choices, **settings, listener=display)
    show(found, out, as_json=as_json)
