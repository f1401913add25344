"""Understanding records in several processes: what comes out is the same, in the same order."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from grace_store.base.errors import GraceStoreError
from grace_store.base.settings import DataSpec
from grace_store.data.record import Record
from grace_store.run import scan as understanding
from grace_store.run.plan import plan
from grace_store.run.scan import BYTES_PER_PROCESS, RecordOutcome, Understanding, processes_for, understood
from grace_store.run.status import set_aside_rows
from grace_store.store.opened import Store
from tests.jobs import content, record, write_dataset

REQUEST = DataSpec(min_steps=2)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(understanding, "RECORDS_PER_BLOCK", 4)


def test_a_plan_does_not_depend_on_the_number_of_processes(tmp_path: Path, small_blocks: None) -> None:
    data = write_dataset(tmp_path / "traces.jsonl")
    plan([data], tmp_path / "one.zarr", REQUEST, samples_per_unit=4)
    plan([data], tmp_path / "two.zarr", REQUEST, samples_per_unit=4, workers=2)
    assert content(tmp_path / "one.zarr") == content(tmp_path / "two.zarr")


def test_nor_on_how_records_are_cut_into_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_dataset(tmp_path / "traces.jsonl")
    plan([data], tmp_path / "whole.zarr", REQUEST)
    for name, value in (("RECORDS_PER_BLOCK", 1), ("BYTES_PER_BLOCK", 1000)):
        monkeypatch.setattr(understanding, name, value)
        plan([data], tmp_path / name, REQUEST)
        assert content(tmp_path / name) == content(tmp_path / "whole.zarr")


def test_an_id_is_known_from_block_to_block_and_the_first_record_keeps_it(tmp_path: Path, small_blocks: None) -> None:
    names = ["a", "b", "a", "c", "d", "b", "e", "a", "f"]
    data = tmp_path / "traces.jsonl"
    data.write_text("".join(json.dumps({**record(i), "id": name}) + "\n" for i, name in enumerate(names)))
    store: Store = plan([data], tmp_path / "store.zarr", REQUEST)
    assert store.column("sample_id").tolist() == ["a", "b", "c", "d", "e", "f"]
    assert [(each["row"], each["reason"], each["detail"]) for each in set_aside_rows(store, None)] == [
        (2, "duplicate_id", "id 'a' was used before"),
        (5, "duplicate_id", "id 'b' was used before"),
        (7, "duplicate_id", "id 'a' was used before"),
    ]


class DiesElsewhere(Understanding):
    """Kills every process but the one it was made in."""

    def __call__(self, records: Sequence[Record]) -> list[RecordOutcome]:
        os._exit(9)


def test_a_process_that_is_killed_is_an_error_in_words(small_blocks: None) -> None:
    records = [Record(i, 0, 0, 2, b"{}") for i in range(20)]
    with pytest.raises(GraceStoreError, match=r"was killed.*fewer --workers"):
        list(understood(records, DiesElsewhere(("traces.jsonl",), DataSpec(format="explicit")), 2))


def test_a_record_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    parse = Record.parse
    monkeypatch.setattr(Record, "parse", lambda self: (parsed.append(self.row), parse(self))[1])
    text = "We add.\n\nWe see.\n\nAnswer: 3"
    raw = json.dumps({"prompt": "What is 1 + 2?", "responses": [text, text], "source": "a"}).encode()
    spec = DataSpec(format="pair", min_steps=2, gather=True, group_by="source")
    (outcome,) = Understanding(("traces",), spec)([Record(0, 0, 0, len(raw), raw)])
    assert isinstance(outcome, tuple)
    assert outcome[3] is not None  # the options that read the other response
    assert parsed == [0]


def test_small_data_is_understood_here() -> None:
    assert processes_for(0) == processes_for(BYTES_PER_PROCESS) == 1
    assert 1 <= processes_for(1000 * BYTES_PER_PROCESS) <= 8
