"""Files that name samples: subsets with their notes, tables of scores, lists of ids."""

from __future__ import annotations

import json

import pytest

from grace_store.base.errors import DataError
from grace_store.choose.duplicates import duplicates
from grace_store.choose.export import export
from grace_store.choose.select import select
from grace_store.scoring.score import score
from grace_store.store.opened import Store
from tests.duplicated_stores import duplicated_store


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return duplicated_store(tmp_path_factory.mktemp("d"))


def test_a_file_that_names_no_samples_is_refused(store, tmp_path):
    (tmp_path / "ids.txt").write_text("s60\nnobody\n")
    with pytest.raises(DataError, match=r"1 line without an id of that store \('nobody'\)"):
        duplicates(store, subset=tmp_path / "ids.txt")
    with pytest.raises(DataError, match="cannot be read as a list of ids"):
        duplicates(store, subset=tmp_path / "missing.txt")
    (tmp_path / "old.jsonl.spec.json").write_text('{"made_by": "grace-store 0"}')
    with pytest.raises(DataError, match=r"old\.jsonl\.spec\.json is not a subset: .*no kind.*`grace-store select`"):
        duplicates(store, subset=tmp_path / "old.jsonl")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": ["x"]}, r"rows\.0 'x': a whole number is wanted"),
        ({"rows": 5}, "rows 5: a list is wanted"),
        ({"scores": 5}, "scores 5: a table is wanted"),
        ({"rows": [0, 10**6]}, "names records that are not samples of"),
    ],
)
def test_a_subset_with_a_strangers_note_is_refused(store, tmp_path, change, words):
    export(select(score(store), ratio="0.3"), tmp_path / "s.ids", as_format="ids")
    sidecar = tmp_path / "s.ids.spec.json"
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | change))
    with pytest.raises(DataError, match=words):
        duplicates(store, subset=tmp_path / "s.ids")
