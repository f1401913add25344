"""From tables to subsets to files: exact budgets, deterministic ties, the records as they were."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace_store.config import DataRequest
from grace_store.data import Dataset
from grace_store.errors import DataError, DatasetChanged, ResumeMismatch, SettingError
from grace_store.job.comparing import compare_subsets
from grace_store.job.exporting import export_subset
from grace_store.job.extract import extract
from grace_store.job.scoring import score_samples, write_score_table
from grace_store.job.selecting import rank_samples, select_samples
from grace_store.score import HeuristicSpec, ScoreSpec
from grace_store.select.files import whole_file, write_lines
from grace_store.select.table import SCHEMA, ScoreTable, read_scores
from tests.jobs import make_job
from tests.scored_stores import known_store

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def table_of(values, num_steps=None, num_tokens=None) -> ScoreTable:
    """Return a table of samples with these values and nothing else of interest."""
    num = len(values)
    steps = np.array(num_steps if num_steps is not None else [1] * num)
    tokens = np.array(num_tokens if num_tokens is not None else [10] * num)
    columns = {
        "sample_id": [f"s{i}" for i in range(num)],
        "row": list(range(num)),
        "num_steps": steps,
        "num_tokens": tokens + 1,
        "value": pa.array(values, pa.float64(), from_pandas=True),
        **{name: [[0.0] * int(k) for k in steps] for name in ("step_score", "answer_alignment", "history_alignment")},
        "step_num_tokens": [[int(t) // int(k)] * int(k) for k, t in zip(steps, tokens, strict=True)],
        "flags": [[]] * num,
    }
    return ScoreTable(pa.table(columns, schema=SCHEMA), {"spec": {"method": "grace"}})


# ---------------------------------------------------------------- which


@pytest.mark.parametrize(("ratio", "num", "kept"), [("0.2", 15, 3), ("0.07", 100, 7), (0.2, 16, 4), (1, 5, 5)])
def test_budgets_are_exact(ratio, num, kept):
    assert len(select_samples(table_of(np.arange(num) / 7), ratio=ratio)) == kept


def test_ties_keep_the_earlier_record_and_no_value_is_never_kept():
    subset = select_samples(table_of([0.5, np.nan, 0.9, 0.5, np.inf, 0.5]), count=2)
    assert subset.ranked.tolist() == [2, 0]
    assert subset.sample_id == ["s0", "s2"]
    assert (subset.num_with_value, subset.threshold) == (4, 0.5)


def test_thresholds_and_the_default_share():
    table = table_of([0.1, 0.5, 0.3, 0.2, 0.4])
    assert select_samples(table, threshold=0.3).row.tolist() == [1, 2, 4]
    assert len(select_samples(table, threshold=0.9)) == 0
    assert select_samples(table).row.tolist() == [1]


def test_ratios_are_nested():
    ranking = rank_samples(table_of(np.random.default_rng(0).random(50)))
    small, large = (set(ranking.take(ratio=ratio).row.tolist()) for ratio in ("0.1", "0.5"))
    assert small < large


def test_strata_of_k_keep_their_shares():
    steps = [2] * 20 + [5] * 10
    values = np.concatenate([np.linspace(0, 0.1, 20), np.linspace(0.5, 1, 10)])
    assert select_samples(table_of(values, steps), ratio="0.2").row.min() >= 20
    subset = select_samples(table_of(values, steps), ratio="0.2", by="num_steps")
    assert np.bincount(np.array(steps)[subset.row])[[2, 5]].tolist() == [4, 2]
    assert subset.row.tolist() == [16, 17, 18, 19, 28, 29]


def test_control_takes_length_out_of_the_ranking():
    rng = np.random.default_rng(1)
    tokens = rng.integers(10, 1000, 400)
    quality = rng.normal(size=400) * 0.01
    table = table_of(np.log(tokens) + quality, num_tokens=tokens)
    plain, controlled = select_samples(table), select_samples(table, control=["length"])
    assert tokens[plain.row].mean() > 1.5 * tokens.mean()
    assert abs(tokens[controlled.row].mean() / tokens.mean() - 1) < 0.15
    assert quality[controlled.row].mean() > 0.01
    assert controlled.spec["control"] == ["step_length", "response_length", "num_steps"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 0}, "ratio 0 is not a number above 0 and at most 1"),
        ({"ratio": "2"}, "ratio 2 is not"),
        ({"ratio": "0.1", "count": 2}, "give one of ratio, count and threshold"),
        ({"count": 0}, "count 0 is not between 1 and 3"),
        ({"count": 4}, "count 4 is not between 1 and 3"),
        ({"threshold": float("nan")}, "threshold nan is not a number"),
        ({"threshold": 0.1, "by": "num_steps"}, "a threshold has no meaning inside strata"),
        ({"control": ["width"]}, "control 'width' is none of length, step_length"),
    ],
)
def test_selections_without_meaning_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        select_samples(table_of([0.1, 0.2, 0.3]), **settings)


def test_nothing_to_select_is_said():
    with pytest.raises(DataError, match="no sample with a value"):
        select_samples(table_of([np.nan, np.inf]))


# ---------------------------------------------------------------- files


def mmathcot(i: int) -> dict:
    steps = "\n".join(f"Step {j + 1}: look at part {j} of {i}." for j in range(2 + i % 3))
    return {
        "image_url": f"pics/{i}.png",
        "instruction": f"What is {i}?",
        "output": f"{steps}\n†Answer: {i}",
        "subject": "ab"[i % 2],
    }


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A store from MMathCoT records, written with odd spacing, and its table."""
    folder = tmp_path_factory.mktemp("scored")
    lines = [json.dumps(mmathcot(i), ensure_ascii=i % 2 == 0, indent=None, separators=(", ", ":  ")) for i in range(15)]
    (folder / "traces.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    extract(make_job(folder))
    write_score_table(folder / "store.zarr", None, folder / "scores.parquet")
    return folder


def chosen_lines(folder, subset):
    lines = (folder / "traces.jsonl").read_bytes().splitlines()
    return [lines[row] for row in subset.row.tolist()]


def test_the_original_records_come_back_byte_for_byte(scored, tmp_path):
    subset = select_samples(scored / "scores.parquet", ratio="0.2")
    assert len(subset) == 3
    export_subset(subset, tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes().splitlines() == chosen_lines(scored, subset)
    export_subset(subset, tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_bytes()) == [json.loads(line) for line in chosen_lines(scored, subset)]
    assert all(line in (tmp_path / "a.json").read_bytes() for line in chosen_lines(scored, subset))


def test_what_made_a_subset_lies_beside_it_and_is_no_record(scored, tmp_path):
    subset = select_samples(scored / "scores.parquet", count=4)
    export_subset(subset, tmp_path / "a.jsonl")
    made_by = json.loads((tmp_path / "a.jsonl.spec.json").read_text())
    assert made_by["rows"] == subset.row.tolist()
    assert made_by["spec"] == {"count": 4, "by": None, "control": []}
    assert made_by["scores"] == read_scores(scored / "scores.parquet").made_by
    with Dataset.open([tmp_path]) as folder:
        assert [file.path.name for file in folder.files] == ["a.jsonl"]


def test_ms_swift_gets_its_images(scored, tmp_path):
    subset = select_samples(scored / "scores.parquet", ratio="0.2")
    exported = export_subset(subset, tmp_path / "a.jsonl", "ms-swift")
    assert exported.notes == ["3 samples have images"]
    for line, row in zip((tmp_path / "a.jsonl").read_text().splitlines(), subset.row.tolist(), strict=True):
        record = json.loads(line)
        assert record["images"] == [str(scored / f"pics/{row}.png")]
        user, assistant = record["messages"]
        assert user == {"role": "user", "content": f"<image>What is {row}?"}
        assert assistant == {"role": "assistant", "content": mmathcot(row)["output"]}
    export_subset(subset, tmp_path / "b.jsonl", "ms-swift", images="/elsewhere")
    assert json.loads((tmp_path / "b.jsonl").read_text().splitlines()[0])["images"][0].startswith("/elsewhere/pics/")


def test_llama_factory_gets_its_dataset_info_beside_others(scored, tmp_path):
    (tmp_path / "dataset_info.json").write_text('{"other": {"file_name": "other.json"}}')
    subset = select_samples(scored / "scores.parquet", ratio="0.2")
    exported = export_subset(subset, tmp_path / "best.jsonl", "llama-factory")
    info = json.loads((tmp_path / "dataset_info.json").read_text())
    assert info["other"] == {"file_name": "other.json"}
    assert info["best"]["file_name"] == "best.jsonl"
    assert info["best"]["columns"] == {"messages": "messages", "images": "images"}
    assert [path.name for path in exported.files] == ["best.jsonl", "dataset_info.json", "best.jsonl.spec.json"]


def test_a_datasets_folder_is_read_back(scored, tmp_path):
    subset = select_samples(scored / "scores.parquet", ratio="0.2")
    export_subset(subset, tmp_path / "hf", "datasets")
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == [
        "data-00000-of-00001.arrow", "dataset_info.json", "state.json"
    ]  # fmt: skip
    expected = [json.loads(line) for line in chosen_lines(scored, subset)]
    with pa.OSFile(str(tmp_path / "hf/data-00000-of-00001.arrow")) as source:
        assert pa.ipc.open_stream(source).read_all().to_pylist() == expected
    with Dataset.open([tmp_path / "hf"]) as again:
        assert [record.parse() for record in again.scan()] == expected
    export_subset(subset, tmp_path / "hf", "datasets")  # replaces its own
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").touch()
    with pytest.raises(SettingError, match="was not made by this command"):
        export_subset(subset, tmp_path / "mine", "datasets")


def test_step_scores_are_joined_to_the_records_with_their_places(scored, tmp_path):
    table = read_scores(scored / "scores.parquet")
    subset = select_samples(scored / "scores.parquet", ratio="0.5", by="num_steps")
    export_subset(subset, tmp_path / "a.jsonl", "steps")
    for line, row in zip((tmp_path / "a.jsonl").read_bytes().splitlines(), subset.row.tolist(), strict=True):
        original = (scored / "traces.jsonl").read_bytes().splitlines()[row]
        assert line.startswith(original[:-1])
        record = json.loads(line)
        added, response = record.pop("grace_store"), record["output"]
        assert record == mmathcot(row)
        assert added["value"] == table.value[row]
        assert added["step_score"] == table.table["step_score"][row].as_py()
        assert added["history_alignment"][0] is None
        segments = [response[start:stop] for start, stop in [*added["step_span"], added["answer_span"]]]
        assert "".join(segments) == response
        assert [text.startswith(f"Step {j + 1}:") for j, text in enumerate(segments[:-1])] == [True] * len(
            added["step_score"]
        )


def test_strata_of_a_field_keep_their_shares(scored):
    subset = select_samples(scored / "scores.parquet", count=6, by="subject")
    assert sorted(row % 2 for row in subset.row.tolist()) == [0, 0, 0, 1, 1, 1]
    with pytest.raises(SettingError, match="no record has a field 'colour'"):
        select_samples(scored / "scores.parquet", by="colour")


def test_a_table_in_memory_selects_and_exports_too(scored, tmp_path):
    subset = select_samples(score_samples(scored / "store.zarr"), ratio="0.2")
    export_subset(subset, tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes().splitlines() == chosen_lines(scored, subset)
    assert subset.to_pandas().value.is_monotonic_decreasing


def test_images_inside_records_are_written_out(tmp_path):
    records = [
        {"id": f"r{i}", "prompt": "<image> and <image>?", "steps": ["a b", "c"], "answer": "d",
         "images": [{"bytes": PNG, "path": None}, {"bytes": PNG + bytes([i]), "path": None}]}
        for i in range(4)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "data.parquet")
    extract(make_job(tmp_path, data=(str(tmp_path / "data.parquet"),)))
    subset = select_samples(score_samples(tmp_path / "store.zarr"), count=2)
    exported = export_subset(subset, tmp_path / "out/a.jsonl", "ms-swift")
    record = json.loads((tmp_path / "out/a.jsonl").read_text().splitlines()[0])
    assert record["messages"][0]["content"] == "<image> and <image>?"
    first, second = record["images"]
    assert Path(first).read_bytes() == PNG
    assert first != second
    assert first.endswith(".png")
    assert "3 images from inside the records are in a-images" in exported.notes
    export_subset(subset, tmp_path / "hf", "datasets")
    with pa.OSFile(str(tmp_path / "hf/data-00000-of-00001.arrow")) as source:
        assert pa.ipc.open_stream(source).read_all()["images"][0][0].as_py()["bytes"] == PNG


def test_a_pretty_printed_array_becomes_lines(tmp_path):
    records = [{"id": f"r{i}", "prompt": "?", "steps": ["a\nb", "c"], "answer": "d"} for i in range(3)]
    (tmp_path / "data.json").write_text(json.dumps(records, indent=2))
    extract(make_job(tmp_path, data=(str(tmp_path / "data.json"),)))
    subset = select_samples(score_samples(tmp_path / "store.zarr"), count=2)
    export_subset(subset, tmp_path / "a.jsonl")
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()] == records[:2]


def test_text_that_says_image_without_one_is_reported(tmp_path):
    lines = [
        json.dumps({"id": f"r{i}", "prompt": "the tag <image>", "steps": ["a", "b"], "answer": "c"}) for i in range(3)
    ]
    (tmp_path / "traces.jsonl").write_text("\n".join(lines))
    extract(make_job(tmp_path))
    subset = select_samples(score_samples(tmp_path / "store.zarr"), count=3)
    exported = export_subset(subset, tmp_path / "a.jsonl", "llama-factory")
    assert exported.notes == ["3 samples say <image> in their text without there being one"]
    assert "images" not in json.loads((tmp_path / "dataset_info.json").read_text())["a"]["columns"]


@pytest.fixture
def small(tmp_path):
    extract(make_job(tmp_path))
    write_score_table(tmp_path / "store.zarr", None, tmp_path / "scores.parquet")
    return tmp_path


def test_data_that_changed_is_refused_and_nothing_is_written(small):
    subset = select_samples(small / "scores.parquet")
    traces = small / "traces.jsonl"
    content = traces.read_text()
    traces.write_text(content.replace("part 0 of case 3.", "part 9 of case 3."))
    with pytest.raises(DatasetChanged, match="changed records: row 3"):
        export_subset(subset, small / "a.jsonl")
    traces.rename(small / "moved.jsonl")
    with pytest.raises(DatasetChanged, match="no longer there"):
        export_subset(subset, small / "a.jsonl")
    assert not list(small.glob("a.jsonl*"))
    (small / "moved.jsonl").write_text(content)
    export_subset(subset, small / "a.jsonl", data=[str(small / "moved.jsonl")])
    assert len((small / "a.jsonl").read_text().splitlines()) == len(subset)


def test_a_table_of_another_plan_is_refused(small):
    subset = select_samples(small / "scores.parquet")
    (small / "store.zarr").rename(small / "old.zarr")
    extract(make_job(small, data_request=DataRequest(min_steps=3)))
    with pytest.raises(ResumeMismatch, match="made from another plan"):
        export_subset(subset, small / "a.jsonl")
    export_subset(subset, small / "a.jsonl", store=str(small / "old.zarr"))
    assert len((small / "a.jsonl").read_text().splitlines()) == len(subset)
    assert len(select_samples(small / "scores.parquet", by="id", store=str(small / "old.zarr"))) == len(subset)


def test_heuristics_have_no_steps_to_join(small):
    write_score_table(small / "store.zarr", HeuristicSpec(method="longest"), small / "longest.parquet")
    with pytest.raises(DataError, match="Scores by longest have no step scores"):
        export_subset(select_samples(small / "longest.parquet"), small / "a.jsonl", "steps")


def test_records_that_fit_no_table_are_refused(tmp_path):
    lines = [
        json.dumps({"id": f"r{i}", "prompt": "?", "steps": ["a", "b"], "answer": "c", "x": [1, "one"][i % 2]})
        for i in range(4)
    ]
    (tmp_path / "traces.jsonl").write_text("\n".join(lines))
    extract(make_job(tmp_path))
    subset = select_samples(score_samples(tmp_path / "store.zarr"), ratio=1)
    with pytest.raises(DataError, match="The records do not fit one table"):
        export_subset(subset, tmp_path / "hf", "datasets")
    assert not list(tmp_path.glob("hf*"))


def test_a_file_that_fails_half_way_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("before")

    def lines():
        yield b"after"
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_lines(path, lines())
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "before"
    with pytest.raises(SettingError, match="is a folder"), whole_file(tmp_path):
        pass


# ---------------------------------------------------------------- side by side


@pytest.fixture
def two(tmp_path):
    """Tables by two settings of one store, and a subset of each."""
    store = known_store(tmp_path, ("early", "late"), set_aside={"late": [0]}).store
    for name, spec in (("a", ScoreSpec(alpha=1)), ("b", ScoreSpec(alpha=0, history="window:1"))):
        write_score_table(store, spec, tmp_path / f"{name}.parquet", signals={"a": "early", "b": "late"}[name])
        export_subset(select_samples(tmp_path / f"{name}.parquet", count=5), tmp_path / f"{name}.txt", "ids")
    return tmp_path


def test_two_subsets_side_by_side(two):
    found = compare_subsets(two / "a.txt", two / "b.txt")
    a, b = (set((two / f"{name}.txt").read_text().split()) for name in "ab")
    assert (found.num_a, found.num_b, found.num_both) == (5, 5, len(a & b))
    assert found.jaccard == len(a & b) / len(a | b)
    assert {change.sample_id for change in found.entered} == b - a
    assert {change.sample_id for change in found.left} == a - b
    tables = {name: read_scores(two / f"{name}.parquet") for name in "ab"}
    for change in [*found.entered, *found.left]:
        for name, value, place in (("a", change.value_a, change.rank_a), ("b", change.value_b, change.rank_b)):
            table = tables[name]
            if change.row not in table.row:
                assert (value, place) == (None, None)
                continue
            assert value == table.value[table.row.tolist().index(change.row)]
            assert place == 1 + int((table.value > value).sum())
    assert [change.rank_b for change in found.entered] == sorted(change.rank_b for change in found.entered)


def test_tables_that_moved_along_with_their_subsets_are_found(two, tmp_path):
    before = compare_subsets(two / "a.txt", two / "b.txt")
    (tmp_path / "moved").mkdir()
    for path in two.glob("[ab].*"):
        path.rename(tmp_path / "moved" / path.name)
    assert compare_subsets(tmp_path / "moved/a.txt", tmp_path / "moved/b.txt") == before


def test_the_reason_is_told(two):
    found = compare_subsets(two / "a.parquet", two / "b.parquet", ratio=1)
    assert [(change.sample_id, change.why) for change in found.left] == [("s0", "not among the other table's samples")]
    assert found.entered == []
    nested = compare_subsets(two / "a.parquet", two / "a.txt", ratio=1)
    assert {change.why for change in nested.left} == {"the other keeps 5"}
    one_step = known_store(two / "steps", ("base",)).store
    write_score_table(one_step, None, two / "x.parquet")
    write_score_table(one_step, ScoreSpec(without_answer=True), two / "y.parquet")
    found = compare_subsets(two / "x.parquet", two / "y.parquet", ratio=1)
    assert {change.why for change in found.left} == {"no value in the other table (no_value)"}
    assert {change.num_steps for change in found.left} == {1}
    moved = compare_subsets(two / "x.parquet", two / "y.parquet", ratio="0.2")
    assert all("from rank" in change.why or "no value" in change.why for change in moved.left + moved.entered)


def test_other_plans_are_matched_by_id_and_other_choices_are_noted(two, tmp_path):
    other = known_store(tmp_path / "other", ("early",), num_steps=[3, 1, 9, 2, 5]).store
    write_score_table(other, None, two / "c.parquet")
    found = compare_subsets(two / "a.parquet", two / "c.parquet", ratio=1)
    assert found.num_both == 5
    assert found.notes == ["the tables are of different plans: samples are matched by their ids"]
    subset = select_samples(two / "a.parquet", by="num_steps", control=["num_steps"])
    export_subset(subset, two / "d.txt", "ids")
    notes = compare_subsets(two / "a.txt", two / "d.txt").notes
    assert ["num_steps taken out" in notes[0], "strata of num_steps" in notes[1]] == [True, True]
    export_subset(select_samples(two / "a.parquet", count=5, by="num_steps"), two / "e.txt", "ids")
    found = compare_subsets(two / "a.txt", two / "e.txt")
    assert {change.why for change in found.left} == {"strata of num_steps"}
    assert {change.why for change in found.entered} == {"the other keeps 5"}


def test_a_controlled_subset_is_compared_by_what_it_was_ranked_by(two):
    subset = select_samples(two / "a.parquet", count=5, control=["length"])
    export_subset(subset, two / "d.txt", "ids")
    found = compare_subsets(two / "a.txt", two / "d.txt")
    assert found.entered
    for change in found.entered:
        assert change.rank_b <= 5 < change.rank_a
        assert change.value_b >= subset.threshold
        assert "from rank" in change.why


def test_what_cannot_be_compared_says_why(two):
    (two / "plain.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"plain\.jsonl has no plain\.jsonl\.spec\.json beside it"):
        compare_subsets(two / "a.txt", two / "plain.jsonl")
    with pytest.raises(DataError, match="does not exist"):
        compare_subsets(two / "a.txt", two / "none.parquet")
    write_score_table(two / "known.zarr", ScoreSpec(alpha=0.2), two / "a.parquet", signals="early")
    with pytest.raises(DataError, match="was overwritten by other scores"):
        compare_subsets(two / "a.txt", two / "b.txt")
    (two / "a.parquet").unlink()
    with pytest.raises(DataError, match="is no longer there"):
        compare_subsets(two / "a.txt", two / "b.txt")
    export_subset(select_samples(score_samples(two / "known.zarr", signals="early")), two / "m.txt", "ids")
    with pytest.raises(DataError, match="from a table in memory"):
        compare_subsets(two / "m.txt", two / "b.txt")
