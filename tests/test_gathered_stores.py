"""Whatever is made from a store whose plan gathers questions is what the same store makes with its records in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pydantic import BaseModel

import grace_store as gs
from grace_store.base.finding import LabelsNote
from grace_store.base.training_settings import WarmupSpec
from grace_store.choose.exports import EXPORTS
from grace_store.pool.records import SampleRecords, columns_of_rows
from grace_store.run.extract import extract
from grace_store.store.opened import Store
from grace_store.study.trial_documents import TrialSpec
from grace_store.study.trial_samples import gather_samples
from grace_store.train.recipe import choose_samples
from grace_store.values.methods.method import ScoreSpec
from tests.example_notes import TRAINING
from tests.grouped_stores import TRACES, grouped_job
from tests.reports import read_page


class Both(NamedTuple):
    """The two stores."""

    plain: Store
    gathered: Store


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp("gathered")
    jobs = grouped_job(folder, "plain", copies=6), grouped_job(folder, "gathered", copies=6, gather=True)
    found = Both(*(extract(job).store for job in jobs))
    rows = found.gathered.column("sample_row")
    assert (rows[1:] < rows[:-1]).any()
    return found


def by_row(table: gs.ScoreTable) -> list[dict[str, Any]]:
    """Return a table's rows in the order of the dataset; groups are numbered as they occur there."""
    rows = sorted(table.table.to_pylist(), key=lambda each: each["row"])
    numbers: dict[int, int] = {}
    return [row | {"group": numbers.setdefault(row.get("group"), len(numbers))} for row in rows]


def assert_alike(found: Any, expected: Any) -> None:
    """Assert equality, of floats up to how their sums are rounded."""
    if isinstance(expected, BaseModel):
        assert_alike(found.model_dump(), expected.model_dump())
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, each in expected.items():
            assert_alike(found[key], each)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_alike(*pair)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-7, nan_ok=True)
    else:
        assert found == expected


TWO_ALPHAS = gs.Grid(alpha="0.1,0.9")
LONGEST = ScoreSpec(measure=("tokens",))  # which has many ties
SCORES = {
    "default": gs.ScoreRequest(),
    "longest": gs.ScoreRequest(spec=LONGEST),
    "random": gs.ScoreRequest(spec=ScoreSpec(measure=("random",))),
    "within": gs.ScoreRequest(within="standardised"),
    "group": gs.ScoreRequest(spec=gs.ScoreSpec(target="group"), group_by="problem.name"),
    "where": gs.ScoreRequest(where="half = 1 and row < 25"),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores(both: Both, name: str) -> None:
    plain, gathered = (gs.score(store, SCORES[name]) for store in both)
    assert_alike(by_row(gathered), by_row(plain))


def test_learned_values(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are dealt to folds in the order of their first records, whatever field names them."""
    monkeypatch.setattr("grace_store.scoring.learn.FEWEST_LABELS", 8)
    right = LabelsNote(field="row % 3 = 0", says="traces")
    request = gs.ScoreRequest(spec=ScoreSpec(learn=True), learn_from=right, group_by="id")
    plain, gathered = (gs.score(store, request) for store in both)
    np.testing.assert_allclose(*(each.value[np.argsort(each.row)] for each in (gathered, plain)), atol=1e-5)
    assert_alike(gathered.note.learned, plain.note.learned)


def test_tables_know_the_question_of_each_sample(both: Both) -> None:
    for store in both:
        table = gs.score(store)
        prompts = columns_of_rows(store, table.row, ["problem.name"])["problem.name"]
        numbers = dict(zip(prompts, table.question.tolist(), strict=True))
        assert [numbers[each] for each in prompts] == table.question.tolist()
        assert len(set(numbers.values())) == len(numbers) > 1


@pytest.mark.parametrize("seed", range(3))
def test_noise_of_other_batches_chooses_no_other_records(both: Both, seed: int) -> None:
    """Copies differ by 7e-8 in other batches. Before, a store that gathers chose other copies than a plain one."""
    rng = np.random.default_rng(seed)
    for selection in (gs.Selection(per_group=1), gs.Selection()):
        chosen = []
        for store in both:
            table = gs.score(store)
            noisy = table.value + rng.uniform(-7e-8, 7e-8, len(table))
            place = table.table.column_names.index("value")
            changed = replace(table, table=table.table.set_column(place, "value", pa.array(noisy)))
            chosen.append(sorted(gs.select(changed, selection, ratio="0.3").row.tolist()))
        assert chosen[0] == chosen[1]


RANKINGS = {
    "value": gs.Selection(),
    "strata": gs.Selection(by="half"),
    "questions": gs.Selection(per_group=1),
    "pairs": gs.Selection(margin=0.0),
    "filter": gs.Selection(where="half = 0"),
    "control": gs.Selection(control=["length"]),
    "dedup": gs.Selection(diversity="dedup"),
    "mmr": gs.Selection(diversity="mmr"),
    "facility": gs.Selection(diversity="facility"),
}


@pytest.mark.parametrize("spec", [gs.ScoreSpec(), LONGEST], ids=["grace", "ties"])
@pytest.mark.parametrize("name", RANKINGS)
def test_subsets(both: Both, tmp_path: Path, name: str, spec: Any) -> None:
    chosen = []
    for store, place in zip(both, ("plain", "gathered"), strict=True):
        gs.score(store, spec, out=tmp_path / f"{place}.parquet")
        chosen.append(gs.select(tmp_path / f"{place}.parquet", RANKINGS[name], ratio="0.3"))
    plain, gathered = chosen
    assert gathered.row.tolist() == plain.row.tolist() == sorted(plain.row.tolist())
    assert gathered.sample_id == plain.sample_id
    assert gathered.scores.row[gathered.ranked].tolist() == plain.scores.row[plain.ranked].tolist()
    if plain.rejected_row is not None:
        assert gathered.rejected_row.tolist() == plain.rejected_row.tolist()


@pytest.mark.parametrize("kind", [name for name in EXPORTS if name != "datasets"])
def test_exports(both: Both, tmp_path: Path, kind: str) -> None:
    request = gs.Selection(margin=0.0) if EXPORTS[kind].is_of_pairs else gs.Selection()
    written = []
    for store, place in zip(both, ("plain", "gathered"), strict=True):
        subset = gs.select(gs.score(store, LONGEST if kind == "ids" else gs.ScoreSpec()), request, ratio="0.5")
        out = tmp_path / place / "subset"
        gs.export(subset, out, as_format=kind, store=store.location)
        written.append(out.read_bytes())
    assert written[0] == written[1]


def test_step_weights_and_their_exports(both: Both, tmp_path: Path) -> None:
    rows, written = np.arange(both.plain.plan.num_samples), []
    for store, place in zip(both, ("plain", "gathered"), strict=True):
        gs.weights(store, out=tmp_path / f"{place}.parquet")
        found = gs.read_weights(tmp_path / f"{place}.parquet")
        subset = gs.select(gs.score(store), ratio="0.5")
        places = {"weights": tmp_path / f"{place}.parquet", "store": store.location}
        gs.export(subset, tmp_path / place / "subset.jsonl", as_format="ms-swift", **places)
        weights = [each.tolist() for each in found.segment_weights(rows)]
        written.append((weights, (tmp_path / place / "subset.jsonl").read_bytes()))
    assert_alike(written[1], written[0])


MADE: dict[str, Callable[[Store, Path], Any]] = {
    "duplicates": lambda store, _: gs.duplicates(store).table.to_pylist(),
    "duplicates that are kept by value": lambda store, _: (
        gs.duplicates(store, scores=gs.score(store), threshold=0.6, floor=0.5).dropped
    ),
    "sweep": lambda store, folder: [
        each.tolist()
        for swept in [gs.sweep(store, gs.SweepSpec(ratio=("0.2", "0.5"), grid=(TWO_ALPHAS,)), out=folder / "sweep")]
        for each in (swept.jaccard, swept.rank_correlation)
    ],
    "stability": lambda store, _: gs.stability(store, gs.StabilitySettings(draws=20)).tables,
    "neighbours": lambda store, _: [each["sample_id"] for each in gs.neighbours(store, "q3-1", 5).tables["neighbours"]],
    "audit": lambda store, _: [
        list(each.rows) for each in gs.audit(gs.score(store, LONGEST), ratio="0.4", by="half").tables.values()
    ],
    "diversity": lambda store, _: [
        [
            row[name] for name in ("mean_value", "vendi", "nearest_distance", "share_alike")
        ]  # clusters begin with some sample
        for row in gs.diversity(store, scores=gs.score(store), ratio=["0.3"]).tables["subsets"]
    ],
    "fields by row": lambda store, _: columns_of_rows(store, np.array([7, 0, 30, 2]), ["id"]),
    "field": lambda store, _: dict(
        zip(store.column("sample_row").tolist(), SampleRecords(store).each("id"), strict=True)
    ),
    "warm-up": lambda store, _: choose_samples(store, WarmupSpec(ratio="0.3", num_heldout=4))[0].model_dump(),
    "against": lambda store, folder: gs.contamination(
        store, [benchmark(folder.parent)], ngram=2, share=0.5
    ).table.to_pylist(),
    "inspect": lambda store, _: {**gs.inspect(store, "#11"), "sample": 0, "unit": 0},
}


def benchmark(folder: Path) -> Path:
    path = folder / "items.jsonl"
    asked = [f"What is question {number}?" for number in (3, 7)]
    path.write_text("".join(json.dumps({"prompt": each, "response": "None."}) + "\n" for each in asked))
    return path


@pytest.mark.parametrize("name", MADE)
def test_all_else(both: Both, tmp_path: Path, name: str) -> None:
    found = []
    for store, place in zip(both, ("plain", "gathered"), strict=True):
        (tmp_path / place).mkdir()
        found.append(MADE[name](store, tmp_path / place))
    assert found[0]
    assert_alike(found[1], found[0])


def questions(folder: Path) -> Path:
    """Write ten questions, the first of which is one of the stores'."""
    path = folder / "other.jsonl"
    asked = ["what is  Question 0", *(f"Another question, number {number}?" for number in range(9))]
    lines = [{"prompt": each, "steps": ["One.", "Two."], "answer": "3"} for each in asked]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_trial_trains_on_the_same_samples(both: Both, tmp_path: Path) -> None:
    spec = TrialSpec(training=TRAINING, num_random=2, held_out="other.jsonl")
    other = gs.plan([questions(tmp_path)], tmp_path / "other.zarr", gs.DataSpec(min_steps=1, gather=True))
    arms = []
    for store, place in zip(both, ("plain", "gathered"), strict=True):
        gs.score(store, out=tmp_path / f"{place}.parquet")
        gs.export(gs.select(tmp_path / f"{place}.parquet", ratio="0.5"), tmp_path / f"{place}.jsonl")
        found = gather_samples(store, [(tmp_path / f"{place}.jsonl", None)], spec, other, None)
        rows = store.column("sample_row")
        arms.append({key: sorted(rows[arm.positions].tolist()) for key, arm in found.arms.items()})
        assert found.num_held_out_samples == TRACES[0] + 1
    assert arms[0] == arms[1]


def test_a_report_shows_each_trace_with_its_own_steps(both: Both, tmp_path: Path) -> None:
    shown = []
    for store in both:
        gs.report(store, tmp_path / "page.html", gs.ReportRequest())
        page = read_page(tmp_path / "page.html")
        index, blocks = page.document("trace-index"), page.document("traces-0")
        lines = (each | {"near": [(index["id"][place], cosine) for place, cosine in each["near"]]} for each in blocks)
        shown.append(dict(zip(index["id"], lines, strict=True)))
    assert_alike(shown[1], shown[0])
