"""The fidelity audit of a tiny model's own store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import SettingError
from grace_store.base.settings import RunOptions
from grace_store.curate.fidelity import FidelityRequest, fidelity
from grace_store.store.opened import Store
from tests.proxy_stores import proxy_store
from tests.scored_stores import known_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return proxy_store(tmp_path_factory.mktemp("fidelity"))


def test_the_proxys_alignments_are_held_against_gradients(store: Store) -> None:
    options = RunOptions(device="cpu", threads=1)
    found = fidelity(store, FidelityRequest(num_samples=10, draws=20, num_layer_groups=1, options=options))
    assert found.document.num_samples == 10
    assert list(found.scores) == ["proxy", "representation", "layers 0-1"]
    whole, layers = (found.scores[space] for space in ("representation", "layers 0-1"))
    assert not np.allclose(whole.value, layers.value), "embeddings count too"
    for space in found.document.spaces.values():
        assert -1 <= space.value.low <= space.value.correlation <= space.value.high <= 1
    stored = found.scores["proxy"].value
    again = fidelity(store, FidelityRequest(num_samples=10, draws=20, options=options))
    assert again.sample_id == found.sample_id
    np.testing.assert_array_equal(again.scores["proxy"].value, stored)


def test_bad_wishes_get_a_sentence(store: Store, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="3 samples: too few to correlate"):
        fidelity(store, FidelityRequest(num_samples=3))
    with pytest.raises(SettingError, match="draws 0 is not at least 1"):
        fidelity(store, FidelityRequest(draws=0))
    with pytest.raises(SettingError, match="has 5 done samples"):
        fidelity(known_store(tmp_path, num_steps=[2] * 5).store)
