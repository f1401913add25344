"""The settings of a sweep: grids resolved against a store's signals, and the paper's own grids."""

from __future__ import annotations

import pytest

from grace_store.base.errors import SettingError
from grace_store.scoring.sweep import sweep
from grace_store.scoring.sweep_settings import load_grid, resolve_settings, short_labels
from grace_store.values.grid import Grid, SweepSpec
from grace_store.values.methods.method import ScoreSpec
from tests.scored_stores import known_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return known_store(tmp_path_factory.mktemp("swept"), ("early", "late")).store


def test_a_setting_is_swept_once_and_labels_show_what_differs(store):
    grid = Grid(alpha="0.5,0.5,0.7", signal="late")
    settings = resolve_settings(store, SweepSpec(grid=[grid, Grid(signal="late")]))
    assert short_labels(settings) == ["alpha=0.5", "alpha=0.7"]
    assert short_labels(settings[:1]) == [settings[0].name]
    assert [setting.name for setting in settings] == [
        "alpha=0.5 history=uniform target=answer signals=late",
        "alpha=0.7 history=uniform target=answer signals=late",
    ]


def test_too_many_settings_are_refused(store):
    spec = SweepSpec(grid=[Grid(alpha="0:1:0.001", target="answer,trace", signal="late")])
    with pytest.raises(SettingError, match="the sweep has 2002 settings, at most 2000"):
        resolve_settings(store, spec)


PAPER = {"balance": 27, "windows": 8, "emas": 8, "ablations": 5, "aggregations": 5, "checkpoints": 5}


def test_the_papers_grids_are_all_there(repository):
    assert {path.stem for path in (repository / "jobs/sweeps").glob("*")} == set(PAPER)


@pytest.mark.parametrize("name", PAPER)
def test_a_grid_of_the_paper_loads_and_runs(repository, tmp_path, name):
    signals = ("a", "b", "c", "d") if name == "checkpoints" else ("base",)
    store = known_store(tmp_path, signals, num_steps=[9, 8, 12, 10]).store
    found = sweep(store, load_grid(repository / f"jobs/sweeps/{name}.toml"), out=tmp_path / "sweep")
    assert len(found.settings) == PAPER[name]
    assert len(set(found.labels)) == PAPER[name]
    assert found.note.spec.about


def test_the_papers_ablations_are_single_commands(tmp_path, repository):
    store = known_store(tmp_path, num_steps=[9, 8, 12, 10]).store
    specs = [setting.spec for setting in resolve_settings(store, load_grid(repository / "jobs/sweeps/ablations.toml"))]
    assert specs == [
        ScoreSpec(),
        ScoreSpec(target="trace"),
        ScoreSpec(target="suffix"),
        ScoreSpec(alpha=1),
        ScoreSpec(without_answer=True),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alpha = ", "cannot be read as TOML"),
        ("[[grid]]\nalpa = 1", "there is no such setting"),
        ("[[grid]]\nalpha = 1.5", r"bad\.toml: alpha 1\.5 is not between"),
        ("grid = []", "a sweep needs at least one grid"),
    ],
)
def test_a_bad_grid_file_is_refused_by_name(tmp_path, store, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(SettingError, match=message):
        resolve_settings(store, load_grid(path))
    with pytest.raises(SettingError, match=r"none\.toml does not exist"):
        load_grid(tmp_path / "none.toml")
