"""Every command prints with --json what it has always printed: the same keys, numbers and sentences."""

from __future__ import annotations

import pytest

from grace_store.cli.main import COMMANDS
from tests.golden_commands import CASES, GOLDEN, REFRESH, World, changes, differences, normalised


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("name", CASES)
def test_a_command_prints_what_its_golden_file_holds(world: World, name: str) -> None:
    found = changes(name, world.result(name))
    remedy = f"If that is meant, run `{REFRESH} {name}`."
    assert not found, "\n".join([f"{name} differs in:", *found, remedy])


def test_every_command_has_a_golden_file() -> None:
    assert {case.words.split()[0] for case in CASES.values()} == set(COMMANDS)
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


def test_differences_name_their_keys() -> None:
    expected = {"a": [1, {"b": 0.123456}], "c": "x", "d": None, "e": 1}
    found = {"a": [1, {"b": 0.12345}], "c": "y", "e": True, "f": 2}
    assert list(differences(expected, found, 2e-6, 1e-9)) == [
        "a[1].b: expected 0.123456, found 0.12345",
        "c: expected 'x', found 'y'",
        "d: the key is missing",
        "e: expected 1, found True",
        "f: the key is new, with 2",
    ]
    assert list(differences([1, 2], [1], 2e-6, 1e-9, "g")) == ["g: expected [1, 2], found [1]"]
    assert list(differences({"a": 0.333333, "b": 1e-12}, {"a": 0.3333332, "b": 0.0}, 2e-6, 1e-9)) == []


def test_places_digests_times_and_versions_do_not_count() -> None:
    printed = {
        "store": "/some/folder/s.zarr",
        "sha256": "0123456789ab" * 4,
        "time": "2026-01-02T03:04:05.678+00:00",
        "made_by": "grace-store 0.1.0",
        "numpy": "2.4.6",
        "value": 1 / 3,
        "kept": ["0.2", 7, None],
    }
    assert normalised(printed, "/some/folder", {"made_by"}) == {
        "store": "HOME/s.zarr",
        "sha256": "DIGEST",
        "time": "TIME",
        "made_by": "str",
        "numpy": "VERSION",
        "value": 0.333333,
        "kept": ["0.2", 7, None],
    }
