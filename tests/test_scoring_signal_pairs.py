"""Which signals of a pool and a target set go together, and what cannot be compared."""

from __future__ import annotations

import numpy as np
import pytest

from grace_store.base.errors import (
    SettingError,
    TargetMismatch,
    UnknownName,
)
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.targets import Targets
from grace_store.values.methods.method import ScoreSpec
from tests.gradient_stores import (
    DIMENSION,
    add_gradients,
    gradient_spec,
    plan_store,
    record,
)
from tests.influence_stores import (
    CADC,
    CHECKPOINTS,
    ICONS,
    LESS,
    NUM_POOL,
    SUBTASK,
    fill,
    influence_stores,
    make_pool,
    make_targets,
    random_gradients,
    stores,
)
from tests.stores import add_signal


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return influence_stores(tmp_path_factory.mktemp("influence"))


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
        "Name suitable signals with --signal (suitable: ck, later), or extract a suitable signal of the pool.",
    ]


def test_icons_takes_plain_gradients_and_one_checkpoint_less_takes_adam(tmp_path, folder):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    add_gradients(pool, "ck", random_gradients(0, NUM_POOL), gradient_spec(preconditioner="adam", moments="m"))
    add_gradients(targets, "ck", random_gradients(1, len(SUBTASK)))
    with pytest.raises(TargetMismatch, match="is preconditioned with adam; ICONS takes plain gradients on both sides"):
        score(pool, ScoreRequest(spec=ICONS, targets=Targets(targets)))
    assert score(pool, ScoreRequest(spec=LESS, targets=Targets(targets))).note.notes == ()
    many, their_targets = stores(folder)
    with pytest.raises(SettingError, match="ICONS uses one checkpoint, but 3 signals are given"):
        score(many, ScoreRequest(spec=ICONS, signals=CHECKPOINTS, targets=their_targets))
    plain = score(many, ScoreRequest(spec=LESS, signals="ck1", targets=their_targets))
    assert "plain gradients; LESS itself" in plain.note.notes[0]


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
    alone = score(pool, ScoreRequest(spec=LESS, signals="ck2", targets=Targets(targets)))
    assert alone.note.signals["ck2"].weight == 1


def test_what_may_differ_is_said(tmp_path):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    add_gradients(pool, "ck", random_gradients(0, NUM_POOL))
    add_gradients(targets, "other", random_gradients(1, len(SUBTASK)), gradient_spec("int8", system="Be brief."))
    table = score(pool, ScoreRequest(spec=CADC, targets=Targets(targets, ("other",))))
    assert table.note.notes == ("signal ck: pool and targets differ in system (pool None, targets Be brief.)",)
    assert table.note.targets.signals["ck"].name == "other"


def test_a_target_signal_with_another_name_is_found_if_it_is_the_only_one_that_fits(tmp_path):
    pool, targets = make_pool(tmp_path), make_targets(tmp_path)
    for number in (0, 1):
        adam = gradient_spec(adapter=f"a{number}", preconditioner="adam", moments="m")
        add_gradients(pool, f"ck{number}-adam", random_gradients(number, NUM_POOL), adam)
        plain = gradient_spec(adapter=f"a{number}")
        add_gradients(targets, f"ck{number}", random_gradients(5 + number, len(SUBTASK)), plain)
    add_signal(targets, "float32", 4, "proxy")
    table = score(pool, ScoreRequest(spec=LESS, signals=["ck1-adam", "ck0-adam"], targets=Targets(targets)))
    found = {name: each.name for name, each in table.note.targets.signals.items()}
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
    assert "Name suitable signals with --signal (no signal is suitable yet)" in str(refusal.value)
    bare = plan_store(tmp_path, "bare", {"x.jsonl": [record("x")]})
    with pytest.raises(UnknownName, match=r"bare.zarr has no signal yet"):
        score(pool, ScoreRequest(spec=LESS, signals="ck0-adam", targets=Targets(bare)))


def test_signals_that_are_not_there_or_not_clear_are_named(tmp_path, folder):
    pool, targets = stores(folder)
    with pytest.raises(UnknownName, match=r"several signals with one gradient per sample \(ck1, ck2, ck3\)"):
        score(pool, ScoreRequest(spec=LESS, targets=targets))
    with pytest.raises(UnknownName, match="has no signal 'ck9'"):
        score(pool, ScoreRequest(spec=LESS, signals="ck9", targets=targets))
    with pytest.raises(UnknownName, match=r"The target store .* has no signal 'x'"):
        score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(targets.store, ("x",))))
    with pytest.raises(SettingError, match="2 --target-signal for 1 --signal"):
        score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=Targets(targets.store, ("ck1", "ck2"))))
    with pytest.raises(SettingError, match="signal 'ck2' has no weight, but other signals have one"):
        score(pool, ScoreRequest(spec=LESS, signals=["ck1=0.5", "ck2"], targets=targets))
    with pytest.raises(SettingError, match="Signal 'ck1' is given twice"):
        score(pool, ScoreRequest(spec=LESS, signals=["ck1", "ck1"], targets=targets))
    with pytest.raises(SettingError, match="give the store of the target set with --targets"):
        score(pool, ScoreRequest(spec=LESS, signals="ck1"))
    with pytest.raises(SettingError, match="only methods less, icons, cadc use a target set"):
        score(pool, ScoreRequest(spec=ScoreSpec(), signals="ck1", targets=targets))
    with pytest.raises(SettingError, match="custom_history replaces the history of measure grace"):
        score(pool, ScoreRequest(spec=LESS, signals="ck1", targets=targets, custom_history=np.zeros((1, 1))))
    bare = make_pool(tmp_path)
    with pytest.raises(UnknownName, match=r"no signal with one gradient per sample \(there are: none yet\)"):
        score(bare, ScoreRequest(spec=LESS, targets=targets))
