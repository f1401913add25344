"""A sweep has, setting by setting and to the last bit, the values that scoring alone gives."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr

from grace_store.base.errors import DataError, ResumeMismatch, SettingError, Unfinished
from grace_store.pool import walk
from grace_store.pool.pool import Pool
from grace_store.scoring import sweep as sweeping
from grace_store.scoring import sweep_table
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.sweep import read_sweep, sweep
from grace_store.scoring.sweep_settings import resolve_settings
from grace_store.scoring.sweep_table import FolderTables
from grace_store.store.opened import Store
from grace_store.values.grid import Grid, SweepSpec
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.ranking import budget, rank
from tests.scored_stores import fill_signal, known_store

EVERYTHING = SweepSpec(
    about="all at once",
    ratio=("0.2", "0.5"),
    grid=(
        Grid(
            alpha="0:1:0.25",
            history="uniform,window:2,ema:0.8",
            target="answer,suffix",
            signal=("early", "early,late=3"),
        ),
        Grid(aggregation="mean,min,quantile:0.5", signal=("each",)),
        Grid(without_answer=True, history="uniform,window:3", signal=("all",)),
    ),
)


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


def test_values_have_a_column_for_each_setting_and_one_is_read_alone(store, swept):
    table = pq.read_table(swept.folder / "values.parquet")
    assert table.column_names == ["row", *swept.settings]
    assert table["row"].to_pylist() == swept.tables.samples()["row"].to_pylist()
    one = pq.read_table(swept.folder / "values.parquet", columns=[swept.settings[3]])
    np.testing.assert_array_equal(one[0].to_numpy(), FolderTables(swept.folder).values(3))


def test_overlap_is_that_of_sets_and_ranks_correlate_as_pandas_says(swept):
    values = swept.values()
    row = np.arange(values.shape[1])
    for r, ratio in enumerate(swept.ratios):
        chosen = [set(rank(value, row)[: budget(ratio, np.isfinite(value).sum())].tolist()) for value in values]
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
    assert f"grace-store score {store.location} --signal early --alpha 0.25 --history window:2 --target answer " in (
        commands[6] + " "
    )
    assert any("--signal early=1 --signal late=3" in command for command in commands)
    assert any("--without-answer --history window:3" in command for command in commands)
    assert any("--aggregation quantile:0.5" in command for command in commands)


def test_xarray_takes_it(swept):
    dataset = xr.Dataset.from_dict(swept.to_dict())
    assert dataset.value.dims == ("setting", "sample")
    assert float(dataset.jaccard.sel(ratio="0.2").isel(setting=1, other_setting=1)) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_neither_blocks_nor_groups_nor_threads_change_a_value(store, swept, tmp_path, monkeypatch, threads):
    monkeypatch.setattr(walk, "SAMPLES_PER_CHUNK", 4)
    monkeypatch.setattr(sweep_table, "GROUP_ROWS", 6)
    again = sweep(Pool(store, threads=threads), EVERYTHING, out=tmp_path / "sweep")
    np.testing.assert_array_equal(again.values(), swept.values())
    np.testing.assert_array_equal(again.jaccard, swept.jaccard)


@pytest.mark.parametrize("missing", [None, 0, 5])
def test_a_value_that_is_missing_late_is_null_and_what_was_written_before_stays(swept, tmp_path, monkeypatch, missing):
    monkeypatch.setattr(sweep_table, "GROUP_ROWS", 2)
    values = np.random.default_rng(0).normal(size=(len(swept.settings), 6))
    if missing is not None:
        values[1, missing] = np.nan
    row = np.arange(6)[::-1]
    with sweep_table.write_sweep(tmp_path, swept.note) as writer:
        for start in (0, 2, 4):
            part = slice(start, start + 2)
            writer.add(
                sweep_table.samples_table(["a", "b"], row[part], row[part], row[part]), row[part], values[:, part]
            )
    table = pq.read_table(tmp_path / "values.parquet")
    assert table.column_names == ["row", *swept.settings]
    assert table["row"].to_pylist() == row.tolist()
    assert sum(column.null_count for column in table.columns) == (missing is not None)
    tables = FolderTables(tmp_path)
    for index in range(len(swept.settings)):
        np.testing.assert_array_equal(tables.values(index), values[index])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["samples.parquet", "values.parquet"]


def test_rank_correlations_of_many_samples_are_taken_over_some(store, tmp_path, monkeypatch):
    monkeypatch.setattr(sweeping, "MAX_RANKED", 5)
    found = sweep(store, SweepSpec(grid=[Grid(signal="late", alpha="0.1,0.9")]), out=tmp_path / "sweep")
    assert (found.num_samples, found.num_ranked) == (11, 4)


def test_an_unfinished_store_is_swept_only_if_asked(tmp_path):
    store = known_store(tmp_path, units={"base": [0]}).store
    with pytest.raises(Unfinished, match="1 of 4 units"):
        sweep(store, SweepSpec(), out=tmp_path / "sweep")
    assert not list(tmp_path.glob("sweep*"))
    found = sweep(Pool(store, partial=True), SweepSpec(), out=tmp_path / "sweep")
    assert found.note.partial
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


def same(found, expected):
    """Two sweeps say the same, wherever their tables are."""
    for name in ("settings", "labels", "ratios", "num_samples", "num_ranked", "note"):
        assert getattr(found, name) == getattr(expected, name), name
    for name in ("jaccard", "rank_correlation"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    pd.testing.assert_frame_equal(pd.DataFrame(found.summary), pd.DataFrame(expected.summary))
    np.testing.assert_array_equal(found.values(), expected.values())
    assert found.tables.samples().equals(expected.tables.samples())


@pytest.mark.parametrize("threads", [1, 2])
def test_a_sweep_in_memory_is_the_sweep_in_a_folder(store, swept, monkeypatch, threads):
    monkeypatch.setattr(walk, "SAMPLES_PER_CHUNK", 4)
    held = sweep(Pool(store, threads=threads), EVERYTHING)
    assert held.folder is None
    same(held, swept)
    xr.testing.assert_identical(xr.Dataset.from_dict(held.to_dict()), xr.Dataset.from_dict(swept.to_dict()))


def test_a_sweep_is_read_again_as_it_was(store, swept):
    found = read_sweep(store, swept.folder)
    assert found.folder == swept.folder
    same(found, swept)


def test_a_sweep_of_no_samples_is_one_too(tmp_path):
    store = known_store(tmp_path, set_aside={"base": range(13)}).store
    held = sweep(store, SweepSpec(grid=[Grid(alpha="0.1,0.9")]))
    assert (held.num_samples, held.num_ranked, held.values().shape) == (0, 0, (2, 0))
    written = sweep(store, SweepSpec(grid=[Grid(alpha="0.1,0.9")]), out=tmp_path / "sweep")
    same(written, held)
    same(read_sweep(store, tmp_path / "sweep"), held)


def rewrite(folder, name, change, **how):
    """Change one of a sweep's tables as another program would, keeping its note."""
    table = pq.read_table(folder / name)
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), folder / name, **how)


@pytest.fixture
def own(store, tmp_path):
    """A sweep of one's own to damage."""
    return sweep(store, SweepSpec(grid=[Grid(signal="late", alpha="0.1,0.9")]), out=tmp_path / "sweep")


def test_signals_that_came_later_cost_the_labels_and_nothing_else(tmp_path):
    known = known_store(tmp_path, ("early",))
    spec = SweepSpec(grid=[Grid(alpha="0.1,0.9", signal="each")])
    swept = sweep(known.store, spec, out=tmp_path / "sweep")
    fill_signal(known, "late", np.random.default_rng(3), set(), range(4))
    found = read_sweep(Store.open(known.store.location), swept.folder)
    assert found.labels == found.settings == swept.settings
    np.testing.assert_array_equal(found.values(), swept.values())


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("summary.parquet", lambda table: table.drop_columns(["signals"]), r"summary\.parquet .*no column signals"),
        ("summary.parquet", lambda table: table.slice(1), "does not hold the 2 settings"),
        ("summary.parquet", lambda table: table.take([1, 0]), "does not hold the 2 settings"),
        ("overlap.parquet", lambda table: table.slice(1), "does not hold the 2 settings"),
        ("overlap.parquet", lambda table: table.drop_columns(["jaccard_0.2"]), r"no column jaccard_0\.2"),
        ("samples.parquet", lambda table: table.drop_columns(["row"]), r"samples\.parquet .*no column row"),
        ("overlap.parquet", lambda table: table.drop_columns(["num_ranked"]), "no column num_ranked"),
    ],
)
def test_a_sweep_that_was_changed_is_refused_with_a_sentence(store, own, name, change, message):
    rewrite(own.folder, name, change)
    with pytest.raises(DataError, match=message):
        read_sweep(store, own.folder)


def test_text_where_numbers_should_be_is_refused(store, own):
    def worded(table):
        place = table.column_names.index("rank_correlation")
        return table.set_column(place, "rank_correlation", pa.array(["high"] * len(table)))

    rewrite(own.folder, "overlap.parquet", worded)
    with pytest.raises(DataError, match=r"overlap\.parquet is not a table that `grace-store sweep` made"):
        read_sweep(store, own.folder)


@pytest.mark.parametrize(
    "name", ["sweep.json", "values.parquet", "samples.parquet", "summary.parquet", "overlap.parquet"]
)
def test_a_sweep_without_one_of_its_files_is_refused(store, own, name):
    (own.folder / name).unlink()
    with pytest.raises(DataError, match=rf"{name} does not exist. `grace-store sweep`"):
        read_sweep(store, own.folder)


def test_values_that_are_damaged_are_refused_when_they_are_read(store, own):
    path = own.folder / "values.parquet"
    start = pq.read_metadata(path).row_group(0).column(1).data_page_offset
    raw = bytearray(path.read_bytes())
    raw[start : start + 20] = bytes(20)
    path.write_bytes(raw)
    found = read_sweep(store, own.folder)
    with pytest.raises(DataError, match=r"values\.parquet is damaged .*Sweep again"):
        found.value(0)


def test_a_sweep_of_another_plan_is_refused(own, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ResumeMismatch, match="another plan"):
        read_sweep(known_store(other, num_steps=[2, 3]).store, own.folder)


def test_a_folder_that_is_no_sweep_is_refused(store, tmp_path):
    with pytest.raises(DataError, match=r"does not exist. `grace-store sweep`"):
        FolderTables(tmp_path)
    with pytest.raises(DataError, match=r"sweep\.json does not exist. `grace-store sweep`"):
        read_sweep(store, tmp_path)


def test_store_can_move_after_a_sweep(swept, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(swept.folder, moved)
    np.testing.assert_array_equal(FolderTables(moved).values(0), swept.values()[0])


def test_measures_that_use_no_other_setting_are_swept_beside_grace(store, tmp_path):
    grid = Grid(measure=("grace", "loss:lowest"), alpha=(0.3, 0.7), signal=("early",))
    found = sweep(store, SweepSpec(grid=(grid,)), out=tmp_path / "swept")
    assert [row["measure"] for row in found.summary] == ["grace", "grace", "loss:lowest"]
    assert found.summary[2]["history"] == ""
    table = score(store, ScoreRequest(spec=ScoreSpec(measure=("loss:lowest",)), signals="early"))
    np.testing.assert_allclose(found.value(2), table.value)
    assert "--measure loss:lowest --out" in found.summary[2]["command"]
    assert pq.read_table(tmp_path / "swept" / "summary.parquet")["history"].to_pylist() == ["uniform", "uniform", ""]
