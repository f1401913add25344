"""grace-store score, audit"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grace_store.base.errors import SettingError
from grace_store.base.text import counted
from grace_store.cli.console import ProgressDisplay, harmless, print_json
from grace_store.cli.options import LocalPath, as_json, engine_options, spread, stacked

if TYPE_CHECKING:
    from grace_store.curate.targets import Targets
    from grace_store.values.methods.heuristic_spec import HeuristicSpec
    from grace_store.values.methods.influence_spec import InfluenceSpec
    from grace_store.values.score_spec import ScoreSpec

EPILOG = """\b
Examples:
  grace-store score traces.zarr --out scores.parquet --history ema:0.8
  grace-store score traces.zarr --out scores.parquet --alpha 1                  # without history
  grace-store score traces.zarr --out scores.parquet --without-answer
  grace-store score traces.zarr --out scores.parquet --signal early=1 --signal late=3
  grace-store score traces.zarr --out scores.parquet --method longest
  grace-store score traces.zarr --out less.parquet --method less --targets bench.zarr --signal ck1 --signal ck2
  grace-store score traces.zarr --out icons.parquet --method icons --targets bench.zarr --subtasks subject
  grace-store score --replay scores.parquet --out again.parquet
  grace-store score s3://bucket/traces.zarr --out scores.parquet --engine ray --address auto    # on a Ray cluster
"""

HEURISTICS = ("random", "longest", "stepmax", "loss", "perplexity")
INFLUENCES = ("less", "icons", "cadc")
GRACE_OPTIONS = ("alpha", "history", "target", "without_answer", "aggregation")
INFLUENCE_OPTIONS = ("vote_percent", "join_cosine")
SUBTASKS_SHOWN = 10

partial_option = click.option("--partial", is_flag=True, help="Use what is there of an unfinished signal.")
threads_option = click.option("--threads", type=click.IntRange(1), help="Blocks at a time. [default: cores, up to 8]")

grace_options = stacked(
    click.option("--alpha", type=float, help="Weight of the answer against history, 0 to 1. [default: 0.7]"),
    click.option("--history", help="Earlier steps by: uniform, window:W or ema:B. [default: uniform]"),
    click.option("--target", type=click.Choice(["answer", "trace", "suffix"]), help="[default: answer]"),
    click.option("--without-answer", is_flag=True, default=None, help="Score by history alone."),
    click.option("--aggregation", help="mean, min, last, length_weighted or quantile:Q, over steps. [default: mean]"),
)  # fmt: skip

spec_options = stacked(
    click.option(
        "--method", type=click.Choice(["grace", *HEURISTICS, *INFLUENCES]), default="grace", show_default=True,
        help="less, icons and cadc (a reconstruction) score by the influence on --targets.",
    ),
    grace_options,
    click.option("--seed", type=click.IntRange(0), help="For --method random and cadc. [default: 0]"),
    click.option("--vote-percent", type=float, help="ICONS: subtasks vote for their best so many %. [default: 20]"),
    click.option("--join-cosine", type=float, help="CADC: subtasks as close as this are joined. [default: 0.5]"),
)  # fmt: skip

target_options = stacked(
    click.option("--targets", type=click.Path(), help="Store of the target set, extracted as STORE was."),
    click.option(
        "--target-signal", multiple=True, metavar="NAME",
        help="The targets' signal for each --signal, in order. [default: the same name, or the only one that fits]",
    ),
    click.option("--subtasks", metavar="FIELD", help="Field of the targets' records. [default: one subtask a file]"),
    click.option("--target-data", multiple=True, type=click.Path(), help="Where the targets' files are now."),
)  # fmt: skip


@click.command(epilog=EPILOG)
@click.argument("store", type=click.Path(), required=False)
@click.option("--out", required=True, type=LocalPath(dir_okay=False, path_type=Path), help="The Parquet table.")
@click.option("--signal", multiple=True, metavar="NAME[=WEIGHT]", help="May be repeated. [default: the only one]")
@spec_options
@target_options
@click.option("--replay", type=click.Path(dir_okay=False, path_type=Path), help="Score as this table was scored.")
@partial_option
@threads_option
@engine_options
@as_json
def score(
    store: str | None, out: Path, signal: tuple[str, ...], replay: Path | None, partial: bool, threads: int | None,
    targets: str | None, target_signal: tuple[str, ...], subtasks: str | None, target_data: tuple[str, ...],
    engine: str, address: str | None, *, as_json: bool, **settings: Any,
) -> None:  # fmt: skip
    """Make a table of step scores and values from STORE, without model or GPU.

    One row a sample. The settings that made it are in the table's metadata, so it can be made again with --replay.
    With --method less, icons or cadc, signals are checkpoints with one gradient a sample (`extract --kind gradient`),
    and their weights are learning rates: as given, else as recorded by all of them, else equal.
    """
    from grace_store.curate.score import replay as run_again
    from grace_store.curate.score import write_score_table

    wanted = _targets(targets, target_signal, subtasks, target_data)
    with ProgressDisplay(quiet=as_json) as display, spread(engine, address, threads, display) as pool:
        if replay is not None:
            given = {name for name, value in settings.items() if value is not None} - {"method"}
            if given or signal or partial or target_signal or subtasks or settings["method"] != "grace":
                raise SettingError("--replay scores exactly as the table was scored: leave the other settings out")
            run = run_again(replay, out, store, pool, targets=wanted, tell=display)
        elif store is None:
            raise click.UsageError("Missing argument 'STORE' (only --replay does without).")
        else:
            run = write_score_table(
                store, _spec(settings), out, signals=signal or None, targets=wanted, partial=partial, threads=pool,
                tell=display,
            )  # fmt: skip
    made_by = run.made_by
    if as_json:
        result = {"out": str(out), "num_samples": run.num_samples, "num_with_value": run.num_with_value}
        print_json(result | {"flags": run.flags, **made_by})
        return
    without = run.num_samples - run.num_with_value
    lacking = f", {without} of them without a value" if without else ""
    click.echo(f"{out}: {counted(run.num_samples, 'sample')} scored{lacking}.")
    if "targets" in made_by:
        _print_influence(made_by)
    for name, count in run.flags.items():
        click.echo(f"  {count} flagged {name}")
    if made_by["partial"]:
        units = ", ".join(f"{name} {each['num_units']}" for name, each in made_by["signals"].items())
        click.echo(f"  partial: of {made_by['num_units']} units there are {units}")


def _targets(
    store: str | None, signals: tuple[str, ...], subtasks: str | None, data: tuple[str, ...]
) -> Targets | None:
    """Return the target set of the options given; with --replay, where it is now."""
    from grace_store.curate.targets import Targets

    if store is None:
        said = {"--target-signal": signals, "--subtasks": subtasks, "--target-data": data}
        if given := [name for name, value in said.items() if value]:
            raise SettingError(f"{', '.join(given)} needs --targets, the store of the target set")
        return None
    return Targets(store, signals, subtasks, data)


def _print_influence(made_by: dict[str, Any]) -> None:
    """Say how an influence method counted checkpoints and subtasks."""
    from grace_store.artifacts.score_table import named_method
    from grace_store.base.text import one_line

    targets, total = made_by["targets"], sum(each["weight"] for each in made_by["signals"].values())
    shares = ", ".join(f"{name} {made_by['signals'][name]['weight'] / total:.3g}" for name in made_by["checkpoints"])
    source = {"given": "as given", "learning_rate": "by learning rate", "equal": "equal"}[made_by["weights_from"]]
    click.echo(f"  method: {named_method(made_by)}")
    click.echo(f"  checkpoints: {shares} (weights {source})")
    sizes = [f"{one_line(each['name'])} ({each['num_samples']})" for each in targets["subtasks"]]
    click.echo(harmless(f"  subtasks: {_first_few(sizes)}"))
    capabilities = made_by.get("capabilities", ())
    for number, members in enumerate(capabilities[:SUBTASKS_SHOWN]):
        click.echo(harmless(f"  capability {number}: {_first_few([one_line(each) for each in members])}"))
    if len(capabilities) > SUBTASKS_SHOWN:
        click.echo(f"  and {len(capabilities) - SUBTASKS_SHOWN} capabilities more")
    if cosines := [each for i, line in enumerate(made_by.get("subtask_cosine", ())) for each in line[:i]]:
        click.echo(
            f"  cosines between subtasks: {min(cosines):.3f} to {max(cosines):.3f}, joined from "
            f"{made_by['spec']['join_cosine']:g} on"
        )


def _first_few(texts: list[str]) -> str:
    more = f" and {len(texts) - SUBTASKS_SHOWN} more" if len(texts) > SUBTASKS_SHOWN else ""
    return ", ".join(texts[:SUBTASKS_SHOWN]) + more


def _spec(settings: dict[str, Any]) -> ScoreSpec | HeuristicSpec | InfluenceSpec:
    """Return the spec of the options given, refusing those that the method would ignore."""
    from grace_store.values.methods.heuristic_spec import HeuristicSpec
    from grace_store.values.methods.influence_spec import InfluenceSpec
    from grace_store.values.score_spec import ScoreSpec

    method = settings["method"]
    said = {name: value for name, value in settings.items() if value is not None and name != "method"}
    if method == "grace" and "seed" in said:
        raise SettingError("--seed is for --method random or cadc: GRACE has nothing random in it")
    foreign: list[str] = [*(() if method == "grace" else GRACE_OPTIONS)]
    foreign += () if method in INFLUENCES else INFLUENCE_OPTIONS
    if ignored := [f"--{name.replace('_', '-')}" for name in said if name in foreign]:
        raise SettingError(f"--method {method} has no use for {', '.join(ignored)}")
    if method == "grace":
        return ScoreSpec.parse(**said)
    if method in INFLUENCES:
        return InfluenceSpec.parse(method=method, **said)
    return HeuristicSpec.parse(method=method, **said)


@click.command(epilog="\b\nExample:\n  grace-store audit scores.parquet --ratio 0.2")
@click.argument("scores", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--ratio", default="0.2", show_default=True, help="Share whose mean length is compared with all.")
@as_json
def audit(scores: Path, ratio: str, *, as_json: bool) -> None:
    """Say how far the values of SCORES follow the length of steps, of the response, and the number of steps.

    `select --control length` ranks by what is left when length is taken out.
    """
    from grace_store.curate.audit import audit_length
    from grace_store.values.length_bias import MIN_AUDITED

    found = audit_length(scores, ratio=ratio)
    if as_json:
        print_json({"scores": str(scores), "enough_samples": found.has_enough_samples, **asdict(found)})
        return
    click.echo(f"{scores}: {counted(found.num_samples, 'sample')} with a value")
    if not found.has_enough_samples:
        click.echo(f"  With fewer than {MIN_AUDITED} nothing can be told of how values follow length.")
        return
    click.echo(f"  length explains {_shown(100 * found.variance_explained, 1)} % of the values' variance")
    click.echo(
        f"  {'value and':<18}{'Pearson':>9}{'Spearman':>10}{'partial':>9}{'controlled':>12}{f'kept {ratio}/all':>16}"
    )
    for name, bias in found.lengths.items():
        kept = f"{_shown(bias.kept_over_all, 2)} -> {_shown(bias.kept_over_all_after_control, 2)}"
        click.echo(
            f"  {name:<18}{_shown(bias.pearson):>9}{_shown(bias.spearman):>10}{_shown(bias.partial):>9}"
            f"{_shown(bias.spearman_after_control):>12}{kept:>16}"
        )
    if found.steps is not None:
        steps = found.steps
        click.echo(
            f"  step score and step length over {steps.num_steps} steps: Pearson {_shown(steps.pooled)}, Spearman "
            f"{_shown(steps.spearman)}, within one trace {_shown(steps.within_sample)}"
        )


def _shown(number: float, digits: int = 3) -> str:
    return "-" if number != number else f"{number:.{digits}f}"
