"""Target sets and their subtasks: by file or by field, and what does not count."""

from __future__ import annotations

import numpy as np
import pytest

from grace_store.base.errors import (
    Corrupt,
    SettingError,
)
from grace_store.base.events import Warned
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.targets import Targets
from tests.gradient_stores import (
    add_gradients,
    brute_influence,
    gradient_spec,
    plan_store,
    record,
    stored_vectors,
)
from tests.influence_stores import (
    CHECKPOINTS,
    ICONS,
    LESS,
    NUM_POOL,
    RATES,
    SIZES,
    SUBTASK,
    fill,
    influence_stores,
    make_pool,
    make_targets,
    random_gradients,
    stores,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return influence_stores(tmp_path_factory.mktemp("influence"))


def test_subtasks_by_field_are_those_by_file(folder):
    pool, targets = stores(folder)
    by_file = score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=targets))
    by_field = score(
        pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(targets.store, subtasks="about.subject"))
    )
    np.testing.assert_array_equal(by_file.influence, by_field.influence)
    assert by_field.note.targets.subtasks_by == "about.subject"


def test_files_with_one_stem_are_told_apart_by_their_folders(tmp_path):
    files = {"a/test.jsonl": [record("x"), record("y")], "b/test.jsonl": [record("z")]}
    targets, pool = plan_store(tmp_path, "targets", files), make_pool(tmp_path)
    add_gradients(targets, "ck", random_gradients(0, 3))
    add_gradients(pool, "ck", random_gradients(1, NUM_POOL))
    table = score(pool, ScoreRequest(spec=LESS, targets=Targets(targets)))
    assert table.note.influence_of == ("a/test.jsonl", "b/test.jsonl")


def test_one_file_is_one_subtask(tmp_path):
    targets = plan_store(tmp_path, "targets", {"mmlu-v1.2.jsonl": [record("x"), record("y")]})
    pool = make_pool(tmp_path)
    add_gradients(targets, "ck", random_gradients(0, 2))
    add_gradients(pool, "ck", random_gradients(1, NUM_POOL))
    assert score(pool, ScoreRequest(spec=ICONS, targets=Targets(targets))).note.influence_of == ("mmlu-v1.2",)


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
    assert table.note.targets.num_set_aside == 2
    warned = [each.text for each in told if isinstance(each, Warned)]
    assert "2 records of the target set are set aside and do not count" in warned
    assert "1 gradient of the target set is zero; cosines with it count as 0" in warned
    assert "signal ck1, ck2: no learning rate is recorded, so all checkpoints count alike" in warned
    assert table.note.weights_from == "equal"


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
    with pytest.raises(SettingError, match=r"2 of 4 target samples have no field 'about.subject' \(b, c\)"):
        score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(mixed, subtasks="about.subject")))
    with pytest.raises(SettingError, match="only --subtasks needs --target-data"):
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


def test_targets_that_are_the_pool_itself_are_warned_of(folder):
    pool, targets = stores(folder)
    same = score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(pool))).note.notes
    other = score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=targets)).note.notes
    assert [note for note in same if "the pool's own plan" in note]
    assert not [note for note in other if "the pool's own plan" in note]
