"""Builds the pretend accelerator once for each version of its sources and of torch.

What it makes is a folder to put on PYTHONPATH: a package, `pretend_accelerator`, and the entry point by which torch
loads it when torch itself is imported, as it loads the backend of Ascend's devices. Nothing here imports torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).parent
PACKAGE = "pretend_accelerator"
LIBRARY = f"_machine{sysconfig.get_config_var('EXT_SUFFIX')}"
ENTRY_POINTS = f"[torch.backends]\npretend = {PACKAGE}:autoload\n"


class NoCompiler(RuntimeError):
    """The device cannot be built on this machine."""


def build() -> Path:
    """Return the folder to put on PYTHONPATH, made if it is not there; several processes may ask at once."""
    return _made_once(_digest(".cpp", ".h", ".py"), _install)


def _made_once(digest: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of a digest, filled by the first process that asks for it."""
    folder = _cache() / f"grace-store-pretend-{digest}"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=folder.name) as scratch:
                make(Path(scratch))
                (Path(scratch) / "made").rename(folder)
    return folder


def _cache() -> Path:
    """Return where builds are kept: in the environment that has the torch they are for, else among temporary files."""
    return Path(sys.prefix) if os.access(sys.prefix, os.W_OK) else Path(tempfile.gettempdir())


def _digest(*suffixes: str) -> str:
    """Return a digest of the sources that end so, and of what they are built against."""
    digest = hashlib.sha256(f"{metadata.version('torch')} {sys.version}".encode())
    for path in sorted(path for path in SOURCES.rglob("*") if path.suffix in suffixes):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _install(scratch: Path) -> None:
    """Lay out the package with its library and its entry point, as pip would."""
    site = scratch / "made"
    shutil.copytree(SOURCES / "accelerator", site / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(_made_once(_digest(".cpp", ".h"), _compile) / LIBRARY, site / PACKAGE)
    about = site / f"{PACKAGE}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)


def _compile(scratch: Path) -> None:
    """Compile all sources at once and link them against torch."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch = Path(spec.origin).parent
    includes = [torch / "include", torch / "include/torch/csrc/api/include", Path(sysconfig.get_path("include"))]
    flags = ["-std=c++20", "-O0", "-fPIC", "-w", *(f"-I{folder}" for folder in includes)]
    sources = sorted(SOURCES.glob("*.cpp"))
    objects = [scratch / f"{source.stem}.o" for source in sources]
    _run_all([["-c", str(source), "-o", str(made), *flags] for source, made in zip(sources, objects, strict=True)])
    (scratch / "made").mkdir()
    libraries = ["-lc10", "-ltorch_cpu", "-ltorch_python", f"-L{torch / 'lib'}"]
    _run_all([["-shared", *map(str, objects), "-o", str(scratch / "made" / LIBRARY), *libraries]])


def _run_all(commands: list[list[str]]) -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise NoCompiler(f"The pretend accelerator needs a C++ compiler, and there is no {compiler}. Run .ci/tools.")
    running = [subprocess.Popen([compiler, *words], stderr=subprocess.PIPE, text=True) for words in commands]
    told = [process.communicate()[1] for process in running]
    if any(process.returncode for process in running):
        raise NoCompiler(f"The pretend accelerator cannot be built:\n{''.join(told)[-4000:]}")


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
