"""The lowest versions that pyproject.toml allows are installed and tried. Of torch only one build is at hand."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXTRAS = ("extract", "warmup", "faiss", "report", "cadc", "cloud")
"""All but ray, whose minimum is the version that every test runs on: an older one needs older versions of much else."""
TRIED = {
    "test_run_extract.py": "counts_add_up or shards",
    "test_hostile_store.py": "not_attacked",
    "test_cli_score.py": "",
    "test_artifacts_notes.py": "",
    "test_data_dataset.py": "zst",
    "test_likeness_search.py": "brute_force",
    "test_values_cadc.py": "",
    "test_pages_figure_files.py": "papers",
    "test_store_backend.py": "bucket",
    "test_model_vision.py": "token_off",
    "test_model_lora.py": "",
}
"""Files of tests, and which of theirs: what each package is used for."""


def lowest(requirements: list[str]) -> list[str]:
    """Return a pin for every requirement that names a package of others."""
    ours = ("grace-store", "torch>=")
    return [each.replace(">=", "==") for each in requirements if not each.startswith(ours)]


def install(folder: Path, *words: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--target", str(folder)]
    done = subprocess.run([*pip, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A folder with the lowest versions; what these need is there, or taken from the environment of the tests."""
    folder = tmp_path_factory.mktemp("lowest")
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    install(folder, *lowest(project["dependencies"]))
    extras = [each for extra in EXTRAS for each in lowest(project["optional-dependencies"][extra])]
    install(folder, "--no-deps", "--upgrade", *sorted(set(extras)))
    return folder


@pytest.mark.parametrize("file", TRIED)
def test_the_lowest_versions_do(site: Path, repository: Path, file: str) -> None:
    chosen = ["-k", TRIED[file]] if TRIED[file] else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", f"tests/{file}", *chosen],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": f"{site}:{repository}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
