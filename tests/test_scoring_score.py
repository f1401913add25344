"""Scores through the store, against the brute force over the vectors that went into it."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest

from grace_store.base.errors import Corrupt, DataError, NotAStore, ResumeMismatch, SettingError, Unfinished, UnknownName
from grace_store.pool import walk
from grace_store.pool.pool import Pool
from grace_store.pool.samples import iter_samples
from grace_store.scoring.score import ScoreRequest, replay, score
from grace_store.scoring.score_table import read_scores, read_scores_note
from grace_store.store.opened import Store
from grace_store.values.alignment import history_weights
from grace_store.values.measures import MEASURES
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.random_values import random_values
from tests.brute_force import HISTORIES, TARGETS, brute_force
from tests.scored_stores import NUM_STEPS, fill_signal, known_store

CLOSE = {"rtol": 0, "atol": 1e-6}


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Two signals; sample 5 is set aside in one of them, sample 9 in both."""
    folder = tmp_path_factory.mktemp("known")
    return known_store(folder, ("early", "late"), set_aside={"early": [9], "late": [5, 9]})


def lists(table, name):
    return table.table[name].to_pylist()


def check(known, table, spec, name, **custom):
    expected_rows = [i for i, sample in enumerate(known.samples[name]) if sample is not None]
    assert table.row.tolist() == expected_rows
    for place, row in enumerate(expected_rows):
        vectors, counts = known.samples[name][row]
        expected = brute_force(vectors, counts, spec, **custom)
        np.testing.assert_allclose(table.value[place], expected.value, **CLOSE)
        for column in ("step_score", "answer_alignment", "history_alignment"):
            found = [math.nan if number is None else number for number in lists(table, column)[place]]
            np.testing.assert_allclose(found, getattr(expected, column), **CLOSE)
        assert lists(table, "step_num_tokens")[place] == counts[:-1].tolist()
        assert table.num_tokens[place] == counts.sum()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("history", HISTORIES)
def test_a_table_is_the_brute_force_over_the_vectors(known, history, target):
    spec = ScoreSpec(alpha=0.4, history=history, target=target)
    check(known, score(known.store, ScoreRequest(spec=spec, signals="late")), spec, "late")


@pytest.mark.parametrize(
    "spec",
    [
        ScoreSpec(without_answer=True),
        ScoreSpec(alpha=1),
        ScoreSpec(aggregation="length_weighted"),
        ScoreSpec(aggregation="quantile:0.25", target="suffix"),
    ],
)
def test_ablations_and_aggregations_too(known, spec):
    check(known, score(known.store, ScoreRequest(spec=spec, signals="early")), spec, "early")


def test_weights_from_python_as_a_matrix_or_a_function(known, tmp_path):
    weights = np.tril(np.random.default_rng(3).random((12, 12)), -1)

    def weight(history, k, j):
        return weights[k - 1, j - 1]

    table = score(known.store, ScoreRequest(spec=ScoreSpec(), signals="late", custom_history=weights))
    check(known, table, ScoreSpec(), "late", weight=weight)
    by_function = score(known.store, ScoreRequest(signals="late", custom_history=lambda num: weights[:num, :num]))
    np.testing.assert_array_equal(by_function.value, table.value)
    named = score(known.store, ScoreRequest(signals="late", custom_history=history_weights("ema:0.5", 12)))
    np.testing.assert_allclose(
        named.value, score(known.store, ScoreRequest(spec=ScoreSpec(history="ema:0.5"), signals="late")).value, **CLOSE
    )
    run = score(known.store, ScoreRequest(signals="late", custom_history=weights), out=tmp_path / "a.parquet")
    again = replay(run.out, tmp_path / "b.parquet")
    assert again.out.read_bytes() == run.out.read_bytes()
    score(known.store, ScoreRequest(signals="late", custom_history=lambda n: weights), out=tmp_path / "c.parquet")
    with pytest.raises(SettingError, match="scored with a history function from Python"):
        replay(tmp_path / "c.parquet", tmp_path / "d.parquet")
    with pytest.raises(SettingError, match="custom_history replaces the history of measure grace"):
        score(known.store, ScoreRequest(spec=ScoreSpec(history="ema:0.5"), signals="late", custom_history=weights))


def test_several_signals_are_their_weighted_mean(known):
    spec = ScoreSpec(alpha=0.3, target="trace")
    table = score(known.store, ScoreRequest(spec=spec, signals=["early=1", "late=3"]))
    early, late = (score(known.store, ScoreRequest(spec=spec, signals=name)) for name in ("early", "late"))
    assert table.row.tolist() == [i for i in range(13) if i != 9]
    for place, row in enumerate(table.row.tolist()):
        if row == 5:
            assert math.isnan(table.value[place])
            assert lists(table, "flags")[place] == ["missing_signal"]
            assert set(lists(table, "step_score")[place]) == {None}
            continue
        a, b = early.row.tolist().index(row), late.row.tolist().index(row)
        expected = 0.25 * early.value[a] + 0.75 * late.value[b]
        np.testing.assert_allclose(table.value[place], expected, rtol=1e-12)
        steps = 0.25 * np.array(lists(early, "step_score")[a]) + 0.75 * np.array(lists(late, "step_score")[b])
        np.testing.assert_allclose(lists(table, "step_score")[place], steps, rtol=1e-12)
    equal = score(known.store, ScoreRequest(spec=spec, signals=("early", "late"))).value
    np.testing.assert_array_equal(
        equal, score(known.store, ScoreRequest(spec=spec, signals={"late": 2, "early": 2})).value
    )


@pytest.mark.parametrize("measure", ["random", "tokens", "steps", "loss:highest", "loss"])
def test_measures_without_grams_score_the_same_samples(known, measure):
    table = score(known.store, ScoreRequest(spec=ScoreSpec(measure=(measure,)), signals="late"))
    rows = [i for i in range(13) if i not in (5, 9)]
    assert table.row.tolist() == rows
    samples, losses = known.samples["late"], known.loss["late"]
    mean = [float((losses[i] * samples[i][1]).sum() / samples[i][1].sum()) for i in rows]
    expected = {
        "random": random_values(0, np.array(rows)),
        "tokens": [samples[i][1].sum() for i in rows],
        "steps": [NUM_STEPS[i] for i in rows],
        "loss:highest": mean,
        "loss": [-each for each in mean],
    }[measure]
    np.testing.assert_allclose(table.value, expected, rtol=1e-6)
    assert table.has_step_scores == (measure not in ("random", "steps"))
    if "loss" in measure:
        sign = 1 if measure == "loss:highest" else -1
        losses = [sign * each for i in rows for each in known.loss["late"][i][:-1]]
        np.testing.assert_allclose(table.flat("step_score"), losses, rtol=1e-6)
        assert table.table["answer_alignment"].null_count == len(rows)


def test_several_measures_are_standardised_over_the_pool(known):
    spec = ScoreSpec(measure=("grace=0.25", "loss=0.75"), alpha=0.4)
    table = score(known.store, ScoreRequest(spec=spec, signals="late"))
    parts = []
    for measure, more in (("grace", {"alpha": 0.4}), ("loss", {})):
        each = score(known.store, ScoreRequest(spec=ScoreSpec(measure=(measure,), **more), signals="late")).value
        parts.append((each - np.nanmean(each)) / np.nanstd(each))
    np.testing.assert_allclose(table.value, 0.25 * parts[0] + 0.75 * parts[1], rtol=1e-9)
    assert not table.has_step_scores
    assert table.method == "grace=0.25 + loss:lowest=0.75"


def test_a_heuristic_over_two_signals_flags_what_one_of_them_lacks(known):
    table = score(known.store, ScoreRequest(spec=ScoreSpec(measure=("loss:highest",)), signals=["early", "late"]))
    assert [row for row, value in zip(table.row, table.value, strict=True) if math.isnan(value)] == [5]
    assert lists(table, "flags")[5] == ["missing_signal"]


@pytest.mark.parametrize("threads", [1, 3])
def test_neither_blocks_nor_threads_change_a_bit(known, monkeypatch, threads):
    spec = ScoreSpec(history="ema:0.7", target="suffix")
    whole = score(known.store, ScoreRequest(spec=spec, signals=["early", "late"]), threads=1)
    monkeypatch.setattr(walk, "SAMPLES_PER_CHUNK", 4)
    parts = score(known.store, ScoreRequest(spec=spec, signals=["early", "late"]), threads=threads)
    assert parts.table.equals(whole.table)


@pytest.mark.parametrize("name", [f"{each}:min" if MEASURES[each].steps else each for each in MEASURES])
def test_blocks_in_which_a_filter_keeps_no_sample_change_nothing(known, monkeypatch, name):
    request = ScoreRequest(spec=ScoreSpec(measure=(name,)), signals="late", where="row >= 8")
    whole = score(known.store, request)
    monkeypatch.setattr(walk, "SAMPLES_PER_CHUNK", 4)
    assert score(known.store, request).table.equals(whole.table)
    assert 0 < len(whole) <= 4


def test_no_vector_is_read(known, tmp_path):
    copy = tmp_path / "copy.zarr"
    shutil.copytree(known.store.location, copy)
    for name in ("early", "late"):
        shutil.rmtree(copy / "signals" / name / "segment_vector")
    found = score(copy, ScoreRequest(signals="late"))
    np.testing.assert_array_equal(found.value, score(known.store, ScoreRequest(signals="late")).value)


# ---------------------------------------------------------------- tables that can be made again


def test_a_table_says_what_made_it_and_is_replayed_to_the_byte(known, tmp_path):
    spec = ScoreSpec(alpha=0.25, history="window:3", target="suffix", aggregation="min")
    run = score(known.store, ScoreRequest(spec=spec, signals={"early": 1, "late": 4}), out=tmp_path / "a.parquet")
    assert (run.num_samples, run.num_with_value, run.flags) == (12, 11, {"missing_signal": 1, "same_direction": 2})
    note = read_scores_note(run.out)
    assert note == run.note
    assert note.spec == spec
    assert {name: each.weight for name, each in note.signals.items()} == {"early": 1, "late": 4}
    assert replay(run.out, tmp_path / "b.parquet").out.read_bytes() == run.out.read_bytes()
    heuristic = score(
        known.store,
        ScoreRequest(spec=ScoreSpec(measure=("random",), seed=3), signals="late"),
        out=tmp_path / "c.parquet",
    )
    assert replay(heuristic.out, tmp_path / "d.parquet").out.read_bytes() == heuristic.out.read_bytes()
    moved = tmp_path / "moved.zarr"
    shutil.copytree(known.store.location, moved)
    again = read_scores(replay(run.out, tmp_path / "e.parquet", moved).out)
    assert again.table.equals(read_scores(run.out).table)
    assert again.note.store == str(moved)


def test_a_replay_from_another_store_is_refused(known, tmp_path):
    run = score(known.store, ScoreRequest(signals="late"), out=tmp_path / "a.parquet")
    other = known_store(tmp_path, ("late",), num_steps=[2, 3])
    with pytest.raises(ResumeMismatch, match="made from another plan"):
        replay(run.out, tmp_path / "b.parquet", other.store)
    same_plan = tmp_path / "again"
    same_plan.mkdir()
    with pytest.raises(UnknownName, match="has no signal 'late'"):
        replay(run.out, tmp_path / "b.parquet", known_store(same_plan, ("early",)).store)
    with pytest.raises(DataError, match=r"none\.parquet does not exist"):
        replay(tmp_path / "none.parquet", tmp_path / "b.parquet")
    assert not (tmp_path / "b.parquet").exists()


def test_an_unfinished_signal_is_scored_only_if_asked_and_says_so(tmp_path):
    known = known_store(tmp_path, units={"base": [0, 2]})
    with pytest.raises(Unfinished, match=r"'base' of .* has 2 of 4 units.*--partial"):
        score(known.store)
    table = score(known.store, ScoreRequest(partial=True))
    check(known, table, ScoreSpec(), "base")
    assert table.note.partial is True
    assert table.note.signals["base"].num_units == 2
    run = score(known.store, ScoreRequest(partial=True), out=tmp_path / "a.parquet")
    assert replay(run.out, tmp_path / "b.parquet").out.read_bytes() == run.out.read_bytes()


def test_a_partial_table_is_not_replayed_from_a_store_that_went_on(tmp_path):
    known = known_store(tmp_path, units={"base": [0]})
    run = score(known.store, ScoreRequest(partial=True), out=tmp_path / "a.parquet")
    shutil.rmtree(tmp_path / "known.zarr")
    known_store(tmp_path, units={"base": [0, 1]})
    with pytest.raises(ResumeMismatch, match="had 1 units when it was scored and has 2 now"):
        replay(run.out, tmp_path / "b.parquet")


def test_two_signals_may_be_unfinished_in_different_places(tmp_path):
    known = known_store(tmp_path, ("a", "b"), units={"a": [0, 1], "b": [1, 3]})
    table = score(known.store, ScoreRequest(signals=["a", "b"], partial=True))
    assert table.row.tolist() == [*range(8), 12]
    assert np.flatnonzero(np.isfinite(table.value)).tolist() == [4, 5, 6, 7]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("signals", "error", "message"),
    [
        ("middle", UnknownName, r"has no signal 'middle' \(there are: early, late\)"),
        (["early", "early=2"], SettingError, "Signal 'early' is given twice"),
        (["early=0"], SettingError, "Signal 'early' has weight 0: a weight is a number above 0"),
        (["early=nan"], SettingError, "Signal 'early' has weight nan"),
        (["early=many"], UnknownName, "has no signal 'early=many'"),
        (None, UnknownName, "Choose a signal with --signal"),
    ],
)
def test_signals_without_meaning_are_refused(known, signals, error, message):
    with pytest.raises(error, match=message):
        score(known.store, ScoreRequest(signals=signals))


def test_what_is_no_store_is_refused(tmp_path):
    with pytest.raises(NotAStore, match="is not a grace-store store"):
        score(tmp_path / "nothing.zarr")


DAMAGE = {
    "missing": (None, "is missing"),
    "flipped": (lambda raw: bytes([raw[0] ^ 1]) + raw[1:], "is not the chunk that was committed"),
    "empty": (lambda raw: b"", "is not the chunk that was committed"),
    "cut": (lambda raw: raw[:-10], "is not the chunk that was committed"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_chunks_are_never_scored(tmp_path, damage):
    known = known_store(tmp_path)
    chunk = tmp_path / "known.zarr/signals/base/sample_gram/c/1"
    change, message = DAMAGE[damage]
    if change is None:
        chunk.unlink()
    else:
        chunk.write_bytes(change(chunk.read_bytes()))
    with pytest.raises(Corrupt, match=f"sample_gram/c/1 {message}.*`grace-store verify --repair`"):
        score(known.store, out=tmp_path / "a.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["known.zarr"]


def test_a_chunk_of_another_unit_and_a_damaged_commit_are_never_scored(tmp_path):
    known = known_store(tmp_path)
    chunks = tmp_path / "known.zarr/signals/base/sample_state/c"
    sound = (chunks / "3").read_bytes()
    (chunks / "3").write_bytes((chunks / "1").read_bytes())
    with pytest.raises(Corrupt, match=r"sample_state/c/3 is not the chunk that was committed.*verify --repair"):
        score(known.store)
    (chunks / "3").write_bytes(sound)
    commit = tmp_path / "known.zarr/ledger/commits/base/00000002.json"
    commit.write_bytes(commit.read_bytes()[:-30])
    with pytest.raises(Corrupt, match=r"00000002.json cannot be read.*verify --repair"):
        score(known.store)


# ---------------------------------------------------------------- samples one by one, work in order


def test_samples_come_one_by_one_with_their_grams(known):
    found = list(iter_samples(Pool.of(known.store, signals="late")))
    assert [sample.sample_id for sample in found] == [f"s{i}" for i in range(13) if i not in (5, 9)]
    for sample in found:
        vectors, counts = known.samples["late"][sample.row]
        np.testing.assert_allclose(sample.gram, vectors.astype(float) @ vectors.T.astype(float), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(sample.num_tokens, counts)
        assert sample.num_steps == len(vectors) - 1


def test_signals_added_later_do_not_change_a_table(tmp_path):
    known = known_store(tmp_path)
    before = score(known.store, ScoreRequest(signals="base"))
    fill_signal(known, "second", np.random.default_rng(9), set(), range(4))
    assert score(Store.open(known.store.location), ScoreRequest(signals="base")).table.equals(before.table)
