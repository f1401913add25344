"""The newest releases of what the core and some extras need are installed and tried, for every Python that is found.

Without torch, which has a build for one Python only: stores are made by the fake model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.installations import Installation, install, interpreters, run_tests
from tests.promised_commands import CORE, OF_EXTRAS

pytestmark = pytest.mark.slow

EXTRAS = ("faiss", "report", "cadc")
DIVERSITIES = ("dedup", "clusters", "facility")
"""Ways of `select --diversity`, beside the one that is among the commands of the extra."""
READ_BACK = """
from pathlib import Path
from grace_store.run.doctor.machine_checks import try_storages
print(try_storages(Path("tried.zarr")))
"""
TRIED = (
    "test_store_chunk_reader.py",
    "test_store_golden.py::test_it_opens_and_nothing_is_wrong_with_it",
    "test_store_opened.py::test_everything_comes_back_sample_by_sample",
    "test_hostile_store.py::test_what_is_not_attacked_is_read",
    "test_values_cadc.py",
)
"""Vectors of every storage are read as they were written, stores of earlier versions too, and other codecs refused."""


def test_the_python_that_runs_the_tests_is_among_those_found() -> None:
    assert interpreters()["{}.{}".format(*sys.version_info)] == sys.executable


@pytest.mark.parametrize("version", interpreters())
def test_the_newest_versions_do(version: str, tmp_path: Path, wheel: Path) -> None:
    newest = Installation.make(tmp_path, interpreters()[version], wheel, *EXTRAS)
    assert newest.run("python", "-c", READ_BACK) == "{}\n"
    newest.make_store()
    assert "0 problems (every byte read)" in newest.run("grace-store", "verify", "store.zarr", "--deep")
    commands = [*CORE, *(command for extra in EXTRAS for command in OF_EXTRAS[extra].values())]
    commands += [f"select scores.parquet --ratio 0.4 --diversity {way} --out {way}.jsonl" for way in DIVERSITIES]
    assert {command: said for command, (code, said) in newest.outcomes(commands).items() if code != 0} == {}
    install(newest.python, "pytest", "hypothesis")
    run_tests(newest.python, TRIED)
