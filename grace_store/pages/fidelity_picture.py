"""The fidelity audit as a document and as a picture."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grace_store.artifacts.pictures.panels import Axis, Panel, Point, Series, draw_panels
from grace_store.base.files import write_text
from grace_store.base.text import without_nan
from grace_store.curate.fidelity import Fidelity
from grace_store.values.agreement import Agreement

SIDE = 260


def document(found: Fidelity, *, raw: bool) -> str:
    """Return the audit as JSON; raw, with the scores of every sample and step."""
    summary: dict[str, Any] = {
        name: getattr(found, name) for name in ("signal", "num_samples", "num_steps", "ratio", "by_chance")
    }
    summary["spaces"] = {name: asdict(space) for name, space in found.spaces.items()}
    if raw:
        summary["samples"] = [_sample(found, number) for number in range(found.num_samples)]
    return json.dumps(without_nan(summary), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_fidelity(found: Fidelity, out: Path | None = None, figure: Path | None = None) -> None:
    """Write every number behind the audit as JSON, and a picture of it as SVG."""
    if out is not None:
        write_text(out, document(found, raw=True))
    if figure is not None:
        write_text(figure, picture(found))


def _sample(found: Fidelity, number: int) -> dict[str, Any]:
    sample: dict[str, Any] = {"sample_id": found.sample_id[number]}
    for name, scores in found.scores.items():
        steps = slice(int(scores.offsets[number]), int(scores.offsets[number + 1]))
        sample[name] = {
            "value": float(scores.value[number]),
            "answer_alignment": scores.answer_alignment[steps].tolist(),
            "history_alignment": scores.history_alignment[steps].tolist(),
        }
    return sample


def picture(found: Fidelity) -> str:
    """Return an SVG: alignment with the answer, with history, and values, the proxy's against the gradients'."""
    panels = [
        _panel(found, "answer_alignment", "Answer alignment of steps", "steps"),
        _panel(found, "history_alignment", "History alignment of steps", "steps"),
        _panel(found, "value", "Value of samples", "samples"),
    ]
    title = f"The proxy against parameter gradients ({found.num_samples} samples, signal {found.signal})"
    return draw_panels(panels, title, "Dashed: where both are equal.")


def _panel(found: Fidelity, name: str, title: str, what: str) -> Panel:
    proxy, gradient = (getattr(found.scores[space], name).tolist() for space in ("proxy", "representation"))
    each: Agreement = getattr(found.spaces["representation"], name)
    return Panel(
        Axis("proxy"),
        Axis("whole gradient"),
        [Series("", [Point(*pair) for pair in zip(proxy, gradient, strict=True)], "dots")],
        title=title,
        note=f"rank correlation {each.correlation:.2f}, {each.num_pairs} {what}",
        width=SIDE,
        height=SIDE,
        equal_axes=True,
    )
