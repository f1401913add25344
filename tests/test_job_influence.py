"""score --method less, icons and cadc on stores: against brute force, with what cannot be compared refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from grace_store.artifacts.score_table import read_scores
from grace_store.base.errors import (
    Corrupt,
    NotAStore,
    ResumeMismatch,
    SettingError,
    TargetMismatch,
    Unfinished,
    UnknownName,
)
from grace_store.base.events import SamplesScored, Warned
from grace_store.cli import main
from grace_store.curate.audit import audit
from grace_store.curate.compare import compare
from grace_store.curate.influence import InfluenceScoring
from grace_store.curate.score import ScoreRequest, replay, score
from grace_store.curate.select import RankRequest, rank_samples, select
from grace_store.curate.targets import Targets
from grace_store.read.vectors import VectorReader
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.opened import Store
from grace_store.values.methods.heuristic_spec import HeuristicSpec
from grace_store.values.methods.influence_spec import InfluenceSpec
from grace_store.values.random_values import random_values
from grace_store.values.score_spec import ScoreSpec
from tests.gradient_stores import (
    DIMENSION,
    add_gradients,
    brute_influence,
    brute_mean_rank,
    brute_votes,
    gradient_spec,
    plan_store,
    record,
    stored_vectors,
)
from tests.stores import add_signal

NUM_POOL = 37
UNIT = 16
SIZES = {"algebra": 5, "counting": 2, "geometry": 9}
SUBTASK = [number for number, size in enumerate(SIZES.values()) for _ in range(size)]
CHECKPOINTS = ("ck1", "ck2", "ck3")
RATES = [3e-5, 2e-5, 1e-5]
LESS = InfluenceSpec(method="less")
ICONS = InfluenceSpec(method="icons")
CADC = InfluenceSpec(method="cadc")


def random_gradients(seed, num):
    return np.random.default_rng(seed).normal(size=(num, DIMENSION))


def make_pool(folder: Path, name: str = "pool", num: int = NUM_POOL, samples_per_unit: int = UNIT) -> Store:
    return plan_store(folder, name, {"pool.jsonl": [record(f"p{i}") for i in range(num)]},
                      samples_per_unit=samples_per_unit)  # fmt: skip


def make_targets(folder: Path, name: str = "targets", samples_per_unit: int = 8) -> Store:
    files = {f"{task}.jsonl": [record(f"{task}{i}", task) for i in range(size)] for task, size in SIZES.items()}
    return plan_store(folder, name, files, samples_per_unit=samples_per_unit)


def fill(pool: Store, targets: Store, storage="float32", names=CHECKPOINTS, rates=RATES) -> None:
    for number, (name, rate) in enumerate(zip(names, rates, strict=True)):
        spec = gradient_spec(storage, weights=f"w{number}", learning_rate=rate)
        add_gradients(pool, name, random_gradients(number, pool.plan.num_samples), spec)
        add_gradients(targets, name, random_gradients(100 + number, targets.plan.num_samples), spec)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pool and a target set of three subtasks, three checkpoints in float32 and in int8."""
    folder = tmp_path_factory.mktemp("influence")
    for storage in ("float32", "int8"):
        (folder / storage).mkdir()
        fill(make_pool(folder / storage), make_targets(folder / storage), storage)
    return folder


def stores(folder: Path, storage: str = "float32") -> tuple[Store, Targets]:
    return Store.open(folder / storage / "pool.zarr"), Targets(folder / storage / "targets.zarr")


def stored(folder, storage, names=CHECKPOINTS):
    pool, targets = stores(folder, storage)
    return [stored_vectors(pool, name) for name in names], [stored_vectors(targets.open(), name) for name in names]


def run(*arguments: object, exit_code: int = 0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + result.stderr
    return result


# ---------------------------------------------------------------- the scores are those of plain loops


@pytest.mark.parametrize("storage", ["float32", "int8"])
@pytest.mark.parametrize("weights", [None, {"ck1": 1.0, "ck2": 5.0, "ck3": 2.0}])
def test_less_is_the_brute_force(folder, storage, weights):
    pool, targets = stores(folder, storage)
    table = score(pool, ScoreRequest(spec=LESS, signals=weights or CHECKPOINTS, targets=targets))
    shares = RATES if weights is None else list(weights.values())
    expected = brute_influence(*stored(folder, storage), SUBTASK, shares)
    np.testing.assert_allclose(table.influence, expected, atol=1e-7)
    np.testing.assert_allclose(table.value, expected.max(axis=1), atol=1e-7)
    np.testing.assert_array_equal(table.value, table.influence.max(axis=1))
    assert table.made_by["weights_from"] == ("learning_rate" if weights is None else "given")
    assert table.made_by["influence_of"] == list(SIZES)
    assert [each["num_samples"] for each in table.made_by["targets"]["subtasks"]] == list(SIZES.values())
    exact = brute_influence(*stored(folder, "float32"), SUBTASK, shares)
    assert np.abs(table.influence - exact).max() < (1e-6 if storage == "float32" else 4e-3)


@pytest.mark.parametrize("storage", ["float32", "int8"])
@pytest.mark.parametrize("percent", [20, 45])
def test_icons_is_the_brute_force(folder, storage, percent):
    pool, targets = stores(folder, storage)
    spec = InfluenceSpec(method="icons", vote_percent=percent)
    table = score(pool, ScoreRequest(spec=spec, signals="ck2", targets=targets))
    expected = brute_influence(*stored(folder, storage, ["ck2"]), SUBTASK, [1.0])
    votes, ties = brute_votes(expected, percent), brute_mean_rank(expected)
    assert table.table["votes"].to_pylist() == votes
    np.testing.assert_allclose(table.influence, expected, atol=1e-7)
    np.testing.assert_allclose(table.value, np.array(votes) + np.array(list(map(float, ties))), atol=1e-12)
    by_two_keys = sorted(range(NUM_POOL), key=lambda z: (-votes[z], -ties[z], z))
    assert rank_samples(table).ranked.tolist() == by_two_keys
    assert len(table.made_by["thresholds"]) == len(SIZES)


def test_samples_that_are_equal_tie_in_icons_and_go_to_the_earlier_record(tmp_path):
    pool, targets = make_pool(tmp_path, num=21, samples_per_unit=4), make_targets(tmp_path)
    add_gradients(pool, "ck", np.tile(random_gradients(1, 3), (7, 1)))
    add_gradients(targets, "ck", random_gradients(2, len(SUBTASK)))
    table = score(pool, ScoreRequest(spec=ICONS, targets=Targets(targets)))
    assert len(set(table.value.tolist())) == 3
    best = int(np.argmax(table.value[:3]))
    assert select(table, count=5).row.tolist() == [best, best + 3, best + 6, best + 9, best + 12]


def brute_cadc(pool, targets, names, capabilities, shares):
    """Return Inf(z, c) and the slopes, number by number, from gradients as long as they are."""
    of = {name: number for number, name in enumerate(SIZES)}
    influence = np.zeros((len(pool[0]), len(capabilities)))
    for c, members in enumerate(capabilities):
        for m, share in enumerate(shares):
            mean = np.zeros(DIMENSION)
            for member in members:
                mine = [v for v, which in enumerate(SUBTASK) if which == of[member]]
                mean += sum(targets[m][v] for v in mine) / len(mine) / len(members)
            mean /= math.sqrt(math.fsum(mean**2))
            for z in range(len(pool[0])):
                influence[z, c] += share * math.fsum(pool[m][z] * mean)
    lengths = np.array([[math.fsum(g**2) for g in each] for each in pool])
    return influence, np.polyfit(np.arange(len(names)), lengths, 1)[0]


@pytest.mark.parametrize("normalise", [True, False])
def test_cadc_is_its_formulas_on_planted_capabilities(tmp_path, normalise):
    """algebra and counting share a direction, geometry has another; gradients differ much in length."""
    rng = np.random.default_rng(5)
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    axis = np.array([0, 0, 1])[SUBTASK]
    grads, target_grads = [], []
    for number in range(3):
        spec = gradient_spec(weights=f"w{number}", normalise=normalise, learning_rate=RATES[number])
        ours = rng.normal(size=(NUM_POOL, DIMENSION)) * rng.lognormal(size=(NUM_POOL, 1))
        theirs = (np.eye(DIMENSION)[axis] * 5 + rng.normal(size=(len(SUBTASK), DIMENSION)) / 4) * (1 + 3 * number)
        grads.append(ours.astype(np.float32).astype(np.float64))
        target_grads.append(theirs.astype(np.float32).astype(np.float64))
        add_gradients(pool, CHECKPOINTS[number], grads[-1], spec)
        add_gradients(targets, CHECKPOINTS[number], target_grads[-1], spec)
    table = score(pool, ScoreRequest(spec=CADC, signals=CHECKPOINTS, targets=Targets(targets)))
    assert table.made_by["capabilities"] == [["algebra", "counting"], ["geometry"]]
    assert table.made_by["influence_of"] == ["algebra+counting", "geometry"]
    shares = [rate / sum(RATES) for rate in RATES]
    expected, slopes = brute_cadc(grads, target_grads, CHECKPOINTS, table.made_by["capabilities"], shares)
    np.testing.assert_allclose(table.influence, expected, rtol=2e-5, atol=1e-5)
    assert table.capability.tolist() == expected.argmax(axis=1).tolist()
    np.testing.assert_allclose(table.value, expected.max(axis=1), rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(table.table["stage"].to_numpy(), slopes, rtol=1e-5, atol=1e-4)
    assert table.made_by["label"] == "reconstruction"
    assert table.method == "cadc (reconstruction)"


def test_cadc_with_one_checkpoint_has_no_stages(folder):
    pool, targets = stores(folder)
    table = score(pool, ScoreRequest(spec=CADC, signals="ck1", targets=targets))
    assert table.table["stage"].null_count == NUM_POOL
    assert table.made_by["weights_from"] == "equal"  # one is all there is


# ---------------------------------------------------------------- heuristics of signals with one vector a sample


@pytest.mark.parametrize("method", ["random", "longest", "stepmax", "loss", "perplexity"])
def test_heuristics_need_no_steps_vectors(tmp_path, folder, method, monkeypatch):
    pool, _ = stores(folder, "int8")
    monkeypatch.setattr(SignalView, "decode", None)  # what is not read cannot fail
    place = np.arange(NUM_POOL)
    loss = place % 5 / 4
    known = {"longest": place % 7 + 3, "stepmax": [len(record(f"p{i}")["steps"]) for i in place], "loss": loss,
             "perplexity": np.exp(loss)}  # fmt: skip
    spec = HeuristicSpec(method=method)
    table = score(pool, ScoreRequest(spec=spec, signals=["ck1", "ck3"]))
    np.testing.assert_allclose(table.value, known.get(method, random_values(0, place)), rtol=1e-6)
    assert table.num_tokens.tolist() == (place % 7 + 3).tolist()
    assert table.sample_id == [f"p{i}" for i in place]
    score(pool, ScoreRequest(spec=spec, signals="ck2"), out=tmp_path / "a.parquet")
    replay(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_heuristics_flag_samples_that_one_of_the_signals_lacks(tmp_path):
    pool = make_pool(tmp_path, num=12, samples_per_unit=4)
    add_gradients(pool, "ck1", random_gradients(0, 12), set_aside=[0, 5])
    add_gradients(pool, "ck2", random_gradients(0, 12), set_aside=[0], units=[0, 1])
    add_signal(pool, "float32", 4, "proxy")
    longest = HeuristicSpec(method="longest")
    with pytest.raises(Unfinished, match=r"'ck2' .* has 2 of 3 units.*--partial"):
        score(pool, ScoreRequest(spec=longest, signals=["ck1", "ck2"]))
    table = score(pool, ScoreRequest(spec=longest, signals=["ck1", "ck2"], partial=True))
    assert table.row.tolist() == list(range(1, 12))  # 0 is done nowhere
    assert table.row[np.isnan(table.value)].tolist() == [5, 8, 9, 10, 11]
    assert [bool(each) for each in table.table["flags"].to_pylist()] == np.isnan(table.value).tolist()
    assert table.num_tokens.tolist() == [row % 7 + 3 for row in range(1, 12)]
    with pytest.raises(SettingError, match="signal ck1 has one vector a sample and proxy one a segment"):
        score(pool, ScoreRequest(spec=longest, signals=["ck1", "proxy"]))


@pytest.mark.parametrize("array", ["sample_vector/c/1/0", "sample_norm/c/1", "sample_loss/c/1"])
def test_a_chunk_of_another_unit_is_not_scored(tmp_path, array):
    """Its own checksum is good, so only the commit's digest tells."""
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    add_gradients(pool, "ck", random_gradients(0, NUM_POOL))
    add_gradients(targets, "ck", random_gradients(1, len(SUBTASK)))
    chunk = tmp_path / "pool.zarr/signals/ck" / array
    chunk.write_bytes(Path(str(chunk).replace("/c/1", "/c/0")).read_bytes())
    for spec, wanted in ((LESS, Targets(targets)), (HeuristicSpec(method="loss"), None)):
        if wanted is None and "loss" not in array:
            assert len(score(pool, spec)) == NUM_POOL
            continue
        with pytest.raises(Corrupt, match=f"signals/ck/{array} is missing or not the chunk that was committed"):
            score(pool, ScoreRequest(spec=spec, targets=wanted))


# ---------------------------------------------------------------- blocks, threads, what is missing


def test_the_table_is_the_same_with_any_number_of_threads(tmp_path, folder, monkeypatch):
    pool, targets = stores(folder, "int8")
    # Blocks of one unit each, so that there is something to share.
    for module in ("curate.influence", "read.blocks"):
        monkeypatch.setattr(f"grace_store.{module}.SAMPLES_PER_CHUNK", UNIT)
    for spec, signals in ((LESS, CHECKPOINTS), (ICONS, "ck1"), (CADC, CHECKPOINTS)):
        written = []
        for threads in (1, 2, 5):
            out = tmp_path / f"{spec.method}-{threads}.parquet"
            score(pool, ScoreRequest(spec=spec, signals=signals, targets=targets), out=out, threads=threads)
            written.append(out.read_bytes())
        assert written[0] == written[1] == written[2]
    whole = score(pool, ScoreRequest(spec=LESS, signals=CHECKPOINTS, targets=targets))
    monkeypatch.undo()
    again = score(pool, ScoreRequest(spec=LESS, signals=CHECKPOINTS, targets=targets))
    assert whole.table.to_pylist() == again.table.to_pylist()


@pytest.mark.parametrize("samples_per_unit", [4, 64])
def test_scores_do_not_depend_on_the_units(tmp_path, folder, samples_per_unit):
    pool = make_pool(tmp_path, samples_per_unit=samples_per_unit)
    targets = make_targets(tmp_path, samples_per_unit=samples_per_unit)
    fill(pool, targets, names=CHECKPOINTS[:1], rates=RATES[:1])
    table = score(pool, ScoreRequest(spec=LESS, targets=Targets(targets)))
    expected = score(stores(folder)[0], ScoreRequest(spec=LESS, signals="ck1", targets=stores(folder)[1]))
    np.testing.assert_allclose(table.influence, expected.influence, atol=1e-7)


def test_one_unit_of_one_signal_is_in_memory_at_a_time(folder, monkeypatch):
    pool, targets = stores(folder)
    alive: list[int] = []
    real = VectorReader.read

    def counted(self, signal, unit):
        found = real(self, signal, unit)
        alive.append(found.decoded().nbytes)
        return found

    monkeypatch.setattr(VectorReader, "read", counted)
    score(pool, ScoreRequest(spec=LESS, signals=CHECKPOINTS, targets=targets), threads=1)
    assert max(alive) == UNIT * DIMENSION * 4
    num_reads = len(CHECKPOINTS) * (pool.plan.num_units + targets.open().plan.num_units)
    assert len(alive) == num_reads  # every vector of both stores is read once


def test_samples_that_a_checkpoint_lacks_or_that_have_no_direction_are_flagged(tmp_path):
    pool, targets = make_pool(tmp_path, num=12, samples_per_unit=4), make_targets(tmp_path)
    grads = random_gradients(0, 12)
    grads[2] = 0
    add_gradients(pool, "ck1", grads, set_aside=[0, 5])
    add_gradients(pool, "ck2", grads, set_aside=[0, 7])
    for name in ("ck1", "ck2"):
        add_gradients(targets, name, random_gradients(1, len(SUBTASK)))
    for spec, signals in ((LESS, ["ck1", "ck2"]), (CADC, ["ck1", "ck2"])):
        table = score(pool, ScoreRequest(spec=spec, signals=signals, targets=Targets(targets)))
        assert table.row.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]  # 0 is done nowhere
        flags = dict(zip(table.row.tolist(), table.table["flags"].to_pylist(), strict=True))
        assert {row: each for row, each in flags.items() if each} == {
            2: ["zero_vector"], 5: ["missing_signal"], 7: ["missing_signal"]
        }  # fmt: skip
        assert np.flatnonzero(np.isnan(table.value)).tolist() == [4, 6]
        assert table.value[1] == 0
        assert (table.num_tokens > 0).all()
        assert len(select(table, ratio="1")) == 9
    icons = score(pool, ScoreRequest(spec=ICONS, signals="ck1", targets=Targets(targets)))
    assert len(icons) == 10
    assert np.isfinite(icons.value).all()


def test_a_pool_under_way_is_scored_only_if_asked(tmp_path):
    pool, targets = make_pool(tmp_path, samples_per_unit=4), make_targets(tmp_path)
    grads = random_gradients(0, NUM_POOL)
    add_gradients(pool, "ck", grads, units=[1, 4])
    add_gradients(targets, "ck", random_gradients(1, len(SUBTASK)))
    for spec in (LESS, ICONS, CADC):
        with pytest.raises(Unfinished, match=r"Signal 'ck' .* has 2 of 10 units"):
            score(pool, ScoreRequest(spec=spec, targets=Targets(targets)))
        table = score(pool, ScoreRequest(spec=spec, targets=Targets(targets), partial=True))
        assert table.row.tolist() == [4, 5, 6, 7, 16, 17, 18, 19]
        assert table.made_by["partial"]
    add_gradients(pool, "none", grads, units=[])
    add_gradients(targets, "none", random_gradients(1, len(SUBTASK)), units=[0])
    with pytest.raises(
        Unfinished, match=r"targets.zarr has 1 of 2 units\. Run the same `grace-store extract` to finish it first\.$"
    ):
        score(pool, ScoreRequest(spec=LESS, signals="none", targets=Targets(targets), partial=True))


@pytest.mark.parametrize("spec", [LESS, ICONS, CADC], ids=lambda spec: spec.method)
def test_a_pool_of_which_nothing_is_done_gives_an_empty_table(tmp_path, spec):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    add_gradients(pool, "ck", random_gradients(0, NUM_POOL), units=[])
    add_gradients(targets, "ck", random_gradients(1, len(SUBTASK)))
    score(pool, ScoreRequest(spec=spec, targets=Targets(targets), partial=True), out=tmp_path / "t.parquet")
    assert len(read_scores(tmp_path / "t.parquet")) == 0


def test_progress_is_told(folder):
    told: list[object] = []
    pool, targets = stores(folder)
    score(pool, ScoreRequest(spec=LESS, signals=CHECKPOINTS, targets=targets), listener=told.append)
    assert [each for each in told if isinstance(each, SamplesScored)] == [SamplesScored(NUM_POOL, NUM_POOL)]
    assert NUM_POOL < SAMPLES_PER_CHUNK


# ---------------------------------------------------------------- subtasks


def test_subtasks_by_field_are_those_by_file(folder):
    pool, targets = stores(folder)
    by_file = score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=targets))
    by_field = score(
        pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(targets.store, subtasks="about.subject"))
    )
    np.testing.assert_array_equal(by_file.influence, by_field.influence)
    assert by_field.made_by["targets"]["subtasks_by"] == "about.subject"


def test_files_with_one_stem_are_told_apart_by_their_folders(tmp_path):
    files = {"a/test.jsonl": [record("x"), record("y")], "b/test.jsonl": [record("z")]}
    targets, pool = plan_store(tmp_path, "targets", files), make_pool(tmp_path)
    add_gradients(targets, "ck", random_gradients(0, 3))
    add_gradients(pool, "ck", random_gradients(1, NUM_POOL))
    table = score(pool, ScoreRequest(spec=LESS, targets=Targets(targets)))
    assert table.made_by["influence_of"] == ["a/test.jsonl", "b/test.jsonl"]


def test_one_file_is_one_subtask(tmp_path):
    targets = plan_store(tmp_path, "targets", {"mmlu-v1.2.jsonl": [record("x"), record("y")]})
    pool = make_pool(tmp_path)
    add_gradients(targets, "ck", random_gradients(0, 2))
    add_gradients(pool, "ck", random_gradients(1, NUM_POOL))
    assert score(pool, ScoreRequest(spec=ICONS, targets=Targets(targets))).made_by["influence_of"] == ["mmlu-v1.2"]


def test_a_target_that_is_set_aside_is_left_out_and_counted(tmp_path):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    theirs = [random_gradients(2, len(SUBTASK)), random_gradients(3, len(SUBTASK))]
    theirs[1][8] = 0
    add_gradients(pool, "ck1", random_gradients(0, NUM_POOL))
    add_gradients(pool, "ck2", random_gradients(1, NUM_POOL))
    add_gradients(targets, "ck1", theirs[0], set_aside=[1])
    add_gradients(targets, "ck2", theirs[1], set_aside=[5])
    told: list[object] = []
    table = score(pool, ScoreRequest(spec=LESS, signals=["ck1", "ck2"], targets=Targets(targets)), listener=told.append)
    kept = [v for v in range(len(SUBTASK)) if v not in (1, 5)]
    ours = [stored_vectors(pool, name) for name in ("ck1", "ck2")]
    expected = brute_influence(ours, [each[kept] for each in theirs], [SUBTASK[v] for v in kept], [1, 1])
    np.testing.assert_allclose(table.influence, expected, atol=1e-6)
    assert table.made_by["targets"]["num_set_aside"] == 2
    warned = [each.text for each in told if isinstance(each, Warned)]
    assert "2 records of the target set are set aside and do not count" in warned
    assert "1 gradients of the target set are zero; cosines with them count as 0" in warned
    assert "signal ck1, ck2: no learning rate is recorded, so all checkpoints count alike" in warned
    assert table.made_by["weights_from"] == "equal"


def test_a_subtask_of_which_nothing_is_left_is_named(tmp_path):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    add_gradients(pool, "ck", random_gradients(0, NUM_POOL))
    add_gradients(targets, "ck", random_gradients(2, len(SUBTASK)), set_aside=[5, 6])
    with pytest.raises(SettingError, match="every target record of subtask counting was set aside"):
        score(pool, ScoreRequest(spec=LESS, targets=Targets(targets)))


def test_a_target_gradient_that_is_not_finite_is_not_averaged_in(tmp_path):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    add_gradients(pool, "ck", random_gradients(0, NUM_POOL))
    theirs = random_gradients(2, len(SUBTASK))
    theirs[3] *= 1e39  # its direction is fine, its length is no float32
    with np.errstate(over="ignore"):
        add_gradients(targets, "ck", theirs)
    with pytest.raises(Corrupt, match="unit 0 of signal ck has gradients that are not finite"):
        score(pool, ScoreRequest(spec=LESS, targets=Targets(targets)))


def test_fields_that_are_not_there_are_refused(tmp_path, folder):
    pool, targets = stores(folder)
    with pytest.raises(SettingError, match=r"no record of the targets in .* has a field 'topic'"):
        score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(targets.store, subtasks="topic")))
    mixed = plan_store(
        tmp_path, "mixed", {"m.jsonl": [record("a", "x"), record("b"), record("c", ""), record("d", "x")]}
    )
    add_gradients(mixed, "ck1", random_gradients(0, 4), gradient_spec(weights="w0"))
    with pytest.raises(SettingError, match=r"2 of 4 target samples have no 'about.subject' \(b, c\)"):
        score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(mixed, subtasks="about.subject")))
    with pytest.raises(SettingError, match="--target-data is read only for --subtasks"):
        score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(targets.store, data=("elsewhere.jsonl",))))


def test_target_files_that_moved_are_found_where_they_are_now(tmp_path):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    fill(pool, targets, names=CHECKPOINTS[:1], rates=RATES[:1])
    before = score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(targets, subtasks="about.subject")))
    (tmp_path / "targets").rename(tmp_path / "moved")
    data = tuple(str(tmp_path / "moved" / f"{task}.jsonl") for task in SIZES)
    after = score(
        pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(targets, subtasks="about.subject", data=data))
    )
    np.testing.assert_array_equal(before.value, after.value)


# ---------------------------------------------------------------- what cannot be compared


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"weights": "b"}, "ck: model weights: pool a, targets b"),
        ({"adapter": "x"}, "ck: model adapter: pool None, targets x"),
        ({"tokenizer": "1"}, "ck: model tokenizer: pool 0, targets 1"),
        ({"template": "t"}, "ck: model template: pool None, targets t"),
        ({"processor": "p"}, "ck: model processor: pool None, targets p"),
        ({"projection": "sparse"}, "ck: projection: pool rademacher, targets sparse"),
        ({"seed": 1}, "ck: seed: pool 0, targets 1"),
        ({"dimension": 12}, "ck: dimension: pool 24, targets 12"),
        ({"parameters": "1"}, "ck: parameters: pool 0, targets 1"),
        ({"per": "segment"}, "the target signal has a gradient for each segment, not one for each sample"),
        (
            {"preconditioner": "adam", "moments": "m"},
            "the target signal is preconditioned with adam; targets are plain",
        ),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_a_target_set_made_otherwise_is_refused(tmp_path, changes, match):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    add_gradients(pool, "ck", random_gradients(0, NUM_POOL))
    spec = gradient_spec(**changes)
    if spec.is_per_sample:
        add_gradients(targets, "ck", random_gradients(1, len(SUBTASK))[:, : spec.vector_size], spec)
    else:
        add_signal(targets, "float32", DIMENSION, "ck", "segment")
    for method in (LESS, CADC):
        with pytest.raises(TargetMismatch, match=match):
            score(pool, ScoreRequest(spec=method, targets=Targets(targets)))


def test_all_differences_are_said_at_once(tmp_path):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    add_gradients(pool, "ck", random_gradients(0, NUM_POOL))
    add_gradients(targets, "ck", random_gradients(1, len(SUBTASK)), gradient_spec(weights="b", seed=7))
    add_gradients(pool, "later", random_gradients(0, NUM_POOL))
    add_signal(targets, "float32", 4, "later")
    add_signal(pool, "float32", 4, "proxy")
    with pytest.raises(TargetMismatch) as refusal:
        score(pool, ScoreRequest(spec=LESS, signals=["ck", "later"], targets=Targets(targets)))
    lines = str(refusal.value).splitlines()
    assert lines[0].startswith("LESS cannot compare")
    assert lines[1:4] == [
        "  ck: model weights: pool a, targets b",
        "  ck: seed: pool 0, targets 7",
        "  later: the target signal has proxy vectors, not gradients (`extract --kind gradient`)",
    ]
    assert lines[4].startswith("Extract the targets again")
    with pytest.raises(TargetMismatch) as refusal:
        score(pool, ScoreRequest(spec=LESS, signals=["ck", "proxy"], targets=Targets(targets)))
    assert str(refusal.value).splitlines()[1:] == [
        "  proxy: the pool's signal has proxy vectors, not gradients (`extract --kind gradient`)",
        "Name others that do with --signal (it has ck, later), or extract such a signal of the pool.",
    ]


def test_icons_takes_plain_gradients_and_one_checkpoint_less_takes_adam(tmp_path, folder):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    add_gradients(pool, "ck", random_gradients(0, NUM_POOL), gradient_spec(preconditioner="adam", moments="m"))
    add_gradients(targets, "ck", random_gradients(1, len(SUBTASK)))
    with pytest.raises(TargetMismatch, match="is preconditioned with adam; ICONS takes plain gradients on both sides"):
        score(pool, ScoreRequest(spec=ICONS, targets=Targets(targets)))
    assert score(pool, ScoreRequest(spec=LESS, targets=Targets(targets))).made_by["notes"] == []
    many, their_targets = stores(folder)
    with pytest.raises(SettingError, match="ICONS looks at one checkpoint, and 3 signals are given"):
        score(many, ScoreRequest(spec=ICONS, signals=CHECKPOINTS, targets=their_targets))
    assert "plain gradients; LESS itself" in score(many, ScoreRequest(spec=LESS, signals="ck1", targets=their_targets)).made_by["notes"][0]  # fmt: skip


def test_checkpoints_of_one_pool_share_their_projection(tmp_path):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    for name, seed in (("ck1", 0), ("ck2", 1)):
        add_gradients(pool, name, random_gradients(0, NUM_POOL), gradient_spec(seed=seed))
        add_gradients(targets, name, random_gradients(1, len(SUBTASK)), gradient_spec(seed=seed))
    with pytest.raises(TargetMismatch, match="ck1 and ck2 of the pool: seed is 0 and 1"):
        score(pool, ScoreRequest(spec=LESS, signals=["ck1", "ck2"], targets=Targets(targets)))


def test_a_checkpoint_with_a_learning_rate_of_zero_is_not_left_out_silently(tmp_path):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    fill(pool, targets, names=CHECKPOINTS[:2], rates=[1e-5, 0.0])
    with pytest.raises(SettingError, match="signal 'ck2' recorded a learning rate of 0"):
        score(pool, ScoreRequest(spec=LESS, signals=CHECKPOINTS[:2], targets=Targets(targets)))
    assert (
        score(pool, ScoreRequest(spec=LESS, signals="ck2", targets=Targets(targets))).made_by["signals"]["ck2"][
            "weight"
        ]
        == 1
    )


def test_what_may_differ_is_said(tmp_path):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    add_gradients(pool, "ck", random_gradients(0, NUM_POOL))
    add_gradients(targets, "other", random_gradients(1, len(SUBTASK)), gradient_spec("int8", system="Be brief."))
    table = score(pool, ScoreRequest(spec=CADC, targets=Targets(targets, ("other",))))
    assert table.made_by["notes"] == ["signal ck: pool and targets differ in system (pool None, targets Be brief.)"]
    assert table.made_by["targets"]["signals"]["ck"]["name"] == "other"


def test_a_target_signal_with_another_name_is_found_if_it_is_the_only_one_that_fits(tmp_path):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    for number in (0, 1):
        adam = gradient_spec(adapter=f"a{number}", preconditioner="adam", moments="m")
        add_gradients(pool, f"ck{number}-adam", random_gradients(number, NUM_POOL), adam)
        plain = gradient_spec(adapter=f"a{number}")
        add_gradients(targets, f"ck{number}", random_gradients(5 + number, len(SUBTASK)), plain)
    add_signal(targets, "float32", 4, "proxy")
    table = score(pool, ScoreRequest(spec=LESS, signals=["ck1-adam", "ck0-adam"], targets=Targets(targets)))
    found = {name: each["name"] for name, each in table.made_by["targets"]["signals"].items()}
    assert found == {"ck0-adam": "ck0", "ck1-adam": "ck1"}
    named = score(
        pool, ScoreRequest(spec=LESS, signals=["ck1-adam", "ck0-adam"], targets=Targets(targets, ("ck1", "ck0")))
    )
    np.testing.assert_array_equal(table.value, named.value)
    add_gradients(targets, "again", random_gradients(7, len(SUBTASK)), gradient_spec(adapter="a0"))
    with pytest.raises(UnknownName, match=r"Several signals of .* fit ck0-adam \(again, ck0\)"):
        score(pool, ScoreRequest(spec=LESS, signals="ck0-adam", targets=Targets(targets)))
    with pytest.raises(TargetMismatch) as refusal:
        score(pool, ScoreRequest(spec=ICONS, signals="ck0-adam", targets=Targets(targets)))
    # The pool's own signal is at fault: no target is named, and the remedy is not to extract the targets again.
    assert "ck0-adam: the pool's signal is preconditioned with adam" in str(refusal.value)
    assert "ck1" not in str(refusal.value).replace("ck1-adam", "")
    assert "Name others that do with --signal (it has none yet)" in str(refusal.value)
    bare = plan_store(tmp_path, "bare", {"x.jsonl": [record("x")]})
    with pytest.raises(UnknownName, match=r"bare.zarr has no signal yet"):
        score(pool, ScoreRequest(spec=LESS, signals="ck0-adam", targets=Targets(bare)))


def test_targets_that_are_the_pool_itself_are_warned_of(folder):
    pool, targets = stores(folder)
    same = score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(pool))).made_by["notes"]
    other = score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=targets)).made_by["notes"]
    assert [note for note in same if "the pool's own plan" in note]
    assert not [note for note in other if "the pool's own plan" in note]


def test_subtasks_of_one_sample_each_are_said_and_shown_on_one_line(tmp_path):
    pool = make_pool(tmp_path)
    records = [record(f"t{i}", f"line one\nof subject {i} " + "x" * 200) for i in range(14)]
    targets = plan_store(tmp_path, "targets", {"all.jsonl": records}, samples_per_unit=8)
    add_gradients(pool, "ck1", random_gradients(0, NUM_POOL))
    add_gradients(targets, "ck1", random_gradients(1, 14))
    result = run("score", pool.location, "--method", "less", "--targets", targets.location, "--subtasks",
                 "about.subject", "--out", tmp_path / "t.parquet")  # fmt: skip
    assert "every target sample is a subtask of its own, by 'about.subject'" in result.stderr
    line = next(line for line in result.stdout.splitlines() if "subtasks:" in line)
    assert line.startswith("  subtasks: line one of subject 0 xxx")
    assert line.endswith("... (1) and 4 more")


def test_signals_that_are_not_there_or_not_clear_are_named(tmp_path, folder):
    pool, targets = stores(folder)
    with pytest.raises(UnknownName, match=r"several signals with one gradient a sample \(ck1, ck2, ck3\)"):
        score(pool, ScoreRequest(spec=LESS, targets=targets))
    with pytest.raises(UnknownName, match="has no signal 'ck9'"):
        score(pool, ScoreRequest(spec=LESS, signals="ck9", targets=targets))
    with pytest.raises(UnknownName, match=r"The target store .* has no signal 'x'"):
        score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(targets.store, ("x",))))
    with pytest.raises(SettingError, match="2 --target-signal for 1 --signal"):
        score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(targets.store, ("ck1", "ck2"))))
    with pytest.raises(SettingError, match="signal 'ck2' has no weight and others have"):
        score(pool, ScoreRequest(spec=LESS, signals=["ck1=0.5", "ck2"], targets=targets))
    with pytest.raises(SettingError, match="signal 'ck1' is given twice"):
        score(pool, ScoreRequest(spec=LESS, signals=["ck1", "ck1"], targets=targets))
    with pytest.raises(SettingError, match="give its store, --targets"):
        score(pool, ScoreRequest(spec=LESS, signals="ck1"))
    with pytest.raises(SettingError, match="a target set is for the methods less, icons, cadc"):
        score(pool, ScoreRequest(spec=ScoreSpec(), signals="ck1", targets=targets))
    with pytest.raises(SettingError, match="method less has no history"):
        score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=targets, custom_history=np.zeros((1, 1))))
    bare = make_pool(tmp_path)
    with pytest.raises(UnknownName, match=r"no signal with one gradient a sample \(there are: none yet\)"):
        score(bare, ScoreRequest(spec=LESS, targets=targets))


# ---------------------------------------------------------------- replay


@pytest.mark.parametrize(
    ("spec", "signals"),
    [(LESS, ["ck3", "ck1"]), (LESS, ["ck2=0.1", "ck1=0.3"]), (ICONS, "ck2"), (CADC, ["ck3", "ck1", "ck2"])],
)
def test_a_table_is_replayed_to_the_last_byte(tmp_path, folder, spec, signals):
    pool, targets = stores(folder)
    wanted = Targets(targets.store, subtasks="about.subject")
    score(pool, ScoreRequest(spec=spec, signals=signals, targets=wanted), out=tmp_path / "a.parquet")
    replay(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_a_replay_finds_moved_stores_and_refuses_others(tmp_path, folder):
    shutil.copytree(folder / "float32", tmp_path / "here")
    pool, targets = Store.open(tmp_path / "here/pool.zarr"), Targets(tmp_path / "here/targets.zarr")
    score(pool, ScoreRequest(spec=LESS, signals=CHECKPOINTS, targets=targets), out=tmp_path / "a.parquet")
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(NotAStore, match=r"pool\.zarr, where no store is any more\. .*new place with STORE"):
        replay(tmp_path / "a.parquet", tmp_path / "b.parquet")
    with pytest.raises(NotAStore, match=r"targets\.zarr, where no store is any more\. .*new place with --targets"):
        replay(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "there/pool.zarr")
    moved = Targets(tmp_path / "there/targets.zarr")
    replay(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "there/pool.zarr", targets=moved)
    a, b = read_scores(tmp_path / "a.parquet"), read_scores(tmp_path / "b.parquet")
    assert a.table.to_pylist() == b.table.to_pylist()
    other = make_targets(tmp_path, "other", samples_per_unit=2)
    with pytest.raises(ResumeMismatch, match="made from another plan"):
        replay(tmp_path / "a.parquet", tmp_path / "c.parquet", tmp_path / "there/pool.zarr", targets=Targets(other))
    assert not (tmp_path / "c.parquet").exists()


def test_a_table_is_not_written_over_the_targets(folder):
    pool, targets = stores(folder)
    data = folder / "float32" / "targets" / "algebra.jsonl"
    with pytest.raises(SettingError, match="which the target store was planned from; choose another --out"):
        score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=targets), out=data)
    assert json.loads(data.read_text().splitlines()[0])["id"] == "algebra0"


# ---------------------------------------------------------------- selecting, comparing, auditing


def balanced_by_hand(values, capability, budget):
    """Fill budgets one sample at a time: always the capability with the fewest so far, the best next value first."""
    left = {c: sorted((z for z, which in enumerate(capability) if which == c), key=lambda z: (-values[z], z))
            for c in set(capability)}  # fmt: skip
    counts = dict.fromkeys(left, 0)
    chosen = []
    while len(chosen) < budget:
        open_ones = [c for c in left if left[c]]
        fewest = min(counts[c] for c in open_ones)
        best = min((c for c in open_ones if counts[c] == fewest), key=lambda c: (-values[left[c][0]], left[c][0]))
        chosen.append(left[best].pop(0))
        counts[best] += 1
    return chosen, counts


@pytest.fixture(scope="module")
def cadc_table(tmp_path_factory):
    """A table with three capabilities of 25, 9 and 3 samples or so."""
    folder = tmp_path_factory.mktemp("cadc")
    pool, targets = make_pool(folder), make_targets(folder)
    shift = np.eye(DIMENSION)[np.repeat([0, 1, 2], [25, 9, 3])] * 4
    for number, name in enumerate(CHECKPOINTS[:2]):
        add_gradients(pool, name, random_gradients(number, NUM_POOL) + shift)
        add_gradients(targets, name, random_gradients(9 + number, len(SUBTASK)) / 4 + np.eye(DIMENSION)[SUBTASK] * 5)
    out = folder / "cadc.parquet"
    score(pool, ScoreRequest(spec=CADC, signals=CHECKPOINTS[:2], targets=Targets(targets)), out=out)
    return out


def test_cadc_budgets_are_equal_with_spill_and_nested(cadc_table):
    table = read_scores(cadc_table)
    assert len(table.made_by["capabilities"]) == 3
    values, capability = table.value.tolist(), table.capability.tolist()
    sizes = [capability.count(c) for c in range(3)]
    assert min(sizes) < NUM_POOL / 5  # one of them cannot fill its share
    before: set[int] = set()
    for count in range(1, NUM_POOL + 1):
        subset = select(cadc_table, count=count)
        expected, counts = balanced_by_hand(values, capability, count)
        assert subset.ranked.tolist() == expected
        assert before <= set(subset.ranked.tolist())
        before = set(subset.ranked.tolist())
        # A capability gets budget / C, up to rounding, or all it has; what it cannot fill the others share evenly.
        short = [c for c in range(3) if counts[c] == sizes[c]]
        others = [counts[c] for c in range(3) if c not in short]
        assert all(sizes[c] <= max(others, default=NUM_POOL) for c in short)
        assert max(others, default=0) - min(others, default=0) <= 1
        if count // 3 <= min(sizes):
            assert max(counts.values()) - min(counts.values()) <= 1
    assert select(cadc_table, ratio="0.2").spec["balanced"] == "capability"


def test_a_cadc_table_refuses_what_would_undo_its_balance(cadc_table):
    with pytest.raises(SettingError, match=r"cadc \(reconstruction\) balances capabilities, which --by would undo"):
        select(cadc_table, RankRequest(by="num_steps"))
    with pytest.raises(SettingError, match="balances capabilities, which --diversity would undo"):
        select(cadc_table, RankRequest(diversity="dedup"))
    with pytest.raises(SettingError, match="no meaning where capabilities are balanced"):
        select(cadc_table, threshold=0.5)
    controlled = select(cadc_table, RankRequest(control=["length"]), ratio="0.3")
    assert controlled.spec["control"] == ["response_length", "num_steps"]
    with pytest.raises(SettingError, match="does not know the step_length of its samples, only response_length"):
        select(cadc_table, RankRequest(control=["step_length"]))


def test_tables_are_compared_and_audited(tmp_path, cadc_table):
    made_by = read_scores(cadc_table).made_by
    less = tmp_path / "less.parquet"
    targets = Targets(made_by["targets"]["store"])
    score(made_by["store"], ScoreRequest(spec=LESS, signals=CHECKPOINTS[:2], targets=targets), out=less)
    found = compare(less, cadc_table)
    assert found.num_a == found.num_b == math.ceil(0.2 * NUM_POOL)
    assert "cadc.parquet was scored by cadc (reconstruction)" in found.notes
    assert set(audit(less).lengths) == {"response_length", "num_steps"}
    by_steps = select(less, RankRequest(by="num_steps"), ratio="0.5")
    assert len(by_steps) == math.ceil(NUM_POOL / 2)


# ---------------------------------------------------------------- as users type it


def test_the_commands(tmp_path, cadc_table):
    made_by = read_scores(cadc_table).made_by
    pool, targets = made_by["store"], made_by["targets"]["store"]
    out = tmp_path / "less.parquet"
    result = run("score", pool, "--method", "less", "--targets", targets, "--signal", "ck1=3e-5", "--signal",
                 "ck2=1e-5", "--out", out)  # fmt: skip
    assert "checkpoints: ck1 0.75, ck2 0.25 (weights as given)" in result.output
    assert "subtasks: algebra (5), counting (2), geometry (9)" in result.output
    assert pq.read_schema(out).names[-1] == "influence"
    result = run("score", pool, "--method", "cadc", "--targets", targets, "--signal", "ck1", "--signal", "ck2",
                 "--join-cosine", "-1", "--out", tmp_path / "cadc.parquet")  # fmt: skip
    assert "method: cadc (reconstruction)" in result.output
    assert "capability 0: algebra, counting, geometry" in result.output
    assert "joined from -1 on" in result.output
    icons = json.loads(
        run("score", pool, "--method", "icons", "--targets", targets, "--signal", "ck1", "--vote-percent", "30",
            "--subtasks", "about.subject", "--out", tmp_path / "icons.parquet", "--json").stdout
    )  # fmt: skip
    assert icons["spec"]["vote_percent"] == 30
    assert icons["weights_from"] == "equal"
    run("score", "--replay", tmp_path / "icons.parquet", "--out", tmp_path / "again.parquet", "--targets", targets)
    assert (tmp_path / "icons.parquet").read_bytes() == (tmp_path / "again.parquet").read_bytes()
    for name in ("less", "icons", "cadc"):
        table = tmp_path / f"{name}.parquet"
        result = run("select", table, "--ratio", "0.2", "--out", tmp_path / f"{name}.jsonl")
        assert ("smallest value kept" in result.output) is (name == "cadc")
        note = json.loads((tmp_path / f"{name}.jsonl.spec.json").read_text())
        assert (note["threshold"] is None) is (name == "cadc")
        assert len((tmp_path / f"{name}.jsonl").read_text().splitlines()) == 8
        assert ("the scores are by cadc (reconstruction)" in result.output) is (name == "cadc")
        run("audit", table)
    run("select", tmp_path / "cadc.parquet", "--as", "ms-swift", "--out", tmp_path / "swift.jsonl")
    run("score", pool, "--method", "longest", "--signal", "ck1", "--out", tmp_path / "longest.parquet")
    run("audit", tmp_path / "longest.parquet")
    result = run("compare", tmp_path / "less.jsonl", tmp_path / "cadc.jsonl")
    assert "cadc.jsonl was scored by cadc (reconstruction)" in result.output


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("--method less", "give its store, --targets"),
        ("--method less --targets {t} --alpha 0.5", "--method less has no use for --alpha"),
        ("--method longest --vote-percent 5", "--method longest has no use for --vote-percent"),
        ("--join-cosine 0.3", "--method grace has no use for --join-cosine"),
        ("--method less --subtasks x", "--subtasks needs --targets"),
        ("--method longest --targets {t}", "a target set is for the methods less, icons, cadc"),
        ("--method less --targets {t} --signal ck1 --seed 4", "method less has no use for --seed"),
        ("--signal ck1", "has one vector a sample"),
        ("--method less --targets nowhere.zarr", "is not a grace-store store"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_words(tmp_path, folder, options, match):
    pool, targets = folder / "float32/pool.zarr", folder / "float32/targets.zarr"
    out = tmp_path / "t.parquet"
    result = run("score", pool, "--out", out, *options.format(t=targets).split(), exit_code=1)
    assert match in result.stderr
    assert not out.exists()


def test_replaying_takes_no_other_settings(tmp_path, folder, cadc_table):
    refused = run("score", "--replay", cadc_table, "--out", tmp_path / "x.parquet", "--targets", folder, "--subtasks",
                  "a", exit_code=1)  # fmt: skip
    assert "leave the other settings out" in refused.stderr


def test_a_scoring_holds_blocks_only_for_icons(folder):
    pool, targets = stores(folder)
    held = []
    real = InfluenceScoring.tables

    def spy(self, threads):
        yield from real(self, threads)
        held.append((self.compared.spec.method, len(self._held)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InfluenceScoring, "tables", spy)
        score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=targets))
        score(pool, ScoreRequest(spec=ICONS, signals="ck1", targets=targets))
    assert held == [("less", 0), ("icons", 1)]
