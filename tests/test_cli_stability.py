"""grace-store stability, as users type it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from grace_store.base.documents import read_document
from grace_store.base.finding import Finding
from grace_store.cli import main
from tests.scored_stores import known_store


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    store = known_store(tmp_path, ("base", "later")).store.location
    arguments = ["stability", store, "--signal", "base", "--ratio", "0.4", "--draws", "5", "--alpha", "1"]
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("Too few samples to say how much of the subset survives: 6 chosen of 13 samples")
    assert "signal later" in shown.stdout
    assert "vectors as int4" in shown.stdout
    out = tmp_path / "stability.json"
    machine = json.loads(CliRunner().invoke(main, [*arguments, "--out", str(out), "--json"]).stdout)
    rows = {row["change"]: row["jaccard"] for row in machine["tables"]["changes"]["rows"]}
    assert rows["vectors as float32"]["value"] == 1.0
    written = read_document(out, Finding)
    assert written.to_json() == machine == json.loads(out.read_text())
    assert machine["settings"]["score"]["alpha"] == 1
    assert (written.numbers["signal"], written.study) == ("base", "stability")
    assert machine["conclusion"] == shown.stdout.splitlines()[0]
