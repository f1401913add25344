"""Every field of a selection is varied, and looked at in select, compare, a trial's random arms and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import grace_store as gs
from grace_store.base.documents import read_document
from grace_store.base.errors import DataError, SettingError
from grace_store.base.files import sidecar_of
from grace_store.choose.duplicates import duplicates
from grace_store.choose.select import read_subset, replay_subset
from grace_store.choose.selection import NOTHING, SIZES, Selection, SubsetNote
from grace_store.likeness.clusters import cluster_vectors
from grace_store.pool.descriptors import describe_samples
from grace_store.store.opened import Store
from grace_store.study.contamination import contamination
from grace_store.study.trial import prepare_trial
from grace_store.study.trial_documents import TrialRequest
from grace_store.study.trial_samples import gather_samples
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.random_values import random_values
from tests.benchmark_stores import extracted, planned, write_records
from tests.test_study_trial_samples import RECORDS, SEED, SPEC, trace

NUM_RANDOM = 4
Check = Callable[["Home", np.ndarray], Any]
"""What is the same of a subset and its random ones, by the positions of either."""

TWINS = [{**record, "id": f"twin-{record['id']}"} for record in RECORDS[:12]]
ALL = [*RECORDS, *TWINS]
QUESTION = np.array([record["prompt"] for record in ALL])
SOURCE = np.array([record["source"] for record in ALL])


class Home(NamedTuple):
    """A pool with a table of random scores, what is needed to choose from it, and traces to measure models on."""

    folder: Path
    store: Store
    other: Store

    @property
    def scores(self) -> Path:
        return self.folder / "scores.parquet"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("fields")
    store = extracted(folder, ALL)
    others = [{**trace(100 + number, 1), "id": f"other-{number}"} for number in range(9)]
    gs.score(store, ScoreSpec(measure=("random",), seed=SEED), out=folder / "scores.parquet")
    duplicates(store, threshold=0.8, floor=0.8).write(folder / "duplicates.parquet")
    contamination(store, [write_records(folder / "bench.jsonl", RECORDS[16:20])]).write(folder / "against.parquet")
    graded = (f"{record['id']},{'abc'[place % 3]}\n" for place, record in enumerate(ALL))
    (folder / "labels.csv").write_text("id,grade\n" + "".join(graded))
    gs.export(gs.select(folder / "scores.parquet", ratio="0.3"), folder / "plain.txt", as_format="ids")
    return Home(folder, store, planned(folder / "other", others))


# ---------------------------------------------------------------- a value of every field, and what it does


class Case(NamedTuple):
    """A value of one field, what it does to a choice, and what compare and the report say of it."""

    given: dict[str, Any]
    """The field and what it cannot be without; names of tables are those of files in the home."""
    holds: Check
    words: str
    """What is said of the field."""


def size(home: Home, positions: np.ndarray) -> int:
    return len(positions)


def cluster_sizes(home: Home, positions: np.ndarray) -> list[int]:
    vector = describe_samples(home.store).vector
    return sorted(Counter(cluster_vectors(vector, 6, seed=0).label[positions].tolist()).values())


def num_groups(home: Home, positions: np.ndarray) -> int:
    """Return how many samples are no near-duplicates of each other."""
    group = gs.read_duplicates(home.folder / "duplicates.parquet").group
    return len(set(np.where(group < 0, -np.arange(1, len(group) + 1), group)[positions].tolist()))


CASES: dict[str, Case] = {
    "ratio": Case({"ratio": "0.4"}, size, "the best 0.4"),
    "count": Case({"count": 17}, size, "the best 17"),
    "threshold": Case({"threshold": 0.4}, size, "values from 0.4 on"),
    "by": Case(
        {"by": "source", "count": 24},
        lambda home, positions: Counter(SOURCE[positions].tolist()),
        "strata of source",
    ),
    "exclude_flagged": Case(
        {"exclude_flagged": ("repeated_steps",), "count": 30},
        lambda home, positions: any(len(set(ALL[i]["steps"])) == 1 for i in positions.tolist()),
        "no samples flagged repeated_steps",
    ),
    "exclude_contaminated": Case(
        {"exclude_contaminated": "against.parquet", "count": 40},
        lambda home, positions: bool({*positions.tolist()} & {16, 17, 18, 19}),
        "samples with benchmark items left out (bench.jsonl)",
    ),
    "control": Case(
        {"control": ("length",), "ratio": "0.3"}, size, "response_length, num_steps taken out of the values"
    ),
    "diversity": Case(
        {"diversity": {"method": "clusters", "num_clusters": 6}, "count": 18}, cluster_sizes, "diversity by clusters"
    ),
    "duplicates": Case(
        {"diversity": {"method": "dedup"}, "duplicates": "duplicates.parquet", "count": 15},
        num_groups,
        "near-duplicates last",
    ),
    "where": Case(
        {"where": "source <> 's1' and value > 0.2", "ratio": "0.5"},
        lambda home, positions: ("s1" in SOURCE[positions], (random_values(SEED, positions) > 0.2).all()),
        "a filter (source <> 's1' and value > 0.2)",
    ),
    "per_group": Case(
        {"per_group": "1"},
        lambda home, positions: Counter(QUESTION[positions].tolist()).most_common(1)[0][1],
        "at most 1 of the traces of a question",
    ),
    "margin": Case({"margin": 0.1}, size, "pairs of the best and the worst trace of a question"),
    "group_by": Case(
        {"per_group": "3", "group_by": "source"},
        lambda home, positions: Counter(SOURCE[positions].tolist()),
        "questions told apart by source",
    ),
    "labels": Case(
        {"labels": "labels.csv", "where": "grade = 'a'", "ratio": "0.5"},
        lambda home, positions: bool((positions % 3 == 0).all()),
        "labels from a file (labels.csv)",
    ),
    "right": Case({"right": "row % 2 = 0"}, size, "pairs of a right and a wrong trace of a question"),
}
OF_PAIRS = "holds pairs of traces. A trial would train only on the better trace of each pair"
REFUSED_IN_TRIALS = {"margin": OF_PAIRS, "right": OF_PAIRS}
IN_RANKS = {"exclude_flagged", "control"}
"""Fields that ranks follow, so that they need not be the reason for a change."""

every_field = pytest.mark.parametrize("field", Selection.model_fields)


def selection(home: Home, field: str) -> Selection:
    tables = {name: str(home.folder / name) for name in ("against.parquet", "duplicates.parquet", "labels.csv")}
    given = {
        name: tables.get(value, value) if isinstance(value, str) else value
        for name, value in CASES[field].given.items()
    }
    return Selection.parse(**given)


def written(home: Home, field: str, folder: Path) -> Path:
    """Choose by a field, and write the subset."""
    subset = gs.select(home.scores, selection(home, field))
    as_format = "trl-pairs" if subset.rejected is not None else "source"
    gs.export(subset, folder / "varied.jsonl", as_format=as_format)
    return folder / "varied.jsonl"


def test_every_field_has_its_case() -> None:
    assert CASES.keys() == Selection.model_fields.keys()
    assert all(name in case.given for name, case in CASES.items())


# ---------------------------------------------------------------- select


@every_field
def test_select_follows_the_field_and_its_note_says_so(home: Home, tmp_path: Path, field: str) -> None:
    """The field changes what is chosen; its note holds it, and chooses the same samples again."""
    note = read_document(sidecar_of(written(home, field, tmp_path)), SubsetNote)
    without = {name: value for name, value in selection(home, field).given.items() if name != field}
    if field == "labels":
        with pytest.raises(SettingError, match="has a field 'grade'"):
            gs.select(home.scores, **without)
    else:
        assert list(note.rows) != gs.select(home.scores, **without).row.tolist()
    assert field in note.spec.given
    again = read_subset(tmp_path / "varied.jsonl")
    assert replay_subset(again).rank().take().row.tolist() == list(note.rows)
    assert (again.rejected_row is None) == (field not in REFUSED_IN_TRIALS)


# ---------------------------------------------------------------- compare


@every_field
def test_compare_names_the_field_and_gives_no_other_reason(home: Home, tmp_path: Path, field: str) -> None:
    case, path = CASES[field], written(home, field, tmp_path)
    found = gs.compare(home.folder / "plain.txt", path)
    told = found.tables["rules"].row(rule=field)
    assert case.words in str(told["b"])
    assert (told["a"] == NOTHING) == (field != "ratio")
    differing = {row["rule"] for row in found.tables["rules"]}
    note = read_document(sidecar_of(path), SubsetNote)
    assert differing == {*note.spec.given} ^ {"ratio"} | ({"ratio"} if note.spec.ratio not in (None, "0.3") else set())
    reasons = {str(row["why"]) for row in found.tables["left"] if not row["by_rank"]}
    if field in SIZES or field in IN_RANKS:
        assert all(each.startswith(("the other keeps", "left out of the other for its flags")) for each in reasons)
    else:
        assert all(case.words.partition(" (")[0] in each for each in reasons)


# ---------------------------------------------------------------- trial


@every_field
def test_random_arms_follow_the_field(home: Home, tmp_path: Path, field: str) -> None:
    case, path = CASES[field], written(home, field, tmp_path)
    if field in REFUSED_IN_TRIALS:
        with pytest.raises(DataError, match=REFUSED_IN_TRIALS[field]):
            prepare_trial(tmp_path / "out", TrialRequest(subsets=[path]))
        return
    spec = SPEC.model_copy(update={"num_random": NUM_RANDOM})
    chosen, *randoms = (
        arm.positions for arm in gather_samples(home.store, [(path, None)], spec, home.other, None).arms_of(0)
    )
    assert len({each.tobytes() for each in (chosen, *randoms)}) == NUM_RANDOM + 1
    assert {len(each) for each in randoms} == {len(chosen)}
    assert [case.holds(home, each) for each in randoms] == [case.holds(home, chosen)] * NUM_RANDOM


# ---------------------------------------------------------------- the report


@every_field
def test_the_report_says_how_the_subset_was_chosen(home: Home, tmp_path: Path, field: str) -> None:
    from grace_store.pages.report_inputs import ReportInputs, ReportRequest

    path = written(home, field, tmp_path)
    (note,) = ReportInputs.read(home.store, ReportRequest(subsets=[path])).subset_notes.values()
    assert CASES[field].words in "; ".join(note.spec.rules.values())


def test_a_field_that_has_no_words_of_its_own_is_told_by_its_name() -> None:
    class LaterSelection(Selection):
        season: str | None = None

    later = LaterSelection(count=3, by="kind", season="winter")
    assert list(later.rules.values()) == ["the best 3", "strata of kind", "season winter"]
    assert later.differences(LaterSelection(count=3)) == [
        ("by", "strata of kind", NOTHING),
        ("season", "season winter", NOTHING),
    ]
