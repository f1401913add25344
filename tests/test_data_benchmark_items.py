"""Items of benchmarks from records: a question is enough, whatever the fields are called."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace_store.base.errors import NothingUsable, SettingError, UnknownFormat
from grace_store.data.benchmark_items import read_items
from grace_store.data.dataset import Dataset
from grace_store.data.text_matches import Item


def items_of(
    path: Path, records: list[Any], format: str | None = None, mapping: Mapping[str, str] | None = None
) -> tuple[list[Item], Counter[str]]:
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in records))
    with Dataset.open([path]) as dataset:
        return read_items(dataset, format, mapping)


ASKED = "How many?"


@pytest.mark.parametrize(
    ("record", "question", "solution"),
    [
        ({"question": ASKED, "answer": "One.\n#### 1"}, ASKED, "One.\n#### 1"),
        ({"question": ASKED, "answer": "1"}, ASKED, "1"),
        ({"question": ASKED, "answer": 1}, ASKED, ""),
        ({"question": ASKED}, ASKED, ""),
        ({"problem": ASKED, "solution": "One.", "answer": "1"}, ASKED, "One."),
        ({"prompt": ASKED, "steps": ["a", "b"], "answer": "c"}, ASKED, "a\nb\nc"),
        ({"question": ASKED, "choices": ["x", "y"], "answer": 1}, f"{ASKED}\nA) x\nB) y", ""),
        ({"question": ASKED, "choices": {"label": ["A"], "text": ["x"]}, "answerKey": "A"}, f"{ASKED}\nA) x", "A"),
        ({"meta": {"question": ASKED}, "target": "1"}, ASKED, "1"),
        ({"messages": [{"role": "user", "content": ASKED}, {"role": "assistant", "content": "1"}]}, ASKED, "1"),
        ({"prompt": [{"role": "system", "content": "Be."}, {"role": "user", "content": ASKED}]}, ASKED, ""),
    ],
)
def test_a_question_is_found_in_what_benchmarks_look_like(tmp_path, record, question, solution):
    found = items_of(tmp_path / "test.jsonl", [record])
    assert found[0] == [Item("test.jsonl:0", 0, question, solution)]
    assert not found[1]


def test_a_question_is_looked_for_whatever_other_keys_its_record_has(tmp_path):
    """Nothing is trained on items, so a record with keys that would be lost in training is still an item."""
    said = {"role": "assistant", "content": "1", "reasoning_content": "Let me see.", "loss": False}
    record = {"messages": [{"role": "user", "content": ASKED}, said], "tools": [{"type": "function"}]}
    assert items_of(tmp_path / "t.jsonl", [record])[0] == [Item("t.jsonl:0", 0, ASKED, "1")]


def test_fields_may_be_named(tmp_path):
    record = {"q": {"text": ASKED}, "cot": "Because.", "key": 7, "question": "another"}
    mapping = {"prompt": "q.text", "response": "cot", "id": "key"}
    assert items_of(tmp_path / "t.jsonl", [record], mapping=mapping)[0] == [Item("7", 0, ASKED, "Because.")]


def test_a_record_of_a_known_format_without_an_answer_still_has_its_question(tmp_path):
    records = [{"question": "a?", "answer": "One.\n#### 1"}] * 3 + [{"question": "b?", "answer": ""}]
    assert [item.question for item in items_of(tmp_path / "t.jsonl", records)[0]] == ["a?", "a?", "a?", "b?"]


def test_records_without_a_question_are_counted(tmp_path):
    records = [{"question": ASKED}, '{"question": "cut', [1], {"question": " "}, {"nothing": 1}]
    found = items_of(tmp_path / "t.jsonl", records)
    assert [item.row for item in found[0]] == [0]
    assert found[1] == {"bad_json": 1, "not_an_object": 1, "no_prompt": 1, "unknown_record": 1}


def test_half_a_surrogate_pair_does_no_harm(tmp_path):
    (item,) = items_of(tmp_path / "t.jsonl", ['{"question": "How \\ud800 many?"}'])[0]
    assert item.question == "How ? many?"


def test_parquet_is_read_too(tmp_path):
    pq.write_table(pa.table({"question": [ASKED, "b?"], "answer": ["1", None]}), tmp_path / "t.parquet")
    with Dataset.open([tmp_path / "t.parquet"]) as dataset:
        assert [item.solution for item in read_items(dataset)[0]] == ["1", ""]


@pytest.mark.parametrize(
    ("format", "mapping", "error", "words"),
    [
        (None, {"response": "a"}, SettingError, "Add --map prompt=FIELD"),
        (None, {"query": "a"}, SettingError, "unknown part"),
        ("gsm8k", {"prompt": "a"}, SettingError, "--format gsm8k and --map cannot be used together"),
        ("nonesuch", None, UnknownFormat, "unknown value"),
        (None, {"prompt": "nowhere"}, NothingUsable, r"has a question \(unknown_record: no field 'nowhere'.*--map"),
    ],
)
def test_wrong_settings_are_told(tmp_path, format, mapping, error, words):
    with pytest.raises(error, match=words):
        items_of(tmp_path / "t.jsonl", [{"question": ASKED}], format, mapping)
