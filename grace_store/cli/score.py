"""grace-store score"""

from pathlib import Path
from typing import Any

import click

import grace_store as gs
from grace_store.base.errors import SettingError
from grace_store.base.text import counted, first_few, one_line
from grace_store.cli import shared
from grace_store.cli.console import escape_controls, filter_lines, print_result
from grace_store.cli.options import (
    FILE,
    OUT_PARQUET,
    PLACE,
    As,
    choice,
    command,
    given,
    only_given,
    option,
    options_of,
    parsed,
)
from grace_store.cli.progress import ProgressDisplay
from grace_store.pool.labels import LabelSettings
from grace_store.scoring.grouped_scoring import groups_in_words
from grace_store.values.measures import MEASURES
from grace_store.values.methods.method import METHODS, InfluenceSpec, parse_spec
from grace_store.values.within_groups import Within

NAMED_AT_MOST = 10
"""Maximum number of subtasks or capabilities to name. A target set can have hundreds."""
MOVED = ("targets", "target_data", "data", "labels")
BESIDE_REPLAY = ("store", "out", "replay", *MOVED, "threads", "engine", "address", "as_json")
"""Parameters that can be given together with --replay. All other settings come from the table."""

LISTS = "\n".join(
    [
        "\b\nMeasures, each with the numbers that are better:",
        *(f"  {name}:{each.better}  {each.about}" for name, each in MEASURES.items()),
        "\n\b\nMethods with --targets, each with its preference:",
        *(f"  {name}: {each.about}" for name, each in METHODS.items()),
    ]
)

RIGHT = (
    "With --learn, condition in SQL that right traces meet, such as is_correct, score >= 0.5 or verdict = 'good'. "
    "[default: the labels that the format names]"
)
GROUP = "group"
"""Value of --within that means questions. Other values name a field; a field with the name group is $.group."""


@command(
    "grace-store score traces.zarr --out scores.parquet --history ema:0.8",
    "grace-store score traces.zarr --out scores.parquet --alpha 1                  # without history",
    "grace-store score traces.zarr --out scores.parquet --without-answer",
    "grace-store score traces.zarr --out scores.parquet --signal early=1 --signal late=3",
    "grace-store score traces.zarr --out scores.parquet --measure loss:lowest --within group",
    "grace-store score traces.zarr --out scores.parquet --measure grace=0.5 --measure loss:lowest=0.5",
    "grace-store score traces.zarr --out scores.parquet --measure tokens                # the baseline Longest",
    "grace-store score traces.zarr --out scores.parquet --learn --right is_correct      # a value learned from labels",
    "grace-store score traces.zarr --out less.parquet --method less --targets bench.zarr --signal ck1 --signal ck2",
    "grace-store score traces.zarr --out icons.parquet --method icons --targets bench.zarr --subtasks subject",
    "grace-store score traces.zarr --out scores.parquet --where \"is_correct and source in ('a', 'b')\"",
    "grace-store score traces.zarr --out scores.parquet --within group                 # minus the question's mean",
    "grace-store score traces.zarr --out scores.parquet --within problem_id --within-as standardised",
    "grace-store score traces.zarr --out scores.parquet --target group                 # the other traces' answers",
    "grace-store score --replay scores.parquet --out again.parquet",
    "grace-store score s3://bucket/traces.zarr --out scores.parquet --engine ray --address auto    # on a Ray cluster",
    about=LISTS + "\n\n",
)
@shared.optional_store
@option("--out", OUT_PARQUET, "Parquet file to write.", required=True)
@option("--signal", "NAME[=WEIGHT]", "Signal to score, and its weight. [default: the only signal]", many=True)
@option(
    "--method",
    click.Choice(list(METHODS)),
    "Score by the influence on --targets instead of measures; see the list below. [default: none]",
)
@shared.grace
@options_of(LabelSettings, differing={"right": As(help=RIGHT)})
@options_of(InfluenceSpec, but=["method", "seed"])
@option(
    "--targets",
    PLACE,
    "Store of the target samples for the methods less, icons and cadc. Extract this store with the same model, "
    "adapters and projection as STORE. [default: none]",
)
@option(
    "--target-signal",
    "NAME",
    "Signal of --targets for each --signal, in the same order. [default: the signal with the same name, or the only "
    "signal that fits]",
    many=True,
)
@option("--subtasks", "FIELD", "Field of the target records that names the subtask. [default: each file is a subtask]")
@option(
    "--target-data",
    PLACE,
    "Dataset files of --targets, if the files have moved. [default: the planned files]",
    many=True,
)
@option(
    "--within",
    "group|FIELD",
    "Compare each value with the values of the same question. group: traces have the same question by --group-by. "
    "FIELD: traces with the same value of this field have the same question. The column plain_value keeps the "
    "original values. [default: values are not compared]",
)
@option(
    "--within-as",
    choice(Within),
    "How --within compares. centred: subtract the question's mean from each value. standardised: also divide by the "
    "question's standard deviation. [default: centred]",
)
@shared.group_by
@shared.where()
@shared.moved_data
@option(
    "--replay", FILE, "Table of scores to compute again with the settings of that table. [default: the given options]"
)
@shared.partial
@shared.threads
@shared.engine
def score(store: str | None, out: Path, replay: Path | None, *, as_json: bool, **settings: Any) -> None:
    """Make a table of step scores and values, without model or GPU.

    The table has one row for each sample. Its metadata has all settings, so that --replay can compute it again. With
    --method less, icons or cadc, signals are checkpoints with one gradient for each sample (`extract --kind gradient`).
    Their weights are learning rates: the given weights, else the recorded ones if all signals have one, else equal.

    --learn fits the measures of a trace (its flags, too) to labels, and gives every sample a value. No value comes from
    a model that saw the question of its sample. With labels of steps, the steps are learned.

    With --within or --target group, traces of one question are compared with each other. --group-by FIELD names the
    question; it reads the dataset. The only trace of a question gets the flag only_trace. Its value is 0 with --within,
    and missing with --target group.
    """
    if replay is not None and (ignored := given(but=BESIDE_REPLAY)):
        raise SettingError(
            f"--replay uses the settings of the table: leave the other settings out ({', '.join(ignored)})"
        )
    if replay is None and store is None:
        raise click.UsageError("Missing argument 'STORE' (only --replay works without it).")
    signals, partial = settings.pop("signal"), settings.pop("partial")
    where, data, labels = settings.pop("where"), settings.pop("data") or None, settings.pop("labels")
    targets, groups = _take_targets(settings), _take_groups(settings)
    with ProgressDisplay(quiet=as_json) as display, shared.open_workers(settings, display) as pool:
        if replay is not None:
            moved = {"targets": targets, "data": data, "labels": labels}
            done = gs.replay(replay, out, store, **moved, threads=pool, listener=display)
        else:
            asked = parsed(LabelSettings, settings).asked()
            spec = parse_spec(only_given(settings))
            pool_of = {"partial": partial, "where": where, "data": data, "labels": labels}
            request = gs.ScoreRequest(
                spec=spec, signals=signals or None, targets=targets, learn_from=asked, **pool_of, **groups
            )
            done = gs.score(str(store), request, out=out, threads=pool, listener=display)
    conclusion = done.conclusion
    counts = {"num_samples": done.num_samples, "num_with_value": done.num_with_value, "flags": done.flags}
    result = {"out": str(out), "conclusion": conclusion, **counts, **done.note.to_json()}
    print_result(result, _print, done, conclusion, as_json=as_json)


def _take_groups(settings: dict[str, Any]) -> dict[str, Any]:
    """Remove the options about questions from the settings, and return them for ScoreRequest."""
    within, how, by = (settings.pop(name) for name in ("within", "within_as", "group_by"))
    if within is None:
        if how is not None:
            raise SettingError(f"--within-as {how} needs --within: give --within group, too")
        return {"group_by": by}
    if within != GROUP and by is not None:
        raise SettingError(
            f"--within {within} already names the field of the question: leave --group-by out, or give --within group"
        )
    return {"within": how or "centred", "group_by": by if within == GROUP else within}


def _take_targets(settings: dict[str, Any]) -> gs.Targets | None:
    """Remove the options about targets from the settings, and return the target set."""
    names = ("targets", "target_signal", "subtasks", "target_data")
    store, signals, subtasks, data = (settings.pop(name) for name in names)
    if store is not None:
        return gs.Targets(store, signals, subtasks, data)
    options = {"--target-signal": signals, "--subtasks": subtasks, "--target-data": data}
    if lonely := [name for name, value in options.items() if value]:
        raise SettingError(f"{', '.join(lonely)} needs --targets, the store of the target set")
    return None


def _print(run: gs.ScoreRun, conclusion: str) -> None:
    click.echo(conclusion)
    without = run.num_samples - run.num_with_value
    lacking = f", {without} of them without a value" if without else ""
    click.echo(f"{run.out}: {counted(run.num_samples, 'sample')} scored{lacking}.")
    note = run.note
    click.echo(filter_lines(note), nl=False)
    if note.groups is not None:
        click.echo(escape_controls(f"  {groups_in_words(note)}"))
    if note.targets is not None:
        _print_influence(note)
    for name, count in run.flags.items():
        click.echo(f"  {count} flagged {name}")
    if note.partial:
        units = ", ".join(f"{name} has {each.num_units}" for name, each in note.signals.items())
        click.echo(f"  partial: {units} of {counted(note.num_units, 'unit')}")


def _print_influence(note: gs.ScoresNote) -> None:
    assert note.targets is not None
    total = sum(each.weight for each in note.signals.values())
    shares = ", ".join(f"{name} {note.signals[name].weight / total:.3g}" for name in note.checkpoints or ())
    source = {"given": "as given", "learning_rate": "by learning rate", "equal": "equal"}[note.weights_from or "equal"]
    click.echo(f"  method: {note.spec.title}")
    click.echo(f"  checkpoints: {shares} (weights {source})")
    sizes = [f"{one_line(each.name)} ({each.num_samples})" for each in note.targets.subtasks]
    click.echo(escape_controls(f"  subtasks: {first_few(sizes, NAMED_AT_MOST)}"))
    capabilities = note.capabilities or ()
    for number, members in enumerate(capabilities[:NAMED_AT_MOST]):
        named = first_few([one_line(each) for each in members], NAMED_AT_MOST)
        click.echo(escape_controls(f"  capability {number}: {named}"))
    if len(capabilities) > NAMED_AT_MOST:
        click.echo(f"  and {len(capabilities) - NAMED_AT_MOST} more capabilities")
    cosines = [each for i, line in enumerate(note.subtask_cosine or ()) for each in line[:i]]
    if cosines and isinstance(note.spec, InfluenceSpec):
        click.echo(
            f"  cosines between subtasks: {min(cosines):.3f} to {max(cosines):.3f}, joined from "
            f"{note.spec.join_cosine:g} on"
        )
