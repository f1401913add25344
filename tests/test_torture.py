"""A short, seeded share of every torture: nothing lost, mixed or undetected. `make torture` runs all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.mutants import MUTANTS, TESTED, Mutant, run_mutant

SHARES = {"faults": 30, "power": 30, "rot": 200, "load": 60, "answers": 2, "trespass": 4, "mutants": 6}
PRELOADED = {"kills": 12, "syscalls": 6, "rivals": 6, "torn": 3}
"""These need a C compiler, and have one wherever numpy could be built."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), (SHARES | PRELOADED).items())
def test_a_share_of_every_torture_is_survived(tmp_path: Path, repository: Path, name: str, count: int) -> None:
    result = tmp_path / "tally.json"
    done = subprocess.run(
        [sys.executable, "-m", f"tests.torture.{name}", "--seed", "7", "--count", str(count), "--json", str(result)],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.exists(), done.stderr
    tally = json.loads(result.read_text())
    assert tally["failures"] == []
    assert tally["tried"] >= min(count, 3)
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("mutant", TESTED, ids=lambda mutant: mutant.name)
def test_a_test_fails_without_its_safeguard(tmp_path: Path, mutant: Mutant) -> None:
    tally = run_mutant(mutant, tmp_path / "mutant")
    assert (tally.tried, tally.failures) == (1, ["noticed"])


@pytest.mark.quick
@pytest.mark.parametrize("mutant", [*MUTANTS, *TESTED], ids=lambda mutant: mutant.name)
def test_what_a_mutant_takes_out_is_still_there(mutant: Mutant, repository: Path) -> None:
    assert (repository / "grace_store" / mutant.file).read_text().count(mutant.before) == 1
    assert mutant.after != mutant.before
