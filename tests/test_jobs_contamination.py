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
ASKED = (
    "Anna has 12 red boxes for $4.50 each, and Bob's uncle has three of them. After lunch, Anna gave 1/3 of the 1,500 "
    "blue ones away. How many are left?"
)
NUM_NUMBERS = 6
"""Digits that are changed one by one: those of a fraction are two."""


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_question_is_what_its_name_says(name):
    text = PLANTS[name].plant(ASKED, OTHERS, Random(1))
    words, asked = words_of(text), words_of(ASKED)
    assert (text == ASKED) == (name == "copied as it is")
    if not PLANTS[name].is_copy:
        assert len(words) == len(asked)
        changed = [(a, b) for a, b in zip(words, asked, strict=True) if a != b]
        assert all(is_number(a) and is_number(b) for a, b in changed)
        assert len(changed) == (1 if name == "one number changed" else NUM_NUMBERS - 1)
    elif PLANTS[name].plant.__name__ in ("copy", "rewrap") or PLANTS[name].only_changed:
        assert words == asked
    else:
        assert has_number(text)
        assert {"12", "3", "1500"} & set(words)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("numbers in words, and words in digits", ["twelve red", "$4.50", "has 3 of", "1/3", "1,500"]),
        ("$4.00 for $4, 3{,}650 for 3,650", ["12 red", "$4.5 ", "three", "1/3"]),
        ("fractions in words, and back", ["12 red", "$4.50", "one", "third of", "1,500"]),
        ("digits of other scripts", ["three"]),
    ],
)
def test_numbers_are_written_otherwise_where_the_name_says_so(name, shown):
    text = PLANTS[name].plant(ASKED, OTHERS, Random(1))
    assert not [part for part in shown if part not in text]
    assert not [part for part in ("$4.50", "1,500", "12") if name.startswith("digits") and part in text]


def test_the_tables_tell_copies_from_templates(tmp_path):
    test = [{"question": question(number), "answer": f"Half of it.\n#### {number}"} for number in range(4)]
    train = [{"question": OTHERS[number % 3], "answer": f"So it is.\n#### {number}"} for number in range(6)]
    paths = [write_records(tmp_path / f"{name}.jsonl", each) for name, each in (("train", train), ("test", test))]
    lines = list(tables(*paths, elsewhere=[paths[1]]))
    rows = {line.split("|")[1].strip(): line.split("|")[2].split()[0] for line in lines[2 : lines.index("")]}
    assert [rows[name] for name in ("copied as it is", "inside longer text", "digits of other scripts")] == [
        "1.000"
    ] * 3
    assert rows["numbers in words, and words in digits"] == "1.000"
    assert [rows[name] for name in PLANTS if not PLANTS[name].is_copy] == ["0.000"] * 3
    assert rows["untouched traces (6)"] == "0"
    assert "test.jsonl: 4 of 4 traces, 0 templates." in lines
    assert any(line.startswith("Planted copies that are called another question: 0 of ") for line in lines)


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
