"""Every test has its own cache of digests, so that none leaves traces in the user's, and no network is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grace_store.store import backend
from tests.mortal_backend import MortalBackend

QUICK_ROOMS = ("base", "values", "likeness", "data", "store", "pool", "layers", "format")
"""Rooms whose tests `make check` runs: they need no model, no browser and no cluster."""
NOT_QUICK = ("test_store_check", "test_store_object_backend", "test_likeness_search", "test_likeness_clusters")
"""Files of these rooms that take a third of their time."""


def is_quick(path: Path) -> bool:
    """Return whether the tests of a file need no model: by its name, or by the room of a module with examples."""
    if path.parent.name == "tests":
        return path.stem.removeprefix("test_").partition("_")[0] in QUICK_ROOMS and path.stem not in NOT_QUICK
    return "grace_store" in path.parts and not {"model", "train"} & set(path.parts)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the other files unread when only quick tests are wanted: to import them takes longer than to run these."""
    only_quick = config.option.markexpr == "quick" and collection_path.suffix == ".py"
    return True if only_quick and not is_quick(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_quick(item.path):
            item.add_marker("quick")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRACE_STORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parent.parent


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as users install it."""
    from tests.installations import build_wheel

    return build_wheel(tmp_path_factory.mktemp("wheel"))


# ---------------------------------------------------------------- what tests of commands start from, never to change


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model with random weights."""
    from tests.tiny_models import tiny_text_model

    return str(tiny_text_model("qwen3", tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="session")
def extracted(text_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset, traces.jsonl, and a store of the tiny model's signals, store.zarr."""
    from tests.commands import extract_words, run
    from tests.jobs import write_dataset

    folder = tmp_path_factory.mktemp("extracted")
    write_dataset(folder / "traces.jsonl")
    run(*extract_words(folder / "store.zarr", text_model, str(folder / "traces.jsonl")))
    return folder


@pytest.fixture(scope="session")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset, a store of the fake model's signals, store.zarr, and their scores, scores.parquet."""
    from grace_store.run.extract import extract
    from tests.commands import run
    from tests.jobs import make_job

    folder = tmp_path_factory.mktemp("scored")
    extract(make_job(folder))
    run("score", folder / "store.zarr", "--out", folder / "scores.parquet")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A dataset of the test's own."""
    from tests.jobs import write_dataset

    return str(write_dataset(tmp_path / "traces.jsonl"))


@pytest.fixture
def repo_on_path(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let worker processes import the helpers of tests."""
    monkeypatch.setenv("PYTHONPATH", str(repository))


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> type[MortalBackend]:
    """Every backend is mortal."""
    MortalBackend.revive()
    monkeypatch.setattr(backend, "LocalBackend", MortalBackend)
    return MortalBackend
