"""The fidelity audit as a picture, and beside it as a document."""

from __future__ import annotations

from pathlib import Path

from grace_store.artifacts.scatter import Panel, scatter
from grace_store.base.documents import write_document
from grace_store.base.files import write_text
from grace_store.curate.fidelity import Fidelity
from grace_store.values.agreement import Agreement


def write_fidelity(found: Fidelity, out: Path | None = None, figure: Path | None = None) -> None:
    """Write every number behind the audit as JSON, and a picture of it as SVG."""
    if out is not None:
        write_document(out, found.with_samples())
    if figure is not None:
        write_text(figure, picture(found))


def picture(found: Fidelity) -> str:
    """Return an SVG: alignment with the answer, with history, and values, the proxy's against the gradients'."""
    proxy, true = found.scores["proxy"], found.scores["representation"]
    space = found.document.spaces["representation"]
    kinds = (
        ("answer_alignment", "Answer alignment of steps", "steps"),
        ("history_alignment", "History alignment of steps", "steps"),
        ("value", "Value of samples", "samples"),
    )
    panels = []
    for name, title, what in kinds:
        each: Agreement = getattr(space, name)
        note = f"rank correlation {each.correlation:.2f}, {each.num_pairs} {what}"
        panels.append(Panel(title, note, getattr(proxy, name), getattr(true, name)))
    title = (
        f"The proxy against parameter gradients ({found.document.num_samples} samples, signal {found.document.signal})"
    )
    return scatter(panels, title, "proxy", "whole gradient")
