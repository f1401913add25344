"""What is planted where, and that the tables have what they say; the numbers are those of docs/auditing.md."""

from __future__ import annotations

from random import Random

import pytest

from grace_store.data.words import is_number, words_of
from jobs.bench.against import against_in, make_files
from jobs.contamination import tables
from jobs.contamination_vectors import NUM_PLANTED, UNTOUCHED, planted_records
from jobs.planted_copies import PLANTS, has_number
from tests.benchmark_stores import question, write_records

OTHERS = ["A cat sat. Where was it?", "Two dogs ran. How far did they get?", "It rained all day. Why?"]
ASKED = "Anna has 12 red boxes, and Bob's uncle has three of them. After lunch, Anna gave two away. How many are left?"


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_question_is_what_its_name_says(name):
    text = PLANTS[name].plant(ASKED, OTHERS, Random(1))
    words, asked = words_of(text), words_of(ASKED)
    numbers = [word for word in words if is_number(word)]
    if PLANTS[name].plant.__name__ in ("copy", "rewrap"):
        assert words == asked
    elif not PLANTS[name].is_copy:
        assert len(words) == len(asked)
        changed = sum(a != b for a, b in zip(words, asked, strict=True))
        assert changed == (1 if name == "one number changed" else 3)
        assert sum(map(is_number, words)) == 3
    else:
        assert text != ASKED
        assert has_number(text)
        assert {"12", "three", "two"} & set(numbers)


def test_the_tables_tell_copies_from_templates(tmp_path):
    test = [{"question": question(number), "answer": f"Half of it.\n#### {number}"} for number in range(4)]
    train = [{"question": OTHERS[number % 3], "answer": f"So it is.\n#### {number}"} for number in range(6)]
    paths = [write_records(tmp_path / f"{name}.jsonl", each) for name, each in (("train", train), ("test", test))]
    lines = list(tables(*paths, elsewhere=[paths[1]]))
    rows = {line.split("|")[1].strip(): line.split("|")[2].split()[0] for line in lines[2:12]}
    assert (rows["copied as it is"], rows["inside longer text"], rows["all numbers changed"]) == (
        "1.000",
        "1.000",
        "0.000",
    )
    assert rows["untouched traces (6)"] == "0"
    assert lines[13] == "test.jsonl: 4 of 4 traces, 0 templates."


def test_the_pool_for_vectors_has_every_item_in_every_way():
    test = [{"question": question(number % 8), "answer": "A.\nB.\n#### 7"} for number in range(NUM_PLANTED + 2)]
    train = [{"question": each, "answer": "C.\n#### 1"} for each in OTHERS]
    records = list(planted_records(test, train, {question(0): "Z.\n#### ?"}))
    ways = {record["how"] for record in records}
    assert len(ways) == 6
    for way in ways - {UNTOUCHED, "somebody else's solution"}:
        assert [record["item"] for record in records if record["how"] == way] == list(range(NUM_PLANTED))
    assert all("\n####" in record["answer"] for record in records)
    assert sum(record["how"] == UNTOUCHED for record in records) == len(train)


def test_the_bench_finds_what_it_planted_and_nothing_else(tmp_path):
    store, benchmark = make_files(tmp_path, num_samples=1001, num_items=30)
    assert against_in(str(store), str(benchmark)) == {"contaminated": 2, "planted": 2}
