"""The fidelity audit of a tiny model's own store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grace_store.artifacts.measures import FidelityDocument, SpaceFidelity
from grace_store.base.errors import SettingError
from grace_store.base.settings import RunOptions
from grace_store.curate.fidelity import FidelityRequest, conclude_fidelity, fidelity, shown_agreement
from grace_store.store.opened import Store
from grace_store.values.agreement import agreement, jaccard_by_chance, survival
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


# ---------------------------------------------------------------- what it means


def document(num: int, noise: float, **spaces: float) -> FidelityDocument:
    """What is found of a proxy that is the gradient's value with noise; each space of parameters has its own."""
    rng = np.random.default_rng(2)
    true = rng.normal(size=num)
    measured = {}
    for name, amount in {"representation": noise, **spaces}.items():
        proxy, each = true + amount * rng.normal(size=num), np.arange(num + 1)
        order = agreement(proxy, true, each)
        measured[name] = SpaceFidelity(
            answer_alignment=order, history_alignment=order, value=order, chosen=survival(proxy, true, "0.2")
        )
    return FidelityDocument(
        store="s.zarr",
        plan_sha256="0",
        signal="base",
        num_samples=num,
        num_steps=num,
        ratio="0.2",
        by_chance=jaccard_by_chance(num, num // 5),
        spaces=measured,
    )


@pytest.mark.parametrize(
    ("num", "noise", "words", "subset"),
    [
        (100, 0.2, "The proxy keeps the order of whole gradients: ", "It chooses much like gradients would: "),
        (200, 1.0, "The proxy keeps much of the order of whole gradients, not all of it: ", "It chooses much like"),
        (
            400,
            4.0,
            "The proxy keeps little of the order of whole gradients: ",
            "That its subset is theirs",
        ),
        (
            1500,
            1e6,
            "The proxy keeps nothing of the order of whole gradients: ",
            "That its subset is theirs",
        ),
    ],
)
def test_what_the_proxy_keeps_is_told_with_the_tables_numbers(num: int, noise: float, words: str, subset: str) -> None:
    found = document(num, noise)
    told, space = conclude_fidelity(found), found.spaces["representation"]
    assert told.startswith(words)
    value, chosen = space.value, space.chosen
    assert f"over {num} samples, values have a rank correlation of {value.correlation:.2f} ({value.low:.2f} to" in told
    assert subset in told
    assert f"{chosen.jaccard:.2f} ({chosen.low:.2f} to {chosen.high:.2f}), and random choices would share 0.11." in told


def test_other_parameters_are_told_beside_all_of_them() -> None:
    found = document(100, 0.2, lora=0.5)
    assert f" ({shown_agreement(found.spaces['lora'].value)} over lora). " in conclude_fidelity(found)


def test_too_few_gradients_are_told_with_how_many_would_do() -> None:
    found = document(12, 1.5)
    told, value = conclude_fidelity(found), found.spaces["representation"].value
    assert told.startswith(
        "Too few samples to say whether the proxy keeps the order of whole gradients: over 12 samples"
    )
    wanted = int(told.partition("About ")[2].split()[0])
    assert wanted == pytest.approx(12 * ((value.high - value.low) / 2 / 0.1) ** 2, abs=10)
    assert "Too few" not in conclude_fidelity(document(wanted, 1.5))
