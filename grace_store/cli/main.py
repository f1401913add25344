"""The group of all commands. A command's module is imported when the command runs or shows its help."""

from typing import Any

import click

from grace_store import __version__
from grace_store.base.registry import Registry
from grace_store.study import STUDY_HELP

GROUPS: dict[str, dict[str, str]] = {
    "Prepare": {
        "plan": "Read a dataset and write the plan of a new store.",
        "doctor": "Check model, data and machine before a long run.",
        "warmup": "Train a LoRA adapter on a small random subset; resumable.",
    },
    "Extract": {
        "extract": "Write every sample's signals into a store; resumable.",
        "status": "Show the progress, settings and sources of a store.",
        "verify": "Check a store for damage, and repair it; exit 1 if damaged.",
        "support": "Write a file about a failed run, without any trace's text.",
        "inspect": "Show one sample, segment by segment, with losses and scores.",
    },
    "Score and choose": {
        "score": "Make a table of step scores and values, without model or GPU.",
        "sweep": "Score a store with many settings at once, and compare them.",
        "audit": "Measure how values depend on length and on groups of traces.",
        "select": "Write the best samples of a table of scores to a training set.",
        "weights": "Make a table of step weights: how much to train on each step.",
        "compare": "Show which samples two subsets share, which differ, and why.",
    },
    "Look closer": {
        "duplicates": "Find groups of similar samples, and keep one of each group.",
        "contamination": "Find samples that contain items of benchmarks.",
        "diversity": "Measure the diversity of subsets and its cost in value.",
        "fidelity": "Measure how well GRACE's proxy follows whole gradients.",
        **STUDY_HELP,
        "report": "Write one HTML page with plots, and with traces step by step.",
    },
    "Afterwards": {
        "trial": "Train on chosen and on random subsets, and compare the models.",
        "evaluate": "Compare models with the one that was trained on the full data.",
    },
    "Try it": {"demo": "Run the main commands on traces that come with grace-store."},
}
"""Every command by its purpose, with the first line of its help. Showing the list must not import the commands."""

REMOVED = {
    "repair": "`grace-store verify STORE --repair` redoes broken units.",
    "info": "`grace-store status STORE` shows the sources of a store.",
    "neighbours": "`grace-store inspect STORE SAMPLE --neighbours 10` lists the nearest samples.",
}
"""Removed commands, with their replacements."""

_FIRST = {
    "plan": "plan STORE DATA...",
    "doctor": "doctor STORE --model MODEL --data DATA",
    "warmup": "warmup STORE --model MODEL --out FOLDER",
    "extract": "extract STORE --model MODEL",
    "trial": "trial STORE SUBSET... --out FOLDER",
}
REMOVED_OPTIONS = {
    **{(name, "--store"): f"the store is the first argument: grace-store {order}" for name, order in _FIRST.items()},
    **{
        ("report", f"--{name}"): "give the file with --finding."
        for name in ("diversity", "fidelity", "judge", "stability", "trial")
    },
    ("duplicates", "--against"): "`grace-store contamination STORE --against FILE` compares samples with benchmarks.",
    **{(name, "--draws"): "intervals need no random draws: leave it out." for name in ("fidelity", "judge")},
    ("fidelity", "--figure"): "`grace-store report STORE --finding FILE` draws the file of --out.",
    ("trial", "--by"): "random subsets follow the rules of their subset: with `select --by`, both keep the shares "
    "of the groups.",
}
"""Removed options, by command, with their replacements."""


class _Commands(Registry[click.Command]):
    """All commands by name. The command of a study is made from its settings; every other command has a module."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in STUDY_HELP:
            return super().__getitem__(name)
        from grace_store.cli.shared import study_command

        return study_command(name)


COMMANDS = _Commands("grace_store.cli", None, [name for lines in GROUPS.values() for name in lines])


class LazyGroup(click.Group):
    """A group that imports a command at first use, so that --help is fast and scoring needs no torch."""

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
        from grace_store.cli.console import errors_as_messages

        with errors_as_messages():
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

    Training on a step of a trace pushes the model in some direction. GRACE keeps the traces in which the steps push in
    the same direction as the answer. `extract` writes these directions to a Zarr store once. After that, `score` and
    `select` need no model and no GPU.
    """
