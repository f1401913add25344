"""What commands conclude is true where the truth is planted, and its numbers are those of the tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from grace_store.choose.choice_conclusion import conclude_choice, rise_and_fall
from grace_store.choose.select import select
from grace_store.choose.selection import Selection
from grace_store.scoring.score_conclusion import conclude_scores
from grace_store.scoring.score_table import ScoreTable
from grace_store.study.audit import audit
from grace_store.values.length_bias import LENGTHS
from grace_store.values.methods.method import ScoreSpec
from tests.score_tables import table_of


def planted(num: int = 400, *, follows: float = 0.0, spread: float = 0.0, curve: float = 0.0) -> ScoreTable:
    """Return values of which follows is how far the number of steps explains them; spread: few steps spread more."""
    rng = np.random.default_rng(1)
    steps = rng.integers(2, 16, num)
    log = (np.log(steps) - np.log(steps).mean()) / np.log(steps).std()
    noise = rng.normal(size=num) * np.exp(-spread * log)
    table = table_of(follows * log + noise + curve * (log**2 - 1), steps, steps * rng.integers(9, 12, num))
    tokens = pa.array(table.num_tokens + rng.integers(1, 30, num))  # answers of any length
    columns = table.table.set_column(table.table.column_names.index("num_tokens"), "num_tokens", tokens)
    return replace(table, table=columns)


def flagged(table: ScoreTable, flags: dict[int, str]) -> ScoreTable:
    """Return a table some of whose samples have a flag."""
    lists = pa.array([[flags[i]] if i in flags else [] for i in range(len(table))], pa.list_(pa.string()))
    columns = table.table.set_column(table.table.column_names.index("flags"), "flags", lists)
    return replace(table, table=columns)


# ---------------------------------------------------------------- scores


def test_values_that_follow_length_are_said_to():
    told = conclude_scores(flagged(planted(follows=1.0), {}))
    explained = audit(planted(follows=1.0)).numbers["variance_explained"]
    low, high = (f"{100 * end:.0f}" for end in (explained.low, explained.high))
    share = f"{100 * explained.value:.0f} %"
    assert f"400 samples have a value; length explains {share} of how values differ" in told
    assert f"(95 % interval {low} to {high} %), above all the " in told
    assert "(higher values go with more steps)" in told or "(higher values go with longer responses)" in told
    assert "None of the best 80 is flagged; `audit` shows more of length" in told
    assert "`select --control length`" in told
    down = conclude_scores(flagged(planted(follows=-1.0), {}))
    assert "go with fewer steps" in down or "go with shorter responses" in down


def test_a_direction_is_named_only_where_the_interval_shows_one():
    table = planted(160, follows=0.15)
    explained = audit(table).numbers["variance_explained"]
    assert explained.low < 0.02 < 0.1 < explained.high
    told = conclude_scores(flagged(table, {}))
    assert "; values are not shown to depend on length: length explains " in told
    assert "higher values go with" not in told
    assert told.endswith("None of the best 32 is flagged; next, `select` keeps the best.")
    assert "higher values go with" not in audit(table).conclusion


@pytest.mark.parametrize("measure", [("tokens",), ("steps:lowest",), ("characters", "tokens=2")])
def test_a_value_that_is_a_length_says_nothing_of_length(measure: tuple[str, ...]):
    table = planted(follows=1.0)
    table = replace(table, note=table.note.model_copy(update={"spec": ScoreSpec(measure=measure)}))
    told = conclude_scores(flagged(table, {}))
    assert (
        told
        == "400 samples have a value, which is a length. None of the best 80 is flagged; next, `select` keeps the best."
    )
    assert audit(table).conclusion == f"400 samples have a value by {table.method}, which is a length."


def test_values_that_do_not_follow_length_are_said_not_to():
    told = conclude_scores(flagged(planted(), {}))
    assert "; length explains little, 2 % of how values differ (95 % interval 0 to 4 %)." in told
    assert told.endswith("None of the best 80 is flagged; next, `select` keeps the best.")


def test_too_few_samples_say_how_many_would_do():
    told = conclude_scores(planted(24))
    assert "24 samples have a value, too few to say how far values follow length: length explains " in told
    assert "about 230 samples would do." in told
    assert conclude_scores(planted(5)).startswith(
        "5 samples have a value, too few to say how far values follow length; about 230 would do."
    )
    # What would do does: as many samples say something, whatever they follow.
    for follows in (0.0, 0.4, 0.7, 1.5):
        assert "too few" not in conclude_scores(planted(240, follows=follows))
    # And few say something if it is clear.
    assert "24 samples have a value; length explains 9" in conclude_scores(planted(24, follows=5.0))


def test_flagged_traces_at_the_top_are_named_with_what_leaves_them_out():
    table = planted()
    order = table.ranked()
    told = conclude_scores(flagged(table, {int(order[0]): "repeated_steps", int(order[399]): "cut_off"}))
    assert "The highest value belongs to a trace flagged repeated_steps, and 1 of the best 80 is flagged" in told
    assert "(2 of all 400): `select --exclude-flagged` leaves flagged traces out." in told
    told = conclude_scores(flagged(table, {int(order[7]): "cut_off", int(order[8]): "cut_off"}))
    assert "highest" not in told
    assert "2 of the best 80 are flagged (2 of all 400)" in told


def test_ties_and_only_traces_among_the_best_are_counted():
    table = table_of([0.5, 0.0, 0.0, 0.0, 0.0, 0.0, -0.5, -0.6, -0.7, -0.8], list(range(2, 12)))
    told = conclude_scores(flagged(table, {}))
    assert "The last of the best 2 has the same value as 4 more samples; the earlier records are taken. None of" in told
    alone = flagged(table, dict.fromkeys(range(1, 6), "only_trace"))
    told = conclude_scores(alone)
    said = "is the only trace of a question, of which nothing is known: `select --exclude-flagged only_trace` leaves"
    assert told.endswith(f"1 of the best 2 {said} such traces out.")
    assert "is flagged" not in told
    assert f"1 of them {said}" in select(alone, count=2).conclusion
    assert "3 of them are the only trace of a question" in select(alone, count=4).conclusion
    assert "only trace" not in select(alone, count=1).conclusion


def test_flags_that_were_not_looked_for_need_no_other_option():
    table = planted()
    some = flagged(table, {int(table.ranked()[0]): "cut_off"})
    some = replace(some, note=some.note.model_copy(update={"spec": ScoreSpec(measure=("tokens",))}))
    assert "`select --exclude-flagged` leaves" in conclude_scores(some)


def test_samples_without_a_value_are_counted_or_all_there_is_to_say():
    holed = table_of([0.5] * 9 + [np.nan], list(range(2, 12)))
    assert conclude_scores(holed).startswith("9 of 10 samples have a value; all values or all lengths are the same")
    assert conclude_scores(table_of([np.nan, np.nan])) == "None of 2 samples has a value."


# ---------------------------------------------------------------- the audit


def test_the_audit_says_how_the_best_differ_with_the_numbers_of_its_table():
    found = audit(planted(follows=1.0))
    assert found.conclusion.startswith("400 samples have a value by grace; length explains ")
    assert found.tables["lengths"].column("length") == list(LENGTHS)
    for row in found.tables["lengths"]:
        kept, by_chance = row["kept_over_all"], row["kept_by_chance"]
        if f"The best 0.2 have {100 * (kept - 1):.0f} % " in found.conclusion:
            assert kept - 1 > by_chance
            assert f"by less than {np.ceil(100 * by_chance):.0f} %)" in found.conclusion
            break
    else:
        pytest.fail(found.conclusion)
    none = audit(planted()).conclusion
    assert "The best 0.2 are neither longer nor shorter than random choices are." in none


def test_random_choices_differ_as_much_as_is_said():
    table, rng = planted(), np.random.default_rng(0)
    by_chance = {row["length"]: row["kept_by_chance"] for row in audit(table).tables["lengths"]}
    outside = []
    for _ in range(400):
        kept = rng.permutation(400)[:80]
        ratios = {name: length[kept].mean() / length.mean() for name, length in table.lengths.items()}
        outside.append(any(abs(ratio - 1) > by_chance[name] for name, ratio in ratios.items()))
    assert np.mean(outside) < 0.06


def test_what_grows_after_control_is_explained_by_what_was_planted():
    # More steps, larger values; but those of few steps spread more, which hides it among the best until it is gone.
    hidden = audit(planted(4000, follows=0.6, spread=0.6))
    assert "differ more from all after control than before" in hidden.conclusion
    assert "with fewer steps also spread more, so that more of the highest are among them." in hidden.conclusion
    row = hidden.tables["lengths"].row(length="num_steps")
    before, after = row["kept_over_all"], row["kept_over_all_after_control"]
    assert f"({before:.2f} -> {after:.2f} of all)" in hidden.conclusion
    assert abs(after - 1) > abs(before - 1)
    bent = audit(planted(4000, curve=-0.6))
    assert "values follow this length in a curve." in bent.conclusion
    for quiet in (audit(planted(4000, follows=1.0)), audit(planted(4000))):
        assert "spread more" not in quiet.conclusion
        assert "in a curve" not in quiet.conclusion
        assert "another way" not in quiet.conclusion


def test_what_grows_by_chance_is_said_to_be_chance():
    told = [
        audit(replace(planted(60), table=planted(60).table.slice(start, 30))).conclusion for start in range(0, 30, 5)
    ]
    grown = [each for each in told if "after control than before" in each]
    assert grown
    assert all(each.endswith("which is no more than chance.") for each in grown)


def test_groups_rise_and_fall():
    table = planted(follows=2.0)
    found = audit(table, by="num_steps")
    groups = found.tables["groups"]
    assert sum(groups.column("num_samples")) == 400
    assert sum(groups.column("best")) == sum(groups.column("best_after_control")) == 80
    most = max(groups, key=lambda row: row["share"])
    share = f"{100 * most['best'] / most['num_samples']:.0f} %"
    assert f"By num_steps, {most['group']} rises most ({share} of it, " in found.conclusion
    assert "points more) and " in found.conclusion
    assert " falls (0 % of it, " in found.conclusion


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        (
            {"math": (60, 100), "code": (20, 300)},
            "By source, math rises (60 % of it, 7 % of the others, 43 to ",
        ),
        (
            {"math": (21, 100), "code": (59, 300)},
            "No groups of source clearly rise or fall; the furthest is math by +1 ",
        ),
        ({"math": (2, 5), "code": (2, 15)}, "Too few samples to say which groups of source rise or fall; about "),
        ({"math": (20, 100)}, "All samples have the same source."),
    ],
)
def test_a_group_that_rises_none_that_does_and_too_few_to_say(counts, told):
    groups = [name for name, (_, num) in counts.items() for _ in range(num)]
    is_chosen = np.concatenate([np.arange(num) < chosen for chosen, num in counts.values()])
    assert told in rise_and_fall("source", groups, is_chosen)


def test_of_many_groups_without_a_difference_hardly_ever_one_is_said_to_rise():
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(300):
        groups = [f"g{i}" for i in rng.permutation(np.repeat(np.arange(10), 40))]
        wrong += rise_and_fall("source", groups, np.arange(400) < 80).startswith("By source")
    assert wrong <= 0.07 * 300


# ---------------------------------------------------------------- a choice


def test_a_choice_by_length_is_said_to_be_one():
    table = planted(follows=2.0)
    subset = select(table, ratio="0.2")
    assert subset.conclusion.startswith("80 of 400 samples are chosen, the best by value; they have ")
    ratios = [length[subset.ranked].mean() / length.mean() for length in table.lengths.values()]
    assert any(f"{100 * (ratio - 1):.0f} % " in subset.conclusion for ratio in ratios)
    assert select(planted(), ratio="0.2").conclusion.startswith(
        "80 of 400 samples are chosen, the best by value; they are neither longer nor shorter than by chance: "
    )


def test_a_choice_from_few_samples_says_how_many_would_do():
    told = select(planted(24), ratio="0.2").conclusion
    assert told.startswith("5 of 24 samples are chosen, the best by value; too few to say whether they are longer")
    assert " samples would do." in told
    assert select(planted(24), ratio="1").conclusion == "All 24 samples with a value are chosen."


def test_a_choice_says_what_it_was_chosen_by():
    table = planted()
    rows = table.ranked()
    told = {
        "the best by value after length is taken out;": Selection(control=("num_steps",)),
        "the best by value within each source;": Selection(by="source"),
        "400 samples that have none of the excluded flags are": Selection(exclude_flagged=("cut_off",)),
    }
    for words, spec in told.items():
        assert words in conclude_choice(table, rows[:80], rows, spec)


def test_flags_of_the_chosen_are_counted_and_compared_with_the_pool():
    table = planted()
    order = table.ranked().tolist()
    flags = dict.fromkeys(order[:10], "repeated_steps") | dict.fromkeys(order[390:], "cut_off")
    told = select(flagged(table, flags), ratio="0.2").conclusion
    assert "10 of them are flagged (10 repeated_steps; 20 in the pool, so such traces are chosen more often):" in told
    assert "`--exclude-flagged` leaves such traces out." in told
    alike = dict.fromkeys(order[::20], "cut_off")
    told = select(flagged(table, alike), ratio="0.2").conclusion
    assert "4 of them are flagged (4 cut_off; 20 in the pool): " in told


def test_strata_say_what_value_alone_would_have_chosen():
    subset = select(planted(follows=2.0), Selection(by="num_steps"), ratio="0.2")
    assert "Every num_steps keeps its share of the pool. By value alone, 15 would rise" in subset.conclusion
    few = select(planted(follows=2.0), Selection(by="num_steps"), count=2)
    num = len(few.groups)
    told = f"keeps its share of the pool, as nearly as possible with 2 samples: {num - 2} of {num} groups have none."
    assert told in few.conclusion
    assert sum(each.by_value for each in subset.groups) == len(subset)
    last = next(each for each in subset.groups if each.group == "15")
    assert last.by_value > last.chosen
