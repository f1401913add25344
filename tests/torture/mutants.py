"""Mutants: the package with one safeguard taken out, in a copy of it. A torture or test that misses one is blind.

Each is a replacement of text that must be there once, so none can go stale in silence.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.torture.tally import Tally, main

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """What is taken out, where, and which torture must notice, at the seed by which it begins with what matters.

    A torture with :: in its name is a test, which needs no seed.
    """

    name: str
    file: str
    before: str
    after: str
    torture: str
    seed: int = 0

    def make(self, folder: Path) -> None:
        """Put a copy of the package and of the tests into a folder, the mutant in its place."""
        shutil.copytree(REPOSITORY / "grace_store", folder / "grace_store")  # with what was compiled of it
        (folder / "tests").symlink_to(REPOSITORY / "tests")
        path = folder / "grace_store" / self.file
        text = path.read_text()
        assert text.count(self.before) == 1, f"{self.name}: {self.file} has {text.count(self.before)} of {self.before}"
        path.write_text(text.replace(self.before, self.after))


NOTHING_THERE = 'raise broken(self._group.backend, where, "is missing")'
FILL_VALUES = (
    "spec = self._group.specs[name]; "
    "yield np.zeros(spec.chunks, dtype=np.dtype(spec.dtype))[: max(0, spec.shape[0] - unit * spec.chunks[0])]; continue"
)

MUTANTS = (
    Mutant(
        "score skips a digest",
        "store/array_group.py",
        'if hashlib.sha256(raw).hexdigest() != digests[unit].get(key, {}).get("sha256"):',
        "if False:",
        "answers",
        1,
    ),
    Mutant(
        "a foreign commit is accepted",
        "store/opened.py",
        "if commit.unit != unit or commit.signal_sha256 != self.identity:",
        "if False:",
        "answers",
        0,
    ),
    Mutant("a missing chunk is read as fill values", "store/array_group.py", NOTHING_THERE, FILL_VALUES, "answers", 2),
    Mutant(
        "a taken lock is broken",
        "store/lock.py",
        "key = _take(backend, name, shard, mine, break_lock=break_lock)",
        "key = _take(backend, name, shard, mine, break_lock=True)",
        "trespass",
        0,
    ),
    Mutant(
        "shards overlap",
        "run/extract.py",
        "run(Work(units, worker_job,",
        "run(Work(missing_units(view), worker_job,",
        "trespass",
        1,
    ),
    Mutant(
        "the store is written in place",
        "store/backend.py",
        "        self._place(value, rename)\n",
        "        _write_synced(self._prepare(key), value)\n",
        "torn",
        4,
    ),
    Mutant(
        "a missing chunk of the plan is read as fill values",
        "store/array_group.py",
        'if key.rpartition("/")[2] == "zarr.json":',
        "if True:",
        "answers",
        3,
    ),
    Mutant(
        "a foreign commit is read",
        "store/array_group.py",
        "if owner != (unit, self._identity):",
        "if False:",
        "answers",
        0,
    ),
    Mutant(
        "a live run counts as dead",
        "store/lock.py",
        "    if (runs := _is_running(owner)) is not None:\n",
        "    if (runs := False) is not None:\n",
        "trespass",
        0,
    ),
    Mutant(
        "a lost lock is ignored",
        "store/lock.py",
        "        if found != self.content:\n",
        "        if False:\n",
        "trespass",
        3,
    ),
    Mutant(
        "overlapping shards run side by side",
        "store/lock.py",
        "(int(i) - shard[0]) % gcd(int(n), shard[1]) == 0",
        "(int(i), int(n)) == shard",
        "trespass",
        0,
    ),
    Mutant(
        "workers get the same unit",
        "run/engines/dispatch.py",
        "                send(worker, unit)\n",
        "                for each in workers:\n                    send(each, unit)\n",
        "trespass",
        4,
    ),
    Mutant(
        "outputs are written in place",
        "base/files.py",
        "        yield part\n        sync_file(part)\n        if only_new:\n"
        "            _take_free_name(part, path)\n        else:\n            part.replace(path)\n",
        "        part.unlink()\n        yield path\n",
        "torn",
        3,
    ),
)
"""One of each kind first: a digest, a commit, a chunk, a lock, a shard, a name."""

LOOK = "error_of_look(num_rounds, plan.spec.num_seeds, len(plan.subsets))\n    "
ONE_LOOK = "error_of_look(1, 1, len(plan.subsets))\n    "
OTHER_BYTES = "test_other_bytes_of_the_same_size_and_time_are_refused_even_in_records_that_no_unit_reads"
ALONE = "test_a_field_says_what_belongs_together_and_a_record_without_it_is_alone"
LOST_MEANWHILE = "test_a_unit_is_not_committed_if_another_run_took_over_while_its_chunks_were_written"
TESTED = (
    Mutant(
        "chunks are written without the lock",
        "store/unit_writer.py",
        "        self.confirm()\n        backend.write_all(",
        "        backend.write_all(",
        "test_store_unit_writer.py::test_no_chunk_is_written_after_another_run_took_over",
    ),
    Mutant(
        "a unit is committed without the lock",
        "store/unit_writer.py",
        "        self.confirm()\n        backend.write(commit_key",
        "        backend.write(commit_key",
        f"test_store_unit_writer.py::{LOST_MEANWHILE}",
    ),
    Mutant(
        "looks at subsets are not counted",
        "study/trial_conclusion.py",
        f"{LOOK}return values, compare",
        f"{ONE_LOOK}return values, compare",
        "test_study_trial_conclusion.py::test_each_look_has_its_own_share_of_the_error",
    ),
    Mutant(
        "looks at pairs are not counted",
        "study/trial_conclusion.py",
        "error_of_look(num_rounds, plan.spec.num_seeds, len(pairs))",
        "error_of_look(1, 1, len(pairs))",
        "test_study_trial_conclusion.py::test_each_look_has_its_own_share_of_the_error",
    ),
    Mutant(
        "looks at answers are not counted",
        "study/trial_conclusion.py",
        f"{LOOK}share, by_seed",
        f"{ONE_LOOK}share, by_seed",
        "test_study_trial_conclusion.py::test_answers_are_compared_at_the_look_that_ended_the_trial",
    ),
    Mutant(
        "a training goes on from any state",
        "train/checkpoints.py",
        'if state["recipe_sha256"] != recipe_sha256:',
        "if False:",
        "test_train_training.py::test_a_training_does_not_go_on_from_the_state_of_another",
    ),
    Mutant(
        "records without the field are one question",
        "data/sample_digests.py",
        '(place, b"alone") if value is None',
        '(0, b"alone") if value is None',
        f"test_run_scan_gathering.py::{ALONE}",
    ),
    Mutant(
        "records without the field are one question to studies",
        "pool/records.py",
        "yield field_digest(value, position)",
        "yield field_digest(value, 0)",
        f"test_run_scan_gathering.py::{ALONE}",
    ),
    Mutant(
        "a report keeps the host's name",
        "run/support.py",
        'return self._host.sub("HOST", text)',
        "return text",
        "test_run_support.py::test_what_happened_is_in_it",
    ),
    Mutant(
        "rounding is standardised",
        "values/within_groups.py",
        "is_same = highest - lowest <= LEAST_SPREAD * np.maximum(np.abs(lowest), np.abs(highest))",
        "pass",
        "test_scoring_groups.py::test_a_spread_that_is_only_rounding_is_not_standardised",
    ),
    Mutant(
        "data is compared by its size",
        "pool/records.py",
        "(by_content and then.sha256 != file_sha256(Path(now.path)))",
        "False",
        f"test_pool_records.py::{OTHER_BYTES}",
    ),
    Mutant(
        "extract compares data by its size",
        "run/extract.py",
        "by_content=job.shard[0] == 0",
        "by_content=False",
        f"test_pool_records.py::{OTHER_BYTES}",
    ),
    Mutant(
        "a digest is remembered by size and time of writing",
        "base/files.py",
        '{"mtime_ns": stat.st_mtime_ns, "ctime_ns": stat.st_ctime_ns}',
        '{"mtime_ns": stat.st_mtime_ns, "ctime_ns": 0}',
        "test_model_fingerprint.py::test_other_content_with_the_same_size_and_times_shows",
    ),
)
"""Safeguards that a test of `make test` watches."""


def run_mutant(mutant: Mutant, folder: Path) -> Tally:
    """Run the torture that should notice a mutant, on the mutant."""
    folder.mkdir()
    mutant.make(folder)
    result = folder / "tally.json"
    words = [f"tests.torture.{mutant.torture}", "--seed", str(mutant.seed), "--count", "1", "--json", str(result)]
    if is_test := "::" in mutant.torture:
        options = ["-p", "no:cacheprovider", "-c", str(REPOSITORY / "pyproject.toml"), "--rootdir", str(folder)]
        words = ["pytest", *options, f"tests/{mutant.torture}"]
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if is_test and done.returncode in (0, 1):  # 1: a test failed
        return Tally(mutant.name, tried=1, failures=["noticed"] * done.returncode)
    if not result.exists():
        return Tally(mutant.name, failures=[f"it ended with {done.returncode}: {(done.stderr or done.stdout)[-1000:]}"])
    return Tally.from_json(json.loads(result.read_text()))


def torture(seed: int, count: int, folder: Path) -> Tally:
    """See whether so many mutants are noticed, two at a time. Each has a seed of its own."""
    tally = Tally("mutants")
    chosen = (*MUTANTS, *TESTED)[:count]
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run_mutant, each, folder / str(number)) for number, each in enumerate(chosen)]
        for mutant, run in zip(chosen, runs, strict=True):
            found = run.result()
            tally.tried += 1
            if not found.tried:
                tally.failures.append(f"{mutant.name}: {'; '.join(found.failures)}")
            elif found.failures:
                tally.became["noticed"] += 1
            else:
                tally.failures.append(f"{mutant.name}: not noticed by {found.tried} tries of {mutant.torture}")
    return tally


if __name__ == "__main__":
    main(torture, count=len(MUTANTS) + len(TESTED))
