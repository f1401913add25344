"""Filters and groups by fields of the records: against a loop over the records themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import DatasetChanged, SettingError
from grace_store.base.settings import DataSpec
from grace_store.pool import sample_fields
from grace_store.pool.pool import Pool
from grace_store.pool.records import SampleRecords
from grace_store.pool.sample_fields import Kept, parse_names
from grace_store.run.plan import plan
from grace_store.store.opened import Store
from tests.field_stores import NUM_RECORDS, RECORDS, SOURCES


def planned(folder: Path, records: list[dict]) -> Store:
    (folder / "data.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    return plan([folder / "data.jsonl"], folder / "traces.zarr", DataSpec(format="explicit", min_steps=1))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return planned(tmp_path_factory.mktemp("fields"), RECORDS)


def keep_planned(store: Store, where: str, data: list[Path] | None = None) -> Kept:
    kept = Pool.of(store, where=where, data=data).kept
    assert kept is not None
    return kept


CASES = {
    "is_correct and source in ('math', 'code')": lambda r: r["is_correct"] and r["source"] in ("math", "code"),
    '"meta.level" >= 3 and "meta.by.name" = \'writer 1\'': lambda r: (
        r["meta"]["level"] >= 3 and r["meta"]["by"]["name"] == "writer 1"
    ),
    "is_correct is null": lambda r: r["is_correct"] is None,
    "json_array_length(tags) = 2": lambda r: len(r["tags"]) == 2,
    "tags like '%late%'": lambda r: "late" in r["tags"],
    '"say ""hi""" > 40': lambda r: r['say "hi"'] > 40,
    '"dotted.name" = 3': lambda r: r["dotted.name"] == 3,
    "source = 'it''s \"odd\"'": lambda r: r["source"] == SOURCES[2],
    "rare is not null": lambda r: "rare" in r,
    "num_steps = 3 and row % 3 = 0": lambda r: len(r["steps"]) == 3 and r['say "hi"'] % 3 == 0,
    "\"$.value\" < -40 or id = 't1'": lambda r: r["value"] < -40 or r["id"] == "t1",
    "meta -> '$.level' = '2'": lambda r: r["meta"]["level"] == 2,
}


@pytest.mark.parametrize("where", CASES)
def test_what_is_kept_is_what_a_loop_keeps(store: Store, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(sample_fields, "ROWS_AT_ONCE", 7)  # several blocks, the last of them short
    found = keep_planned(store, where)
    assert found.is_kept.tolist() == [bool(CASES[where](record)) for record in RECORDS]
    assert (found.where, found.num_samples, found.num_kept) == (where, NUM_RECORDS, found.is_kept.sum())


def test_what_is_known_without_records_needs_no_dataset(tmp_path: Path) -> None:
    store = planned(tmp_path, RECORDS[:8])
    moved = (tmp_path / "data.jsonl").rename(tmp_path / "moved.jsonl")
    assert keep_planned(store, "num_steps > 2").num_kept == 6
    with pytest.raises(DatasetChanged, match="no longer there"):
        keep_planned(store, "source = 'math'")
    assert keep_planned(store, "source = 'math'", [moved]).num_kept == 3


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("sorce = 'math'", r"has a field 'sorce'. Did you mean source\? There are: id, row, num_steps, is_correct, "),
        ('"meta.levle" > 1', r"has a field 'meta.levle'. Did you mean meta.level"),
        ("LEVEL > 1", r"No record of .* has a field 'LEVEL'\."),
        ("is_correct = 'True'", r"keeps none of the 48 samples: is_correct is True, .*for example"),
    ],
)
def test_a_field_that_no_record_has_is_answered_with_those_there_are(store: Store, where: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        keep_planned(store, where)


def test_a_text_in_double_quotes_is_explained(store: Store) -> None:
    with pytest.raises(SettingError, match="has a field 'math'") as refused:
        keep_planned(store, 'source = "math"')
    assert refused.value.__notes__ == ["Double quotes are for names of fields; a text stands in single quotes."]


def test_the_most_frequent_fields_come_first_of_ten_thousand(tmp_path: Path) -> None:
    many = {f"field_{i:05}": i for i in range(10_000)}
    records = [RECORDS[i] | (many if i == 3 else {}) for i in range(6)]
    store = planned(tmp_path, records)
    assert keep_planned(store, "field_09999 = 9999").is_kept.tolist() == [i == 3 for i in range(6)]
    names = SampleRecords(store).field_names()
    assert len(names) == 10_012 + 1
    assert names.index("answer") < names.index("rare") < names.index("field_00000")
    with pytest.raises(SettingError, match=r"Did you mean field_00001 .* and 10,000 more"):
        keep_planned(store, "feld_00001 = 1")


# ---------------------------------------------------------------- groups


def groups(store: Store, by: str) -> list[object]:
    return Pool.of(store).fields().groups(by)


def test_one_field_groups_by_its_values_and_several_by_their_combinations(store: Store) -> None:
    assert groups(store, "source") == [record["source"] for record in RECORDS]
    crossed = groups(store, "source, meta.level,num_steps")
    assert crossed == [(r["source"], r["meta"]["level"], len(r["steps"])) for r in RECORDS]
    assert groups(store, '"dotted.name"') == [record["dotted.name"] for record in RECORDS]


def test_an_unknown_field_of_a_group_is_answered_with_those_there_are(store: Store) -> None:
    with pytest.raises(SettingError, match=r"has a field 'level'. Did you mean meta.level\?"):
        groups(store, "source,level")


@pytest.mark.parametrize("text", ["", ",", "a,,b", "a,a", '"a'])
def test_a_list_of_fields_has_different_names(text: str) -> None:
    with pytest.raises(SettingError, match="is not a list of"):
        parse_names(text)


def test_records_come_in_the_order_asked_for(store: Store) -> None:
    positions = np.array([40, 3, 17])
    assert [record["id"] for record in SampleRecords(store, positions=positions)] == ["t40", "t3", "t17"]
    assert len(SampleRecords(store, positions=positions).spread(2)) == 2
