"""`pip install .` without extras: all that the README promises for it runs, and the rest names its extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from grace_store.base.errors import how_to_install
from grace_store.cli.main import COMMANDS
from tests.installations import Installation
from tests.promised_commands import CORE, OF_EXTRAS, named_by_readme


def test_the_readme_names_what_extras_are_for(repository: Path) -> None:
    assert named_by_readme(repository / "README.md") == {extra: list(of) for extra, of in OF_EXTRAS.items()}


def test_every_command_is_promised_for_the_core_or_for_an_extra() -> None:
    of_core = {command.split()[0] for command in CORE}
    of_extras = {name for named in OF_EXTRAS.values() for name in named if name in COMMANDS}
    assert of_core | of_extras == set(COMMANDS)
    assert not of_core & of_extras


@pytest.mark.slow
def test_the_core_runs_what_is_promised_and_names_the_extra_of_the_rest(tmp_path: Path, wheel: Path) -> None:
    core = Installation.make(tmp_path, sys.executable, wheel)
    core.make_store()
    assert "0 problems" in core.run("grace-store", "verify", "store.zarr")
    extras = {command: extra for extra, named in OF_EXTRAS.items() for command in named.values()}
    found = core.outcomes([*CORE, *extras])
    assert {command: found[command][1] for command in CORE if found[command][0] != 0} == {}
    for command, extra in extras.items():
        code, said = found[command]
        assert (code, how_to_install(extra) in said) == (1, True), (command, said)
