"""The group of all commands. A command's module is imported only when the command is run or asked for help."""

from __future__ import annotations

import importlib
from typing import Any

import click

from grace_store import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "plan": ("planning:plan", "Read a dataset and freeze what is to be done."),
    "doctor": ("doctoring:doctor", "Check model, data and machine before a long run."),
    "warmup": ("warming:warmup", "Train a LoRA adapter on a small random subset; run again to resume."),
    "extract": ("extracting:extract", "Write every sample's signals into a store; run again to resume."),
    "status": ("storing:status", "Say how far a store is."),
    "verify": ("storing:verify", "Check a store, down to every byte if asked."),
    "repair": ("storing:repair", "Redo exactly what verify finds broken."),
    "inspect": ("storing:inspect", "Show one sample, segment by segment."),
    "info": ("storing:info", "Show what a store was made from."),
    "score": ("scoring:score", "Make a table of values from a store, without model or GPU."),
    "audit": ("scoring:audit", "Say how far the values of a table follow length."),
    "sweep": ("sweeping:sweep", "Score by many settings at once, and compare them."),
    "select": ("selecting:select", "Write the best samples of a table as the user's own records."),
    "compare": ("selecting:compare", "Say what two subsets share, what entered, what left and why."),
    "fidelity": ("studying:fidelity", "Say how well the proxy follows whole parameter gradients."),
    "evaluate": ("evaluating:evaluate", "Compare trained models with the one trained on the full data."),
    "stability": ("studying:stability", "Say how much of a subset survives what might have come out otherwise."),
    "report": ("reporting:report", "Write one HTML page about a store: plots, and traces step by step."),
    "duplicates": ("analysing:duplicates", "Find samples that are alike, and which one of each group to keep."),
    "neighbours": ("analysing:neighbours", "Show the samples nearest to one, or least aligned with it."),
    "diversity": ("diversifying:diversity", "Say how diverse subsets are, and what diversity costs."),
    "demo": ("demonstrating:demo", "Run the whole of it on what ships with it."),
}
"""name: (module:function, one line of help)."""


class LazyGroup(click.Group):
    """Imports a command when it is needed, so that --help answers at once and scoring needs no torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"grace_store.cli.{module}"), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        from grace_store.cli.console import told

        with told():
            return super().invoke(ctx)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with: grace-store demo",
)
@click.version_option(__version__, prog_name="grace-store")
def main() -> None:
    """Choose the reasoning traces worth training on.

    Each step of a trace would push a model in some direction; GRACE keeps traces whose steps push the way the
    answer does. `extract` writes those directions to a Zarr store once, `score` and `select` use them ever after.
    """
