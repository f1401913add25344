"""A warm-up's losses as a picture: a small SVG without dependencies, and a line for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grace_store.model.lora.loss_log import read_entries
from grace_store.model.lora.recipe import LOSSES

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 28, 40
NUM_TICKS = 4
_BARS = "▁▂▃▄▅▆▇█"

Points = Sequence[tuple[float, float]]


def read_losses(out: Path) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return the (step, loss) of every step, and those on held-out samples."""
    entries = read_entries(out / LOSSES)
    return (
        [(entry["step"], entry["loss"]) for entry in entries if "loss" in entry],
        [(entry["step"], entry["heldout_loss"]) for entry in entries if "heldout_loss" in entry],
    )


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Return values as one line of bars, neighbours averaged where there are more than fit.

    >>> sparkline([4.0, 3.0, 2.0, 1.0])
    '█▆▃▁'
    """
    if not values:
        return ""
    width = min(width, len(values))
    means = []
    for i in range(width):
        part = values[i * len(values) // width : (i + 1) * len(values) // width]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    span = high - low or 1.0
    return "".join(_BARS[min(int((mean - low) / span * len(_BARS)), len(_BARS) - 1)] for mean in means)


def write_loss_svg(out: Path) -> Path:
    """Draw loss.svg from loss.jsonl, and return its path."""
    trained, heldout = read_losses(out)
    path = out / "loss.svg"
    path.write_text(draw(trained, heldout), encoding="utf-8")
    return path


def draw(trained: Points, heldout: Points) -> str:
    """Return a picture of both losses over the steps."""
    every = [*trained, *heldout] or [(0.0, 0.0)]
    last = max(max(step for step, _ in every), 1.0)
    low, high = min(loss for _, loss in every), max(loss for _, loss in every)
    pad = (high - low) * 0.05 or 0.5
    low, high = low - pad, high + pad

    def place(step: float, loss: float) -> str:
        x = LEFT + step / last * (WIDTH - LEFT - RIGHT)
        y = TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        "<title>Loss of the warm-up</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for i in range(NUM_TICKS + 1):
        loss, step = low + (high - low) * i / NUM_TICKS, round(last * i / NUM_TICKS)
        x, y = place(step, loss).split(",")
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end" dominant-baseline="middle">{loss:.3g}</text>')
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">step</text>')
    curves = (("training", trained, "#4477aa", LEFT), ("held out", heldout, "#cc6677", LEFT + 90))
    for name, points, colour, column in curves:
        if points:
            line = " ".join(place(step, loss) for step, loss in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            dots = [place(step, loss).split(",") for step, loss in points] if name == "held out" else []
            parts += [f'<circle cx="{a}" cy="{b}" r="3" fill="{colour}"/>' for a, b in dots]
            parts.append(f'<text x="{column}" y="16" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
