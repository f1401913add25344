"""The fidelity audit as files: every number behind it, and a picture."""

from __future__ import annotations

from pathlib import Path

from grace_store.artifacts.pictures.panels import Axis, Panel, Point, Series, draw_panels
from grace_store.base.documents import write_document
from grace_store.base.files import write_text
from grace_store.curate.fidelity import Fidelity
from grace_store.values.agreement import Agreement

SIDE = 260


def write_fidelity(found: Fidelity, out: Path | None = None, figure: Path | None = None) -> None:
    """Write every number behind the audit as JSON, and a picture of it as SVG."""
    if out is not None:
        write_document(out, found.with_samples())
    if figure is not None:
        write_text(figure, picture(found))


def picture(found: Fidelity) -> str:
    """Return an SVG: alignment with the answer, with history, and values, the proxy's against the gradients'."""
    panels = [
        _panel(found, "answer_alignment", "Answer alignment of steps", "steps"),
        _panel(found, "history_alignment", "History alignment of steps", "steps"),
        _panel(found, "value", "Value of samples", "samples"),
    ]
    title = (
        f"The proxy against parameter gradients ({found.document.num_samples} samples, signal {found.document.signal})"
    )
    return draw_panels(panels, title, "Dashed: where both are equal.")


def _panel(found: Fidelity, name: str, title: str, what: str) -> Panel:
    proxy, gradient = (getattr(found.scores[space], name).tolist() for space in ("proxy", "representation"))
    each: Agreement = getattr(found.document.spaces["representation"], name)
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
