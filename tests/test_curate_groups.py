"""Scores within questions, against plain loops over the table and over the vectors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import grace_store as gs
from grace_store.base.errors import DataError, SettingError
from grace_store.curate.group_target import align_with_groups
from grace_store.curate.score import replay
from grace_store.read.question_groups import question_groups
from grace_store.read.vectors import VectorReader
from grace_store.store.opened import Store
from grace_store.values.methods.method_spec import HeuristicSpec
from tests.brute_force import cosine_with_sum
from tests.grouped_stores import TRACES, grouped_records, grouped_store
from tests.vector_stores import traces, vector_store

RECORDS = grouped_records()
QUESTION = [record["prompt"] for record in RECORDS]
ALONE = [i for i, prompt in enumerate(QUESTION) if QUESTION.count(prompt) == 1]
GROUP = gs.ScoreSpec(target="group", alpha=0.4)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return grouped_store(tmp_path_factory.mktemp("grouped"))


# ---------------------------------------------------------------- groups


@pytest.mark.parametrize("by", [None, "problem.name", "$.prompt"])
def test_groups_are_numbered_as_questions_first_occur(store: Store, by: str | None) -> None:
    numbers: dict[str, int] = {}
    assert question_groups(store, by).tolist() == [numbers.setdefault(each, len(numbers)) for each in QUESTION]
    some = np.array([20, 3, 11])
    assert len(set(question_groups(store, by, positions=some).tolist())) == len({QUESTION[i] for i in some.tolist()})


def test_a_field_that_no_record_has_is_answered_with_those_there_are(store: Store) -> None:
    with pytest.raises(SettingError, match=r"no record of .* has a field 'problem\.nam'\. Did you mean problem\.name"):
        gs.score(store, gs.ScoreRequest(within="centred", group_by="problem.nam"))


# ---------------------------------------------------------------- values within a question


def by_hand(value: list[float], how: str) -> list[float]:
    out = []
    for i, mine in enumerate(value):
        others = [each for each, prompt in zip(value, QUESTION, strict=True) if prompt == QUESTION[i]]
        mean = math.fsum(others) / len(others)
        deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in others) / len(others))
        out.append(mine - mean if how == "centred" else (mine - mean) / deviation if deviation else 0.0)
    return out


@pytest.mark.parametrize("how", ["centred", "standardised"])
@pytest.mark.parametrize("spec", [gs.ScoreSpec(), HeuristicSpec(method="longest")], ids=lambda spec: spec.method)
def test_values_are_compared_with_those_of_the_same_question(store: Store, spec, how) -> None:
    plain, found = gs.score(store, spec), gs.score(store, gs.ScoreRequest(spec=spec, within=how))
    assert found.value == pytest.approx(by_hand(plain.value.tolist(), how), abs=1e-12)
    assert found.table["plain_value"].to_pylist() == plain.value.tolist()
    assert found.group.tolist() == question_groups(store).tolist()
    assert [i for i, flags in enumerate(found.table["flags"].to_pylist()) if "only_trace" in flags] == ALONE
    assert found.value[ALONE].tolist() == [0.0] * len(ALONE)
    groups = found.note.groups
    assert (groups.num_groups, groups.num_compared, groups.num_alone) == (len(TRACES), len(TRACES) - 2, 2)
    assert groups.conclusion == (
        f"Values are {how} among the traces of one question, those with the same prompt and images: 7 questions. "
        "2 samples are the only trace of a question, flagged only_trace."
    )
    assert plain.note.groups is None
    assert "group" not in plain.table.column_names


@pytest.mark.parametrize(
    "request_",
    [
        gs.ScoreRequest(within="centred", group_by="problem.name"),
        gs.ScoreRequest(spec=GROUP, where="row < 20", within="standardised"),
    ],
    ids=["field", "target and filter"],
)
def test_a_table_is_made_again_to_the_byte(store: Store, tmp_path: Path, request_: gs.ScoreRequest) -> None:
    gs.score(store, request_, out=tmp_path / "a.parquet", threads=2)
    replay(tmp_path / "a.parquet", tmp_path / "b.parquet", threads=1)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert gs.read_scores(tmp_path / "a.parquet").group is not None


def test_only_what_a_filter_keeps_is_compared(store: Store) -> None:
    plain, found = gs.score(store), gs.score(store, gs.ScoreRequest(within="centred", where="row >= 9 and row < 20"))
    value = plain.value[9:20]
    expected = [
        mine - np.mean([other for other, asked in zip(value, QUESTION[9:20], strict=True) if asked == question])
        for mine, question in zip(value, QUESTION[9:20], strict=True)
    ]
    assert found.value == pytest.approx(expected, abs=1e-12)


def test_questions_with_one_trace_each_cannot_be_compared(store: Store) -> None:
    with pytest.raises(SettingError, match=r"no question of .* has two traces \(with the same 'id'\) to compare"):
        gs.score(store, gs.ScoreRequest(within="centred", group_by="id"))
    with pytest.raises(SettingError, match="name the records' field that says the question: --group-by"):
        gs.score(store, gs.ScoreRequest(spec=GROUP, where="row < 9"))
    with pytest.raises(SettingError, match="--group-by says what a question is: give --within group or --target group"):
        gs.score(store, gs.ScoreRequest(group_by="id"))


def test_groups_need_the_dataset(store: Store) -> None:
    with pytest.raises(DataError, match="elsewhere"):
        gs.score(store, gs.ScoreRequest(within="centred", data=["elsewhere.jsonl"]))


# ---------------------------------------------------------------- the other traces' answers


def aligned_by_hand(vectors: list[np.ndarray], group: list[int]) -> list[list[float]]:
    """Return the cosine of every step with the mean direction of the other traces' answers, NaN without others."""
    out = []
    for i, mine in enumerate(vectors):
        answers = [each[-1] for j, each in enumerate(vectors) if j != i and group[j] == group[i]]
        parts = [(1.0, answer / np.linalg.norm(answer)) for answer in answers]
        out.append([cosine_with_sum(step, parts)[0] if parts else math.nan for step in mine[:-1]])
    return out


def test_steps_are_aligned_with_the_answers_of_the_other_traces(store: Store) -> None:
    found, plain = gs.score(store, GROUP), gs.score(store, gs.ScoreSpec(alpha=0.4))
    group = question_groups(store).tolist()
    expected = aligned_by_hand([sample.vectors for sample in gs.iter_samples(store)], group)
    flat = np.concatenate([np.array(each) for each in expected])
    assert found.flat("answer_alignment") == pytest.approx(flat, abs=1e-6, nan_ok=True)
    assert found.flat("history_alignment") == pytest.approx(plain.flat("history_alignment"), nan_ok=True)
    for i, cosines in enumerate(expected):
        past = plain.flat("history_alignment")[plain.offsets[i] : plain.offsets[i + 1]]
        steps = [cosines[0], *(0.4 * a + 0.6 * h for a, h in zip(cosines[1:], past[1:], strict=True))]
        assert found.value[i] == pytest.approx(math.fsum(steps) / len(steps), abs=1e-6, nan_ok=True)
    flags = found.table["flags"].to_pylist()
    assert [i for i, each in enumerate(flags) if {"only_trace", "no_value"} <= set(each)] == ALONE
    assert found.note.groups.conclusion.startswith("Steps were held against the answers of the traces of one question")


@pytest.mark.parametrize("sum_bytes", [1 << 20, 70], ids=["all at once", "two questions at a time"])
@pytest.mark.parametrize("threads", [1, 3])
def test_ranges_and_threads_change_no_bit(tmp_path: Path, sum_bytes: int, threads: int) -> None:
    """Questions lie anywhere, some samples are not done, one takes no part; a zero answer points nowhere."""
    samples = traces([3, 1, 4, 2, 5, 1, 2, 3, 2, 1, 4, 3, 2, 2])
    group = np.array([0, 1, 2, 0, 3, 2, 1, 0, 2, 4, 3, 1, 5, 5])
    samples[3][-1], samples[0][1] = 0.0, 0.0
    samples[12][-1], samples[13][-1] = 1.0, 0.0
    store = vector_store(tmp_path / "s.zarr", samples, set_aside=[8])
    reader = VectorReader(store, ("base",))
    left_out = np.where(np.arange(14) == 11, -1, group)
    found = align_with_groups(reader, 0, left_out, threads, sum_bytes)
    whole = align_with_groups(reader, 0, left_out, 1)
    assert found.cosine.tobytes() == whole.cosine.tobytes()
    alive = [i for i in range(14) if i not in (8, 11)]
    others = [each.copy() for each in samples]
    expected = _with_zero_vectors([others[i] for i in alive], [int(group[i]) for i in alive])
    assert found.of(np.array(alive)) == pytest.approx(np.concatenate(expected), abs=1e-6, nan_ok=True)
    assert found.of(np.array([8, 11])) == pytest.approx([math.nan] * 5, nan_ok=True)
    named = {i: gs_flags(found.flags[i]) for i in range(14) if found.flags[i]}
    assert named == {0: ["zero_vector"], 9: ["only_trace"], 12: ["zero_vector"]}


def gs_flags(bits: int) -> list[str]:
    from grace_store.base.flags import flag_names

    return flag_names(int(bits))


def _with_zero_vectors(vectors: list[np.ndarray], group: list[int]) -> list[list[float]]:
    out = []
    for i, mine in enumerate(vectors):
        members = [each[-1] for j, each in enumerate(vectors) if j != i and group[j] == group[i]]
        parts = [(1.0, each / np.linalg.norm(each)) for each in members if np.linalg.norm(each)]
        none = math.nan if not members else 0.0
        out.append([cosine_with_sum(step, parts)[0] if parts else none for step in mine[:-1]])
    return out


def test_answers_that_cancel_leave_no_direction(tmp_path: Path) -> None:
    one, other, mine = (
        np.array([[1, 1, 0], direction], np.float32) for direction in ([1, 0, 0], [-1, 0, 0], [0, 1, 0])
    )
    found = align_with_groups(
        VectorReader(vector_store(tmp_path / "s.zarr", [one, other, mine]), ("base",)), 0, np.zeros(3, int)
    )
    assert found.cosine[2] == 0
    assert gs_flags(found.flags[2]) == ["zero_vector"]
    assert found.cosine[:2] == pytest.approx([0.0, 1.0], abs=1e-6)


def test_the_target_group_is_for_score_alone(store: Store) -> None:
    with pytest.raises(SettingError, match="--target group needs the vectors of a question's other traces"):
        gs.stability(store, gs.StabilityRequest(spec=GROUP))
