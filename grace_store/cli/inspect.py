"""grace-store inspect"""

from __future__ import annotations

from typing import Any

import click
from rich.padding import Padding
from rich.text import Text

import grace_store as gs
from grace_store.base.flags import ABOUT
from grace_store.cli import shared
from grace_store.cli.console import harmless, number, out, print_json
from grace_store.cli.options import TEXT, command, option

COLUMNS = {
    "tokens": "num_tokens",
    "loss": "loss",
    "entropy": "entropy",
    "hits": "hit_rate",
    "norm": "norm",
    "answer": "answer_alignment",
    "history": "history_alignment",
    "score": "step_score",
}
"""What is printed of a segment, and under which heading."""


@command(
    "grace-store inspect traces.zarr triangle-03",
    "grace-store inspect traces.zarr '#17'                         # the record in row 17 of the dataset",
)
@shared.store
@click.argument("sample")
@option("--signal", TEXT, "Signal to show. [default: the only one]")
@shared.moved_data
def inspect(store: str, sample: str, signal: str | None, data: tuple[str, ...], *, as_json: bool) -> None:
    """Show one sample, segment by segment, with losses and scores.

    SAMPLE is an id, or #ROW for a row of the dataset. Each segment has its tokens, mean loss and entropy, the share of
    tokens that the model had right (hits), the norm of its vector, its alignment with answer and history, and its
    score; flags, with what they mean, come first. Before anything is extracted, and for a sample that is not done,
    there is only the text, split.
    """
    shown = gs.inspect(store, sample, signal=signal, data=data or None)
    if as_json:
        print_json(shown)
        return
    where = "no signal yet" if shown["signal"] is None else f"signal {shown['signal']}"
    place = f"row {shown['row']}  {where}  {shown['state']}"
    out.print(f"{harmless(shown['sample_id'])}  {place}", markup=False)
    if shown["why_set_aside"]:
        out.print(f"set aside: {harmless(shown['why_set_aside'])}", markup=False)
    for name in shown["flags"] or ():
        out.print(f"flagged {name}: {ABOUT[name]}", markup=False)
    if shown["missing_text"]:
        out.print(f"(text not shown: {shown['missing_text']})", markup=False)
    if shown["prompt"]:
        out.print(Text(harmless(shown["prompt"]), style="dim"))
    _print_segments(shown)


def _print_segments(shown: dict[str, Any]) -> None:
    """Print a line of numbers for each segment and its text below, so that both have room on any terminal."""
    has_scores = shown.get("value") is not None
    if has_scores:
        out.print(f"value {shown['value']:.4f} with alpha 0.7, uniform history, target answer")
        out.print(" " * 9 + "".join(f"{name:>8}" for name in COLUMNS), style="bold")
    elif shown["state"] == "done":  # one vector for the whole sample
        out.print(f"{shown['num_tokens']} tokens, loss {shown['loss']:.3f}, gradient of length {shown['norm']:.4g}")
    for segment in shown["segments"]:
        if has_scores:
            _print_numbers(segment)
        else:
            out.print(segment["name"], style="bold")
        out.print(Padding(Text(harmless((segment["text"] or "").strip()), style="dim"), (0, 0, 0, 2)))


def _print_numbers(segment: dict[str, Any]) -> None:
    cells = [f"{segment['name']:<9}"]
    for key in COLUMNS.values():
        value = segment[key]
        cells.append(f"{'' if value is None else value if isinstance(value, int) else number(value):>8}")
    score = segment["step_score"]
    out.print("".join(cells), style=None if score is None else "green" if score > 0 else "red", markup=False)
