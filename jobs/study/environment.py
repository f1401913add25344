"""What a study ran with and on: its settings, which claim a folder, and for people software, machine and commit."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from grace_store.base.errors import ResumeMismatch
from grace_store.base.files import whole_file
from grace_store.base.settings import Frozen, short

PACKAGES = ("grace-store", "torch", "transformers", "tokenizers", "peft", "numpy")


def claim(settings: Frozen, path: Path) -> None:
    """Write down the settings and where they run, or refuse a folder that has others."""
    document = {"sha256": settings.digest(), "settings": settings.model_dump(mode="json")}
    if path.is_file():
        there = json.loads(path.read_text(encoding="utf-8"))["sha256"]
        if there != document["sha256"]:
            raise ResumeMismatch(
                f"{path.parent} has a study with other settings ({short(there)}, now {short(document['sha256'])}). "
                "Results are never mixed: choose another --out, or move the old ones away."
            )
        return
    document["environment"] = describe_environment()
    with whole_file(path) as partial:
        partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


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
