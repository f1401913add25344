"""How large subsets are to be, and the files they go to."""

from __future__ import annotations

from pathlib import Path

import pytest

from grace_store.base.errors import SettingError
from grace_store.choose.select import rank_samples, subset_paths
from grace_store.choose.selection import SIZES, Selection
from grace_store.scoring.score import score
from tests.scored_stores import known_store


@pytest.mark.parametrize(
    ("size", "num"), [({}, 3), ({"ratio": "0.07"}, 1), ({"ratio": 1}, 13), ({"count": 5}, 5), ({"threshold": -1.0}, 13)]
)
def test_every_size_is_a_subset_of_one_ranking(tmp_path, size, num):
    ranking = rank_samples(score(known_store(tmp_path).store))
    subset = ranking.take(**size)
    assert len(subset) == num
    assert {name: value for name, value in subset.spec if value and name in SIZES} == {
        name: str(value) if name == "ratio" else value for name, value in (size or {"ratio": "0.2"}).items()
    }


@pytest.mark.parametrize("given", [{"ratio": "0.1", "count": 3}, {"count": 3, "threshold": 0.0}])
def test_sizes_that_exclude_each_other_are_refused(given):
    with pytest.raises(SettingError, match="give one of --ratio, --count and --threshold"):
        Selection(**given).sized  # noqa: B018


@pytest.mark.parametrize(
    ("out", "sizes", "names"),
    [
        ("s.jsonl", ["0.2"], ["s.jsonl"]),
        ("s.jsonl", ["0.1", "0.2"], ["s-0.1.jsonl", "s-0.2.jsonl"]),
        ("{ratio}.txt", ["5", "9"], ["5.txt", "9.txt"]),
        ("{ratio}.txt", ["5"], ["5.txt"]),
    ],
)
def test_every_subset_has_a_file_of_its_own(out, sizes, names):
    assert [path.name for path in subset_paths(Path(out), sizes)] == names
