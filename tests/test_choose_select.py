"""From tables to subsets to files: exact budgets, deterministic ties, the records as they were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from grace_store.base.errors import DataError, SettingError
from grace_store.base.events import Warned
from grace_store.base.states import TEXT_FLAGS
from grace_store.choose.select import rank_samples, select
from grace_store.choose.selection import Selection
from grace_store.scoring.score_table import ScoreTable
from grace_store.values.methods.method import ScoreSpec
from tests.exported import scored_store
from tests.score_tables import table_of

# ---------------------------------------------------------------- which


@pytest.mark.parametrize(("ratio", "num", "kept"), [("0.2", 15, 3), ("0.07", 100, 7), (0.2, 16, 4), (1, 5, 5)])
def test_budgets_are_exact(ratio, num, kept):
    assert len(select(table_of(np.arange(num) / 7), ratio=ratio)) == kept


def test_ties_keep_the_earlier_record_and_no_value_is_never_kept():
    subset = select(table_of([0.5, np.nan, 0.9, 0.5, np.inf, 0.5]), count=2)
    assert subset.ranked.tolist() == [2, 0]
    assert subset.sample_id == ["s0", "s2"]
    assert (subset.num_with_value, subset.threshold) == (4, 0.5)


def test_a_cut_through_ties_says_how_many_are_tied_with_the_last_one():
    table = table_of([0.5, np.nan, 0.9, 0.5, 0.5 + 1e-8, 0.5], [1, 1, 1, 1, 2, 2])
    subset = select(table, count=2)
    assert (subset.ranked.tolist(), subset.num_tied, subset.is_by_value) == ([2, 0], 3, False)
    tied = "The last one chosen has the same value as 3 more samples; the earlier records are taken."
    assert tied in subset.conclusion
    for whole in (select(table, count=1), select(table, count=5), select(table, threshold=0.5)):
        assert (whole.num_tied, whole.is_by_value) == (0, True)
        assert "the same value" not in whole.conclusion
    # Three of one step and two of two steps: one of each is chosen, and the tie within the other stratum counts.
    by = select(table, Selection(by="num_steps"), count=2)
    assert (by.sample_id, by.num_tied) == (["s2", "s4"], 1)
    assert "The last ones chosen of each num_steps have the same value as 1 more sample;" in by.conclusion


def test_capabilities_of_any_number_take_turns():
    table = table_of([0.9, 0.8, 0.7, 0.6, 0.5])
    capability = pa.array([2_000_000_000, 2_000_000_000, None, 2_000_000_000, -3], pa.int32())
    table = ScoreTable(table.table.append_column("capability", capability), table.note)
    assert rank_samples(table).ranked.tolist() == [0, 2, 4, 1, 3]


def test_thresholds_and_the_default_share():
    table = table_of([0.1, 0.5, 0.3, 0.2, 0.4])
    assert select(table, threshold=0.3).row.tolist() == [1, 2, 4]
    assert select(table).row.tolist() == [1]


def test_ratios_are_nested():
    ranking = rank_samples(table_of(np.random.default_rng(0).random(50)))
    small, large = (set(ranking.take(ratio=ratio).row.tolist()) for ratio in ("0.1", "0.5"))
    assert small < large


def test_strata_of_k_keep_their_shares():
    steps = [2] * 20 + [5] * 10
    values = np.concatenate([np.linspace(0, 0.1, 20), np.linspace(0.5, 1, 10)])
    assert select(table_of(values, steps), ratio="0.2").row.min() >= 20
    subset = select(table_of(values, steps), Selection(by="num_steps"), ratio="0.2")
    assert np.bincount(np.array(steps)[subset.row])[[2, 5]].tolist() == [4, 2]
    assert subset.row.tolist() == [16, 17, 18, 19, 28, 29]


def test_control_takes_length_out_of_the_ranking():
    rng = np.random.default_rng(1)
    tokens = rng.integers(10, 1000, 400)
    quality = rng.normal(size=400) * 0.01
    table = table_of(np.log(tokens) + quality, num_tokens=tokens)
    plain, controlled = select(table), select(table, Selection(control=["length"]))
    assert tokens[plain.row].mean() > 1.5 * tokens.mean()
    assert abs(tokens[controlled.row].mean() / tokens.mean() - 1) < 0.15
    assert quality[controlled.row].mean() > 0.01
    assert controlled.spec.control == ("step_length", "response_length", "num_steps")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 0}, "ratio 0 is not a number above 0 and at most 1"),
        ({"ratio": "2"}, "ratio 2 is not"),
        ({"ratio": "0.1", "count": 2}, "give one of --ratio, --count and --threshold"),
        ({"threshold": float("inf")}, "threshold inf is not a number"),
        ({"count": 0}, "count 0 is not between 1 and 3"),
        ({"count": 4}, "count 4 is not between 1 and 3"),
        ({"threshold": float("nan")}, "threshold nan is not a number"),
        ({"threshold": 0.9}, "no sample reaches threshold 0.9: the largest value is 0.3"),
        ({"threshold": 0.1, "selection": Selection(by="num_steps")}, "--threshold cannot be combined with --by"),
        (
            {"selection": Selection(control=["width"])},
            "value 'width' of --control: use one of length, step_length",
        ),
    ],
)
def test_selections_without_meaning_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        select(table_of([0.1, 0.2, 0.3]), **settings)


def test_the_smallest_value_is_a_threshold_only_where_nothing_else_decided():
    table = table_of([0.1, 0.5, 0.3, 0.2, 0.4], [2, 2, 2, 3, 3])
    plain, by = select(table, count=2), select(table, Selection(by="num_steps"), count=2)
    assert plain.is_by_value
    assert not by.is_by_value
    assert not select(table, Selection(control=["length"]), count=2).is_by_value


def test_strata_of_one_sample_each_are_warned_of():
    told: list[object] = []
    table = table_of([0.1, 0.5, 0.3], [2, 3, 4])
    ranking = rank_samples(table, Selection(by="num_steps"), listener=told.append)
    (warned,) = told
    assert isinstance(warned, Warned)
    assert "a different num_steps" in warned.text
    assert "--by changes nothing" in warned.text
    assert ranking.ranked.tolist() == rank_samples(table).ranked.tolist()


def flagged_table() -> ScoreTable:
    flags = [["repeated_steps"], [], ["cut_off", "cancelling"], ["cancelling"], [], ["same_direction"]]
    table = table_of([0.9, 0.8, 0.7, 0.6, 0.5, np.nan])
    place = table.table.column_names.index("flags")
    return ScoreTable(table.table.set_column(place, "flags", pa.array(flags, pa.list_(pa.string()))), table.note)


def test_flagged_samples_are_left_out_and_the_ratio_is_of_the_others():
    names = ("repeated_steps", "cut_off", "same_direction")
    subset = select(flagged_table(), Selection(exclude_flagged=names), ratio="0.5")
    assert subset.sample_id == ["s1", "s3"]
    assert (subset.num_with_value, subset.is_by_value) == (3, False)
    assert subset.spec.exclude_flagged == ("same_direction", "repeated_steps", "cut_off")
    assert subset.excluded is not None
    assert subset.excluded.counts == {"same_direction": 0, "repeated_steps": 1, "cut_off": 1}
    assert subset.notes == (
        "2 samples left out for flags (1 repeated_steps, 1 cut_off); ratios are shares of the 3 that remain",
    )
    assert select(flagged_table(), Selection(exclude_flagged=["cancelling"]), ratio=1).sample_id == ["s0", "s1", "s4"]


def test_flags_that_are_none_or_not_known_are_refused():
    with pytest.raises(SettingError, match=r"unknown flag 'repeated'\. Flags of traces: repeated_steps"):
        select(flagged_table(), Selection(exclude_flagged=["repeated"]))
    table = flagged_table()
    longest = replace(table, note=table.note.model_copy(update={"spec": ScoreSpec(measure=("tokens",))}))
    with pytest.raises(
        SettingError, match=r"flagged same_direction: .* such as grace, .* has the flags repeated_steps, "
    ):
        select(longest, Selection(exclude_flagged=["same_direction"]))
    # All flags of traces are those that the table has.
    subset = select(longest, Selection(exclude_flagged=["hygiene"]), ratio=1)
    assert (subset.sample_id, subset.spec.exclude_flagged) == (["s1", "s3", "s4"], TEXT_FLAGS)
    assert select(longest, Selection(exclude_flagged=["cut_off"]), ratio=1).sample_id == ["s0", "s1", "s3", "s4"]
    alone = table_of([np.nan])
    with pytest.raises(DataError, match="no sample with a value"):
        select(alone, Selection(exclude_flagged=["cancelling"]))


def test_nothing_to_select_is_said():
    with pytest.raises(DataError, match="no sample with a value"):
        select(table_of([np.nan, np.inf]))


# ---------------------------------------------------------------- files


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    return scored_store(tmp_path_factory.mktemp("scored"))


def test_strata_of_a_field_keep_their_shares(scored):
    subset = select(scored / "scores.parquet", Selection(by="subject"), count=6)
    assert sorted(row % 2 for row in subset.row.tolist()) == [0, 0, 0, 1, 1, 1]
    with pytest.raises(SettingError, match=r"No record of .* has a field 'colour'. There are: id, row, num_steps"):
        select(scored / "scores.parquet", Selection(by="colour"))
