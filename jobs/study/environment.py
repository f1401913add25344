"""What a study ran on: software, processor, commit. For people; no number depends on how it is written down."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("grace-store", "torch", "transformers", "tokenizers", "peft", "numpy")


def describe_environment() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    return found | {name: version(name) for name in PACKAGES} | {"commit": _commit()}


def _commit() -> str:
    """Return the commit of the tree that this file is in, and whether files differ from it."""
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit} with changes" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
