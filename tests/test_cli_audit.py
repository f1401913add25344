"""grace-store audit, as a user types it."""

from __future__ import annotations

import json

import pytest

from tests.commands import refuses, run
from tests.scored_stores import known_store


def test_audit_prints_correlations_or_json(scored):
    shown = run("audit", scored / "scores.parquet").stdout
    assert "response_length" in shown
    assert "nan" not in shown
    said = json.loads(run("audit", scored / "scores.parquet", "--json").output)
    lengths = {row["length"]: row for row in said["tables"]["lengths"]["rows"]}
    assert lengths["step_length"]["pearson"] is None  # every step of the fake data has eight words
    assert -1 <= lengths["num_steps"]["spearman"] <= 1
    assert shown.splitlines()[0] == said["conclusion"]
    assert said["numbers"]["num_samples"] == 24
    explained = said["numbers"]["variance_explained"]["value"]
    assert f"length explains {100 * explained:.0f} % of how values differ" in said["conclusion"]


def test_an_audit_is_written_for_the_report(scored, tmp_path):
    out = tmp_path / "audit.json"
    run("audit", scored / "scores.parquet", "--by", "num_steps", "--out", out)
    written = json.loads(out.read_text())
    assert (written["kind"], written["study"]) == ("finding", "audit")
    assert sum(row["num_samples"] for row in written["tables"]["groups"]["rows"]) == 24
    refused = run("audit", out, "--out", out, code=1)
    assert "which is read for it" in refused.stderr


def test_an_audit_of_few_samples_says_that_it_can_tell_nothing(tmp_path):
    store = known_store(tmp_path, num_steps=(2, 3, 4)).store.location
    run("score", store, "--out", tmp_path / "s.parquet")
    shown = run("audit", tmp_path / "s.parquet").stdout
    assert shown.startswith("3 samples have a value, too few to say how far values follow length; about 230 would do.")
    assert "Pearson" not in shown
    assert json.loads(run("audit", tmp_path / "s.parquet", "--json").stdout)["numbers"]["enough_samples"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("audit {data}", 1, "is not a Parquet file"),
        ("audit {scores} --ratio 2", 1, "ratio 2 is not a number above 0 and at most 1"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(scored, tmp_path, arguments, code, message):
    refuses(scored, tmp_path, arguments, code, message)
