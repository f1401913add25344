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
    "base", "store", "data", "model", "values", "likeness", "pool", "run", "train", "scoring", "choose", "study",
    "pages", "example", "cli",
]  # fmt: skip
"""Lowest first. A room may import those before it, and its own modules."""

DOORS = {
    "zarr": {"store"},
    "numcodecs": {"store"},
    "obstore": {"store"},
    "torch": {"model", "train"},
    "transformers": {"model", "train"},
    "safetensors": {"model", "train"},
    "peft": {"model", "train"},
    "faiss": {"likeness"},
    "igraph": {"likeness"},
    "leidenalg": {"likeness"},
    "ray": {"run"},
    "plotly": {"pages"},
    "kaleido": {"pages"},
    "click": {"cli"},
    "rich": {"cli"},
}

SIDEWAYS = {
    "data": {"store"},
    "model": {"store"},
    "values": {"store", "data", "model"},
    "likeness": {"store", "data", "model"},
    "example": {
        "store",
        "data",
        "model",
        "values",
        "likeness",
        "pool",
        "run",
        "train",
        "scoring",
        "choose",
        "study",
        "pages",
    },
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
        assert here in DOORS.get(top, {here}), f"{top} is imported only in {DOORS[top]}"
        assert not name.startswith("zarr.core"), f"{name} is zarr's own and changes from release to release"
        if top == "grace_store" and rest.split(".")[0] in LAYERS:
            there = rest.split(".")[0]
            if here is None:
                continue  # the package itself names what is public
            assert LAYERS.index(there) <= LAYERS.index(here), f"{here} is below {there}"
            assert there not in SIDEWAYS.get(here, set()), f"{here} does without {there}"


MAX_CHAIN = 12


def import_graph() -> dict[str, set[str]]:
    """Return {module: modules of the package that it imports when it is imported itself}."""
    names = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in modules()}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        found = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom) and node.module]
        both = {each for node in found for alias in node.names for each in (f"{node.module}.{alias.name}", node.module)}
        graph[name] = {each for each in both if each in names and each != name}
    return graph


def test_no_chain_of_imports_is_long() -> None:
    graph, known = import_graph(), {}

    def chain(name: str) -> list[str]:
        if name not in known:
            known[name] = [name, *max((chain(each) for each in graph[name]), key=len, default=[])]
        return known[name]

    longest = max((chain(name) for name in graph), key=len)
    assert len(longest) <= MAX_CHAIN, " <- ".join(longest)


def test_no_file_name_means_two_things() -> None:
    """A command's file in cli/ and the module of its job are one thing; two others of a name are two."""
    places: dict[str, list[str]] = {}
    for path in modules():
        if path.stem not in ("__init__", "__main__"):
            places.setdefault(path.stem, []).append(path.relative_to(ROOT).as_posix())
    jobs = {name: [each for each in found if not each.startswith("cli/")] for name, found in places.items()}
    assert {name: found for name, found in jobs.items() if len(found) > 1} == {}
    packages = {path.parent.name for path in ROOT.rglob("*/__init__.py")}
    commands = {path.stem for path in (ROOT / "cli").glob("*.py")}
    nouns = {name for name, found in places.items() if found == [f"{name}/{name}.py"]}  # pool/pool.py holds Pool
    assert packages & (set(places) - commands - nouns) == set()


def test_no_public_name_means_two_things() -> None:
    places: dict[str, set[str]] = {}
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(path.relative_to(ROOT).as_posix())
    shared = {
        name: found
        for name, found in places.items()
        if len(found) > 1 and not any(each.startswith("cli/") and Path(each).stem == name for each in found)
    }
    assert shared == {}


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import grace_store.cli.main", "torch transformers faiss zarr pyarrow rich"),
        ("from grace_store.cli import main; main(['--help'], standalone_mode=False)", "torch faiss zarr pyarrow rich"),
        (
            "from grace_store.cli.main import COMMANDS; print([COMMANDS[name].help for name in COMMANDS])",
            "torch transformers faiss",
        ),
        (
            "import grace_store.scoring.score, grace_store.choose.select, grace_store.run.status",
            "torch transformers PIL",
        ),
        (
            "import grace_store.run.verify, grace_store.run.extract, grace_store.run.support",
            "torch transformers safetensors PIL",
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
