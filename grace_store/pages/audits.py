"""The page's parts on other commands: what studies, `contamination` and `warmup` found, if run. Computes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grace_store.base.text import one_line
from grace_store.pages import figure_parts as parts
from grace_store.pages.contaminated_samples import against_section
from grace_store.pages.figures import line_chart
from grace_store.pages.findings import finding_section
from grace_store.pages.sections import Section
from grace_store.train.loss_log import read_losses

if TYPE_CHECKING:
    from grace_store.pages.report_inputs import ReportInputs


def audit_sections(given: ReportInputs) -> list[Section]:
    """Return a part for each audit that is given."""
    sections = [finding_section(each) for each in given.findings]
    if given.against is not None:
        sections.append(against_section(given.against))
    if given.request.warmup is not None:
        sections.append(warmup_section(given.request.warmup))
    return sections


def warmup_section(folder: Path) -> Section:
    """Return how losses fell in the warm-up of a folder."""
    section = Section("warmup", "Warm-up", "Did the warm-up learn?")
    losses = {name: each for name, each in zip(("training", "held out"), read_losses(folder), strict=True) if each}
    lines = {name: ([step for step, _ in each], [loss for _, loss in each]) for name, each in losses.items()}
    section.figure(
        "warmup-loss",
        f"Losses of {one_line(folder.name)}",
        line_chart(lines, parts.axis("step"), parts.axis("loss per token")),
        "Training: the loss of each step before the step is taken. Held out: of samples that are never trained on.",
        wide=True,
    )
    return section
