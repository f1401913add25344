"""Check before a long run that this model, data and machine work together and give the right numbers.

The checks write no plan and no store. Their test files, beside the store's place and in the temporary folder, are
deleted at once. Every check ends in ok, warn or fail, and a failed check says what to change.
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
"""The checks in the order in which they run: later checks use the results of earlier ones."""
BEFORE_THE_MODEL = ("data", "images", "place", "vectors")


def doctor(job: ExtractJob, listener: Listener = ignore) -> list[CheckResult]:
    """Run every possible check. After a failed check, the checks that need its result are skipped.

    If no record can be used, the model is not loaded.
    """
    seen = Seen(listener=listener)
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
                findings.append(CheckResult(name, "fail", str(error), "The later checks were skipped."))
                break
            except GraceStoreError as error:
                found = CheckResult(name, "fail", str(error), "Fix this problem and run `grace-store doctor` again.")
            if found is not None:
                findings.append(found)
    return findings
