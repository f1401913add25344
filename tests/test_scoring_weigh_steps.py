"""Step weights through the store: the table, its summary, several signals, filters, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace_store.base.documents import METADATA_KEY
from grace_store.base.errors import DataError, SettingError, Unfinished
from grace_store.base.states import Flag
from grace_store.pool import walk
from grace_store.pool.pool import Pool
from grace_store.scoring.notes import ScoredSignal, WeightsNote
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.weigh_steps import WeightSummary, weights
from grace_store.scoring.weight_table import read_weights
from grace_store.values.weightings import RaggedWeights, WeightsSpec
from tests.scored_stores import known_store
from tests.test_values_weightings_nnls import best_by_trying_all


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Two signals; sample 5 is set aside in one of them, sample 9 in both."""
    folder = tmp_path_factory.mktemp("known")
    return known_store(folder, ("early", "late"), set_aside={"early": [9], "late": [5, 9]})


def fitted(vectors, tokens):
    """Return weights by trying all sets of steps, from vectors, and the cosines with equal weights and with these."""
    vectors, tokens = vectors.astype(np.float64), tokens.astype(np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    weight = best_by_trying_all(unit[:-1], unit[-1]) / np.linalg.norm(vectors[:-1], axis=1) / tokens[:-1]
    if weight.any():
        weight *= tokens[:-1].sum() / (weight @ tokens[:-1])
    cosines = []
    for each in (np.ones(len(weight)), weight):
        total = (each * tokens[:-1]) @ vectors[:-1]
        cosines.append(float(total @ unit[-1] / np.linalg.norm(total)) if each.any() else 0.0)
    return weight, cosines


def test_a_table_is_what_trying_all_sets_of_steps_gives(known, tmp_path):
    done = weights(Pool(known.store, "early"), out=tmp_path / "w.parquet")
    table = read_weights(tmp_path / "w.parquet")
    rows = [i for i, each in enumerate(known.samples["early"]) if each is not None]
    assert table.row.tolist() == rows
    gains = []
    for place, row in enumerate(rows):
        vectors, tokens = known.samples["early"][row]
        if len(tokens) > 10:
            continue  # too many sets to try
        weight, (equal, cosine) = fitted(vectors, tokens)
        # With more steps than dimensions only the ridge decides, to the digits that float32 Grams have.
        close = {"rtol": 1e-3, "atol": 1e-3} if len(weight) >= vectors.shape[1] else {"rtol": 1e-4, "atol": 1e-6}
        found = table.table.slice(place, 1).to_pylist()[0]
        np.testing.assert_allclose(found["weight"], weight, **close)
        assert found["step_num_tokens"] == tokens[:-1].tolist()
        assert found["cosine"] == pytest.approx(cosine, abs=1e-5)
        assert found["equal_cosine"] == pytest.approx(equal, abs=1e-5)
        gains.append(cosine - equal)
    numbers = done.numbers
    assert numbers["num_samples"] == numbers["num_weighed"] == numbers["gain"].num == len(rows)
    assert numbers["gain"].value >= 0
    flat = np.concatenate(table.table["weight"].to_pylist())
    assert (numbers["num_steps"], numbers["num_zero"]) == (len(flat), int((flat == 0).sum()))


def test_signals_together_weigh_what_both_have(known):
    table = weights(Pool(known.store, {"early": 1.0, "late": 3.0})).table.to_pylist()
    missing = [each for each in table if each["weight"] is None]
    assert [(each["row"], each["flags"]) for each in missing] == [(5, ["missing_signal"])]
    for found in table:
        if found["row"] in (5, 6):  # 6 has too many steps to try all sets
            continue
        parts = [known.samples[name][found["row"]] for name in ("early", "late")]
        joined, tokens = [], parts[0][1].astype(np.float64)
        for (vectors, counts), share in zip(parts, (0.25, 0.75), strict=True):
            # Tokens as shares of their signal's own.
            pull = vectors.astype(np.float64) / np.linalg.norm(vectors[-1])
            pull[:-1] *= (counts[:-1] / counts[:-1].sum())[:, None]
            joined.append(np.sqrt(share) * pull)
        pulls = np.concatenate(joined, axis=1)
        length = np.linalg.norm(pulls[:-1], axis=1)
        weight = best_by_trying_all(pulls[:-1] / length[:, None], pulls[-1]) / length
        weight *= tokens[:-1].sum() / (weight @ tokens[:-1]) if weight.any() else 1.0
        np.testing.assert_allclose(found["weight"], weight, rtol=1e-3, atol=1e-3)


def test_blocks_and_threads_change_no_bit(known, monkeypatch):
    whole = weights(Pool(known.store, "late", threads=1)).table
    monkeypatch.setattr(walk, "SAMPLES_PER_CHUNK", 4)
    assert weights(Pool(known.store, "late", threads=3)).table.equals(whole)


@pytest.mark.parametrize("method", ["scores", "drop"])
def test_methods_by_scores_follow_those_of_score(known, method):
    spec = WeightsSpec(method=method)
    table = weights(Pool(known.store, "early"), spec).table.to_pylist()
    scores = score(known.store, ScoreRequest(signals="early")).table.to_pylist()
    for found, scored in zip(table, scores, strict=True):
        weight, step_score = np.array(found["weight"]), np.array(scored["step_score"])
        tokens = np.array(found["step_num_tokens"])
        if method == "drop":
            num = min(-(-len(weight) // 5), len(weight) - 1)
            assert sorted(np.flatnonzero(weight == 0)) == sorted(np.argsort(step_score)[:num])
            continue
        wanted = np.maximum(step_score, 0)
        np.testing.assert_allclose(weight, wanted * (tokens.sum() / (wanted @ tokens) if wanted.any() else 1.0))


def test_a_filter_is_kept_in_the_note(known):
    table = weights(Pool(known.store, "early", where="num_steps >= 5"))
    assert min(table.table["num_steps"].to_pylist()) == 5
    assert table.note.where is not None
    assert table.note.where.num_kept == len(table) + 1  # sample 9 was set aside


def test_unfinished_signals_are_refused_unless_wanted(tmp_path):
    half = known_store(tmp_path, units={"base": [0, 2]})
    with pytest.raises(Unfinished, match="has 2 of 4 units"):
        weights(half.store)
    assert weights(Pool(half.store, partial=True)).note.partial


def test_the_store_is_never_written_over(known):
    with pytest.raises(SettingError, match="would replace or change"):
        weights(Pool(known.store, "early"), out=known.store.location)


def test_weights_of_segments_are_found_by_row(known):
    table = weights(Pool(known.store, "early"), WeightsSpec(answer_weight=0.5))
    none, known_one, beyond = table.segment_weights(np.array([9, 3, 99]))
    assert none is None
    assert beyond is None
    assert known_one is not None
    assert known_one.tolist() == [*table.table["weight"][3].as_py(), 0.5]
    assert not table.is_mask


# ---------------------------------------------------------------- what the summary says


def summary_of(cosine, equal, weight, flags=None):
    num = len(cosine)
    offsets = np.arange(num + 1) * (len(weight) // num)
    bits = np.zeros(num, np.uint8) if flags is None else np.array(flags, np.uint8)
    made = WeightSummary()
    made.add(RaggedWeights(np.array(weight), np.array(equal), np.array(cosine), bits, offsets), np.arange(num))
    return made


def numbers_of(made):
    signals = {"base": ScoredSignal(sha256="", num_units=1, weight=1.0)}
    note = WeightsNote(store="s", plan_sha256="", num_units=1, partial=False, spec=WeightsSpec(), signals=signals)
    return made.finding(None, note, Path("w.parquet")).numbers


def test_a_summary_counts_over_blocks_as_over_all_at_once():
    rng = np.random.default_rng(0)
    cosine, equal, weight = rng.random(40), rng.random(40), np.maximum(rng.standard_normal(80), 0)
    whole = summary_of(cosine, equal, weight)
    parts = WeightSummary()
    for start in (0, 10, 25):
        stop = {0: 10, 10: 25, 25: 40}[start]
        offsets = np.arange(stop - start + 1) * 2
        here = slice(start, stop)
        flags = np.zeros(stop - start, np.uint8)
        parts.add(
            RaggedWeights(weight[2 * start : 2 * stop], equal[here], cosine[here], flags, offsets),
            np.arange(start, stop),
        )
    gain, again = (numbers_of(each)["gain"] for each in (whole, parts))
    assert (again.value, again.low, again.high) == pytest.approx((gain.value, gain.low, gain.high))
    difference = cosine - equal
    half_width = 2.022691 * difference.std(ddof=1) / np.sqrt(40)  # Student's t with 39 degrees of freedom
    assert gain.value == pytest.approx(difference.mean())
    assert half_width < gain.half_width < 1.1 * half_width
    assert (
        (parts.counts["num_zero"], parts.counts["num_all_zero"])
        == (whole.counts["num_zero"], whole.counts["num_all_zero"])
        == (
            int((weight == 0).sum()),
            int((weight.reshape(-1, 2) == 0).all(axis=1).sum()),
        )
    )


@pytest.mark.parametrize(
    ("cosine", "equal", "weight", "told"),
    [
        (
            [0.6, 0.7],
            [0.3, 0.39],
            [1.0, 0.0],
            r"closer to the answer: mean cosine 0\.650, 0\.345 .*50 % of 20 steps get",
        ),
        ([0.2, 0.1], [0.6, 0.5], [1.0, 1.0], "further from the answer"),
        ([0.2, 0.6], [0.6, 0.2], [1.0, 1.0], "change little"),
        ([0.0, 0.5], [-0.2, 0.4], [0.0, 1.0], "in 10 samples all do"),
        ([np.nan, np.nan], [np.nan, np.nan], [np.nan, np.nan], r"None of 20 samples has weights: .*20 not_finite"),
    ],
)
def test_the_conclusion_says_what_weights_do(cosine, equal, weight, told):
    flags = [Flag.NOT_FINITE] * 20 if np.isnan(cosine[0]) else None
    assert re.search(told, summary_of(cosine * 10, equal * 10, weight * 10, flags).conclusion)


def test_few_questions_and_copies_of_one_are_no_evidence():
    """Before, eight copies of every trace narrowed the interval to a third."""
    rng = np.random.default_rng(0)
    cosine, equal, weight = rng.random(40), rng.random(40), np.ones(40)
    assert summary_of(cosine[:9], equal[:9], weight[:9]).conclusion.startswith("Too few to say what weights change")
    copies = WeightSummary(np.arange(320) // 8)
    columns = (np.repeat(each, 8) for each in (weight, equal, cosine))
    copies.add(RaggedWeights(*columns, np.zeros(320, np.uint8), np.arange(321)), np.arange(320))
    once, often = (numbers_of(each)["gain"] for each in (summary_of(cosine, equal, weight), copies))
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


# ---------------------------------------------------------------- tables that others changed


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("weight", [[1.0]] * 12, "without exactly one entry for each step"),
        ("weight", "negative", "some weights are negative or not a number"),
        ("row", [0] * 12, "a row of the dataset is there twice"),
    ],
)
def test_a_table_that_was_changed_is_refused(known, tmp_path, name, values, told):
    table = weights(Pool(known.store, "early")).table
    if values == "negative":
        values = [[-number for number in each] for each in table["weight"].to_pylist()]
    place = table.column_names.index(name)
    pq.write_table(
        table.set_column(place, name, pa.array(values, table.schema.field(name).type)), tmp_path / "w.parquet"
    )
    with pytest.raises(DataError, match=told):
        read_weights(tmp_path / "w.parquet")


def test_a_file_of_another_kind_is_refused(known, tmp_path):
    score(known.store, ScoreRequest(signals="early"), out=tmp_path / "scores.parquet")
    with pytest.raises(DataError, match="is not a table of weights: its note is of the kind 'scores'"):
        read_weights(tmp_path / "scores.parquet")
    table = weights(Pool(known.store, "early")).table
    assert METADATA_KEY in (table.schema.metadata or {})
    pq.write_table(table.drop_columns(["weight"]), tmp_path / "w.parquet")
    with pytest.raises(DataError, match="has no column weight"):
        read_weights(tmp_path / "w.parquet")
