"""From tables to subsets to files: exact budgets, deterministic ties, the records as they were."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace_store.artifacts.score_table import SCHEMA, ScoreTable, read_scores
from grace_store.base.errors import DataError, DatasetChanged, ResumeMismatch, SettingError
from grace_store.base.files import whole_file, whole_folder, write_lines
from grace_store.base.settings import DataRequest
from grace_store.curate.compare import compare
from grace_store.curate.export import ExportRequest, export
from grace_store.curate.score import ScoreRequest, score
from grace_store.curate.select import RankRequest, rank_samples, select
from grace_store.data.dataset import Dataset
from grace_store.run.extract import extract
from grace_store.run.warmup_recipe import write_whole
from grace_store.values.methods.heuristic_spec import HeuristicSpec
from grace_store.values.score_spec import ScoreSpec
from tests.jobs import NUM_RECORDS, make_job
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
    assert len(select(table_of(np.arange(num) / 7), ratio=ratio)) == kept


def test_ties_keep_the_earlier_record_and_no_value_is_never_kept():
    subset = select(table_of([0.5, np.nan, 0.9, 0.5, np.inf, 0.5]), count=2)
    assert subset.ranked.tolist() == [2, 0]
    assert subset.sample_id == ["s0", "s2"]
    assert (subset.num_with_value, subset.threshold) == (4, 0.5)


def test_capabilities_of_any_number_take_turns():
    table = table_of([0.9, 0.8, 0.7, 0.6, 0.5])
    capability = pa.array([2_000_000_000, 2_000_000_000, None, 2_000_000_000, -3], pa.int32())
    table = ScoreTable(table.table.append_column("capability", capability), table.made_by)
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
    subset = select(table_of(values, steps), RankRequest(by="num_steps"), ratio="0.2")
    assert np.bincount(np.array(steps)[subset.row])[[2, 5]].tolist() == [4, 2]
    assert subset.row.tolist() == [16, 17, 18, 19, 28, 29]


def test_control_takes_length_out_of_the_ranking():
    rng = np.random.default_rng(1)
    tokens = rng.integers(10, 1000, 400)
    quality = rng.normal(size=400) * 0.01
    table = table_of(np.log(tokens) + quality, num_tokens=tokens)
    plain, controlled = select(table), select(table, RankRequest(control=["length"]))
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
        ({"threshold": float("inf")}, "threshold inf is not a number"),
        ({"count": 0}, "count 0 is not between 1 and 3"),
        ({"count": 4}, "count 4 is not between 1 and 3"),
        ({"threshold": float("nan")}, "threshold nan is not a number"),
        ({"threshold": 0.9}, "no sample reaches threshold 0.9: the largest value is 0.3"),
        ({"threshold": 0.1, "by": "num_steps"}, "a threshold has no meaning inside strata"),
        ({"control": ["width"]}, "control 'width' is none of length, step_length"),
    ],
)
def test_selections_without_meaning_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        select(table_of([0.1, 0.2, 0.3]), RankRequest(**settings))


def test_the_smallest_value_is_a_threshold_only_where_nothing_else_decided():
    table = table_of([0.1, 0.5, 0.3, 0.2, 0.4], [2, 2, 2, 3, 3])
    plain, by = select(table, count=2), select(table, RankRequest(by="num_steps"), count=2)
    assert plain.is_all_above
    assert not by.is_all_above
    assert not select(table, RankRequest(control=["length"]), count=2).is_all_above


def test_strata_of_one_sample_each_are_warned_of():
    told: list[object] = []
    table = table_of([0.1, 0.5, 0.3], [2, 3, 4])
    ranking = rank_samples(table, RankRequest(by="num_steps"), listener=told.append)
    assert [event.text for event in told] == [
        "Every sample has a num_steps of its own, so --by changes nothing: the best are kept."
    ]
    assert ranking.ranked.tolist() == rank_samples(table).ranked.tolist()


def test_nothing_to_select_is_said():
    with pytest.raises(DataError, match="no sample with a value"):
        select(table_of([np.nan, np.inf]))


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
    score(folder / "store.zarr", out=folder / "scores.parquet")
    return folder


def chosen_lines(folder, subset):
    lines = (folder / "traces.jsonl").read_bytes().splitlines()
    return [lines[row] for row in subset.row.tolist()]


def test_the_original_records_come_back_byte_for_byte(scored, tmp_path):
    subset = select(scored / "scores.parquet", ratio="0.2")
    assert len(subset) == 3
    export(subset, tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes().splitlines() == chosen_lines(scored, subset)
    export(subset, tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_bytes()) == [json.loads(line) for line in chosen_lines(scored, subset)]
    assert all(line in (tmp_path / "a.json").read_bytes() for line in chosen_lines(scored, subset))


def test_what_made_a_subset_lies_beside_it_and_is_no_record(scored, tmp_path):
    subset = select(scored / "scores.parquet", count=4)
    export(subset, tmp_path / "a.jsonl")
    made_by = json.loads((tmp_path / "a.jsonl.spec.json").read_text())
    assert made_by["rows"] == subset.row.tolist()
    assert made_by["spec"] == {"count": 4, "by": None, "control": []}
    assert made_by["scores"] == read_scores(scored / "scores.parquet").made_by
    with Dataset.open([tmp_path]) as folder:
        assert [file.path.name for file in folder.files] == ["a.jsonl"]


def test_ms_swift_gets_its_images(scored, tmp_path):
    subset = select(scored / "scores.parquet", ratio="0.2")
    exported = export(subset, tmp_path / "a.jsonl", ExportRequest(as_format="ms-swift"))
    assert exported.notes == ["3 samples have images"]
    for line, row in zip((tmp_path / "a.jsonl").read_text().splitlines(), subset.row.tolist(), strict=True):
        record = json.loads(line)
        assert record["images"] == [str(scored / f"pics/{row}.png")]
        user, assistant = record["messages"]
        assert user == {"role": "user", "content": f"<image>What is {row}?"}
        assert assistant == {"role": "assistant", "content": mmathcot(row)["output"]}
    export(subset, tmp_path / "b.jsonl", ExportRequest(as_format="ms-swift", images="/elsewhere"))
    assert json.loads((tmp_path / "b.jsonl").read_text().splitlines()[0])["images"][0].startswith("/elsewhere/pics/")


def test_llama_factory_gets_its_dataset_info_beside_others(scored, tmp_path):
    (tmp_path / "dataset_info.json").write_text('{"other": {"file_name": "other.json"}}')
    subset = select(scored / "scores.parquet", ratio="0.2")
    exported = export(subset, tmp_path / "best.jsonl", ExportRequest(as_format="llama-factory"))
    info = json.loads((tmp_path / "dataset_info.json").read_text())
    assert info["other"] == {"file_name": "other.json"}
    assert info["best"]["file_name"] == "best.jsonl"
    assert info["best"]["columns"] == {"messages": "messages", "images": "images"}
    assert [path.name for path in exported.files] == ["best.jsonl", "dataset_info.json", "best.jsonl.spec.json"]


def test_a_datasets_folder_is_read_back(scored, tmp_path):
    subset = select(scored / "scores.parquet", ratio="0.2")
    export(subset, tmp_path / "hf", ExportRequest(as_format="datasets"))
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == [
        "data-00000-of-00001.arrow", "dataset_info.json", "state.json"
    ]  # fmt: skip
    expected = [json.loads(line) for line in chosen_lines(scored, subset)]
    with pa.OSFile(str(tmp_path / "hf/data-00000-of-00001.arrow")) as source:
        assert pa.ipc.open_stream(source).read_all().to_pylist() == expected
    with Dataset.open([tmp_path / "hf"]) as again:
        assert [record.parse() for record in again.scan()] == expected
    export(subset, tmp_path / "hf", ExportRequest(as_format="datasets"))  # replaces its own
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").touch()
    with pytest.raises(SettingError, match="was not made by this command"):
        export(subset, tmp_path / "mine", ExportRequest(as_format="datasets"))


def test_step_scores_are_joined_to_the_records_with_their_places(scored, tmp_path):
    table = read_scores(scored / "scores.parquet")
    subset = select(scored / "scores.parquet", RankRequest(by="num_steps"), ratio="0.5")
    export(subset, tmp_path / "a.jsonl", ExportRequest(as_format="steps"))
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
    subset = select(scored / "scores.parquet", RankRequest(by="subject"), count=6)
    assert sorted(row % 2 for row in subset.row.tolist()) == [0, 0, 0, 1, 1, 1]
    with pytest.raises(SettingError, match="no record has a field 'colour'"):
        select(scored / "scores.parquet", RankRequest(by="colour"))


def test_a_table_in_memory_selects_and_exports_too(scored, tmp_path):
    subset = select(score(scored / "store.zarr"), ratio="0.2")
    export(subset, tmp_path / "a.jsonl")
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
    subset = select(score(tmp_path / "store.zarr"), count=2)
    exported = export(subset, tmp_path / "out/a.jsonl", ExportRequest(as_format="ms-swift"))
    record = json.loads((tmp_path / "out/a.jsonl").read_text().splitlines()[0])
    assert record["messages"][0]["content"] == "<image> and <image>?"
    first, second = record["images"]
    assert Path(first).read_bytes() == PNG
    assert first != second
    assert first.endswith(".png")
    assert "3 images from inside the records are in a-images" in exported.notes
    export(subset, tmp_path / "hf", ExportRequest(as_format="datasets"))
    with pa.OSFile(str(tmp_path / "hf/data-00000-of-00001.arrow")) as source:
        assert pa.ipc.open_stream(source).read_all()["images"][0][0].as_py()["bytes"] == PNG


def traces_with_image(folder, url):
    record = {"prompt": "<image>?", "steps": ["a b", "c"], "answer": "d", "images": [url]}
    (folder / "traces.jsonl").write_text("".join(json.dumps({"id": f"r{i}", **record}) + "\n" for i in range(3)))
    extract(make_job(folder))
    return select(score(folder / "store.zarr"), count=2)


@pytest.mark.parametrize("as_format", ["ms-swift", "llama-factory"])
@pytest.mark.parametrize("head", ["data:image/png;base64,", "DATA:image/png;BASE64,", "data:;base64,"])
def test_images_in_data_urls_are_written_out_too(tmp_path, as_format, head):
    subset = traces_with_image(tmp_path, head + base64.encodebytes(PNG).decode())
    exported = export(subset, tmp_path / "a.jsonl", ExportRequest(as_format=as_format))
    for line in (tmp_path / "a.jsonl").read_text().splitlines():
        (image,) = json.loads(line)["images"]
        assert Path(image).parent == tmp_path / "a-images"
        assert Path(image).suffix == ".png"
        assert Path(image).read_bytes() == PNG
    assert exported.notes == ["2 samples have images", "1 images from inside the records are in a-images"]


@pytest.mark.parametrize(
    ("url", "why"), [("data:image/png,abc", "it does not say ;base64"), ("data:image/png;base64,???", "base64")]
)
def test_a_data_url_that_is_no_image_is_refused(tmp_path, url, why):
    subset = traces_with_image(tmp_path, url)
    with pytest.raises(DataError, match=f"The image in the data URL data:image/png.* cannot be decoded: .*{why}"):
        export(subset, tmp_path / "a.jsonl", ExportRequest(as_format="llama-factory"))
    assert not list(tmp_path.glob("*a.jsonl*"))


def test_a_pretty_printed_array_becomes_lines(tmp_path):
    records = [{"id": f"r{i}", "prompt": "?", "steps": ["a\nb", "c"], "answer": "d"} for i in range(3)]
    (tmp_path / "data.json").write_text(json.dumps(records, indent=2))
    extract(make_job(tmp_path, data=(str(tmp_path / "data.json"),)))
    subset = select(score(tmp_path / "store.zarr"), count=2)
    export(subset, tmp_path / "a.jsonl")
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()] == records[:2]


def test_text_that_says_image_without_one_is_reported(tmp_path):
    lines = [
        json.dumps({"id": f"r{i}", "prompt": "?", "steps": ["the tag <image>", "b"], "answer": "c"}) for i in range(3)
    ]
    (tmp_path / "traces.jsonl").write_text("\n".join(lines))
    extract(make_job(tmp_path))
    subset = select(score(tmp_path / "store.zarr"), count=3)
    exported = export(subset, tmp_path / "a.jsonl", ExportRequest(as_format="llama-factory"))
    said = "3 samples say <image> in their text without there being one"
    assert exported.notes == [f"{said}; LLaMA-Factory will refuse them"]
    assert export(subset, tmp_path / "b.jsonl", ExportRequest(as_format="ms-swift")).notes == [said]
    assert "images" not in json.loads((tmp_path / "dataset_info.json").read_text())["a"]["columns"]


@pytest.fixture
def small(tmp_path):
    extract(make_job(tmp_path))
    score(tmp_path / "store.zarr", out=tmp_path / "scores.parquet")
    return tmp_path


def test_data_that_changed_is_refused_and_nothing_is_written(small):
    subset = select(small / "scores.parquet")
    traces = small / "traces.jsonl"
    content = traces.read_text()
    traces.write_text(content.replace("part 0 of case 3.", "part 9 of case 3."))
    with pytest.raises(DatasetChanged, match="changed records: row 3"):
        export(subset, small / "a.jsonl")
    traces.rename(small / "moved.jsonl")
    with pytest.raises(DatasetChanged, match="no longer there"):
        export(subset, small / "a.jsonl")
    assert not list(small.glob("a.jsonl*"))
    (small / "moved.jsonl").write_text(content)
    export(subset, small / "a.jsonl", ExportRequest(data=[str(small / "moved.jsonl")]))
    assert len((small / "a.jsonl").read_text().splitlines()) == len(subset)


def test_a_table_of_another_plan_is_refused(small):
    subset = select(small / "scores.parquet")
    (small / "store.zarr").rename(small / "old.zarr")
    extract(make_job(small, data_request=DataRequest(min_steps=3)))
    with pytest.raises(ResumeMismatch, match="made from another plan"):
        export(subset, small / "a.jsonl")
    export(subset, small / "a.jsonl", ExportRequest(store=str(small / "old.zarr")))
    assert len((small / "a.jsonl").read_text().splitlines()) == len(subset)
    assert len(select(small / "scores.parquet", RankRequest(by="id", store=str(small / "old.zarr")))) == len(subset)


def test_heuristics_have_no_steps_to_join(small):
    score(small / "store.zarr", HeuristicSpec(method="longest"), out=small / "longest.parquet")
    with pytest.raises(DataError, match="Scores by longest have no step scores"):
        export(select(small / "longest.parquet"), small / "a.jsonl", ExportRequest(as_format="steps"))


def test_records_that_fit_no_table_are_refused(tmp_path):
    lines = [
        json.dumps({"id": f"r{i}", "prompt": "?", "steps": ["a", "b"], "answer": "c", "x": [1, "one"][i % 2]})
        for i in range(4)
    ]
    (tmp_path / "traces.jsonl").write_text("\n".join(lines))
    extract(make_job(tmp_path))
    subset = select(score(tmp_path / "store.zarr"), ratio=1)
    with pytest.raises(DataError, match="The records do not fit one table"):
        export(subset, tmp_path / "hf", ExportRequest(as_format="datasets"))
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


@pytest.mark.parametrize(
    "write", [lambda path: write_lines(path, [b"after"]), lambda path: write_whole(path, b"after\n")]
)
def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch, write):
    path, synced = tmp_path / "a.txt", []

    def fsync(descriptor):
        synced.append(os.pread(descriptor, 100, 0))
        assert not path.exists()

    monkeypatch.setattr(os, "fsync", fsync)
    write(path)
    assert synced == [b"after\n"]
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "a.txt"
    with whole_file(path) as one, whole_file(path) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


# ---------------------------------------------------------------- what is never written over


def everything(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("as_format", ["source", "ms-swift", "llama-factory", "datasets", "steps", "ids"])
@pytest.mark.parametrize(
    ("out", "source"),
    [
        ("traces.jsonl", "traces.jsonl, which"),
        ("model/../traces.jsonl", "traces.jsonl, which"),
        ("link.jsonl", "traces.jsonl, which"),
        ("hard.jsonl", "traces.jsonl, which"),
        ("scores.parquet", "scores.parquet, the table of scores"),
        ("store.zarr", "store.zarr, the store"),
        ("store.zarr/subset", "store.zarr, the store"),
        ("linked/subset", "store.zarr, the store"),
        ("../{name}", "{name}/.*"),
    ],
)
def test_what_a_subset_is_made_from_is_never_written_over(small, out, source, as_format):
    (small / "link.jsonl").symlink_to(small / "traces.jsonl")
    (small / "hard.jsonl").hardlink_to(small / "traces.jsonl")
    (small / "linked").symlink_to(small / "store.zarr")
    before = everything(small)
    subset = select(small / "scores.parquet", count=3)
    out, source = (text.format(name=small.name) for text in (out, source))
    with pytest.raises(SettingError, match=f"would replace or change .*{source}.* choose another --out"):
        export(subset, small / out, ExportRequest(as_format=as_format))
    assert everything(small) == before
    assert len((small / "traces.jsonl").read_text().splitlines()) == NUM_RECORDS


@pytest.mark.parametrize("as_format", ["source", "ids"])
def test_neither_is_data_that_moved_nor_where_it_was(small, as_format):
    shutil.copy(small / "traces.jsonl", small / "moved.jsonl")
    subset = select(small / "scores.parquet", count=3)
    for out in ("moved.jsonl", "traces.jsonl"):
        with pytest.raises(SettingError, match=f"would replace or change .*{out}, which"):
            export(subset, small / out, ExportRequest(as_format=as_format, data=[str(small / "moved.jsonl")]))


def test_nor_by_what_is_written_beside_a_subset(tmp_path):
    make_job(tmp_path)
    for name in ("a.jsonl.spec.json", "dataset_info.json"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        shutil.copy(tmp_path / "traces.jsonl", folder / name)
        extract(make_job(folder, data=(str(folder / name),)))
        subset = select(score(folder / "store.zarr"), count=3)
        with pytest.raises(SettingError, match=f"Writing .*/{name} would replace or change .*/{name}, which"):
            export(subset, folder / "a.jsonl", ExportRequest(as_format="llama-factory"))
        assert len((folder / name).read_text().splitlines()) == NUM_RECORDS


def test_ids_need_no_store_and_leave_its_place_alone(small):
    subset = select(small / "scores.parquet", count=3)
    shutil.rmtree(small / "store.zarr")
    with pytest.raises(SettingError, match="the store; choose another"):
        export(subset, small / "store.zarr", ExportRequest(as_format="ids"))
    export(subset, small / "ids.txt", ExportRequest(as_format="ids"))
    assert (small / "ids.txt").read_text().split() == subset.sample_id
    with pytest.raises(SettingError, match="has no name of its own"):
        export(subset, ".", ExportRequest(as_format="ids"))


def test_a_datasets_folder_of_someone_else_is_not_replaced(scored, tmp_path):
    subset = select(scored / "scores.parquet", ratio="0.2")
    export(subset, tmp_path / "hf", ExportRequest(as_format="datasets"))
    export(subset, tmp_path / "ids", ExportRequest(as_format="ids"))
    shutil.copytree(tmp_path / "hf", tmp_path / "theirs")
    with pytest.raises(SettingError, match="theirs exists and was not made by this command"):
        export(subset, tmp_path / "theirs", ExportRequest(as_format="datasets"))
    (tmp_path / "theirs.spec.json").write_text('{"made_by": "hand"}')
    with pytest.raises(SettingError, match="theirs exists and was not made by this command"):
        export(subset, tmp_path / "theirs", ExportRequest(as_format="datasets"))
    (tmp_path / "ids").unlink()  # its note stays, and says nothing of a folder
    shutil.copytree(tmp_path / "hf", tmp_path / "ids")
    with pytest.raises(SettingError, match="ids exists and was not made by this command"):
        export(subset, tmp_path / "ids", ExportRequest(as_format="datasets"))
    state = json.loads((tmp_path / "hf/state.json").read_text())
    (tmp_path / "hf/state.json").write_text(json.dumps(state | {"_fingerprint": "saved by datasets"}))
    before = everything(tmp_path)
    with pytest.raises(SettingError, match="hf exists and was not made by this command"):
        export(subset, tmp_path / "hf", ExportRequest(as_format="datasets"))
    (tmp_path / "hf/state.json").write_text("{")
    with pytest.raises(SettingError, match="hf exists and was not made by this command"):
        export(subset, tmp_path / "hf", ExportRequest(as_format="datasets"))
    (tmp_path / "hf/state.json").write_bytes(before[tmp_path / "hf/state.json"])
    assert everything(tmp_path) == before


def fill(path, text):
    with whole_folder(path, "note.json") as folder:
        (folder / "note.json").write_text('{"made_by": "grace-store 1"}')
        (folder / "text").write_text(text)


@pytest.mark.parametrize("fails_at", range(2))
def test_a_folder_is_there_old_or_new_wherever_renaming_fails(tmp_path, monkeypatch, fails_at):
    fill(tmp_path / "a", "old")
    rename, calls = Path.rename, []

    def failing(self, target):
        calls.append(target)
        if len(calls) == fails_at + 1:
            raise OSError("no more")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with pytest.raises(OSError, match="no more"):
            fill(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a/text").read_text() == "old"
    fill(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a/text").read_text() == "new"


def test_the_old_folder_is_deleted_only_when_the_new_one_is_there(tmp_path, monkeypatch):
    fill(tmp_path / "a", "old")
    deleted = []

    def rmtree(path, **_):
        if path.exists():
            deleted.append(((path / "text").read_text(), (tmp_path / "a/text").read_text()))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", rmtree)
        fill(tmp_path / "a", "new")
    assert deleted == [("old", "new")]


def test_a_folder_behind_a_link_is_filled_where_it_is(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "disk")
    for text in ("old", "new"):
        fill(tmp_path / "a", text)
        assert (tmp_path / "disk/text").read_text() == text
    assert (tmp_path / "a").is_symlink()


# ---------------------------------------------------------------- side by side


@pytest.fixture
def two(tmp_path):
    """Tables by two settings of one store, and a subset of each."""
    store = known_store(tmp_path, ("early", "late"), set_aside={"late": [0]}).store
    for name, spec in (("a", ScoreSpec(alpha=1)), ("b", ScoreSpec(alpha=0, history="window:1"))):
        score(
            store, ScoreRequest(spec=spec, signals={"a": "early", "b": "late"}[name]), out=tmp_path / f"{name}.parquet"
        )
        export(select(tmp_path / f"{name}.parquet", count=5), tmp_path / f"{name}.txt", ExportRequest(as_format="ids"))
    return tmp_path


def test_two_subsets_side_by_side(two):
    found = compare(two / "a.txt", two / "b.txt")
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
    before = compare(two / "a.txt", two / "b.txt")
    (tmp_path / "moved").mkdir()
    for path in two.glob("[ab].*"):
        path.rename(tmp_path / "moved" / path.name)
    assert compare(tmp_path / "moved/a.txt", tmp_path / "moved/b.txt") == before


def test_the_reason_is_told(two):
    found = compare(two / "a.parquet", two / "b.parquet", ratio=1)
    assert [(change.sample_id, change.why) for change in found.left] == [("s0", "not among the other table's samples")]
    assert found.entered == []
    nested = compare(two / "a.parquet", two / "a.txt", ratio=1)
    assert {change.why for change in nested.left} == {"the other keeps 5"}
    one_step = known_store(two / "steps", ("base",)).store
    score(one_step, out=two / "x.parquet")
    score(one_step, ScoreSpec(without_answer=True), out=two / "y.parquet")
    found = compare(two / "x.parquet", two / "y.parquet", ratio=1)
    assert {change.why for change in found.left} == {"no value in the other table (no_value)"}
    assert {change.num_steps for change in found.left} == {1}
    moved = compare(two / "x.parquet", two / "y.parquet", ratio="0.2")
    assert all("from rank" in change.why or "no value" in change.why for change in moved.left + moved.entered)


def test_other_plans_are_matched_by_id_and_other_choices_are_noted(two, tmp_path):
    other = known_store(tmp_path / "other", ("early",), num_steps=[3, 1, 9, 2, 5]).store
    score(other, out=two / "c.parquet")
    found = compare(two / "a.parquet", two / "c.parquet", ratio=1)
    assert found.num_both == 5
    assert found.notes == ["the tables are of different plans: samples are matched by their ids"]
    subset = select(two / "a.parquet", RankRequest(by="num_steps", control=["num_steps"]))
    export(subset, two / "d.txt", ExportRequest(as_format="ids"))
    notes = compare(two / "a.txt", two / "d.txt").notes
    assert ["num_steps taken out" in notes[0], "strata of num_steps" in notes[1]] == [True, True]
    export(
        select(two / "a.parquet", RankRequest(by="num_steps"), count=5), two / "e.txt", ExportRequest(as_format="ids")
    )
    found = compare(two / "a.txt", two / "e.txt")
    assert {change.why for change in found.left} == {"strata of num_steps"}
    assert {change.why for change in found.entered} == {"the other keeps 5"}


def test_a_controlled_subset_is_compared_by_what_it_was_ranked_by(two):
    subset = select(two / "a.parquet", RankRequest(control=["length"]), count=5)
    export(subset, two / "d.txt", ExportRequest(as_format="ids"))
    found = compare(two / "a.txt", two / "d.txt")
    assert found.entered
    for change in found.entered:
        assert change.rank_b <= 5 < change.rank_a
        assert change.value_b >= subset.threshold
        assert "from rank" in change.why


def test_what_cannot_be_compared_says_why(two):
    (two / "plain.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"plain\.jsonl has no plain\.jsonl\.spec\.json beside it"):
        compare(two / "a.txt", two / "plain.jsonl")
    with pytest.raises(DataError, match="does not exist"):
        compare(two / "a.txt", two / "none.parquet")
    score(two / "known.zarr", ScoreRequest(spec=ScoreSpec(alpha=0.2), signals="early"), out=two / "a.parquet")
    with pytest.raises(DataError, match="was overwritten by other scores"):
        compare(two / "a.txt", two / "b.txt")
    (two / "a.parquet").unlink()
    with pytest.raises(DataError, match="is no longer there"):
        compare(two / "a.txt", two / "b.txt")
    export(
        select(score(two / "known.zarr", ScoreRequest(signals="early"))), two / "m.txt", ExportRequest(as_format="ids")
    )
    with pytest.raises(DataError, match="from a table in memory"):
        compare(two / "m.txt", two / "b.txt")
