"""--expand: every response of a list is a trace of its own, in all commands and on every kind of file."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import grace_store as gs
from grace_store.base.errors import DatasetChanged, NothingUsable, SettingError
from grace_store.base.settings import DataSpec
from grace_store.data.dataset import Dataset
from grace_store.data.expand import Expansion
from grace_store.pool.records import SampleRecords, open_dataset
from grace_store.run.doctor.data_checks import Seen, examine_data
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.verify import repair, verify
from grace_store.store.opened import Store
from grace_store.store.unit_writer import withdraw_units
from tests.commands import run, run_json
from tests.fake_model import make_fake_model
from tests.jobs import content, processes

NUM_GENERATIONS = (2, 3, 1, 4)
NUM_TRACES = sum(NUM_GENERATIONS)


def generation(record: int, index: int) -> str:
    return f"<think>\nÉ {record} has part {index}.\n\nThen comes {index} again.\n</think>\n\nIt is {record + index}."


def openr1(record: int, num: int) -> dict[str, Any]:
    return {
        "problem": f"What about {record}?",
        "answer": str(record),
        "uuid": f"u{record}",
        "generations": [generation(record, index) for index in range(num)],
        "correctness_math_verify": [index % 2 == 0 for index in range(num)],
        "is_reasoning_complete": [True] * num,
        "finish_reasons": None,
        "options": ["x"] * num,
        "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": generation(record, 0)}],
        "tags": ["a", "b", "c", "d", "e"],
    }


RECORDS = [openr1(record, num) for record, num in enumerate(NUM_GENERATIONS)]
WANTED = [(record, index) for record, num in enumerate(NUM_GENERATIONS) for index in range(num)]
"""Record and index of each trace, in order."""
EXPANDED = DataSpec(expand="generations", min_steps=2)


def write(path: Path, records: list[dict[str, Any]] = RECORDS) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(json.dumps(records) if path.suffix == ".json" else text)
    return path


def job_on(folder: Path, **changes: Any) -> ExtractJob:
    return ExtractJob(
        store=str(folder / "s.zarr"),
        model=make_fake_model(folder / "model"),
        data=(str(write(folder / "data.jsonl")),),
        data_request=EXPANDED,
        samples_per_unit=4,
        door="tests.fake_model",
        **changes,
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return extract(job_on(tmp_path_factory.mktemp("expanded"))).store


def test_each_element_has_its_element_of_every_parallel_list() -> None:
    made = Expansion("generations", {})(json.dumps(RECORDS[1]).encode())
    assert made is not None
    for index, raw in enumerate(made):
        changed = {
            "id": f"u1/{index}",
            "generations": generation(1, index),
            "correctness_math_verify": index % 2 == 0,
            "is_reasoning_complete": True,
        }
        assert json.loads(raw) == RECORDS[1] | changed


@pytest.mark.parametrize(
    "raw", [b"{broken", b"[1]", b"", b'{"generations": []}', b'{"generations": "one"}', b'{"other": ["a"]}']
)
def test_a_record_without_the_list_stays_as_it_is(raw: bytes) -> None:
    assert Expansion("generations", {})(raw) is None


def test_conversations_and_fields_of_the_question_are_not_parallel() -> None:
    fields = {
        "texts": ["a", "b"],
        "images": ["1.png", "2.png"],
        "asked": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
        "letters": ["A", "B"],
        "score": [1, 2],
    }
    made = Expansion("texts", {"options": "letters", "response": "texts"})(json.dumps(fields).encode())
    assert [json.loads(raw) for raw in made or ()] == [
        fields | {"texts": "a", "score": 1}, fields | {"texts": "b", "score": 2},
    ]  # fmt: skip


def test_thoughts_and_answers_of_each_response_are_parallel(tmp_path: Path) -> None:
    record = {"q": "Why?", "said": ["x", "y"], "thought": ["a\n\nb", "c\n\nd"], "right": ["1", "2"]}
    parts = {"prompt": "q", "thinking": "thought", "response": "said", "answer": "right"}
    store = gs.plan(
        [write(tmp_path / "d.jsonl", [record])], tmp_path / "s.zarr", DataSpec(map=parts, expand="said", min_steps=1)
    )
    texts = ["".join(each["text"] for each in gs.inspect(store, f"#{row}")["segments"]) for row in (0, 1)]
    assert texts == ["<think>\na\n\nb\n</think>\n\nx\n1", "<think>\nc\n\nd\n</think>\n\ny\n2"]


def test_half_a_surrogate_pair_stays_what_it_is() -> None:
    made = Expansion("texts", {})(b'{"texts": ["\\ud800", "\xc3\xa9"]}')
    assert made == [b'{"texts":"\\ud800"}', '{"texts":"é"}'.encode()]


def test_a_record_whose_copies_would_fill_the_memory_is_set_aside(tmp_path: Path) -> None:
    bomb = {"problem": "x" * 2**16, "generations": [""] * 2**16}
    data = write(tmp_path / "data.jsonl", [RECORDS[0], bomb, RECORDS[1]])
    found = gs.preview([data], EXPANDED)
    assert (found.num_records, found.num_planned, dict(found.set_aside)) == (6, 5, {"record_too_large": 1})


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz", "data.json", "data.parquet"])
def test_traces_are_found_again_in_every_kind_of_file(name: str, tmp_path: Path) -> None:
    with Dataset.open([write(tmp_path / name)], Expansion.of(EXPANDED)) as dataset:
        found = list(dataset.scan())
        assert [record.row for record in found] == list(range(NUM_TRACES))
        assert dataset.summary()[0].num_records == NUM_TRACES
        texts = [record.parse()["generations"] for record in found]
        assert texts == [generation(record, index) for record, index in WANTED]
        for record in reversed(found):
            assert dataset.read(record.file, record.offset, record.length) == record.raw


def test_the_plan_has_a_sample_for_each_trace(store: Store) -> None:
    samples = store.samples(0, NUM_TRACES)
    assert list(samples.sample_id) == [f"u{record}/{index}" for record, index in WANTED]
    assert samples.row.tolist() == list(range(NUM_TRACES))
    assert store.plan.num_records == store.plan.num_samples == NUM_TRACES
    assert list(verify(store, deep=True)) == []
    shown = gs.inspect(store, "u1/2")
    assert (shown["row"], shown["prompt"]) == (4, "What about 1?")
    assert "".join(segment["text"] for segment in shown["segments"]) == generation(1, 2)


def test_traces_of_one_record_are_one_group_and_fields_are_of_the_element(store: Store) -> None:
    assert SampleRecords(store).questions().tolist() == [record for record, _ in WANTED]
    assert SampleRecords(store).questions("uuid").tolist() == [record for record, _ in WANTED]
    found = SampleRecords(store).fields(["correctness_math_verify"])["correctness_math_verify"]
    assert found == [index % 2 == 0 for _, index in WANTED]


@pytest.mark.parametrize("kind", ["source", "ms-swift", "trl", "steps"])
def test_an_exported_record_trains_on_the_chosen_trace(kind: str, store: Store, tmp_path: Path) -> None:
    subset = gs.select(gs.score(store), count=4, where="correctness_math_verify")
    out = tmp_path / "subset.jsonl"
    gs.export(subset, out, as_format=kind)
    chosen = [WANTED[row] for row in subset.row.tolist()]
    assert all(index % 2 == 0 for _, index in chosen)
    again = gs.plan([out], tmp_path / "again.zarr", DataSpec(min_steps=1))
    assert list(again.samples(0, 4).sample_id) == [f"u{record}/{index}" for record, index in chosen]
    for position, (record, index) in enumerate(chosen):
        shown = gs.inspect(again, f"#{position}")
        assert "".join(segment["text"] for segment in shown["segments"]) == generation(record, index)


def test_pairs_are_of_one_record(store: Store, tmp_path: Path) -> None:
    subset = gs.select(gs.score(store), margin=0.0, ratio=1.0)
    gs.export(subset, tmp_path / "pairs.jsonl", as_format="trl-pairs")
    for line in (tmp_path / "pairs.jsonl").read_text().splitlines():
        pair = json.loads(line)
        assert pair["id"].partition("/")[0] == pair["rejected_id"].partition("/")[0]


def test_a_report_shows_the_traces(store: Store, tmp_path: Path) -> None:
    gs.report(store, tmp_path / "page.html", gs.ReportRequest())
    assert "u3/3" in (tmp_path / "page.html").read_text()


def test_an_interrupted_run_ends_with_the_same_bytes(store: Store, tmp_path: Path) -> None:
    job = job_on(tmp_path)
    before = content(extract(job).store.location)
    view = Store.open(job.store).signal("base")
    withdraw_units(view, [1])
    extract(job)
    assert content(job.store) == before
    chunk = next((tmp_path / "s.zarr" / "samples" / "sample_digest").rglob("c/*/*"))
    chunk.write_bytes(b"damaged")
    assert list(verify(Store.open(job.store), deep=True))
    assert repair(job)
    assert content(job.store) == before


def test_traces_can_be_gathered_and_named_by_another_field(tmp_path: Path) -> None:
    tries = ["a\nb\nAnswer: c", "a\nb\nAnswer: d"]
    records = [{"q": f"Why {i % 2}?", "key": 7 + i, "tries": tries} for i in range(3)]
    spec = {"map": {"prompt": "q", "response": "tries", "id": "key"}, "expand": "tries", "min_steps": 1}
    store = gs.plan([write(tmp_path / "d.jsonl", records)], tmp_path / "s.zarr", DataSpec(**spec, gather=True))
    assert list(store.samples(0, 6).sample_id) == ["7/0", "7/1", "9/0", "9/1", "8/0", "8/1"]
    nested = [{"q": "Why?", "tries": [{"text": "a\nb\nAnswer: c", "score": 1}]}]
    spec = {"map": {"prompt": "q", "response": "tries.text"}, "expand": "tries", "min_steps": 1}
    store = gs.plan([write(tmp_path / "n.jsonl", nested)], tmp_path / "n.zarr", DataSpec(**spec))
    assert gs.inspect(store, "n.jsonl:0")["num_steps"] == 2


def test_several_responses_are_never_one_in_silence(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl")
    told = "Only one response is read of 3 records with several responses. `--expand generations` reads each response"
    words = ["plan", tmp_path / "s.zarr", data, "--min-steps", "2"]
    shown = run(*words, "--dry-run").stdout
    assert told in shown
    assert "Read as openr1 (OpenR1-Math: problem, generations" in shown
    assert run_json(*words, "--dry-run")["several_responses"] == {"--expand generations": 3}
    planned = run(*words)
    assert told in planned.stdout
    assert told in " ".join(planned.stderr.split())
    expanded = run(*words, "--expand", "generations")
    assert "10 of 10 records planned" in expanded.stdout
    assert "several responses" not in expanded.stdout
    previewed = run(*words, "--expand", "generations", "--dry-run").stdout
    assert "Each element of 'generations' counts as a record." in previewed
    assert "4 of 4 records planned" in run(*words, "--expand", "").stdout


def test_a_field_without_a_list_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl")
    with pytest.raises(SettingError, match=r"No list in the field 'generation' of --expand \(records tried: 4\)"):
        gs.plan([data], tmp_path / "s.zarr", DataSpec(expand="generation"))
    assert not (tmp_path / "s.zarr").exists()


def test_a_format_that_reads_another_field_is_refused(tmp_path: Path) -> None:
    record = {"question": "Why?", "solution": "a\nb\nAnswer: c", "tries": ["d\ne\nAnswer: f", "g\nh\nAnswer: i"]}
    with pytest.raises(NothingUsable, match=r"format pair reads no response from 'tries'; --map prompt=FIELD"):
        gs.plan([write(tmp_path / "d.jsonl", [record])], tmp_path / "s.zarr", DataSpec(expand="tries", min_steps=1))


@pytest.mark.parametrize("tries", [[{"text": "d\ne\nAnswer: f"}] * 2, [["d"], ["e"]], [1, 2], [None, []], ["", " "]])
@pytest.mark.parametrize("parts", [{}, {"prompt": "question", "response": "solution"}])
def test_no_list_makes_copies_of_another_response(tries: list[Any], parts: dict[str, str], tmp_path: Path) -> None:
    record = {"question": "Why?", "solution": "a\nb\nAnswer: c", "tries": tries}
    path = "tries" if tries[0] in (None, "") else r"tries\.text"
    how = rf"reads no response from 'tries'; --map prompt=FIELD --map response={path} reads it"
    with pytest.raises(NothingUsable, match=how):
        gs.plan([write(tmp_path / "d.jsonl", [record])], tmp_path / "s.zarr",
                DataSpec(map=parts, expand="tries", min_steps=1))  # fmt: skip


@pytest.mark.parametrize("none", [None, []])
def test_responses_that_are_turns_and_records_without_the_list_are_read(none: Any, tmp_path: Path) -> None:
    said = [[{"role": "assistant", "content": f"{word}\nb\nAnswer: c"}] for word in ("One.", "Two.")]
    records = [
        {"prompt": "Why?", "responses": said},
        {"prompt": "Who?", "responses": none, "response": "a\nb\nAnswer: c"},
    ]
    store = gs.plan([write(tmp_path / "d.jsonl", records)], tmp_path / "s.zarr",
                    DataSpec(expand="responses", min_steps=1))  # fmt: skip
    assert [gs.inspect(store, f"#{row}")["segments"][0]["text"] for row in range(3)] == ["One.\n", "Two.\n", "a\n"]


def test_doctor_counts_traces(tmp_path: Path) -> None:
    seen = Seen()
    found = examine_data(job_on(tmp_path), seen)
    assert found.text.startswith(f"{NUM_TRACES} of the first {NUM_TRACES} records can be used as openr1; {NUM_TRACES} ")
    assert [sample.sample_id for sample in seen.samples] == [f"u{record}/{index}" for record, index in WANTED]


def test_doctor_estimates_the_traces_of_a_table(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([openr1(record, 4) for record in range(400)]), tmp_path / "data.parquet")
    job = replace(job_on(tmp_path), data=(str(tmp_path / "data.parquet"),))
    assert examine_data(job, Seen()).figures["num_records"] == 1600


def test_several_processes_write_the_same_bytes(store: Store, tmp_path: Path) -> None:
    there = Path(store.location).parent
    data = (str(there / "data.jsonl"),)
    done = extract(replace(job_on(tmp_path), data=data, engine=processes("cpu", "cpu")))
    assert content(done.store.location).keys() == content(store.location).keys()
    assert list(verify(done.store, deep=True)) == []
    assert done.store.plan.samples_sha256 == store.plan.samples_sha256


def test_a_change_names_the_trace(tmp_path: Path) -> None:
    job = job_on(tmp_path)
    store = gs.plan(job.data, job.store, EXPANDED)
    data = tmp_path / "data.jsonl"
    data.write_text(data.read_text().replace("has part 2", "has port 2"))
    with pytest.raises(DatasetChanged, match=r"changed records: row 4, 8"):
        open_dataset(store)
