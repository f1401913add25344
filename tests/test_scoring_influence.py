"""LESS, ICONS and CADC on stores against brute force: in any number of blocks and threads, replayed, selected from."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import (
    Corrupt,
    NotAStore,
    ResumeMismatch,
    SettingError,
    Unfinished,
)
from grace_store.base.events import Progressed
from grace_store.choose.compare import compare
from grace_store.choose.select import rank_samples, select
from grace_store.choose.selection import Selection
from grace_store.pool import walk
from grace_store.pool.walk import SignalReader
from grace_store.scoring import influence
from grace_store.scoring.score import ScoreRequest, replay, score
from grace_store.scoring.score_table import read_scores
from grace_store.scoring.targets import Targets
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.opened import Store
from grace_store.study.audit import audit
from grace_store.values.methods.method import InfluenceSpec, ScoreSpec
from tests.gradient_stores import (
    DIMENSION,
    add_gradients,
    brute_influence,
    brute_mean_rank,
    brute_votes,
    gradient_spec,
)
from tests.influence_stores import (
    CADC,
    CHECKPOINTS,
    ICONS,
    LESS,
    NUM_POOL,
    RATES,
    SIZES,
    SUBTASK,
    UNIT,
    cadc_scores,
    fill,
    influence_stores,
    make_pool,
    make_targets,
    random_gradients,
    stored,
    stores,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return influence_stores(tmp_path_factory.mktemp("influence"))


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
    assert table.note.weights_from == ("learning_rate" if weights is None else "given")
    assert table.note.influence_of == tuple(SIZES)
    assert [each.num_samples for each in table.note.targets.subtasks] == list(SIZES.values())
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
    assert len(table.note.thresholds) == len(SIZES)


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
    assert table.note.capabilities == (("algebra", "counting"), ("geometry",))
    assert table.note.influence_of == ("algebra+counting", "geometry")
    shares = [rate / sum(RATES) for rate in RATES]
    expected, slopes = brute_cadc(grads, target_grads, CHECKPOINTS, table.note.capabilities, shares)
    np.testing.assert_allclose(table.influence, expected, rtol=2e-5, atol=1e-5)
    assert table.capability.tolist() == expected.argmax(axis=1).tolist()
    np.testing.assert_allclose(table.value, expected.max(axis=1), rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(table.table["stage"].to_numpy(), slopes, rtol=1e-5, atol=1e-4)
    assert table.note.label == "reconstruction"
    assert table.method == "cadc (reconstruction)"


def test_cadc_with_one_checkpoint_has_no_stages(folder):
    pool, targets = stores(folder)
    table = score(pool, ScoreRequest(spec=CADC, signals="ck1", targets=targets))
    assert table.table["stage"].null_count == NUM_POOL
    assert table.note.weights_from == "equal"  # one is all there is


# ---------------------------------------------------------------- heuristics of signals with one vector a sample


@pytest.mark.parametrize("array", ["sample_vector/c/1/0", "sample_norm/c/1", "sample_loss/c/1"])
def test_a_chunk_of_another_unit_is_not_scored(tmp_path, array):
    """Its own checksum is good, so only the commit's digest tells."""
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    add_gradients(pool, "ck", random_gradients(0, NUM_POOL))
    add_gradients(targets, "ck", random_gradients(1, len(SUBTASK)))
    chunk = tmp_path / "pool.zarr/signals/ck" / array
    chunk.write_bytes(Path(str(chunk).replace("/c/1", "/c/0")).read_bytes())
    for spec, wanted in ((LESS, Targets(targets)), (ScoreSpec(measure=("loss:highest",)), None)):
        if wanted is None and "loss" not in array:
            assert len(score(pool, spec)) == NUM_POOL
            continue
        with pytest.raises(Corrupt, match=f"signals/ck/{array} is not the chunk that was committed"):
            score(pool, ScoreRequest(spec=spec, targets=wanted))


# ---------------------------------------------------------------- blocks, threads, what is missing


def test_the_table_is_the_same_with_any_number_of_threads(tmp_path, folder, monkeypatch):
    pool, targets = stores(folder, "int8")
    # Blocks of one unit each, so that there is something to share.
    monkeypatch.setattr("grace_store.pool.walk.SAMPLES_PER_CHUNK", UNIT)
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
    real = SignalReader.vectors

    def counted(self, signal, unit):
        found = real(self, signal, unit)
        alive.append(found.decoded().nbytes)
        return found

    monkeypatch.setattr(SignalReader, "vectors", counted)
    score(pool, ScoreRequest(spec=LESS, signals=CHECKPOINTS, targets=targets), threads=1)
    assert max(alive) == UNIT * DIMENSION * 4
    num_reads = len(CHECKPOINTS) * (pool.plan.num_units + targets.open().plan.num_units)
    assert len(alive) == num_reads  # every vector of both stores is read once


def test_large_units_leave_room_for_fewer_threads(folder, monkeypatch):
    reader = SignalReader(stores(folder)[0], ("ck1",), reads=("vectors",))
    assert reader.threads(6) == 6
    monkeypatch.setattr(walk, "MAX_BYTES_AT_ONCE", UNIT * DIMENSION * 8 * 3)
    assert reader.threads(6) == 3
    monkeypatch.setattr(walk, "MAX_BYTES_AT_ONCE", 1)
    assert reader.threads(6) == 1


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
            2: ["zero_vector"],
            5: ["missing_signal"],
            7: ["missing_signal"],
        }
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
        assert table.note.partial
    add_gradients(pool, "none", grads, units=[])
    add_gradients(targets, "none", random_gradients(1, len(SUBTASK)), units=[0])
    with pytest.raises(
        Unfinished, match=r"targets.zarr has 1 of 2 units\. Run .* `grace-store extract` to finish the signal first\.$"
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
    told_all = Progressed(f"Scoring: {NUM_POOL} of {NUM_POOL} samples.", NUM_POOL, NUM_POOL)
    assert [each for each in told if isinstance(each, Progressed)] == [told_all]
    assert NUM_POOL < SAMPLES_PER_CHUNK


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
    with pytest.raises(NotAStore, match=r"pool\.zarr, but there is no store there now\. .*new path with STORE"):
        replay(tmp_path / "a.parquet", tmp_path / "b.parquet")
    with pytest.raises(NotAStore, match=r"targets\.zarr, but there is no store there .*new path with --targets"):
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
    left = {
        c: sorted((z for z, which in enumerate(capability) if which == c), key=lambda z: (-values[z], z))
        for c in set(capability)
    }
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
    return cadc_scores(tmp_path_factory.mktemp("cadc"))


def test_cadc_budgets_are_equal_with_spill_and_nested(cadc_table):
    table = read_scores(cadc_table)
    assert len(table.note.capabilities) == 3
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


def test_a_cadc_table_refuses_what_would_undo_its_balance(cadc_table):
    with pytest.raises(SettingError, match=r"cadc \(reconstruction\) balances capabilities, and --by would undo"):
        select(cadc_table, Selection(by="num_steps"))
    with pytest.raises(SettingError, match="balances capabilities, and --diversity would undo"):
        select(cadc_table, Selection(diversity="dedup"))
    with pytest.raises(SettingError, match="cannot be used with a method that balances capabilities"):
        select(cadc_table, threshold=0.5)
    controlled = select(cadc_table, Selection(control=["length"]), ratio="0.3")
    assert controlled.spec.control == ("response_length", "num_steps")
    with pytest.raises(SettingError, match="has no column step_length to control for: use one of response_length"):
        select(cadc_table, Selection(control=["step_length"]))


def test_tables_are_compared_and_audited(tmp_path, cadc_table):
    note = read_scores(cadc_table).note
    less = tmp_path / "less.parquet"
    targets = Targets(note.targets.store)
    score(note.store, ScoreRequest(spec=LESS, signals=CHECKPOINTS[:2], targets=targets), out=less)
    found = compare(less, cadc_table)
    assert found.numbers["num_a"] == found.numbers["num_b"] == math.ceil(0.2 * NUM_POOL)
    assert "cadc.parquet was scored by cadc (reconstruction)" in found.notes
    assert audit(less).tables["lengths"].column("length") == ["response_length", "num_steps"]
    by_steps = select(less, Selection(by="num_steps"), ratio="0.5")
    assert len(by_steps) == math.ceil(NUM_POOL / 2)


# ---------------------------------------------------------------- as users type it


def test_a_scoring_holds_blocks_only_for_icons(folder):
    pool, targets = stores(folder)
    held: list[str] = []
    real = influence._scoring_of_all

    def spy(compared, note, *rest):
        held.append(note.spec.method)
        return real(compared, note, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(influence, "_scoring_of_all", spy)
        for spec in (LESS, CADC, ICONS):
            score(pool, ScoreRequest(spec=spec, signals=CHECKPOINTS if spec == CADC else "ck1", targets=targets))
    assert held == ["icons"]


# ---------------------------------------------------------------- only some of the pool


@pytest.mark.parametrize("spec", [LESS, ICONS, ScoreSpec(measure=("tokens",))], ids=lambda spec: spec.method)
def test_a_filter_leaves_samples_out_before_anything_is_compared(tmp_path, spec):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    fill(pool, targets)
    found = None if isinstance(spec, ScoreSpec) else Targets(targets)
    request = ScoreRequest(spec=spec, signals=CHECKPOINTS[0], targets=found)
    whole, some = score(pool, request), score(pool, replace(request, where="row % 2 = 0"))
    even = whole.row % 2 == 0
    assert some.row.tolist() == whole.row[even].tolist()
    num_kept = int((pool.column("sample_row") % 2 == 0).sum())
    assert (some.note.where.num_samples, some.note.where.num_kept) == (pool.plan.num_samples, num_kept)
    if spec is not ICONS:  # whose votes depend on the others in the pool
        assert some.value.tolist() == whole.value[even].tolist()
