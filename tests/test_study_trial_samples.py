"""Random subsets follow the rules of the subset that they are compared with, and are drawn fairly."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import grace_store as gs
from grace_store.base.documents import read_document, write_document
from grace_store.base.errors import DataError, SettingError
from grace_store.base.files import sidecar_of
from grace_store.choose.duplicates import duplicates
from grace_store.choose.selection import SubsetNote
from grace_store.store.opened import Store
from grace_store.study.contamination import contamination
from grace_store.study.trial_documents import TrialSamples, TrialSpec
from grace_store.study.trial_samples import DrawSource, _Draws, gather_samples
from grace_store.values.diverse_orders import METHODS
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.random_values import random_values
from tests.benchmark_stores import extracted, planned, write_records
from tests.example_notes import TRAINING
from tests.influence_stores import cadc_scores

NUM_QUESTIONS, NUM_TRACES, SEED = 15, 4, 5
FIRST_DRAW = 0x74726169647261
"""Seed of the values that the first random subset is drawn by."""
SPEC = TrialSpec(training=TRAINING, num_random=8, held_out="other.jsonl")


def trace(question: int, number: int) -> dict[str, Any]:
    """Return a trace; `source` is the same for all traces of a question, `style` is not."""
    colour = ("red", "green", "blue")[question % 3]
    prompt = f"Question {question}: how many boxes of {colour} paint stay in row {question} of the old shed?"
    steps = [f"Take {question} and {number}.", *(f"Add {j * number} to row {j}." for j in range(1 + number % 3))]
    if (question + number) % 5 == 0:
        steps = ["He counts all boxes again."] * 6
    return {
        "id": f"q{question}-{number}",
        "prompt": prompt,
        "steps": steps,
        "answer": f"{question * 7 + number}",
        "source": f"s{question % 3}",
        "style": number % 2,
        "is_first": question == 0,
    }


RECORDS = [trace(question, number) for question in range(NUM_QUESTIONS) for number in range(NUM_TRACES)]
QUESTION = np.repeat(np.arange(NUM_QUESTIONS), NUM_TRACES)
SOURCE = np.array([record["source"] for record in RECORDS])
STYLE = np.array([record["style"] for record in RECORDS])


class Home(NamedTuple):
    """A pool with a table of random scores, and traces to measure models on."""

    folder: Path
    store: Store
    other: Store

    @property
    def scores(self) -> Path:
        return self.folder / "scores.parquet"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("like")
    store = extracted(folder, RECORDS)
    others = [{**trace(100 + number, 1), "id": f"other-{number}"} for number in range(9)]
    gs.score(store, ScoreSpec(measure=("random",), seed=SEED), out=folder / "scores.parquet")
    return Home(folder, store, planned(folder / "other", others))


def write_subset(home: Home, path: Path, request: gs.Selection, **size: Any) -> Path:
    gs.export(gs.select(home.scores, request, **size), path)
    return path


def gather(home: Home, *paths: Path, **changes: Any) -> TrialSamples:
    files = [(path, None) for path in paths]
    return gather_samples(home.store, files, SPEC.model_copy(update=changes), home.other, None)


def arms(home: Home, path: Path, **changes: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the positions of a subset and of each of its random ones."""
    chosen, *randoms = (arm.positions for arm in gather(home, path, **changes).arms_of(0))
    return chosen, randoms


# ---------------------------------------------------------------- the fault


def test_of_one_trace_of_each_question_every_random_subset_has_as_many_questions(home: Home, tmp_path: Path) -> None:
    path = write_subset(home, tmp_path / "best.jsonl", gs.Selection(per_group=1))
    held = SPEC.model_copy(update={"held_out": "8"})
    found = gather_samples(home.store, [(path, None)], held, None, None)
    assert len(found.arms) == 9
    assert set(found.num_questions.values()) == {NUM_QUESTIONS}
    for arm in found.arms.values():
        assert Counter(QUESTION[arm.positions].tolist()).most_common(1)[0][1] == 1
        assert len(arm.positions) == NUM_QUESTIONS - 8
    assert len({arm.positions.tobytes() for arm in found.arms.values()}) == 9


# ---------------------------------------------------------------- what is followed


@pytest.mark.parametrize("method", METHODS)
def test_random_subsets_are_made_diverse_as_theirs_was(home: Home, tmp_path: Path, method: Any) -> None:
    """By the order that select makes of the same random values."""
    request = gs.Selection(diversity=method, per_group=2)
    path = write_subset(home, tmp_path / "subset.jsonl", request, count=12)
    _, randoms = arms(home, path)
    row = np.arange(len(RECORDS))
    table = gs.read_scores(home.scores, steps=False)
    for draw, found in enumerate(randoms):
        values = pa.array(random_values(FIRST_DRAW + draw, row))
        place = table.table.column_names.index("value")
        drawn = replace(table, table=table.table.set_column(place, "value", values))
        assert gs.select(drawn, request, count=12).row.tolist() == found.tolist()


def test_near_duplicates_are_left_out_of_random_subsets_too(home: Home, tmp_path: Path) -> None:
    """By groups that a table says, or that a search finds anew."""
    twins = [{**record, "id": f"twin-{record['id']}"} for record in RECORDS[:20]]
    store = extracted(tmp_path, [*RECORDS[:20], *twins])
    gs.score(store, ScoreSpec(measure=("random",), seed=SEED), out=tmp_path / "scores.parquet")
    duplicates(store, threshold=0.9999).write(tmp_path / "duplicates.parquet")
    mine = home._replace(folder=tmp_path, store=store)
    spec = gs.DiversitySpec(method="dedup", similarity=0.9999)
    for name, table in (("table", tmp_path / "duplicates.parquet"), ("search", None)):
        request = gs.Selection(diversity=spec, duplicates=table)
        for each in (chosen_and_randoms := [*arms(mine, write_subset(mine, tmp_path / name, request, count=10))[1]]):
            assert len(set((each % 20).tolist())) == 10
        assert len({each.tobytes() for each in chosen_and_randoms}) == 8


def test_contaminated_samples_are_in_no_random_subset(home: Home, tmp_path: Path) -> None:
    found = contamination(home.store, [write_records(tmp_path / "bench.jsonl", RECORDS[:4])])
    assert found.contaminated.tolist() == [0, 1, 2, 3]
    path = write_subset(home, tmp_path / "s.jsonl", gs.Selection(exclude_contaminated=found, per_group=1))
    chosen, randoms = arms(home, path)
    assert len(chosen) == NUM_QUESTIONS - 1
    assert all(sorted(set(QUESTION[each].tolist())) == list(range(1, NUM_QUESTIONS)) for each in randoms)


def test_capabilities_are_as_many_as_in_the_subset(home: Home, tmp_path: Path) -> None:
    table = gs.read_scores(cadc_scores(tmp_path))
    gs.export(gs.select(table, count=10), tmp_path / "s.jsonl")
    assert table.capability is not None
    chosen, randoms = arms(home._replace(store=Store.open(table.note.store)), tmp_path / "s.jsonl")
    wanted = Counter(table.capability[chosen].tolist())
    assert len(wanted) == 3
    assert [Counter(table.capability[each].tolist()) for each in randoms] == [wanted] * 8


# ---------------------------------------------------------------- how they are drawn


def test_plain_random_subsets_are_what_they_always_were(home: Home, tmp_path: Path) -> None:
    """The first by random values of seed and row alone, whether the subset is a list of ids or was selected."""
    row = np.arange(len(RECORDS))
    expected = [np.sort(np.argsort(-random_values(FIRST_DRAW + draw, row))[:12]).tolist() for draw in range(8)]
    path = write_subset(home, tmp_path / "subset.jsonl", gs.Selection(), count=12)
    (tmp_path / "ids.txt").write_text("".join(f"{RECORDS[i]['id']}\n" for i in range(12)))
    for each in (path, tmp_path / "ids.txt"):
        assert [drawn.tolist() for drawn in arms(home, each)[1]] == expected
    both = gather(home, path, tmp_path / "ids.txt")
    assert [each.random for each in both.subsets] == [1, 1]


def test_subsets_of_one_size_but_other_rules_have_random_subsets_of_their_own(home: Home, tmp_path: Path) -> None:
    plain = write_subset(home, tmp_path / "plain.jsonl", gs.Selection(), count=12)
    best = write_subset(home, tmp_path / "best.jsonl", gs.Selection(per_group=1), count=12)
    assert [each.random for each in gather(home, plain, best).subsets] == [1, 2]


@pytest.mark.parametrize(
    ("request_", "count", "num_sets"),
    [
        (gs.Selection(per_group=1), 2, 3 * 2 * 2),
        (gs.Selection(per_group=1), 3, 2 * 2 * 2),
        (gs.Selection(by="style"), 3, 3 * 3),
        (gs.Selection(by="is_first", per_group=1), 2, 2 * 4),
        (gs.Selection(where="style = 1"), 2, 3),
    ],
    ids=["some questions", "all questions", "strata", "strata and questions", "filter"],
)
def test_all_that_the_rules_allow_is_equally_likely(
    tmp_path: Path, request_: gs.Selection, count: int, num_sets: int
) -> None:
    """Three questions with two traces each; `style` differs between the traces of a question."""
    store = extracted(tmp_path, [trace(question, number) for question in range(3) for number in range(2)])
    gs.score(store, ScoreSpec(measure=("tokens",)), out=tmp_path / "scores.parquet")
    home = Home(tmp_path, store, store)
    chosen = DrawSource.read(store, write_subset(home, tmp_path / "s.jsonl", request_, count=count), None)
    spec = SPEC.model_copy(update={"num_random": 200 * num_sets})
    _, randoms = _Draws(chosen.possible, spec).like(chosen, "s.jsonl")
    drawn = Counter(tuple(chosen.possible[each].tolist()) for each in randoms)
    assert len(drawn) == num_sets
    assert max(abs(number - 200) for number in drawn.values()) < 5 * np.sqrt(200)


# ---------------------------------------------------------------- what cannot be followed


def test_strata_in_which_traces_of_a_question_differ_may_leave_too_few(home: Home, tmp_path: Path) -> None:
    path = write_subset(home, tmp_path / "best.jsonl", gs.Selection(per_group=1, by="style"))
    told = r"best\.jsonl has \d+ samples of one stratum, but only \d+ samples can be drawn by its rules"
    with pytest.raises(SettingError, match=told):
        gather(home, path)
    path = write_subset(home, tmp_path / "fair.jsonl", gs.Selection(per_group=1, by="source"))
    chosen, randoms = arms(home, path)
    assert [Counter(SOURCE[each].tolist()) for each in randoms] == [Counter(SOURCE[chosen].tolist())] * 8


def test_fewer_samples_than_a_subset_has_are_refused(home: Home, tmp_path: Path) -> None:
    """The other subset could only have had what is in the first one, so there is less to draw from."""
    half = write_subset(home, tmp_path / "half.jsonl", gs.Selection(per_group="0.5"))
    rows = ", ".join(str(row) for row in arms(home, half)[0].tolist())
    other = write_subset(home, tmp_path / "other.jsonl", gs.Selection(where=f"row in ({rows})"), count=20)
    with pytest.raises(SettingError, match=r"half\.jsonl has 30 samples, but only 15 samples can be drawn"):
        gather(home, half, other)


def test_a_subset_that_its_rules_do_not_choose_is_refused(home: Home, tmp_path: Path) -> None:
    path = write_subset(home, tmp_path / "subset.jsonl", gs.Selection(per_group=1))
    note = read_document(sidecar_of(path), SubsetNote)
    other = note.spec.model_copy(update={"per_group": "2"})
    write_document(sidecar_of(path), note.model_copy(update={"spec": other}))
    told = r"subset\.jsonl cannot be chosen again by the rules in its note: 15 samples would be added"
    with pytest.raises(DataError, match=told):
        gather(home, path)


def test_rules_that_leave_no_other_choice_are_refused(home: Home, tmp_path: Path) -> None:
    path = write_subset(home, tmp_path / "all.jsonl", gs.Selection(per_group=4))
    with pytest.raises(SettingError, match=r"all\.jsonl holds all samples that its rules could choose, so random sub"):
        gather(home, path)
