"""Every test has its own cache of digests, so that none leaves traces in the user's, and no network is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grace_store.store import backend
from tests.mortal_backend import MortalBackend


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRACE_STORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parent.parent


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
