"""grace-store info"""

from __future__ import annotations

import click

import grace_store as gs
from grace_store.base.settings import short
from grace_store.base.text import counted, size
from grace_store.cli import shared
from grace_store.cli.console import print_result
from grace_store.cli.options import command


@command("grace-store info traces.zarr", "grace-store info traces.zarr --json")
@shared.store
def info(store: str, *, as_json: bool) -> None:
    """Show what a store was made from: files, settings, models, sizes."""
    found = gs.info(store)
    print_result(found.model_dump(mode="json"), _print, store, found, as_json=as_json)


def _print(store: str, found: gs.StoreInfo) -> None:
    plan = found.plan
    click.echo(f"{store}: format {plan.format_version}, made by {plan.created_by}")
    for file in plan.files:
        amount = f"{counted(file.num_records, 'record')}, {size(file.num_bytes)}"
        click.echo(f"  {file.path}: {amount}, sha256 {file.sha256[:12]}…")
    click.echo("  " + ", ".join(f"{name} {text}" for name, text in plan.spec.in_words().items()))
    units = f"{counted(plan.num_units, 'unit')} of {plan.samples_per_unit}"
    click.echo(f"  {counted(plan.num_samples, 'sample')} in {units}")
    for name, signal in found.signals.items():
        spec = signal.spec
        per = "sample" if spec.is_per_sample else "segment"
        click.echo(f"  signal {name}: {spec.kind}, {spec.model.architecture}, a vector of {spec.vector_size} per {per}")
        click.echo(f"    model {signal.origin.get('model', '?')}, weights {short(spec.model.weights)}")
        if spec.model.adapter is not None:
            click.echo(f"    adapter {signal.origin.get('adapter', '?')}, {short(spec.model.adapter)}")
        settings = spec.model_dump(exclude={"model", "kind", "gradient"}, exclude_none=True)
        if spec.gradient is not None:
            settings |= spec.gradient.model_dump(exclude_none=True)
        click.echo("    " + ", ".join(f"{key} {short(value)}" for key, value in settings.items()))
        if (sharing := found.sharing.get(name)) is not None:
            click.echo(f"    {sharing.in_words()}")
        if (damage := found.damaged_sharing.get(name)) is not None:
            click.echo(f"    damaged: {damage}")
