"""Some rehearsals, drawn by a seed: real commands on the pretend accelerator. `make rehearse` plays them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rehearsals.__main__ import play_all
from tests.rehearsals.cases import REHEARSALS, share

SEED, NUM_PROCESSES = 17, 4
"""Some 30 seconds on two cores: importing torch and transformers is most of it."""


@pytest.mark.slow
def test_a_share_of_the_rehearsals_goes_well(tmp_path: Path) -> None:
    results = play_all(share(SEED, NUM_PROCESSES), tmp_path)
    assert len(results) > 1
    assert {result["name"]: result["failures"] for result in results if result["failures"]} == {}


def test_every_rehearsal_has_a_name_of_its_own_and_checks_something() -> None:
    names = [each.name for each in REHEARSALS]
    assert len(set(names)) == len(names) > 40
    assert all(each.checks for each in REHEARSALS)
