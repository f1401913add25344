"""How large subsets are to be, and the files they go to."""

from __future__ import annotations

from pathlib import Path

import pytest

from grace_store.base.errors import SettingError
from grace_store.curate.score import score
from grace_store.curate.select import SubsetSizes, rank_samples, subset_paths
from tests.scored_stores import known_store


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (SubsetSizes(), {"0.2": 3}),
        (SubsetSizes(ratios=("0.07", "1")), {"0.07": 1, "1": 13}),
        (SubsetSizes(counts=(2, 5)), {"2": 2, "5": 5}),
        (SubsetSizes(threshold=-1.0), {"-1.0": 13}),
    ],
)
def test_every_size_is_a_subset(tmp_path, sizes, expected):
    ranking = rank_samples(score(known_store(tmp_path).store))
    assert {name: len(subset) for name, subset in sizes.take(ranking).items()} == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ratios": ("0.1",), "counts": (3,)}, "give one of --ratio, --count and --threshold"),
        ({"counts": (3,), "threshold": 0.0}, "give one of"),
        ({"ratios": ("0.1", "0.1")}, "given twice"),
    ],
)
def test_sizes_that_exclude_each_other_are_refused(given, message):
    with pytest.raises(SettingError, match=message):
        SubsetSizes(**given)


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
