"""The Python API: small, lazy, documented, and the same functions that the commands use."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys

import numpy as np
import pytest

import grace_store as gs
from grace_store.cli.main import COMMANDS
from grace_store.run.extract import extract
from tests.jobs import make_job

VERBS = sorted(set(COMMANDS) - {"demo"})
NAMES = [name for name in gs.__all__ if name != "__version__"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    extract(make_job(folder))
    return folder


def test_every_command_is_a_function_of_its_name():
    assert set(VERBS) <= set(gs.__all__) <= set(dir(gs))
    assert all(inspect.isfunction(getattr(gs, verb)) for verb in VERBS)
    assert len(NAMES) < 110  # a surface that fits on two screens


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_says_what_it_is(name):
    value = getattr(gs, name)
    assert value.__name__ == name
    assert inspect.getdoc(value)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_says_what_each_setting_is(name):
    value = getattr(gs, name)
    if inspect.isfunction(value):
        by_place = [each for each in inspect.signature(value).parameters.values() if each.kind is not each.KEYWORD_ONLY]
        assert len(by_place) < 5


def test_no_package_has_the_name_of_a_verb(repository):
    assert not {path.name for path in (repository / "grace_store").iterdir()} & set(VERBS)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'scores'"):
        _ = gs.scores


def test_importing_the_package_loads_nothing_else():
    code = (
        "import sys; before = set(sys.modules); import grace_store; "
        "print(sorted(m for m in set(sys.modules) - before if m.partition('.')[0] not in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['grace_store']"


def test_the_example_in_the_docstring_runs(folder, tmp_path, monkeypatch):
    shutil.copytree(folder / "store.zarr", tmp_path / "traces.zarr")
    monkeypatch.chdir(tmp_path)
    example = [line[4:] for line in gs.__doc__.splitlines() if line.startswith("    ")]
    exec("\n".join(example), {})
    assert len((tmp_path / "subset.jsonl").read_text().splitlines()) == 5


def test_the_whole_way_in_python(folder, tmp_path):
    store = gs.open_store(folder / "store.zarr")
    samples = list(gs.iter_samples(store))
    assert len(samples) == 24
    assert samples[0].gram.shape == (samples[0].num_steps + 1,) * 2
    table = gs.score(store, gs.ScoreSpec(alpha=0.5, history="ema:0.8"))
    assert isinstance(table.value, np.ndarray)
    frame = table.to_pandas()
    assert frame.value.tolist() == table.value.tolist()
    assert [sample.sample_id for sample in samples] == table.sample_id
    subset = gs.select(table, ratio="0.2")
    assert len(subset) == 5
    assert subset.to_pandas().sample_id.tolist() == frame.sort_values("value", ascending=False).sample_id.tolist()[:5]
    gs.export(subset, tmp_path / "subset.jsonl", as_format="ms-swift")
    assert len((tmp_path / "subset.jsonl").read_text().splitlines()) == 5
    run = gs.score(store, gs.ScoreSpec(measure=("tokens",)), out=tmp_path / "longest.parquet")
    assert len(gs.read_scores(run.out)) == 24
    gs.score(store, gs.ScoreSpec(), out=tmp_path / "scores.parquet")
    comparison = gs.compare(tmp_path / "scores.parquet", tmp_path / "longest.parquet")
    assert comparison.numbers["num_a"] == comparison.numbers["num_b"] == 5
    sweep = gs.sweep(store, gs.SweepSpec(grid=(gs.Grid(alpha="0.1:0.9:0.1"),)), out=tmp_path / "sweep")
    assert sweep.values().shape == (9, 24)
    assert gs.audit(table).numbers["num_samples"] == 24


def test_a_sample_by_hand_has_the_value_that_the_table_has(folder):
    """What the README says of the mathematics, on one sample, with nothing but its Gram."""
    store = gs.open_store(folder / "store.zarr")
    table = gs.score(store, gs.ScoreSpec(alpha=0.7))
    for sample, value in zip(gs.iter_samples(store), table.value, strict=True):
        gram, answer = sample.gram, sample.num_steps
        norm = np.sqrt(np.diag(gram))
        scores = []
        for k in range(sample.num_steps):
            a = gram[k, answer] / (norm[k] * norm[answer])
            if k == 0:
                scores.append(a)
                continue
            past = gram[k, :k].sum() / (norm[k] * np.sqrt(gram[:k, :k].sum()))
            scores.append(0.7 * a + 0.3 * past)
        assert value == pytest.approx(np.mean(scores), abs=1e-6)
