"""Mutants: the package with one safeguard taken out, in a copy of it. A torture that does not notice one is blind.

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
    """What is taken out, where, and which torture must notice, at the seed by which it begins with what matters."""

    name: str
    file: str
    before: str
    after: str
    torture: str
    seed: int

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
        "        if found == self.content:\n            return\n",
        "        return\n",
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


def run_mutant(mutant: Mutant, folder: Path) -> Tally:
    """Run the torture that should notice a mutant, on the mutant."""
    folder.mkdir()
    mutant.make(folder)
    result = folder / "tally.json"
    words = ["--seed", str(mutant.seed), "--count", "1", "--json", str(result)]
    done = subprocess.run(
        [sys.executable, "-m", f"tests.torture.{mutant.torture}", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if not result.exists():
        return Tally(mutant.name, failures=[f"the torture ended with {done.returncode}: {done.stderr[-1000:]}"])
    return Tally.from_json(json.loads(result.read_text()))


def torture(seed: int, count: int, folder: Path) -> Tally:
    """See whether so many mutants are noticed, two at a time. Each has a seed of its own."""
    tally = Tally("mutants")
    chosen = MUTANTS[:count]
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
    main(torture, count=len(MUTANTS))
