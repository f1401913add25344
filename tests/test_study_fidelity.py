"""The fidelity audit of a tiny model's own store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import SettingError
from grace_store.base.finding import Estimate
from grace_store.pool.pool import Pool
from grace_store.store.opened import Store
from grace_store.study.fidelity import FidelitySettings, conclude_fidelity, fidelity
from grace_store.values.agreement import agreement, jaccard_by_chance, survival
from tests.proxy_stores import proxy_store
from tests.scored_stores import known_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return proxy_store(tmp_path_factory.mktemp("fidelity"))


def test_the_proxys_alignments_are_held_against_gradients(store: Store) -> None:
    pool = Pool.of(store, threads=1)
    found = fidelity(pool, FidelitySettings(samples=10, layers=1, device="cpu"))
    assert found.numbers["num_samples"] == 10
    values = found.tables["values"]
    assert list(values.columns) == ["sample_id", "proxy", "representation", "layers 0-1"]
    whole, layers = (values.column(space) for space in ("representation", "layers 0-1"))
    assert not np.allclose(whole, layers), "embeddings count too"
    assert len(found.tables["steps"].rows) == 3 * found.numbers["num_steps"]
    for value in found.tables["spaces"].column("value"):
        assert -1 <= value.low <= value.value <= value.high <= 1
    again = fidelity(pool, FidelitySettings(samples=10, device="cpu"))
    for name in ("sample_id", "proxy"):
        assert again.tables["values"].column(name) == values.column(name)


def test_bad_wishes_get_a_sentence(store: Store, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="samples 3: input should be greater than or equal to 8"):
        FidelitySettings.parse(samples=3)
    with pytest.raises(SettingError, match="has 5 done samples"):
        fidelity(known_store(tmp_path, num_steps=[2] * 5).store)


# ---------------------------------------------------------------- what it means


def concluded(num: int, noise: float, **spaces: float) -> tuple[str, dict[str, dict[str, Estimate]]]:
    """What is said of a proxy that is the gradient's value with noise; each space of parameters has its own."""
    rng = np.random.default_rng(2)
    true = rng.normal(size=num)
    measured = {}
    for name, amount in {"representation": noise, **spaces}.items():
        proxy, each = true + amount * rng.normal(size=num), np.arange(num + 1)
        measured[name] = {"value": agreement(proxy, true, each), "chosen": survival(proxy, true, "0.2")}
    return conclude_fidelity(measured, num, "0.2", jaccard_by_chance(num, num // 5)), measured


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
    told, spaces = concluded(num, noise)
    assert told.startswith(words)
    value, chosen = (spaces["representation"][name] for name in ("value", "chosen"))
    assert f"over {num} samples, values have a rank correlation of {value.value:.2f} ({value.low:.2f} to" in told
    assert subset in told
    assert f"{chosen.value:.2f} ({chosen.low:.2f} to {chosen.high:.2f}), and random choices would share 0.11." in told


def test_other_parameters_are_told_beside_all_of_them() -> None:
    told, spaces = concluded(100, 0.2, lora=0.5)
    assert f" ({spaces['lora']['value'].text(2)} over lora). " in told


def test_too_few_gradients_are_told_with_how_many_would_do() -> None:
    told, spaces = concluded(12, 1.5)
    assert told.startswith(
        "Too few samples to say whether the proxy keeps the order of whole gradients: over 12 samples"
    )
    wanted = int(told.partition("About ")[2].split()[0])
    assert wanted == pytest.approx(12 * (spaces["representation"]["value"].half_width / 0.1) ** 2, abs=10)
    assert "Too few" not in concluded(wanted, 1.5)[0]
