"""The fidelity audit: agreements against their definition, and the whole of it on a tiny model's own store."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from grace_store.base.errors import SettingError
from grace_store.base.settings import DataRequest, RunOptions
from grace_store.cli import main
from grace_store.curate.fidelity import FidelityRequest, fidelity
from grace_store.run.extract import ExtractJob, extract
from grace_store.store.opened import Store
from grace_store.values.agreement import agreement, scores_of
from grace_store.values.score_spec import ScoreSpec
from tests.scored_stores import known_store
from tests.tiny_models import tiny_text_model


def brute_spearman(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's by its definition: Pearson's of the ranks, ties at their mean rank."""

    def ranks(values: np.ndarray) -> np.ndarray:
        return np.array([(values < value).sum() + ((values == value).sum() - 1) / 2 for value in values])

    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def test_an_agreement_is_a_rank_correlation_over_pairs_that_are_there() -> None:
    rng = np.random.default_rng(0)
    one = rng.integers(0, 9, 60).astype(float)
    other = one + rng.integers(0, 9, 60)
    other[::7] = np.nan
    found = agreement(one, other, np.arange(0, 61, 3))
    both = np.isfinite(other)
    assert found.correlation == pytest.approx(brute_spearman(one[both], other[both]))
    assert found.low < found.correlation < found.high
    assert found.num_pairs == int(both.sum())


def test_intervals_draw_samples_not_steps() -> None:
    """Steps that repeat their sample's number are no further evidence, so they make no interval narrower."""
    rng = np.random.default_rng(1)
    one = rng.normal(size=40)
    other = one + rng.normal(size=40)
    single = agreement(one, other, np.arange(41), draws=400)
    repeated = agreement(np.repeat(one, 5), np.repeat(other, 5), np.arange(0, 201, 5), draws=400)
    assert repeated.high - repeated.low == pytest.approx(single.high - single.low, rel=0.02)


def test_scores_of_full_grams_are_grace() -> None:
    vectors = np.random.default_rng(2).normal(size=(3, 5))
    found = scores_of([vectors @ vectors.T], [np.array([1, 1, 1])], ScoreSpec(alpha=1))
    cosines = [v @ vectors[2] / np.linalg.norm(v) / np.linalg.norm(vectors[2]) for v in vectors[:2]]
    np.testing.assert_allclose(found.answer_alignment, cosines)
    assert found.value[0] == pytest.approx(np.mean(cosines))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("fidelity")
    lines = [
        {
            "prompt": f"{i} + {j}?",
            "steps": [f"Take {i}.", f"Add {j} to it.", "Done."][: 2 + i % 2],
            "answer": str(i + j),
        }
        for i in range(4)
        for j in range(4)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return extract(
        ExtractJob(
            store=str(folder / "s.zarr"),
            model=str(tiny_text_model("llama", folder / "llama")),
            data=(str(folder / "data.jsonl"),),
            data_request=DataRequest(min_steps=1),
            options=RunOptions(device="cpu", threads=1),
        )
    ).store


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


def test_the_command_prints_a_table_and_writes_what_is_behind_it(store: Store, tmp_path: Path) -> None:
    out, figure = tmp_path / "raw.json", tmp_path / "picture.svg"
    arguments = ["fidelity", store.location, "--samples", "8", "--device", "cpu", "--threads", "1"]
    shown = CliRunner().invoke(main, [*arguments, "--out", str(out), "--figure", str(figure)])
    assert shown.exit_code == 0, shown.output
    assert "representation" in shown.stdout
    raw = json.loads(out.read_text())
    assert len(raw["samples"]) == 8
    assert raw["samples"][0]["scores"]["proxy"]["history_alignment"][0] is None
    assert figure.read_text().count("<circle") == 8 + 2 * raw["num_steps"] - 8
    machine = CliRunner().invoke(main, [*arguments, "--json"])
    assert json.loads(machine.stdout)["spaces"]["representation"]["value"]["num_pairs"] == 8


def test_bad_wishes_get_a_sentence(store: Store, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="3 samples are too few"):
        fidelity(store, FidelityRequest(num_samples=3))
    with pytest.raises(SettingError, match="draws 0 is not at least 1"):
        fidelity(store, FidelityRequest(draws=0))
    with pytest.raises(SettingError, match="has 5 done samples"):
        fidelity(known_store(tmp_path, num_steps=[2] * 5).store)


@pytest.mark.parametrize("option", ["--out", "--figure"])
def test_nothing_is_written_over_the_data_or_into_the_store(store: Store, option: str) -> None:
    data = Path(store.plan.files[0].path)
    before = data.read_bytes()
    for place in (data, Path(store.location) / "new.json"):
        done = CliRunner().invoke(main, ["fidelity", store.location, option, str(place)])
        assert done.exit_code == 1
        assert "Nothing was written." in done.stderr
    assert data.read_bytes() == before


def test_two_results_do_not_go_into_one_file(store: Store, tmp_path: Path) -> None:
    one = str(tmp_path / "one")
    done = CliRunner().invoke(main, ["fidelity", store.location, "--out", one, "--figure", one])
    assert "would be written twice" in done.stderr
