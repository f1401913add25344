"""grace-store fidelity, as users type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from grace_store.base.documents import read_document
from grace_store.base.finding import Finding
from grace_store.cli import main
from grace_store.pages.findings import finding_section
from grace_store.store.opened import Store
from tests.proxy_stores import proxy_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return proxy_store(tmp_path_factory.mktemp("fidelity"))


def test_the_command_prints_a_table_and_writes_what_is_behind_it(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "raw.json"
    arguments = ["fidelity", store.location, "--samples", "8", "--device", "cpu", "--threads", "1"]
    shown = CliRunner().invoke(main, [*arguments, "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "representation" in shown.stdout
    raw = json.loads(out.read_text())
    assert len(raw["tables"]["values"]["rows"]) == 8
    assert raw["tables"]["steps"]["rows"][0]["history_alignment"] is None
    assert raw["tables"]["steps"]["rows"][0]["sample_id"] not in shown.stdout
    figures = finding_section(read_document(out, Finding)).figures
    drawn = {name: len(figure["data"][0]["x"]) for name, figure in figures.items() if name != "fidelity-spaces"}
    steps = raw["numbers"]["num_steps"]
    assert drawn == {
        "fidelity-answer-alignment": steps,
        "fidelity-history-alignment": steps - 8,  # a first step has no history
        "fidelity-value": 8,
    }
    machine = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert shown.stdout.splitlines()[0] == raw["conclusion"] == machine["conclusion"] != ""
    assert machine["tables"]["spaces"]["rows"][0]["value"]["num"] == 8


def test_nothing_is_written_over_the_data_or_into_the_store(store: Store, tmp_path: Path) -> None:
    data = Path(store.plan.files[0].path)
    before = data.read_bytes()
    (tmp_path / "link").symlink_to(data)
    for place in (tmp_path / "link", Path(store.location) / "new"):
        done = CliRunner().invoke(main, ["fidelity", store.location, "--out", str(place)])
        assert done.exit_code == 1
        assert "Nothing was written." in done.stderr
    assert data.read_bytes() == before
