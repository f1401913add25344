"""A sweep has, setting by setting and to the last bit, the values that scoring alone gives."""

from __future__ import annotations

import math
import shutil
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import xarray as xr

from grace_store.artifacts import sweep_table
from grace_store.artifacts.sweep_table import SweepValues
from grace_store.base.errors import SettingError, Unfinished
from grace_store.curate import sweep as sweeping
from grace_store.curate.score import ScoreRequest, score
from grace_store.curate.sweep import sweep
from grace_store.curate.sweep_settings import load_grid, resolve_settings, short_labels
from grace_store.read import blocks
from grace_store.values.grid import Grid, SweepSpec
from grace_store.values.ranking import budget, top
from grace_store.values.score_spec import ScoreSpec
from tests.scored_stores import known_store

EVERYTHING = SweepSpec(
    about="all at once",
    ratio=("0.2", "0.5"),
    grid=(
        Grid(
            alpha="0:1:0.25", history="uniform,window:2,ema:0.8", target="answer,suffix",
            signal=("early", "early,late=3"),
        ),
        Grid(aggregation="mean,min,quantile:0.5", signal=("each",)),
        Grid(without_answer=True, history="uniform,window:3", signal=("all",)),
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    return known_store(folder, ("early", "late"), set_aside={"early": [9], "late": [5, 9]}).store


@pytest.fixture(scope="module")
def swept(store, tmp_path_factory):
    return sweep(store, EVERYTHING, out=tmp_path_factory.mktemp("out") / "sweep")


def test_every_setting_has_the_bits_of_its_own_scoring(store, swept):
    settings = resolve_settings(store, EVERYTHING)
    assert len(settings) == 2 * 3 * 2 * 5 + 2 * 3 + 2
    values = swept.values()
    samples = pq.read_table(swept.folder / "samples.parquet").to_pydict()
    for index, setting in enumerate(settings):
        table = score(store, ScoreRequest(spec=setting.spec, signals=setting.weights))
        alone = dict(zip(table.row.tolist(), table.value.tolist(), strict=True))
        expected = [alone.get(row, math.nan) for row in samples["row"]]
        np.testing.assert_array_equal(values[index], expected, err_msg=setting.name)


def test_values_are_tidy_and_one_setting_is_read_alone(store, swept):
    table = pq.read_table(swept.folder / "values.parquet")
    assert table.column_names == ["setting", "row", "value"]
    assert table.num_rows == len(swept.settings) * swept.num_samples
    frame = table.to_pandas().merge(pq.read_table(swept.folder / "summary.parquet").to_pandas(), on="setting")
    by_alpha = frame[(frame.signals == "early") & (frame.target == "answer")].groupby("alpha").value.mean()
    assert by_alpha.index.tolist() == [0, 0.25, 0.5, 0.7, 0.75, 1]
    one = pq.read_table(swept.folder / "values.parquet", filters=[("setting", "=", swept.settings[3])])
    np.testing.assert_array_equal(one["value"].to_numpy(), SweepValues(swept.folder).read(3))


def test_overlap_is_that_of_sets_and_ranks_correlate_as_pandas_says(swept):
    values = swept.values()
    row = np.arange(values.shape[1])
    for r, ratio in enumerate(swept.ratios):
        chosen = [set(top(value, budget(ratio, np.isfinite(value).sum()), row).tolist()) for value in values]
        expected = [[len(a & b) / len(a | b) for b in chosen] for a in chosen]
        np.testing.assert_allclose(swept.jaccard[r], expected)
    usable = values[:, np.isfinite(values).all(axis=0)]
    assert swept.num_ranked == usable.shape[1]
    np.testing.assert_allclose(swept.rank_correlation, pd.DataFrame(usable.T).corr("spearman"), atol=1e-9)


def test_the_summary_describes_the_values(swept):
    values = swept.values()
    samples = pq.read_table(swept.folder / "samples.parquet").to_pandas()
    for index, row in enumerate(swept.summary):
        frame = pd.DataFrame(
            {"value": values[index], "tokens": samples.num_tokens, "steps": samples.num_steps}
        ).dropna()
        assert row["num_with_value"] == len(frame)
        assert row["mean"] == pytest.approx(frame.value.mean())
        assert row["standard_deviation"] == pytest.approx(frame.value.std(ddof=0))
        assert row["correlation_with_length"] == pytest.approx(frame.value.corr(frame.tokens))
        assert row["correlation_with_num_steps"] == pytest.approx(frame.value.corr(frame.steps))
        assert row["median"] == pytest.approx(frame.value.median())
    on_disk = pq.read_table(swept.folder / "summary.parquet").to_pylist()
    assert [row["setting"] for row in on_disk] == swept.settings


def test_a_setting_says_which_command_scores_by_it(store, swept):
    commands = [row["command"] for row in swept.summary]
    assert f"grace-store score {store.location} --signal early --alpha 0.25 --target answer --history window:2 " in (
        commands[6] + " "
    )
    assert any("--signal early=1 --signal late=3" in command for command in commands)
    assert any("--without-answer --history window:3" in command for command in commands)
    assert any("--aggregation quantile:0.5" in command for command in commands)


def test_pictures_are_svg_with_a_cell_for_every_pair(swept):
    for name in ("overlap-0.2.svg", "overlap-0.5.svg", "rank_correlation.svg"):
        root = ElementTree.parse(swept.folder / name).getroot()
        cells = root.findall(".//{http://www.w3.org/2000/svg}rect/{http://www.w3.org/2000/svg}title")
        assert len(cells) == len(swept.settings) ** 2


def test_xarray_takes_it(swept):
    dataset = xr.Dataset.from_dict(swept.to_dict())
    assert dataset.value.dims == ("setting", "sample")
    assert float(dataset.jaccard.sel(ratio="0.2").isel(setting=1, other_setting=1)) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_neither_blocks_nor_groups_nor_threads_change_a_value(store, swept, tmp_path, monkeypatch, threads):
    monkeypatch.setattr(blocks, "SAMPLES_PER_CHUNK", 4)
    monkeypatch.setattr(sweep_table, "GROUP_ROWS", 6)
    again = sweep(store, EVERYTHING, out=tmp_path / "sweep", threads=threads)
    np.testing.assert_array_equal(again.values(), swept.values())
    np.testing.assert_array_equal(again.jaccard, swept.jaccard)


def test_rank_correlations_of_many_samples_are_taken_over_some(store, tmp_path, monkeypatch):
    monkeypatch.setattr(sweeping, "MAX_RANKED", 5)
    found = sweep(store, SweepSpec(grid=[Grid(signal="late", alpha="0.1,0.9")]), out=tmp_path / "sweep")
    assert (found.num_samples, found.num_ranked) == (11, 4)


def test_an_unfinished_store_is_swept_only_if_asked(tmp_path):
    store = known_store(tmp_path, units={"base": [0]}).store
    with pytest.raises(Unfinished, match="1 of 4 units"):
        sweep(store, SweepSpec(), out=tmp_path / "sweep")
    assert not list(tmp_path.glob("sweep*"))
    found = sweep(store, SweepSpec(), out=tmp_path / "sweep", partial=True)
    assert found.made_by["partial"]
    assert found.num_samples == 4


def test_an_earlier_sweep_is_replaced_but_no_other_folder(store, tmp_path):
    spec = SweepSpec(grid=[Grid(signal="late")])
    sweep(store, spec, out=tmp_path / "sweep")
    sweep(store, spec, out=tmp_path / "sweep")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(SettingError, match="mine exists and was not made by this command"):
        sweep(store, spec, out=tmp_path / "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "sweep"]


# ---------------------------------------------------------------- grids


def test_a_setting_is_swept_once_and_labels_show_what_differs(store):
    grid = Grid(alpha="0.5,0.5,0.7", signal="late")
    settings = resolve_settings(store, SweepSpec(grid=[grid, Grid(signal="late")]))
    assert short_labels(settings) == ["alpha=0.5", "alpha=0.7"]
    assert short_labels(settings[:1]) == ["the only one"]
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
    assert found.made_by["spec"]["about"]


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


def test_store_can_move_after_a_sweep(swept, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(swept.folder, moved)
    np.testing.assert_array_equal(SweepValues(moved).read(0), swept.values()[0])
