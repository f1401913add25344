"""The group of all commands. A command's module is imported only when the command is run or asked for help."""

from typing import Any

import click

from grace_store import __version__
from grace_store.base.registry import Registry
from grace_store.study import STUDY_HELP

GROUPS: dict[str, dict[str, str]] = {
    "Prepare": {
        "plan": "Read a dataset and freeze what is to be done in a new store.",
        "doctor": "Check model, data and machine before a long run.",
        "warmup": "Train a LoRA adapter on a small random subset; resumable.",
    },
    "Extract": {
        "extract": "Write every sample's signals into a store; resumable.",
        "status": "Show how far a store is, and what it was made from.",
        "verify": "Check that a store is what was written; exit 1 if it is not.",
        "support": "Collect what to send when a run fails; no text of any trace.",
        "inspect": "Show one sample, segment by segment, with losses and scores.",
    },
    "Score and choose": {
        "score": "Make a table of step scores and values, without model or GPU.",
        "sweep": "Score a store by many settings at once, and compare them.",
        "audit": "Measure how far the values of a table follow length and groups.",
        "select": "Write the best samples of a table of scores as a training set.",
        "weights": "Make a table of step weights: how much to train on each step.",
        "compare": "Show what two subsets share, what entered, what left and why.",
    },
    "Look closer": {
        "duplicates": "Find samples that are alike, and choose one of each group.",
        "contamination": "Find samples that have items of benchmarks in them.",
        "diversity": "Measure how diverse subsets are, and what diversity costs.",
        "fidelity": "Measure how well GRACE's proxy follows whole gradients.",
        **STUDY_HELP,
        "report": "Write one HTML page of plots, and of traces step by step.",
    },
    "Afterwards": {
        "trial": "Train on subsets and on random ones, and compare the models.",
        "evaluate": "Compare trained models with the one trained on the full data.",
    },
    "Try it": {"demo": "Run all of it on traces that ship with grace-store."},
}
"""Every command by its purpose, with the first line of its help; showing it must not import the command."""

REMOVED = {
    "repair": "`grace-store verify STORE --repair` redoes what is broken.",
    "info": "`grace-store status STORE` shows what a store was made from.",
    "neighbours": "`grace-store inspect STORE SAMPLE --neighbours 10` lists the samples nearest to one.",
}
"""Removed commands, with their replacements."""

_FINDINGS = ("--diversity", "--fidelity", "--judge", "--stability", "--trial")
_FIRST = {
    "plan": "plan STORE DATA...",
    "doctor": "doctor STORE --model MODEL --data DATA",
    "warmup": "warmup STORE --model MODEL --out FOLDER",
    "extract": "extract STORE --model MODEL",
    "trial": "trial STORE SUBSET... --out FOLDER",
}
REMOVED_OPTIONS = {
    **{(name, "--store"): f"the store is the first argument: grace-store {order}" for name, order in _FIRST.items()},
    **{("report", name): "give the file with --finding." for name in _FINDINGS},
    ("duplicates", "--against"): "`grace-store contamination STORE --against FILE` compares samples with benchmarks.",
    ("fidelity", "--figure"): "`grace-store report STORE --finding FILE` draws what --out wrote.",
    ("trial", "--by"): "random subsets follow the rules of the subset that they are compared with, so `select --by` "
    "keeps the shares of both.",
}
"""Removed options, by command, with their replacements."""


class _Commands(Registry[click.Command]):
    """All commands by name: a study's is made from its settings, any other is a module of its own."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in STUDY_HELP:
            return super().__getitem__(name)
        from grace_store.cli.shared import study_command

        return study_command(name)


COMMANDS = _Commands("grace_store.cli", None, [name for lines in GROUPS.values() for name in lines])


class LazyGroup(click.Group):
    """Imports a command when it is needed, so that --help answers at once and scoring needs no torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in REMOVED:
            raise click.UsageError(f"There is no command {cmd_name!r} any more: {REMOVED[cmd_name]}", ctx)
        return COMMANDS.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, lines in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in lines.items()])

    def invoke(self, ctx: click.Context) -> Any:
        from grace_store.cli.console import told

        with told():
            try:
                return super().invoke(ctx)
            except click.NoSuchOption as error:
                name = error.ctx.info_name if error.ctx else None
                successor = REMOVED_OPTIONS.get((str(name), error.option_name))
                if successor is None:
                    raise
                raise click.UsageError(f"{name} has no {error.option_name} any more: {successor}", error.ctx) from None


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with: grace-store demo",
)
@click.version_option(__version__, prog_name="grace-store")
def main() -> None:
    """Choose the reasoning traces worth training on.

    Each step of a trace would push a model in some direction. GRACE keeps traces whose steps push in the same
    direction as their answer. `extract` writes these directions to a Zarr store once; from then on, `score` and
    `select` need neither model nor GPU.
    """
