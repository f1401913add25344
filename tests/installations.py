"""Installations as users make them: Pythons of this machine, environments of their own, what is run in them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent


def project() -> dict[str, Any]:
    """Return what pyproject.toml says of the package."""
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


# ---------------------------------------------------------------- Pythons


@cache
def interpreters() -> dict[str, str]:
    """Return the Pythons that pyproject.toml names, where found: the one that runs, pyenv's, or one on the PATH."""
    named = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in project()["classifiers"]]
    found = {match[1]: next(_working(match[1]), None) for match in named if match}
    return {version: path for version, path in found.items() if path is not None}


def _working(version: str) -> Iterator[str]:
    """Yield Pythons of a version that start and can make environments; a shim may have nothing behind it."""
    if version == "{}.{}".format(*sys.version_info):
        yield sys.executable
    of_pyenv = sorted(_pyenv_root().glob(f"versions/{version}.*/bin/python"))
    on_path = [shutil.which(f"python{version}", path=folder) for folder in os.get_exec_path()]
    for path in [*map(str, of_pyenv), *filter(None, on_path)]:
        about = "import ensurepip, sys, venv; print('{}.{}'.format(*sys.version_info))"
        done = subprocess.run([path, "-c", about], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            yield path


@cache
def _pyenv_root() -> Path:
    """Return the folder of pyenv, whose Pythons may be there without a shim that leads to them."""
    if (pyenv := shutil.which("pyenv")) is None:
        return Path("no pyenv")
    return Path(subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False).stdout.strip())


# ---------------------------------------------------------------- pip


def clean_environment(*path: Path) -> dict[str, str]:
    """Return the environment of this process, with these folders alone for PYTHONPATH."""
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return others | ({"PYTHONPATH": os.pathsep.join(map(str, path))} if path else {})


def run_pip(python: str | Path, *words: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def install(python: str | Path, *words: str) -> None:
    """Install packages for a Python, as built by their makers: nothing is compiled here."""
    run_pip(python, "install", "--quiet", "--only-binary", ":all:", *words)


def build_wheel(folder: Path) -> Path:
    """Build the package from a copy of its sources, as a build in place may find files of an earlier one."""
    sources = folder / "sources"
    sources.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, sources)
    shutil.copytree(REPOSITORY / "grace_store", sources / "grace_store", ignore=shutil.ignore_patterns("__pycache__"))
    run_pip(sys.executable, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(sources))
    (wheel,) = folder.glob("grace_store-*.whl")
    return wheel


@dataclass(frozen=True, slots=True)
class Installation:
    """The package in an environment of its own, and a folder to run its commands in."""

    python: Path
    folder: Path

    @classmethod
    def make(cls, folder: Path, interpreter: str, wheel: Path, *extras: str) -> Installation:
        """Install the package and what it needs, the newest releases, into a new environment."""
        venv = [interpreter, "-m", "venv", str(folder / "environment")]
        subprocess.run(venv, env=clean_environment(), capture_output=True, check=True)
        made = cls(folder / "environment" / "bin" / "python", folder / "work")
        made.folder.mkdir()
        install(made.python, f"{wheel}[{','.join(extras)}]" if extras else str(wheel))
        return made

    def run(self, *words: str) -> str:
        """Run a program of the environment, to which the helpers of tests are known, and return what it printed."""
        beside = self.folder.parent / "beside"
        beside.mkdir(exist_ok=True)
        if not (beside / "tests").exists():
            (beside / "tests").symlink_to(REPOSITORY / "tests")
        command = [str(self.python.with_name(words[0])), *words[1:]]
        done = subprocess.run(
            command, cwd=self.folder, env=clean_environment(beside), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def make_store(self) -> None:
        """Write what the commands of tests.promised_commands start from."""
        self.run("python", "-m", "tests.every_storage", ".")

    def outcomes(self, commands: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Run commands of grace-store, all in one process; return the exit code of each, and what it said."""
        told = json.loads(self.run("python", "-m", "tests.promised_commands", *commands))
        return {command: (code, said) for command, (code, said) in told.items()}


def run_tests(python: str | Path, tests: Sequence[str], *path: Path) -> None:
    """Run tests of this repository by a Python; its packages come from these folders first."""
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", *(f"tests/{test}" for test in tests)]
    environment = clean_environment(*path, REPOSITORY)
    done = subprocess.run(
        [str(python), *words], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
