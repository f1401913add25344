"""Studies: questions about a pool, each in a module with a STUDY. A new study is a module and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grace_store.base.registry import Registry

if TYPE_CHECKING:
    from grace_store.base.finding import Finding
    from grace_store.base.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A question about a pool. Its command has the options of the pool, then one option for each setting."""

    find: Callable[..., Finding]
    """find(pool, settings, listener=...) answers the question."""
    settings: type[Settings]
    """The study's settings; their docstring is the command's help."""
    examples: tuple[str, ...]
    """Command lines, shown below the help."""
    signal: str
    """Help of --signal."""
    has_many_signals: bool = False
    measure: str = "Measure to score by, as NAME:WAY:AGGREGATION; `score --help` lists the names. [default: grace]"
    """Help of --measure."""
    has_many_measures: bool = False


STUDY_HELP = {
    "judge": "Measure how well stored signals agree with labels.",
    "stability": "Measure how much of a subset survives small changes.",
    "fidelity": "Measure how well GRACE's proxy follows whole gradients.",
}
"""The first line of each study's help, by name. It stands here so that help needs no import of the study."""

STUDIES: Registry[Study] = Registry("grace_store.study", "STUDY", list(STUDY_HELP))
