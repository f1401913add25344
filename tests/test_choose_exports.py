"""What each kind of export writes, and that its reader reads it."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace_store.base.documents import read_document
from grace_store.base.errors import DataError, DatasetChanged, NothingUsable, SettingError
from grace_store.base.files import FOLDER, JSON, JSON_LINES, PARQUET, TEXT, sidecar_of
from grace_store.base.settings import DataSpec
from grace_store.choose.export import export
from grace_store.choose.exports import EXPORTS
from grace_store.choose.exports.export_kind import Export
from grace_store.choose.select import select
from grace_store.choose.selection import Selection, SubsetNote
from grace_store.data.dataset import Dataset
from grace_store.pool.pool import Pool
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.run.extract import extract
from grace_store.run.plan import plan
from grace_store.scoring.score import score
from grace_store.scoring.score_table import read_scores
from grace_store.scoring.weigh_steps import weights
from grace_store.scoring.weight_table import read_weights
from grace_store.store.opened import Store
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.weightings import WeightsSpec
from tests.exported import PNG, chosen_lines, everything, mmathcot, scored_store, traces_with_image
from tests.grouped_stores import grouped_store
from tests.jobs import make_job


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    return scored_store(tmp_path_factory.mktemp("scored"))


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grouped")
    return score(grouped_store(folder))


def three_for(name, scored, grouped):
    """Return a subset of three samples, or of three pairs where that is what is written."""
    if EXPORTS[name].is_of_pairs:
        return select(grouped, Selection(margin=0), count=3)
    return select(scored / "scores.parquet", ratio="0.2")


def out_of(name, folder):
    """Return a name that says what is written."""
    endings = {JSON_LINES: ".jsonl", TEXT: ".txt", FOLDER: ""}
    return folder / f"out{endings[EXPORTS[name].formats[0]]}"


# ---------------------------------------------------------------- what every export promises


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_found_by_its_name(name):
    assert isinstance(EXPORTS[name], Export)


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_writes_what_it_says_and_nothing_else(scored, grouped, tmp_path, name):
    subset, out = three_for(name, scored, grouped), out_of(name, tmp_path)
    exported = export(subset, out, as_format=name)
    wanted = {out.name, *EXPORTS[name].also_writes, f"{out.name}.spec.json"}
    assert {path.name for path in tmp_path.iterdir()} == wanted
    assert {path.name for path in exported.files} == wanted
    assert exported.files[0] == exported.out == out
    assert (exported.as_format, exported.num_samples) == (name, 3)
    assert read_document(sidecar_of(out), SubsetNote).as_format == name


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_without_the_dataset_is_refused_unless_it_needs_none(tmp_path, name):
    if EXPORTS[name].is_of_pairs:
        subset = select(score(grouped_store(tmp_path)), Selection(margin=0))
    else:
        subset = select(scored_store(tmp_path) / "scores.parquet", ratio="0.2")
    (tmp_path / "traces.jsonl").unlink()
    if not EXPORTS[name].needs_dataset:
        export(subset, out_of(name, tmp_path), as_format=name)
        return
    with pytest.raises(DatasetChanged, match="no longer there"):
        export(subset, out_of(name, tmp_path), as_format=name)
    assert not list(tmp_path.glob("*out*"))


def test_an_export_that_is_none_is_refused_with_those_there_are(scored, tmp_path):
    with pytest.raises(SettingError, match=f"unknown value 'csv' of --as: use one of {', '.join(EXPORTS)}"):
        export(select(scored / "scores.parquet"), tmp_path / "a.csv", as_format="csv")


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_twice_is_the_same(scored, grouped, tmp_path, name):
    subset, out = three_for(name, scored, grouped), out_of(name, tmp_path)
    export(subset, out, as_format=name)
    before = everything(tmp_path)
    export(subset, out, as_format=name)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", [name for name in EXPORTS if JSON in EXPORTS[name].formats])
def test_records_are_in_an_array_if_the_name_says_so(scored, grouped, tmp_path, name):
    subset = three_for(name, scored, grouped)
    for ending in ("jsonl", "json"):
        export(subset, tmp_path / f"out.{ending}", as_format=name)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads((tmp_path / "out.json").read_text()) == [json.loads(line) for line in lines]


# ---------------------------------------------------------------- one by one


def test_the_original_records_come_back_byte_for_byte(scored, tmp_path):
    subset = select(scored / "scores.parquet", ratio="0.2")
    assert len(subset) == 3
    export(subset, tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes().splitlines() == chosen_lines(scored, subset)
    export(subset, tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_bytes()) == [json.loads(line) for line in chosen_lines(scored, subset)]
    assert all(line in (tmp_path / "a.json").read_bytes() for line in chosen_lines(scored, subset))


def test_ms_swift_gets_its_images(scored, tmp_path):
    subset = select(scored / "scores.parquet", ratio="0.2")
    exported = export(subset, tmp_path / "a.jsonl", as_format="ms-swift")
    assert exported.notes == ["3 samples with images"]
    for line, row in zip((tmp_path / "a.jsonl").read_text().splitlines(), subset.row.tolist(), strict=True):
        record = json.loads(line)
        assert record["images"] == [str(scored / f"pics/{row}.png")]
        user, assistant = record["messages"]
        assert user == {"role": "user", "content": f"<image>What is {row}?"}
        assert assistant == {"role": "assistant", "content": mmathcot(row)["output"]}
    export(subset, tmp_path / "b.jsonl", as_format="ms-swift", images="/elsewhere")
    assert json.loads((tmp_path / "b.jsonl").read_text().splitlines()[0])["images"][0].startswith("/elsewhere/pics/")


def test_llama_factory_gets_its_dataset_info_beside_others(scored, tmp_path):
    (tmp_path / "dataset_info.json").write_text('{"other": {"file_name": "other.json"}}')
    subset = select(scored / "scores.parquet", ratio="0.2")
    exported = export(subset, tmp_path / "best.jsonl", as_format="llama-factory")
    info = json.loads((tmp_path / "dataset_info.json").read_text())
    assert info["other"] == {"file_name": "other.json"}
    assert info["best"]["file_name"] == "best.jsonl"
    assert info["best"]["columns"] == {"messages": "messages", "images": "images"}
    assert [path.name for path in exported.files] == ["best.jsonl", "dataset_info.json", "best.jsonl.spec.json"]


@pytest.mark.parametrize("content", ["{", "[]", "\0", "[" * 100_000])
def test_a_dataset_info_that_cannot_be_added_to_is_left_alone(scored, tmp_path, content):
    (tmp_path / "dataset_info.json").write_text(content)
    subset = select(scored / "scores.parquet", ratio="0.2")
    with pytest.raises(DataError, match=r"dataset_info\.json .* cannot be added"):
        export(subset, tmp_path / "best.jsonl", as_format="llama-factory")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"dataset_info.json": content}


def test_trl_gets_images_as_parts_of_the_content(tmp_path):
    record = {"steps": ["a b", "c <image>"], "answer": "d"}
    asked = [("<image> and <image>?", ["a.png", "b.png"]), ("No image?", []), ("So <image>", ["b.png"])]
    lines = [
        json.dumps({"id": f"r{i}", "prompt": text, "images": images, **record})
        for i, (text, images) in enumerate(asked)
    ]
    (tmp_path / "traces.jsonl").write_text("\n".join(lines))
    extract(make_job(tmp_path))
    exported = export(select(score(tmp_path / "store.zarr"), count=3), tmp_path / "a.jsonl", as_format="trl")
    (note,) = exported.notes
    assert note.startswith("2 samples with images; read them with load_dataset(")
    both, none, last = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    shown = {"type": "image", "text": None}
    texts = [{"type": "text", "text": text} for text in (" and ", "?")]
    assert both["prompt"] == [{"role": "user", "content": [shown, texts[0], shown, texts[1]]}]
    assert both["images"] == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    assert none["prompt"] == [{"role": "user", "content": [{"type": "text", "text": "No image?"}]}]
    assert none["images"] == []
    assert last["prompt"] == [{"role": "user", "content": [{"type": "text", "text": "So "}, shown]}]
    (said,) = both["completion"]
    assert said["role"] == "assistant"
    assert "c <image>" in said["content"][0]["text"], "what a response says is text"


def test_trl_gets_text_as_text(tmp_path):
    extract(make_job(tmp_path))
    exported = export(select(score(tmp_path / "store.zarr"), count=2), tmp_path / "a.jsonl", as_format="trl")
    assert exported.notes == []
    for line in (tmp_path / "a.jsonl").read_text().splitlines():
        made = json.loads(line)
        assert list(made) == ["id", "prompt", "completion"], "TRL takes what has images for data of a vision model"
        assert made["prompt"][0]["content"].startswith("What is ")


RECORD_EXPORTS = [name for name in EXPORTS if PARQUET in EXPORTS[name].formats]


@pytest.mark.parametrize("name", RECORD_EXPORTS)
def test_a_parquet_file_has_the_records_of_the_json_lines(name, scored, grouped, tmp_path):
    subset = three_for(name, scored, grouped)
    for ending in ("jsonl", "parquet"):
        export(subset, tmp_path / f"out.{ending}", as_format=name)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == lines
    note = read_document(sidecar_of(tmp_path / "out.parquet"), SubsetNote)
    assert note.rows == tuple(subset.row.tolist())


def test_the_parquet_for_verl_has_a_column_of_messages(scored, tmp_path):
    """verl's dataset for fine-tuning takes a list of {role, content} from each row."""
    export(select(scored / "scores.parquet", count=4), tmp_path / "train.parquet", as_format="ms-swift")
    kind = pq.read_schema(tmp_path / "train.parquet").field("messages").type
    assert {field.name: field.type for field in kind.value_type} == {"role": pa.string(), "content": pa.string()}
    again = plan([tmp_path / "train.parquet"], tmp_path / "again.zarr", DataSpec(min_steps=1))
    assert (again.plan.spec.format, again.plan.num_samples) == ("messages", 4)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_what_is_written_for_trl_is_recognised_with_its_images(ending, scored, tmp_path):
    subset = select(scored / "scores.parquet", count=4)
    export(subset, tmp_path / f"train.{ending}", as_format="trl", images=str(scored))
    again = plan([tmp_path / f"train.{ending}"], tmp_path / "again.zarr", DataSpec(min_steps=1))
    assert (again.plan.spec.format, again.plan.num_samples) == ("pair", 4)
    chosen = read_samples(Store.open(scored / "store.zarr"), subset.row.tolist())
    for before, after in zip(chosen, read_samples(again, range(4)), strict=True):
        assert (after.sample_id, after.segments) == (before.sample_id, before.segments)
        assert [Path(image.source).name for image in after.images] == [Path(i.source).name for i in before.images]


def read_samples(store, positions):
    with open_dataset(store) as dataset:
        return list(UnitLoader(store, dataset).each(positions))


def test_records_that_fit_no_table_leave_no_parquet_behind(tmp_path):
    records = [{"prompt": "x", "steps": ["a b", "c"], "answer": "d", "meta": meta} for meta in ({}, {})]
    data = "".join(json.dumps({"id": f"r{i}", **record}) + "\n" for i, record in enumerate(records))
    (tmp_path / "traces.jsonl").write_text(data)
    extract(make_job(tmp_path))
    subset = select(score(tmp_path / "store.zarr"), count=2)
    with pytest.raises(DataError, match=r"do not fit one table.*Write JSON lines"):
        export(subset, tmp_path / "out.parquet")
    assert not list(tmp_path.glob("out*"))


def test_a_datasets_folder_is_read_back(scored, tmp_path):
    subset = select(scored / "scores.parquet", ratio="0.2")
    (note,) = export(subset, tmp_path / "hf", as_format="datasets").notes
    assert "ms-swift cannot open it: use --as ms-swift for that" in note
    written = sorted(path.name for path in (tmp_path / "hf").iterdir())
    assert written == ["data-00000-of-00001.arrow", "dataset_info.json", "state.json"]
    expected = [json.loads(line) for line in chosen_lines(scored, subset)]
    with pa.OSFile(str(tmp_path / "hf/data-00000-of-00001.arrow")) as source:
        assert pa.ipc.open_stream(source).read_all().to_pylist() == expected
    with Dataset.open([tmp_path / "hf"]) as again:
        assert [record.parse() for record in again.scan()] == expected
    export(subset, tmp_path / "hf", as_format="datasets")  # replaces its own
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").touch()
    with pytest.raises(SettingError, match="was not made by this command"):
        export(subset, tmp_path / "mine", as_format="datasets")


def test_step_scores_are_joined_to_the_records_with_their_places(scored, tmp_path):
    table = read_scores(scored / "scores.parquet")
    subset = select(scored / "scores.parquet", Selection(by="num_steps"), ratio="0.5")
    export(subset, tmp_path / "a.jsonl", as_format="steps")
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


def test_images_inside_records_are_written_out(tmp_path):
    records = [
        {
            "id": f"r{i}",
            "prompt": "<image> and <image>?",
            "steps": ["a b", "c"],
            "answer": "d",
            "images": [{"bytes": PNG, "path": None}, {"bytes": PNG + bytes([i]), "path": None}],
        }
        for i in range(4)
    ]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "data.parquet")
    extract(make_job(tmp_path, data=(str(tmp_path / "data.parquet"),)))
    subset = select(score(tmp_path / "store.zarr"), count=2)
    exported = export(subset, tmp_path / "out/a.jsonl", as_format="ms-swift")
    record = json.loads((tmp_path / "out/a.jsonl").read_text().splitlines()[0])
    assert record["messages"][0]["content"] == "<image> and <image>?"
    first, second = record["images"]
    assert Path(first).read_bytes() == PNG
    assert first != second
    assert first.endswith(".png")
    assert "3 images from inside the records in a-images" in exported.notes
    export(subset, tmp_path / "hf", as_format="datasets")
    with pa.OSFile(str(tmp_path / "hf/data-00000-of-00001.arrow")) as source:
        assert pa.ipc.open_stream(source).read_all()["images"][0][0].as_py()["bytes"] == PNG


@pytest.mark.parametrize("as_format", ["ms-swift", "llama-factory"])
@pytest.mark.parametrize("head", ["data:image/png;base64,", "DATA:image/png;BASE64,", "data:;base64,"])
def test_images_in_data_urls_are_written_out_too(tmp_path, as_format, head):
    subset = traces_with_image(tmp_path, head + base64.encodebytes(PNG).decode())
    exported = export(subset, tmp_path / "a.jsonl", as_format=as_format)
    for line in (tmp_path / "a.jsonl").read_text().splitlines():
        (image,) = json.loads(line)["images"]
        assert Path(image).parent == tmp_path / "a-images"
        assert Path(image).suffix == ".png"
        assert Path(image).read_bytes() == PNG
    assert exported.notes == ["2 samples with images", "1 image from inside the records in a-images"]


@pytest.mark.parametrize(
    ("url", "why"), [("data:image/png,abc", "the URL has no ;base64"), ("data:image/png;base64,???", "base64")]
)
def test_a_data_url_that_is_no_image_is_refused(tmp_path, url, why):
    subset = traces_with_image(tmp_path, url)
    with pytest.raises(DataError, match=f"The image in the data URL data:image/png.* cannot be decoded: .*{why}"):
        export(subset, tmp_path / "a.jsonl", as_format="llama-factory")
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
    exported = export(subset, tmp_path / "a.jsonl", as_format="llama-factory")
    (refused,) = exported.notes
    assert refused.startswith("3 samples with <image> in the text")
    assert "LLaMA-Factory will refuse them" in refused
    (said,) = export(subset, tmp_path / "b.jsonl", as_format="ms-swift").notes
    assert said.startswith("3 samples with <image> in the text")
    assert "refuse" not in said
    assert "images" not in json.loads((tmp_path / "dataset_info.json").read_text())["a"]["columns"]
    for name in ("a.jsonl", "b.jsonl"):  # else trainers would take it for data of a vision model
        assert all("images" not in json.loads(line) for line in (tmp_path / name).read_text().splitlines())


def test_heuristics_have_no_steps_to_join(scored, tmp_path):
    score(scored / "store.zarr", ScoreSpec(measure=("steps",)), out=tmp_path / "steps.parquet")
    with pytest.raises(DataError, match="Scores by steps:highest have no step scores"):
        export(select(tmp_path / "steps.parquet"), tmp_path / "a.jsonl", as_format="steps")


def test_records_that_fit_no_table_are_refused(tmp_path):
    lines = [
        json.dumps({"id": f"r{i}", "prompt": "?", "steps": ["a", "b"], "answer": "c", "x": [1, "one"][i % 2]})
        for i in range(4)
    ]
    (tmp_path / "traces.jsonl").write_text("\n".join(lines))
    extract(make_job(tmp_path))
    subset = select(score(tmp_path / "store.zarr"), ratio=1)
    with pytest.raises(DataError, match="The records do not fit one table"):
        export(subset, tmp_path / "hf", as_format="datasets")
    assert not list(tmp_path.glob("hf*"))


def test_a_datasets_folder_of_someone_else_is_not_replaced(scored, tmp_path):
    subset = select(scored / "scores.parquet", ratio="0.2")
    export(subset, tmp_path / "hf", as_format="datasets")
    export(subset, tmp_path / "ids", as_format="ids")
    shutil.copytree(tmp_path / "hf", tmp_path / "theirs")
    with pytest.raises(SettingError, match="theirs exists and was not made by this command"):
        export(subset, tmp_path / "theirs", as_format="datasets")
    (tmp_path / "theirs.spec.json").write_text('{"made_by": "hand"}')
    with pytest.raises(SettingError, match="theirs exists and was not made by this command"):
        export(subset, tmp_path / "theirs", as_format="datasets")
    (tmp_path / "ids").unlink()  # its note stays, and says nothing of a folder
    shutil.copytree(tmp_path / "hf", tmp_path / "ids")
    with pytest.raises(SettingError, match="ids exists and was not made by this command"):
        export(subset, tmp_path / "ids", as_format="datasets")
    state = json.loads((tmp_path / "hf/state.json").read_text())
    (tmp_path / "hf/state.json").write_text(json.dumps(state | {"_fingerprint": "saved by datasets"}))
    before = everything(tmp_path)
    with pytest.raises(SettingError, match="hf exists and was not made by this command"):
        export(subset, tmp_path / "hf", as_format="datasets")
    (tmp_path / "hf/state.json").write_text("{")
    with pytest.raises(SettingError, match="hf exists and was not made by this command"):
        export(subset, tmp_path / "hf", as_format="datasets")
    (tmp_path / "hf/state.json").write_bytes(before[tmp_path / "hf/state.json"])
    assert everything(tmp_path) == before


def test_pairs_with_images_show_them_as_their_trainer_wants(tmp_path):
    """Both responses belong to one prompt with its images; what a response says of images is text."""
    lines = [
        json.dumps(
            {
                "id": f"r{i}",
                "prompt": f"<image> {i // 2}?",
                "images": ["a.png"],
                "steps": ["a b" * (1 + i), "c"],
                "answer": "d",
            }
        )
        for i in range(4)
    ]
    (tmp_path / "traces.jsonl").write_text("\n".join(lines))
    extract(make_job(tmp_path))
    subset = select(score(tmp_path / "store.zarr"), Selection(margin=0))
    assert len(subset) == 2
    found = {}
    for name in ("trl-pairs", "ms-swift-pairs", "llama-factory-pairs"):
        exported = export(subset, tmp_path / f"{name}.jsonl", as_format=name)
        assert exported.notes[0].startswith("2 samples with images")
        found[name] = json.loads(exported.out.read_text().splitlines()[0])
        assert found[name]["images"] == [str(tmp_path / "a.png")]
    shown = {"type": "image", "text": None}
    assert found["trl-pairs"]["prompt"] == [{"role": "user", "content": [shown, {"type": "text", "text": " 0?"}]}]
    assert found["trl-pairs"]["rejected"][0]["content"][0]["type"] == "text"
    assert found["ms-swift-pairs"]["messages"][0]["content"] == "<image> 0?"
    assert found["llama-factory-pairs"]["messages"] == [{"role": "user", "content": "<image> 0?"}]
    info = json.loads((tmp_path / "dataset_info.json").read_text())["llama-factory-pairs"]
    assert info["columns"]["images"] == "images"


# ---------------------------------------------------------------- with step weights


@pytest.fixture(scope="module")
def weighed(scored):
    weights(scored / "store.zarr", WeightsSpec(answer_weight=0.5), out=scored / "weights.parquet")
    weights(scored / "store.zarr", WeightsSpec(method="drop"), out=scored / "masks.parquet")
    return scored


def test_ms_swift_has_a_message_for_each_step_with_its_weight(weighed, tmp_path):
    subset = select(weighed / "scores.parquet", ratio="0.5")
    table = read_weights(weighed / "weights.parquet")
    exported = export(subset, tmp_path / "w.jsonl", as_format="ms-swift", weights=weighed / "weights.parquet")
    export(subset, tmp_path / "plain.jsonl", as_format="ms-swift")
    plain = [json.loads(line) for line in (tmp_path / "plain.jsonl").read_text().splitlines()]
    for found, whole, weight in zip(
        lines_of(tmp_path / "w.jsonl"), plain, table.segment_weights(subset.row), strict=True
    ):
        said = [each for each in found["messages"] if each["role"] == "assistant"]
        assert "".join(each["content"] for each in said) == whole["messages"][-1]["content"]
        assert found["messages"][: -len(said)] == whole["messages"][:-1]
        runs = [0.0, *(number for number, before in zip(weight, [None, *weight], strict=False) if number != before)]
        assert [each["loss_scale"] for each in said] == pytest.approx(runs, abs=1e-6)
    assert any("--is_binary_loss_scale false" in note for note in exported.notes)
    note = read_document(tmp_path / "w.jsonl.spec.json", SubsetNote)
    assert note.weights == table.note
    # Planned again, weights would be lost, and all of a response but its last part with them.
    again = plan([tmp_path / "plain.jsonl"], tmp_path / "plain.zarr", DataSpec(min_steps=1, answer="last"))
    assert again.plan.num_samples == len(plain)
    with pytest.raises(NothingUsable, match=f"unread_loss_scale {len(plain)}"):
        plan([tmp_path / "w.jsonl"], tmp_path / "w.zarr", DataSpec(min_steps=1, answer="last"))


def test_masks_need_no_option_and_go_to_axolotl_too(weighed, tmp_path):
    subset, masks = select(weighed / "scores.parquet", ratio="0.5"), weighed / "masks.parquet"
    exported = export(subset, tmp_path / "s.jsonl", as_format="ms-swift", weights=masks)
    assert not any("binary" in note for note in exported.notes)
    export(subset, tmp_path / "a.jsonl", as_format="axolotl", weights=masks)
    for swift, axolotl in zip(lines_of(tmp_path / "s.jsonl"), lines_of(tmp_path / "a.jsonl"), strict=True):
        said = [each for each in swift["messages"] if each["role"] == "assistant" and each["content"]]
        parts = axolotl["messages"][-1]["content"]
        assert [(each["content"], each["loss_scale"] > 0) for each in said] == [
            (part["text"], part["train"]) for part in parts
        ]
        assert all("train" not in part for each in axolotl["messages"][:-1] for part in each["content"])


def test_samples_without_weights_are_written_whole_and_counted(weighed, tmp_path):
    subset = select(weighed / "scores.parquet", ratio="0.5")
    least = weights(Pool.of(weighed / "store.zarr", where=f"row > {subset.row[0]}"))
    exported = export(subset, tmp_path / "w.jsonl", as_format="ms-swift", weights=least)
    assert "1 sample without weights, written with weight 1 for every token" in exported.notes
    first = lines_of(tmp_path / "w.jsonl")[0]["messages"]
    assert [each["loss_scale"] for each in first if each["role"] == "assistant"] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("name", "table", "told"),
    [
        (
            "axolotl",
            "weights",
            "--as axolotl takes only weights that are 0 or 1: .* `grace-store weights --method drop`",
        ),
        (
            "llama-factory",
            "masks",
            "--as llama-factory takes no weights: LLaMA-Factory can only use or skip",
        ),
        ("trl", "masks", "--as trl takes no weights: TRL's SFTTrainer has no weights"),
        ("source", "masks", "--as source takes no weights: .* Use --as ms-swift"),
    ],
)
def test_what_a_trainer_cannot_use_is_refused(weighed, tmp_path, name, table, told):
    subset = select(weighed / "scores.parquet", ratio="0.5")
    with pytest.raises(SettingError, match=told):
        export(subset, tmp_path / "w.jsonl", as_format=name, weights=weighed / f"{table}.parquet")
    assert not list(tmp_path.iterdir())


def test_weights_of_another_store_and_a_model_without_weights_are_refused(weighed, grouped, tmp_path):
    subset = select(weighed / "scores.parquet", ratio="0.5")
    other = weights(grouped.note.store)
    with pytest.raises(SettingError, match="was made from another plan than the table of scores"):
        export(subset, tmp_path / "w.jsonl", as_format="ms-swift", weights=other)
    with pytest.raises(SettingError, match="--model is only needed to write weights: give --weights"):
        export(subset, tmp_path / "w.jsonl", as_format="ms-swift", model="m")
    mine = {"as_format": "ms-swift", "weights": weighed / "weights.parquet"}
    with pytest.raises(SettingError, match="the table of weights"):
        export(subset, weighed / "weights.parquet", **mine)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
