"""What the name of a file says: no command and no function writes another format under it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

import grace_store as gs
from grace_store.base.errors import SettingError
from grace_store.base.files import ENDINGS, FOLDER, HTML, JSON, PARQUET, check_name, format_of
from grace_store.choose.exports import EXPORTS
from grace_store.cli.main import COMMANDS
from grace_store.cli.options import LocalPath
from tests.commands import run
from tests.exported import scored_store

WRITTEN = {
    ("audit", "--out"): (JSON,),
    ("compare", "--out"): (JSON,),
    ("contamination", "--out"): (PARQUET,),
    ("demo", "--out"): (FOLDER,),
    ("diversity", "--out"): (JSON,),
    ("duplicates", "--out"): (PARQUET,),
    ("evaluate", "--out"): (JSON,),
    ("fidelity", "--out"): (JSON,),
    ("judge", "--out"): (JSON,),
    ("report", "--figures"): (FOLDER,),
    ("report", "--out"): (HTML,),
    ("score", "--out"): (PARQUET,),
    ("stability", "--out"): (JSON,),
    ("support", "--out"): (JSON,),
    ("sweep", "--out"): (FOLDER,),
    ("trial", "--out"): (FOLDER,),
    ("warmup", "--out"): (FOLDER,),
    ("weights", "--out"): (PARQUET,),
}
"""What every command writes, by its option; only `select` writes what another option says."""


def others(formats: tuple[str, ...]) -> list[str]:
    """Return how names of all other formats end, in small and in capital letters."""
    found = [ending for name, endings in ENDINGS.items() for ending in endings if name not in formats]
    return [*found, *(ending.upper() for ending in found)]


def test_an_ending_says_one_format() -> None:
    endings = [ending for each in ENDINGS.values() for ending in each]
    assert len(set(endings)) == len(endings)
    assert [format_of(Path(f"a.b{ending}")) for ending in endings] == [
        name for name, each in ENDINGS.items() for _ in each
    ]


@pytest.mark.parametrize("name", ["scores", "scores.v2", "subset-0.2", "a.parquet.part", ".parquet", "Parquet"])
def test_a_name_that_says_nothing_can_be_anything(name: str) -> None:
    check_name(Path(name), PARQUET)
    check_name(Path(name), FOLDER)


def test_every_option_that_writes_says_what_it_writes() -> None:
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for name in COMMANDS:
        for option in COMMANDS[name].params:
            if isinstance(option.type, LocalPath) or "--out" in option.opts:
                assert isinstance(option, click.Option)
                assert isinstance(option.type, LocalPath), f"{name} {option.opts[0]} takes any name"
                found[name, option.opts[0]] = option.type.formats
    assert found.pop(("select", "--out")) == ()
    assert found == WRITTEN


@pytest.mark.parametrize(("command", "option"), WRITTEN)
def test_no_command_writes_another_format_than_the_name_says(tmp_path: Path, command: str, option: str) -> None:
    formats = WRITTEN[command, option]
    for ending in others(formats):
        told = " ".join(run(command, option, tmp_path / f"x{ending}", code=1).stderr.split())
        wanted = "without" if formats == (FOLDER,) else "that ends in"
        assert f"The name x{ending} says {format_of(Path(f'x{ending}'))}, but {' or '.join(formats)} would" in told
        assert f"would be written. Choose a name {wanted} ." in told
    assert not list(tmp_path.iterdir())
    (parameter,) = (each for each in COMMANDS[command].params if option in each.opts)
    for ending in (ending for name in formats for ending in ENDINGS.get(name, ())):
        assert parameter.type.convert(str(tmp_path / f"x{ending}"), None, None) == tmp_path / f"x{ending}"


@pytest.mark.parametrize("name", EXPORTS)
def test_select_writes_what_its_export_and_the_name_say(tmp_path: Path, name: str) -> None:
    for ending in others(tuple(EXPORTS[name].formats)):
        words = ["select", tmp_path / "scores.parquet", "--as", name, "--out", tmp_path / f"x{ending}"]
        assert f"The name x{ending} says " in run(*words, code=1).stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scored_store(tmp_path_factory.mktemp("scored"))


WRITERS: dict[str, Any] = {
    "score": lambda folder, out: gs.score(folder / "store.zarr", out=out),
    "weights": lambda folder, out: gs.weights(folder / "store.zarr", out=out),
    "duplicates": lambda folder, out: gs.duplicates(folder / "store.zarr").write(out),
    "sweep": lambda folder, out: gs.sweep(folder / "store.zarr", gs.SweepSpec(), out=out),
    "report": lambda folder, out: gs.report(folder / "store.zarr", out, gs.ReportRequest()),
    "export": lambda folder, out: gs.export(gs.select(folder / "scores.parquet"), out),
}


@pytest.mark.parametrize("name", WRITERS)
def test_no_function_writes_another_format_than_the_name_says(scored: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match=r"The name x\.csv says CSV, but .* would be written\. Choose a name"):
        WRITERS[name](scored, tmp_path / "x.csv")
    assert not list(tmp_path.iterdir())
