"""grace-store sweep, as a user types it."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.commands import refuses, run, run_json
from tests.gradient_stores import DIMENSION, add_gradients
from tests.jobs import NUM_USABLE
from tests.scored_stores import known_store


def test_sweep_prints_a_table_or_json(scored, tmp_path):
    arguments = ("sweep", scored / "store.zarr", "--out", tmp_path / "sweep", "--alpha", "0.1:0.9:0.4")
    shown = run(*arguments, "--history", "uniform,ema:0.8").stdout
    assert "6 settings over 24 samples" in shown
    assert shown.startswith("The best 0.2 are 5 of 24 samples, too few to say how settings change them")
    assert "alpha=0.5 history=ema:0.8" in shown
    said = json.loads(run(*arguments, "--ratio", "0.1", "--ratio", "0.3", "--json").output)
    assert said["settings"]["ratio"] == ["0.1", "0.3"]
    assert said["conclusion"].startswith("The best 0.1 are 3 of 24 samples")
    assert [row["alpha"] for row in said["tables"]["summary"]["rows"]] == [0.1, 0.5, 0.9]
    assert pq.read_table(tmp_path / "sweep/values.parquet").shape == (NUM_USABLE, 1 + 3)
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == [
        "overlap.parquet",
        "samples.parquet",
        "summary.parquet",
        "sweep.json",
        "values.parquet",
    ]


def test_a_list_may_be_given_in_parts(scored, tmp_path):
    def settings(*words):
        return run_json("sweep", scored / "store.zarr", "--out", tmp_path / "sweep", *words)["tables"]["summary"][
            "rows"
        ]

    lists = {"alpha": "0.1,0.9", "history": "uniform,ema:0.8", "target": "answer,trace", "aggregation": "mean,min"}
    words = [(f"--{name}", text) for name, text in {"measure": "grace,loss", **lists}.items()]
    found = settings(*(each for name, texts in words for text in texts.split(",") for each in (name, text)))
    assert len(found) == 2**4 + 1
    assert found == settings(*(each for pair in words for each in pair))


def test_a_single_setting_is_named(scored, tmp_path):
    shown = run("sweep", scored / "store.zarr", "--out", tmp_path / "sweep", "--measure", "loss").stdout
    assert "measure=loss:lowest signals=" in shown


def test_signals_for_a_grid_and_only_those_with_steps(tmp_path):
    store = known_store(tmp_path, ("early", "late")).store
    add_gradients(store, "gradients", np.ones((store.plan.num_samples, DIMENSION)))
    (tmp_path / "grid.toml").write_text('[[grid]]\nalpha = "0.3,0.7"\n')
    arguments = ("sweep", store.location, "--out", tmp_path / "sweep", "--grid", tmp_path / "grid.toml")
    found = run(*arguments, "--signal", "each")
    assert "4 settings over 13 samples" in found.stdout
    assert "replaced" not in found.stdout
    assert "--signal each leaves out gradients: one vector per sample, no steps to score." in found.stderr
    assert "the earlier sweep there is replaced" in run(*arguments, "--signal", "late").stdout
    (tmp_path / "grid.toml").write_text('[[grid]]\nsignal = "late"\n')
    assert "already names signals: leave --signal out" in run(*arguments, "--signal", "late", code=1).stderr
    shown = run("stability", store.location, "--signal", "early", "--draws", 2).stdout
    assert "Left out, with one vector per sample and no steps: gradients." in shown


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("sweep {store} --out {out} --alpha 0.1:2:0.1", 1, "alpha 1.1 is not between 0"),
        ("sweep {store} --out {out} --alpha some", 1, "'some' is not a number"),
        ("sweep {store} --out {out} --measure grace=0.5,loss", 1, "alone has no weight: leave that of grace=0.5 out"),
        (
            "sweep {store} --out {out} --measure loss --measure hes --alpha 0.1,0.7",
            1,
            "measure loss:lowest does not use --alpha: leave --alpha 0.1 out",
        ),
        ("sweep {store} --out {out} --history window:0", 1, "a window is a whole number of steps"),
        ("sweep {store} --out {out} --signal late", 1, "has no signal 'late'"),
        ("sweep {store} --out {out} --ratio 2", 1, "ratio 2 is not"),
        ("sweep {store} --out {out} --grid {data} --alpha 0.3", 1, "--grid and --alpha cannot be combined"),
        ("sweep {store} --out {out} --grid {data}", 1, "cannot be read as TOML"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(scored, tmp_path, arguments, code, message):
    refuses(scored, tmp_path, arguments, code, message)
