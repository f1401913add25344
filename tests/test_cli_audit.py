"""grace-store audit, as a user types it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from grace_store.study.audit import compare_first_tokens
from tests.commands import refuses, run
from tests.scored_stores import known_store
from tests.stores import write_store


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
    assert shown.startswith(
        "3 samples have a value by grace, too few to say how far values follow length; about 230 would do."
    )
    assert "Pearson" not in shown
    assert json.loads(run("audit", tmp_path / "s.parquet", "--json").stdout)["numbers"]["enough_samples"] is False


@pytest.mark.parametrize(
    ("measures", "title", "last"),
    [
        (["loss:lowest"], "loss:lowest", "The lower the loss, the higher the value."),
        (["loss:highest"], "loss:highest", None),
        (["steps", "loss=2", "norm"], "steps:highest + loss:lowest=2 + norm:lowest", "The lower the loss and norm,"),
    ],
)
def test_an_audit_of_any_measure_names_it_and_says_which_way_is_better(tmp_path, measures, title, last):
    known = known_store(tmp_path, num_steps=[2, 3, 4, 5] * 10)
    words = [word for each in measures for word in ("--measure", each)]
    run("score", known.store.location, "--out", tmp_path / "s.parquet", *words)
    found = json.loads(run("audit", tmp_path / "s.parquet", "--json").stdout)
    assert found["conclusion"].startswith(f"40 samples have a value by {title}")
    assert found["settings"]["measure"] == title
    assert [note.startswith(last) for note in found["notes"]] == ([True] if last else [])
    if len(measures) == 1:  # by hand from the stored losses
        sign = -1 if "lowest" in title else 1
        value, length = [], []
        for (_, tokens), loss in zip(known.samples["base"], known.loss["base"], strict=True):
            value.append(sign * (tokens * loss).sum() / tokens.sum())
            length.append(np.log(tokens.sum()))
        rows = {row["length"]: row for row in found["tables"]["lengths"]["rows"]}
        assert rows["response_length"]["pearson"] == pytest.approx(np.corrcoef(value, length)[0, 1])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("audit {data}", 1, "is not a Parquet file"),
        ("audit {scores} --ratio 2", 1, "ratio 2 is not a number above 0 and at most 1"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(scored, tmp_path, arguments, code, message):
    refuses(scored, tmp_path, arguments, code, message)


# ---------------------------------------------------------------- first tokens


def test_first_tokens_are_compared_with_the_others_by_hand(tmp_path):
    view = write_store(tmp_path / "s", [1, 4, 2] * 12, 4, "float32", 5)
    told, tables = compare_first_tokens(view.store, view.store.signal_names, view.store.column("sample_row"))
    firsts, all_losses, counts = [], [], []
    for sample in range(view.store.plan.num_samples):
        loss, first, tokens = (
            view.segments(f"segment_{name}", sample) for name in ("loss", "first_loss", "num_tokens")
        )
        for k in range(len(loss) - 1):
            firsts.append(float(first[k]))
            all_losses.append(float(loss[k]) * int(tokens[k]))
            counts.append(int(tokens[k]))
    rows = {row["tokens"]: row for row in tables["first_tokens"].rows}
    mine, theirs = rows["first of a step"], rows["others"]
    others = (sum(all_losses) - sum(firsts)) / (sum(counts) - len(counts))
    assert mine["loss"].value == pytest.approx(sum(firsts) / len(firsts))
    assert theirs["loss"].value == pytest.approx(others)
    assert mine["share_of_loss"].value == pytest.approx(sum(firsts) / sum(all_losses))
    assert mine["share"] == pytest.approx(len(counts) / sum(counts))
    assert f"a mean loss of {sum(firsts) / len(firsts):.2f}, the other tokens have {others:.2f}" in told


def test_audit_tells_of_first_tokens_while_the_store_is_there(tmp_path):
    write_store(tmp_path / "s", [1, 4, 2], 4, "float32", 5)
    run("score", tmp_path / "s", "--out", tmp_path / "s.parquet")
    assert "The first token of a step has a mean loss of" in run("audit", tmp_path / "s.parquet").stdout
    said = json.loads(run("audit", tmp_path / "s.parquet", "--json").stdout)["tables"]["first_tokens"]["rows"][0]
    assert (said["loss"]["low"], said["loss"]["num"]) == (None, 3)  # too few questions for an interval
    (tmp_path / "s").rename(tmp_path / "moved")
    assert "first token" not in run("audit", tmp_path / "s.parquet").stdout
    assert "The first token" in run("audit", tmp_path / "s.parquet", "--store", tmp_path / "moved").stdout
    assert "nothing is there" in run("audit", tmp_path / "s.parquet", "--store", tmp_path / "s", code=1).stderr
