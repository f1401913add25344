"""Before a long run: will it work with this model, this data and this machine, and are its numbers right?

Looks and tries, and leaves nothing: neither a plan nor a store, only files beside the store's place and in the
temporary folder that are gone again at once. Every check ends in ok, warn or fail; a fail says what to change.
"""

from collections.abc import Callable

from grace_store.base.errors import DeviceLost, GraceStoreError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.watch import Watch
from grace_store.run.doctor import data_checks, machine_checks, model_checks
from grace_store.run.doctor.data_checks import CheckResult, Seen
from grace_store.run.engines.engine import ExtractJob

CHECKS: dict[str, Callable[[ExtractJob, Seen], CheckResult | None]] = {
    "data": data_checks.examine_data,
    "images": data_checks.examine_images,
    "place": machine_checks.examine_place,
    "vectors": machine_checks.examine_vectors,
    "model": model_checks.examine_model,
    "samples": model_checks.examine_samples,
    "trainer": model_checks.examine_trainer,
    "disk": machine_checks.examine_disk,
    "gradient": model_checks.examine_gradient,
    "batches": model_checks.examine_batches,
    "storage": model_checks.examine_storage,
    "speed": machine_checks.examine_speed,
    "memory": machine_checks.examine_memory,
}
"""In the order in which they run: some need what others found."""
BEFORE_THE_MODEL = ("data", "images", "place", "vectors")


def doctor(job: ExtractJob, listener: Listener = ignore) -> list[CheckResult]:
    """Run every check that can be run; one that fails ends those that need what it would have found.

    Without a usable record no model is loaded: it could be tried on nothing.
    """
    seen = Seen()
    findings: list[CheckResult] = []
    with Watch(job.options.patience, listener) as watch:
        for name, check in CHECKS.items():
            if name not in BEFORE_THE_MODEL and not seen.samples:
                break
            listener(Note(f"Checking {name}."))
            try:
                with watch.over(f"the check of {name}"):
                    found = check(job, seen)
            except DeviceLost as error:
                findings.append(CheckResult(name, "fail", str(error), "No later check could be made."))
                break
            except GraceStoreError as error:
                found = CheckResult(name, "fail", str(error), "Mend that and run doctor again.")
            if found is not None:
                findings.append(found)
    return findings
