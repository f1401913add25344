"""grace-store fidelity, as users type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from grace_store.cli import main
from grace_store.store.opened import Store
from tests.proxy_stores import proxy_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return proxy_store(tmp_path_factory.mktemp("fidelity"))


def test_the_command_prints_a_table_and_writes_what_is_behind_it(store: Store, tmp_path: Path) -> None:
    out, figure = tmp_path / "raw.json", tmp_path / "picture.svg"
    arguments = ["fidelity", store.location, "--samples", "8", "--device", "cpu", "--threads", "1"]
    shown = CliRunner().invoke(main, [*arguments, "--out", str(out), "--figure", str(figure)])
    assert shown.exit_code == 0, shown.output
    assert "representation" in shown.stdout
    raw = json.loads(out.read_text())
    assert len(raw["samples"]) == 8
    assert raw["samples"][0]["scores"]["proxy"]["history_alignment"][0] is None
    assert figure.read_text().count("<circle") == 8 + 2 * raw["num_steps"] - 8
    machine = CliRunner().invoke(main, [*arguments, "--json"])
    assert shown.stdout.splitlines()[0] == raw["conclusion"] == json.loads(machine.stdout)["conclusion"] != ""
    assert json.loads(machine.stdout)["spaces"]["representation"]["value"]["num_pairs"] == 8


@pytest.mark.parametrize("option", ["--out", "--figure"])
def test_nothing_is_written_over_the_data_or_into_the_store(store: Store, tmp_path: Path, option: str) -> None:
    data = Path(store.plan.files[0].path)
    before = data.read_bytes()
    (tmp_path / "link").symlink_to(data)
    for place in (tmp_path / "link", Path(store.location) / "new"):
        done = CliRunner().invoke(main, ["fidelity", store.location, option, str(place)])
        assert done.exit_code == 1
        assert "Nothing was written." in done.stderr
    assert data.read_bytes() == before


def test_two_results_do_not_go_into_one_file(store: Store, tmp_path: Path) -> None:
    one = str(tmp_path / "one")
    done = CliRunner().invoke(main, ["fidelity", store.location, "--out", one, "--figure", one])
    assert "would be written twice" in done.stderr
