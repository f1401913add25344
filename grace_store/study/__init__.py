"""Studies: what can be asked of a pool, each one a module with a STUDY. A new one is a module and a line here."""

from typing import TYPE_CHECKING

from grace_store.base.registry import Registry

if TYPE_CHECKING:
    from grace_store.study.study_kind import Study

STUDY_HELP = {
    "judge": "Measure how well stored signals agree with labels.",
    "stability": "Measure how much of a subset survives small changes.",
    "fidelity": "Measure how well GRACE's proxy follows whole gradients.",
}
"""Every study by name, with the first line of its help, which must not take an import to show."""

STUDIES: "Registry[Study]" = Registry("grace_store.study", "STUDY", list(STUDY_HELP))
