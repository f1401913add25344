"""grace-store status, verify, repair, inspect, info"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
from rich.padding import Padding
from rich.text import Text

from grace_store.base.text import counted
from grace_store.cli.console import ProgressDisplay, harmless, out, print_json, size, stoppable
from grace_store.cli.options import as_json, images_option, pick, speed_options, store_argument

if TYPE_CHECKING:
    from grace_store.store.check import Problem
    from grace_store.store.opened import Store


@click.command(epilog="\b\nExample:\n  grace-store status traces.zarr --list")
@store_argument
@click.option("--signal", help="Count this signal. [default: the least finished one]")
@click.option("--list", "list_all", is_flag=True, help="List every record that was set aside, with the reason.")
@as_json
def status(store: str, signal: str | None, *, list_all: bool, as_json: bool) -> None:
    """Say how many records are planned, done and set aside, and why."""
    from grace_store.run.status import set_aside_rows
    from grace_store.run.status import status as count
    from grace_store.store.opened import Store

    opened = Store.open(store)
    counts = count(opened, signal)
    if as_json:
        listed = {"set_aside_records": list(set_aside_rows(opened, counts.signal))} if list_all else {}
        print_json(counts.model_dump(mode="json") | listed)
        return
    click.echo(f"{store}: {counts.num_records} records")
    click.echo(f"  {counts.num_done:>9} done{f' in signal {counts.signal}' if counts.signal else ''}")
    click.echo(f"  {counts.num_planned:>9} planned, to be done")
    click.echo(f"  {counts.num_set_aside:>9} set aside")
    for reason, number in counts.set_aside.items():
        click.echo(f"  {'':>9}   {number} {reason}")
    for name, each in counts.signals.items():
        state = "complete" if each.is_complete else f"{each.num_units_done} of {each.num_units} units"
        click.echo(f"  signal {name}: {state}, {each.num_done} samples, {size(each.num_bytes)}")
    if not counts.signals:
        click.echo("  no signal yet: run `grace-store extract`")
    if list_all:
        for record in set_aside_rows(opened, counts.signal):
            click.echo(f"  row {record['row']} ({record['place']}): {record['reason']}: {harmless(record['detail'])}")


@click.command(epilog="\b\nExample:\n  grace-store verify traces.zarr --deep --model ./model --units 3")
@store_argument
@click.option("--deep", is_flag=True, help="Read every byte: checksums, digests, counts.")
@click.option("--signal", help="Check only this signal. [default: all]")
@click.option("--model", type=click.Path(), help="Also extract some units again with this model.")
@click.option("--units", type=click.IntRange(1), default=2, show_default=True, help="How many, with --model.")
@click.option("--data", multiple=True, type=click.Path(), help="Where the dataset is now.")
@images_option
@speed_options
@as_json
def verify(
    store: str, deep: bool, signal: str | None, model: str | None, units: int, data: tuple[str, ...], *,
    as_json: bool, **speed: Any,
) -> None:  # fmt: skip
    """Check that a store is what was written; exit 1 if anything is wrong.

    Quick by default: commits, sizes and counts. Units that an unfinished signal still lacks are counted apart: they are
    no problem, and with nothing else amiss the exit code is 0.
    """
    from grace_store.base.settings import RunOptions
    from grace_store.run.verify import ExtractAgainJob, describe_problems, verify_against_model
    from grace_store.run.verify import verify as check
    from grace_store.store.opened import Store

    opened = Store.open(store)
    names = [opened.signal(signal).name] if signal else opened.signal_names
    found, to_do = _apart(opened, check(opened, deep=deep, signals=names))
    if model and not found:
        options = RunOptions(**pick(speed, RunOptions.model_fields))
        again = ExtractAgainJob(model, units, data, images=speed["images"], options=options)
        for name in names:
            found += verify_against_model(opened.signal(name), again, ProgressDisplay())
    if as_json:
        listed = {"problems": found, "units_to_do": to_do}
        print_json({"store": store, "deep": deep} | {key: [each.to_json() for each in listed[key]] for key in listed})
    else:
        for line in describe_problems([*found, *to_do]):
            click.echo(line)
        depth = "every byte read" if deep else "commits, sizes and counts; --deep reads every byte"
        click.echo(f"{store}: {counted(len(found), 'problem')} ({depth}).")
        if found:
            click.echo("`grace-store repair` redoes what is broken, `grace-store extract` what is missing.")
        elif to_do:
            click.echo(f"{counted(len(to_do), 'unit')} still to do: `grace-store extract` goes on.")
    if found:
        raise click.exceptions.Exit(1)


def _apart(store: Store, found: Iterable[Problem]) -> tuple[list[Problem], list[Problem]]:
    """Return what is wrong, and the units that a signal without totals lacks because it is not finished."""
    from grace_store.store.layout import completion_key

    wrong: list[Problem] = []
    to_do: list[Problem] = []
    for problem in found:
        lacks = problem.remedy == "extract" and problem.unit is not None and problem.signal is not None
        unfinished = lacks and store.backend.size(completion_key(str(problem.signal))) is None
        (to_do if unfinished else wrong).append(problem)
    return wrong, to_do


@click.command(epilog="\b\nExample:\n  grace-store repair traces.zarr --model ./model")
@store_argument
@click.option("--model", type=click.Path(), help="Where the model is now. [default: where it was]")
@click.option("--data", multiple=True, type=click.Path(), help="Where the dataset is now.")
@images_option
@speed_options
@as_json
def repair(store: str, model: str | None, data: tuple[str, ...], *, as_json: bool, **speed: Any) -> None:
    """Redo exactly the units that a deep check finds broken, and clear what killed runs left behind."""
    from grace_store.base.settings import RunOptions
    from grace_store.run.extract import ExtractJob
    from grace_store.run.repair import repair as mend

    options = RunOptions(**pick(speed, RunOptions.model_fields))
    job = ExtractJob(store, model=model, data=data, options=options, images=speed["images"])
    with ProgressDisplay() as display, stoppable() as stop:
        mended = mend(job, display, stop)
    if as_json:
        print_json({"store": store, "mended": [problem.to_json() for problem in mended]})
    else:
        click.echo(f"{store}: {counted(len(mended), 'problem')} mended." if mended else f"{store}: nothing to mend.")


@click.command(epilog="\b\nExample:\n  grace-store inspect traces.zarr triangle-03")
@store_argument
@click.argument("sample")
@click.option("--signal", help="Which signal. [default: the only one]")
@click.option("--data", multiple=True, type=click.Path(), help="Where the dataset is now.")
@as_json
def inspect(store: str, sample: str, signal: str | None, data: tuple[str, ...], *, as_json: bool) -> None:
    """Show SAMPLE (an id, or #ROW): its text by segment, with loss, entropy, alignments and score."""
    from grace_store.curate.inspect import sample_view
    from grace_store.run.status import check_planned, why_set_aside
    from grace_store.store.opened import Store
    from grace_store.values.score_spec import ScoreSpec

    opened = Store.open(store)
    check_planned(opened, sample)
    view = opened.signal(signal)
    shown = sample_view(view, opened.find(sample), ScoreSpec(), data or None)
    if as_json:
        print_json(shown)
        return
    out.print(
        f"{harmless(shown['sample_id'])}  row {shown['row']}  signal {shown['signal']}  {shown['state']}", markup=False
    )
    if why := why_set_aside(view, shown["sample"]):
        out.print(f"set aside: {harmless(why)}", markup=False)
    if shown["missing_text"]:
        out.print(f"(text not shown: {shown['missing_text']})", markup=False)
    if shown["prompt"]:
        out.print(Text(harmless(shown["prompt"]), style="dim"))
    if shown["state"] == "done" and view.per_sample:
        out.print(f"{shown['num_tokens']} tokens, loss {shown['loss']:.3f}, gradient of length {shown['norm']:.4g}")
        for segment in shown["segments"]:
            out.print(segment["name"], style="bold")
            out.print(Padding(Text(harmless((segment["text"] or "").strip()), style="dim"), (0, 0, 0, 2)))
    elif shown["state"] == "done":
        out.print(f"value {shown['value']:.4f} with alpha 0.7, uniform history, target answer")
        _show_segments(shown["segments"])


_COLUMNS = {
    "tokens": "num_tokens", "loss": "loss", "entropy": "entropy", "hits": "hit_rate", "norm": "norm",
    "answer": "answer_alignment", "history": "history_alignment", "score": "step_score",
}  # fmt: skip


def _show_segments(segments: list[dict[str, Any]]) -> None:
    """Print a line of numbers for each segment and its text below, so that both have room on any terminal."""
    out.print(" " * 9 + "".join(f"{name:>8}" for name in _COLUMNS), style="bold")
    for segment in segments:
        cells = [f"{segment['name']:<9}"]
        for key in _COLUMNS.values():
            value = segment[key]
            cells.append(f"{'' if value is None else value if isinstance(value, int) else f'{value:.3f}':>8}")
        score = segment["step_score"]
        out.print("".join(cells), style=None if score is None else "green" if score > 0 else "red", markup=False)
        out.print(Padding(Text(harmless((segment["text"] or "").strip()), style="dim"), (0, 0, 0, 2)))


@click.command(epilog="\b\nExample:\n  grace-store info traces.zarr --json")
@store_argument
@as_json
def info(store: str, *, as_json: bool) -> None:
    """Show what a store was made from: files, settings, models, sizes."""
    from grace_store.base.settings import short
    from grace_store.store.opened import Store

    opened = Store.open(store)
    plan = opened.plan
    signals = {name: opened.signal(name).signal for name in opened.signal_names}
    if as_json:
        print_json(
            {
                "plan": plan.model_dump(mode="json"),
                "signals": {name: signal.model_dump(mode="json") for name, signal in signals.items()},
            }
        )
        return
    click.echo(f"{store}: format {plan.format_version}, made by {plan.created_by}")
    for file in plan.files:
        click.echo(f"  {file.path}: {file.num_records} records, {size(file.num_bytes)}, sha256 {file.sha256[:12]}…")
    spec = ", ".join(f"{name} {value}" for name, value in plan.spec.model_dump().items())
    click.echo(f"  {spec}")
    units = f"{counted(plan.num_units, 'unit')} of {plan.samples_per_unit}"
    click.echo(f"  {counted(plan.num_samples, 'sample')} in {units}")
    for name, signal in signals.items():
        model = signal.spec.model
        per = "sample" if signal.spec.is_per_sample else "segment"
        click.echo(
            f"  signal {name}: {signal.spec.kind}, {model.architecture}, "
            f"a vector of {signal.spec.vector_size} per {per}"
        )
        click.echo(f"    model {signal.origin.get('model', '?')}, weights {short(model.weights)}")
        if model.adapter is not None:
            click.echo(f"    adapter {signal.origin.get('adapter', '?')}, {short(model.adapter)}")
        settings = signal.spec.model_dump(exclude={"model", "kind", "gradient"}, exclude_none=True)
        if signal.spec.gradient is not None:
            settings |= signal.spec.gradient.model_dump(exclude_none=True)
        click.echo("    " + ", ".join(f"{key} {short(value)}" for key, value in settings.items()))
