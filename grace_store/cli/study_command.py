"""The command of a study: the pool's options, one for each of the study's settings, and --out for the finding."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import click

from grace_store.cli import shared
from grace_store.cli.console import show
from grace_store.cli.options import TEXT, As, command, option, options_of, parsed, stacked
from grace_store.cli.progress import ProgressDisplay
from grace_store.pool.pool import Pool
from grace_store.study import STUDIES


def study_command(name: str) -> click.Command:
    """Return the command of a study."""
    study = STUDIES[name]
    options = stacked(
        shared.store,
        option("--signal", TEXT, study.signal, "signals", many=study.has_many_signals),
        options_of(study.settings, differing={"without_answer": As(is_flag=True)}),
        shared.where(),
        shared.moved_data,
        shared.partial,
        shared.threads,
        shared.out_finding,
    )

    def run(store: str, out: Path | None, *, as_json: bool, **given: Any) -> None:
        from grace_store.scoring.provenance import check_results

        check_results(store, [out])
        settings = parsed(study.settings, given)
        pool = Pool.of(store, **{each: value or None for each, value in given.items() if each != "partial"})
        with ProgressDisplay(quiet=as_json) as display:
            found = study.find(Pool.of(pool, partial=given["partial"]), settings, listener=display)
        show(found, out, as_json=as_json)

    run.__doc__ = inspect.getdoc(study.settings)
    run.__name__ = name
    return command(*study.examples)(options(run))
