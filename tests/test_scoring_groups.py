"""Scores within questions, against plain loops over the table and over the vectors."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import grace_store as gs
from grace_store.base.documents import read_document
from grace_store.base.errors import DataError, SettingError
from grace_store.base.files import sidecar_of
from grace_store.base.states import flag_names
from grace_store.choose.selection import SubsetNote
from grace_store.data.sample import ImageRef, Sample, Turn
from grace_store.data.sample_digests import prompt_digest, response_digest, text_digest
from grace_store.pool.records import SampleRecords, UnitLoader, open_dataset
from grace_store.pool.walk import SignalReader
from grace_store.run.extract import extract
from grace_store.scoring.grouped_scoring import align_with_groups
from grace_store.scoring.score import replay
from grace_store.store.opened import Store
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.within_groups import compare_within
from tests.brute_force import cosine_with_sum
from tests.commands import run, run_json
from tests.grouped_stores import TRACES, grouped_job, grouped_records, grouped_store
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
    assert SampleRecords(store).questions(by).tolist() == [numbers.setdefault(each, len(numbers)) for each in QUESTION]
    some = np.array([20, 3, 11])
    assert len(set(SampleRecords(store, positions=some).questions(by).tolist())) == len(
        {QUESTION[i] for i in some.tolist()}
    )


def test_a_field_that_no_record_has_is_answered_with_those_there_are(store: Store) -> None:
    with pytest.raises(SettingError, match=r"No record of .* has a field 'problem\.nam'\. Did you mean problem\.name"):
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
@pytest.mark.parametrize("spec", [gs.ScoreSpec(), ScoreSpec(measure=("tokens",))], ids=lambda spec: spec.method)
def test_values_are_compared_with_those_of_the_same_question(store: Store, spec, how) -> None:
    plain, found = gs.score(store, spec), gs.score(store, gs.ScoreRequest(spec=spec, within=how))
    assert found.value == pytest.approx(by_hand(plain.value.tolist(), how), abs=1e-12)
    assert found.table["plain_value"].to_pylist() == plain.value.tolist()
    assert found.group.tolist() == SampleRecords(store).questions().tolist()
    assert [i for i, flags in enumerate(found.table["flags"].to_pylist()) if "only_trace" in flags] == ALONE
    assert found.value[ALONE].tolist() == [0.0] * len(ALONE)
    groups = found.note.groups
    assert (groups.num_groups, groups.num_compared, groups.num_alone) == (len(TRACES), len(TRACES) - 2, 2)
    assert found.note.notes == (
        f"Values are {how} within their question (same prompt and images): 7 questions with at least two traces. "
        "2 samples are the only trace of their question, flagged only_trace, and have the value 0.",
    )
    assert plain.note.groups is None
    assert "group" not in plain.table.column_names


def test_samples_without_a_value_of_the_field_are_not_called_the_only_trace(store: Store, tmp_path: Path) -> None:
    ids = store.column("sample_id").tolist()
    (tmp_path / "part.csv").write_text("id,verdict\n" + "".join(f"{each},good\n" for each in ids[:5]))
    found = gs.score(store, gs.ScoreRequest(within="centred", group_by="verdict", labels=tmp_path / "part.csv"))
    assert found.note.notes == (
        "Values are centred within their question (same 'verdict'): 1 question with at least two traces. "
        f"{len(ids) - 5} samples are the only trace of their question or have no 'verdict', flagged only_trace, and "
        "have the value 0.",
    )


def test_a_spread_that_is_only_rounding_is_not_standardised() -> None:
    value = np.array([0.3, 0.1 + 0.2, np.float32(0.3), 5.0, 5.0 + 1e-3, 1e-9, 3e-9])
    group = np.array([0, 0, 0, 1, 1, 2, 2])
    found, is_alone = compare_within(value, group, "standardised")
    # Values of the second and third question differ, however little.
    assert found == pytest.approx([0.0, 0.0, 0.0, -1.0, 1.0, -1.0, 1.0])
    assert not is_alone.any()


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
    with pytest.raises(SettingError, match=r"has two traces with the same 'id' that both have a value"):
        gs.score(store, gs.ScoreRequest(within="centred", group_by="id"))
    with pytest.raises(SettingError, match="Name the field of the records that identifies the question"):
        gs.score(store, gs.ScoreRequest(spec=GROUP, where="row < 9"))
    with pytest.raises(
        SettingError,
        match="--group-by names the field that identifies a question: also give --within",
    ):
        gs.score(store, gs.ScoreRequest(group_by="id"))


def test_groups_by_a_field_need_the_dataset_and_groups_by_prompt_do_not(store: Store) -> None:
    with pytest.raises(DataError, match="elsewhere"):
        gs.score(store, gs.ScoreRequest(within="centred", group_by="id", data=["elsewhere.jsonl"]))
    found = gs.score(store, gs.ScoreRequest(within="centred", data=["elsewhere.jsonl"]))
    assert found.group.tolist() == SampleRecords(store).questions().tolist()


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
    group = SampleRecords(store).questions().tolist()
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
    assert found.note.notes[0].startswith("Steps are held against the answers of the other traces of their question")
    assert found.note.notes[0].endswith(
        "2 samples are the only trace of their question, flagged only_trace, and have no value."
    )


@pytest.mark.parametrize("sum_bytes", [1 << 20, 70], ids=["all at once", "two questions at a time"])
@pytest.mark.parametrize("threads", [1, 3])
def test_ranges_and_threads_change_no_bit(tmp_path: Path, sum_bytes: int, threads: int) -> None:
    """Questions lie anywhere, some samples are not done, one takes no part; a zero answer points nowhere."""
    samples = traces([3, 1, 4, 2, 5, 1, 2, 3, 2, 1, 4, 3, 2, 2])
    group = np.array([0, 1, 2, 0, 3, 2, 1, 0, 2, 4, 3, 1, 5, 5])
    samples[3][-1], samples[0][1] = 0.0, 0.0
    samples[12][-1], samples[13][-1] = 1.0, 0.0
    store = vector_store(tmp_path / "s.zarr", samples, set_aside=[8])
    reader = SignalReader(store, ("base",), reads=("vectors",))
    left_out = np.where(np.arange(14) == 11, -1, group)
    found = align_with_groups(reader, 0, left_out, threads, sum_bytes)
    whole = align_with_groups(reader, 0, left_out, 1)
    assert found.cosine.tobytes() == whole.cosine.tobytes()
    alive = [i for i in range(14) if i not in (8, 11)]
    others = [each.copy() for each in samples]
    expected = _with_zero_vectors([others[i] for i in alive], [int(group[i]) for i in alive])
    assert found.of(np.array(alive)) == pytest.approx(np.concatenate(expected), abs=1e-6, nan_ok=True)
    assert found.of(np.array([8, 11])) == pytest.approx([math.nan] * 5, nan_ok=True)
    named = {i: flag_names(int(found.flags[i])) for i in range(14) if found.flags[i]}
    assert named == {0: ["zero_vector"], 9: ["only_trace"], 12: ["zero_vector"]}


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
        SignalReader(vector_store(tmp_path / "s.zarr", [one, other, mine]), ("base",), reads=("vectors",)),
        0,
        np.zeros(3, int),
    )
    assert found.cosine[2] == 0
    assert flag_names(int(found.flags[2])) == ["zero_vector"]
    assert found.cosine[:2] == pytest.approx([0.0, 1.0], abs=1e-6)


def test_the_target_group_is_for_score_alone(store: Store) -> None:
    with pytest.raises(SettingError, match="--target group needs the vectors of other traces of the question"):
        gs.stability(store, gs.StabilitySettings(score=GROUP))


# ---------------------------------------------------------------- choosing within questions


@pytest.fixture(scope="module")
def scores(store: Store) -> Path:
    out = Path(store.location).parent / "scores.parquet"
    gs.score(store, out=out)
    return out


def best_first(value: np.ndarray, members: list[int]) -> list[int]:
    return sorted(members, key=lambda i: (-value[i], i))


def kept_by_hand(value: np.ndarray, per_group: str) -> list[int]:
    kept = []
    for question in dict.fromkeys(QUESTION):
        mine = best_first(value, [i for i, each in enumerate(QUESTION) if each == question])
        num = int(per_group) if per_group.isdigit() else math.ceil(Fraction(per_group) * len(mine))
        kept += mine[:num]
    return best_first(value, kept)


@pytest.mark.parametrize("per_group", ["1", "2", "3", "100", "0.2", "0.5", "0.6", "1.0"])
def test_at_most_some_traces_of_each_question_are_kept(scores: Path, per_group: str) -> None:
    table = gs.read_scores(scores)
    expected = kept_by_hand(table.value, per_group)
    request = gs.Selection(per_group=per_group)
    found = gs.select(table, request)
    assert found.ranked.tolist() == expected
    assert (found.spec.per_group, found.spec.ratio, found.spec.is_by_value) == (per_group, "1", False)
    smaller = gs.select(table, request, count=5)
    assert smaller.ranked.tolist() == expected[:5], "the best of these, so that subsets are nested"
    assert found.notes == (
        f"at most {per_group} of the traces of a question: {len(expected)} of 28 traces of 9 questions; "
        f"ratios are shares of the {len(expected)} that remain",
    )


def test_ties_go_to_the_earlier_record(scores: Path) -> None:
    table = gs.read_scores(scores)
    same = table.table.set_column(table.table.column_names.index("value"), "value", pa.array([0.5] * len(table)))
    found = gs.select(replace(table, table=same), gs.Selection(per_group=1))
    assert found.row.tolist() == list(range(len(TRACES)))
    with pytest.raises(DataError, match="no question has two traces whose values differ at all, so there are no pairs"):
        gs.select(replace(table, table=same), gs.Selection(margin=0))


def test_flags_filters_and_strata_come_with_questions(scores: Path) -> None:
    table = gs.read_scores(scores)
    found = gs.select(scores, gs.Selection(per_group=1, where="row >= 9", by="num_steps"))
    value = np.where(np.arange(len(table)) >= 9, table.value, np.nan)
    questions = {QUESTION[i] for i in range(9, len(QUESTION))}
    best = [best_first(value, [i for i in range(9, len(QUESTION)) if QUESTION[i] == each])[0] for each in questions]
    assert found.row.tolist() == sorted(best)
    assert sum(each.pool for each in found.groups) == len(best)


def test_the_questions_of_the_table_are_taken(store: Store, tmp_path: Path) -> None:
    scored = gs.score(store, gs.ScoreRequest(within="centred", group_by="problem.name"))
    found = gs.select(scored, gs.Selection(per_group=1), data=["nowhere.jsonl"])  # which is not needed
    assert found.spec.group_by == "problem.name"
    assert len(found) == len(TRACES)
    assert len(gs.select(scored, gs.Selection(per_group=1, group_by="id"))) == len(QUESTION)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            {"per_group": "0"},
            "--per-group 0 is neither a number of traces, such as 1, nor a share of the traces, such as 0.5",
        ),
        ({"per_group": "1.5"}, "--per-group 1.5 is neither"),
        ({"per_group": "-1"}, "--per-group -1 is neither"),
        (
            {"group_by": "id"},
            "identifies a question: also give --per-group, or select pairs",
        ),
        ({"per_group": "1", "margin": 0.0}, "every question gives one pair: leave --per-group out"),
        ({"margin": math.nan}, "margin nan is not a number of at least 0"),
        ({"per_group": "1", "group_by": "nam"}, "has a field 'nam'"),
    ],
)
def test_choices_that_make_no_sense_are_refused(scores: Path, request_, message: str) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        gs.select(scores, gs.Selection(**request_))


def test_a_warning_where_no_question_has_two_traces(scores: Path) -> None:
    said: list[object] = []
    gs.rank_samples(scores, gs.Selection(per_group=1, group_by="id"), listener=said.append)
    assert "No question has two traces with a value" in str(said)


# ---------------------------------------------------------------- pairs


def pairs_by_hand(value: np.ndarray, margin: float) -> list[tuple[int, int]]:
    pairs = []
    for question in dict.fromkeys(QUESTION):
        mine = best_first(value, [i for i, each in enumerate(QUESTION) if each == question])
        if value[mine[0]] - value[mine[-1]] >= margin and len(mine) > 1:
            pairs.append((mine[0], mine[-1]))
    return sorted(pairs, key=lambda pair: (value[pair[1]] - value[pair[0]], pair[0]))


@pytest.mark.parametrize("margin", [0.0, 0.15])
def test_pairs_are_the_best_and_the_worst_of_a_question(scores: Path, margin: float) -> None:
    table = gs.read_scores(scores)
    expected = pairs_by_hand(table.value, margin)
    assert expected
    found = gs.select(table, gs.Selection(margin=margin))
    assert list(zip(found.ranked.tolist(), found.rejected.tolist(), strict=True)) == expected
    assert found.threshold == pytest.approx(table.value[expected[-1][0]] - table.value[expected[-1][1]])
    assert found.rejected_row.tolist() == [worst for _, worst in sorted(expected)]
    fewer = gs.select(table, gs.Selection(margin=margin), count=2)
    assert list(zip(fewer.ranked.tolist(), fewer.rejected.tolist(), strict=True)) == expected[:2]


def responses_and_values(seed: int) -> tuple[list[dict], np.ndarray]:
    """Return the traces with copies of the first 20, and values by which the copies of the best are the worst."""
    records = [*RECORDS, *({**record, "id": f"copy-{record['id']}"} for record in RECORDS[:20])]
    value = np.random.default_rng(seed).random(len(RECORDS))
    return records, np.concatenate([value, 1 - value[:20]])


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> gs.ScoreTable:
    job = grouped_job(tmp_path_factory.mktemp("copied"), copies=20)
    return gs.score(extract(job).store)


def with_values(table: gs.ScoreTable, value: np.ndarray) -> gs.ScoreTable:
    place = table.table.column_names.index("value")
    return replace(table, table=table.table.set_column(place, "value", pa.array(value)))


@pytest.mark.parametrize("margin", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(4))
def test_the_two_traces_of_a_pair_have_different_responses(copied: gs.ScoreTable, seed: int, margin: float) -> None:
    records, value = responses_and_values(seed)
    expected, num_copies, num_without = set(), 0, 0
    for question in dict.fromkeys(QUESTION):
        mine = best_first(value, [i for i, record in enumerate(records) if record["prompt"] == question])
        other = [i for i in mine if response(records[i]) != response(records[mine[0]])]
        is_copy = other[-1:] != mine[-1:] and bool(value[mine[0]] - value[mine[-1]] >= margin)
        has_pair = bool(other) and bool(value[mine[0]] - value[other[-1]] >= margin)
        if has_pair:
            expected.add((mine[0], other[-1]))
        num_copies += is_copy
        num_without += is_copy and not has_pair
    assert num_copies > num_without > 0, "both kinds of question are there"
    found = gs.select(with_values(copied, value), gs.Selection(margin=margin))
    assert set(zip(found.ranked.tolist(), found.rejected.tolist(), strict=True)) == expected
    told = f"; in {num_copies} questions the worst trace has the same response as the best one: "
    others = f"{num_copies - num_without} with the worst of the other traces in its place, {num_without} without a pair"
    assert f"{told}{others}; ratios are shares" in found.notes[0]


def test_copies_alone_make_no_pair(copied: gs.ScoreTable, tmp_path: Path) -> None:
    _, value = responses_and_values(0)
    table = tmp_path / "scores.parquet"
    pq.write_table(with_values(copied, value).table, table)
    alone = f"prompt in ({', '.join(repr(QUESTION[i]) for i in ALONE)})"
    words = ["select", table, "--as", "trl-pairs", "--where", alone, "--out", tmp_path / "pairs.jsonl"]
    said = " ".join(run(*words, code=1).stderr.split())
    assert "values differ at all and whose responses are different texts, so there are no pairs" in said
    assert not (tmp_path / "pairs.jsonl").exists()
    found = run_json(*words[:4], "--out", tmp_path / "pairs.jsonl")
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert len(pairs) == found["num_samples"] > 0
    assert all(pair["chosen"] != pair["rejected"] for pair in pairs)
    assert "without a pair" in found["notes"][0]


def test_responses_that_differ_in_their_spaces_alone_are_the_same() -> None:
    one, same, other = (Sample("a", (), text, (0, len(text))) for text in ("1 + 1\n= 2", " 1 + 1 = 2\n\n", "1 + 1 = 3"))
    assert response_digest(one) == response_digest(same) != response_digest(other)


def response(record: dict) -> str:
    return "\n".join([*record["steps"], record["answer"]])


def test_each_trainer_gets_pairs_as_it_reads_them(scores: Path, tmp_path: Path) -> None:
    subset = gs.select(scores, gs.Selection(margin=0))
    lines = {}
    for name in ("trl-pairs", "ms-swift-pairs", "llama-factory-pairs"):
        exported = gs.export(subset, tmp_path / f"{name}.jsonl", as_format=name)
        lines[name] = [json.loads(line) for line in exported.out.read_text().splitlines()]
    rows = list(zip(subset.row.tolist(), subset.rejected_row.tolist(), strict=True))
    assert len(rows) == 7
    for place, (best, worst) in enumerate(rows):
        asked = [{"role": "user", "content": RECORDS[best]["prompt"]}]
        said, other = ({"role": "assistant", "content": response(RECORDS[row])} for row in (best, worst))
        ids = {"id": RECORDS[best]["id"], "rejected_id": RECORDS[worst]["id"]}
        assert lines["trl-pairs"][place] == ids | {"prompt": asked, "chosen": [said], "rejected": [other]}
        assert lines["ms-swift-pairs"][place] == ids | {
            "messages": [*asked, said],
            "rejected_response": other["content"],
        }
        assert lines["llama-factory-pairs"][place] == ids | {"messages": asked, "chosen": said, "rejected": other}
    info = json.loads((tmp_path / "dataset_info.json").read_text())["llama-factory-pairs"]
    assert (info["ranking"], info["formatting"]) == (True, "sharegpt")
    assert info["columns"] == {name: name for name in ("messages", "chosen", "rejected")}
    note = read_document(sidecar_of(tmp_path / "trl-pairs.jsonl"), SubsetNote)
    assert (note.rows, note.rejected_rows) == (tuple(best for best, _ in rows), tuple(worst for _, worst in rows))
    assert (note.spec.margin, note.num_with_value, note.threshold) == (0.0, 7, None)


def test_pairs_and_samples_are_not_mixed_up(scores: Path, tmp_path: Path) -> None:
    pairs, samples = gs.select(scores, gs.Selection(margin=0)), gs.select(scores)
    with pytest.raises(SettingError, match="the subset has pairs, but --as ids writes no pairs: use one of ms-"):
        gs.export(pairs, tmp_path / "a", as_format="ids")
    with pytest.raises(SettingError, match="--as trl-pairs writes pairs: select pairs, with a margin"):
        gs.export(samples, tmp_path / "a", as_format="trl-pairs")
    odd = gs.select(scores, gs.Selection(margin=0, group_by="half"))
    with pytest.raises(DataError, match="have different prompts or images, so they are no pair"):
        gs.export(odd, tmp_path / "a", as_format="trl-pairs")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- the commands


def test_the_commands_choose_within_questions(store: Store, tmp_path: Path) -> None:
    table, out = tmp_path / "within.parquet", tmp_path / "best.jsonl"
    shown = run("score", store.location, "--within", "problem.name", "--within-as", "standardised", "--out", table)
    assert "standardised within their question (same 'problem.name'): 7 questions with at least" in shown.stdout
    again = run_json("score", "--replay", table, "--out", tmp_path / "again.parquet")
    assert again["groups"] == {
        "by": "problem.name", "within": "standardised", "num_groups": 9, "num_compared": 7, "num_alone": 2,
    }  # fmt: skip
    assert (tmp_path / "again.parquet").read_bytes() == table.read_bytes()
    found = run_json("select", table, "--per-group", "1", "--exclude-flagged", "only_trace", "--out", out)
    assert (found["num_samples"], found["kept"]) == (7, "1")
    assert "at most 1 of the traces of a question: 7 of 26 traces of 7 questions" in found["notes"][1]
    pairs = run("select", table, "--as", "trl-pairs", "--margin", "0.5", "--count", "3", "--out", tmp_path / "p.jsonl")
    assert "p.jsonl: 3 of 7 pairs, smallest margin kept" in pairs.stdout
    grouped = run_json("score", store.location, "--target", "group", "--out", tmp_path / "group.parquet")
    assert (grouped["num_with_value"], grouped["flags"]["only_trace"]) == (26, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["score", "{store}", "--within-as", "centred"], "--within-as centred needs --within"),
        (["score", "{store}", "--within", "id", "--group-by", "id"], "--within id already names the field"),
        (["score", "{store}", "--within", "who"], "has a field 'who'"),
        (["select", "{scores}", "--margin", "1"], "--margin needs a format for pairs: give --as"),
        (
            ["select", "{scores}", "--as", "trl-pairs", "--margin", "9"],
            "values differ by 9, so there are no pairs; the",
        ),
    ],
)
def test_the_commands_say_what_is_wrong(store: Store, scores: Path, tmp_path: Path, words, message: str) -> None:
    places = {"store": store.location, "scores": scores}
    result = run(*(word.format(**places) for word in words), "--out", tmp_path / "out", code=1)
    assert message in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "parts",
    [("What?",), ('a"b\\\n\u2028é😀\x7f\x01', ImageRef("p/é.png"), " and ", ImageRef(b"bytes of an image")), ("",)],
)
def test_the_digest_of_a_question_is_that_of_the_format(parts: tuple[str | ImageRef, ...]) -> None:
    turns = (Turn("system", ("Be brief.",)), Turn("user", parts))
    said = [
        [turn.role, [part if isinstance(part, str) else ["image", source_of(part)] for part in turn.parts]]
        for turn in turns
    ]
    whole = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    sample = Sample("x", turns, "One.\n2", (0, 5, 6))
    assert prompt_digest(sample) == hashlib.sha256(whole.encode()).digest()[:16]
    assert text_digest(sample) == hashlib.sha256(f'[{whole},"One.\\n2"]'.encode()).digest()[:16]


def source_of(image: ImageRef) -> str:
    return image.source if isinstance(image.source, str) else hashlib.sha256(image.source).hexdigest()


def test_the_plan_has_the_questions_and_the_lengths_of_responses(store: Store) -> None:
    with open_dataset(store) as dataset:
        samples = UnitLoader(store, dataset).read(0, store.plan.num_samples)
    assert [bytes(digest) for digest in store.column("sample_question")] == [prompt_digest(each) for each in samples]
    assert store.column("sample_num_characters").tolist() == [len(each.response) for each in samples]
    sizes = [len(each.response.encode()) + 1 for each in samples]
    per_unit = store.plan.samples_per_unit
    assert store.plan.tokens_per_unit == max(sum(sizes[i : i + per_unit]) for i in range(0, len(sizes), per_unit))
