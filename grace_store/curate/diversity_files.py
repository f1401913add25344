"""Measures of diversity as files: a document and a picture."""

from __future__ import annotations

from pathlib import Path

from grace_store.base.files import write_json, write_text
from grace_store.curate.diversity import Diversity


def write_diversity(found: Diversity, out: Path | None = None, curve: Path | None = None) -> None:
    """Write everything as JSON, and the curve as SVG."""
    if out is not None:
        write_json(out, found.to_dict())
    if curve is not None and found.curve is not None:
        note = f"{found.made_by['num_samples']} samples of {found.made_by['store']}"
        write_text(curve, found.curve.picture(note))
