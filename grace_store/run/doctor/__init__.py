"""Before a long run: will it work with this model, this data and this machine, and are its numbers right?

Looks and tries, and writes nothing: neither a plan nor a store, only files beside the store's place that are gone
again at once. Every check ends in ok, warn or fail; a fail says what to change.
"""

from __future__ import annotations

from collections.abc import Callable

from grace_store.base.errors import GraceStoreError
from grace_store.base.events import Listener, Note, ignore
from grace_store.run.doctor.data_checks import check_data, check_images
from grace_store.run.doctor.findings import DoctorJob, Examination, Finding, Seen, finding_lines
from grace_store.run.doctor.machine_checks import check_disk, check_memory, check_place, check_speed
from grace_store.run.doctor.model_checks import check_batches, check_gradient, check_model, check_samples, check_storage

__all__ = ["DoctorJob", "Examination", "Finding", "examine", "finding_lines"]


def examine(job: DoctorJob, listener: Listener = ignore) -> Examination:
    """Run every check that can be run; one that fails ends those that need what it would have found."""
    seen = Seen()
    checks: list[tuple[str, Callable[[DoctorJob, Seen], Finding | None]]] = [
        ("data", check_data), ("images", check_images), ("place", check_place), ("model", check_model),
        ("samples", check_samples), ("disk", check_disk), ("gradient", check_gradient), ("batches", check_batches),
        ("storage", check_storage), ("speed", check_speed), ("memory", check_memory),
    ]  # fmt: skip
    findings: list[Finding] = []
    for name, check in checks:
        listener(Note(f"Checking {name}."))
        try:
            found = check(job, seen)
        except GraceStoreError as error:
            found = Finding(name, "fail", str(error), "Mend that and run doctor again.")
        if found is not None:
            findings.append(found)
    return Examination(tuple(findings))
