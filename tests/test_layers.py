"""Imports point down, each heavy library has one door, and the command line opens none of them early."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "grace_store"

LAYERS = [
    "base", "store", "data", "model", "values", "likeness", "artifacts", "read", "run", "curate", "pages", "example",
    "cli",
]  # fmt: skip
"""Lowest first. A room may import those before it, and its own modules."""

DOORS = {
    "zarr": "store",
    "numcodecs": "store",
    "obstore": "store",
    "torch": "model",
    "transformers": "model",
    "safetensors": "model",
    "peft": "model",
    "faiss": "likeness",
    "igraph": "likeness",
    "leidenalg": "likeness",
    "ray": "run",
    "plotly": "pages",
    "kaleido": "pages",
    "click": "cli",
    "rich": "cli",
}

SIDEWAYS = {
    "data": {"store"},
    "model": {"store"},
    "values": {"store", "data", "model"},
    "likeness": {"store", "data", "model"},
    "example": {"store", "data", "model", "values", "likeness", "artifacts", "read", "run", "curate", "pages"},
}
"""Rooms that could import these by their height, and must not."""


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def package_of(path: Path) -> str | None:
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else None


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_down_and_use_the_doors(path: Path) -> None:
    here = package_of(path)
    if path.name == "__main__.py":
        return
    for name in imports(path):
        top, _, rest = name.partition(".")
        assert DOORS.get(top, here) == here, f"{top} is imported only in {DOORS.get(top)}"
        if top == "grace_store" and rest.split(".")[0] in LAYERS:
            there = rest.split(".")[0]
            if here is None:
                continue  # the package itself names what is public
            assert LAYERS.index(there) <= LAYERS.index(here), f"{here} is below {there}"
            assert there not in SIDEWAYS.get(here, set()), f"{here} does without {there}"


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import grace_store.cli.main", "torch transformers faiss zarr pyarrow rich"),
        ("from grace_store.cli import main; main(['--help'], standalone_mode=False)", "torch faiss zarr pyarrow rich"),
        (
            "from grace_store.cli.main import COMMANDS; print([COMMANDS[name].help for name in COMMANDS])",
            "torch transformers faiss zarr pyarrow",
        ),
        (
            "import grace_store.curate.score, grace_store.curate.select, grace_store.run.status",
            "torch transformers PIL",
        ),
        ("import grace_store.pages.report", "torch transformers faiss plotly kaleido PIL"),
        ("import grace_store.values", "torch transformers zarr pyarrow"),
        ("import grace_store.data", "torch transformers zarr"),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str, forbidden: str) -> None:
    probe = f"import sys; {code}; print([m for m in {forbidden.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
