"""Is a store still what a result was made from? Plans, signals and units against its note."""

from __future__ import annotations

import shutil

import pytest

from grace_store.base.errors import NotAStore, ResumeMismatch
from grace_store.scoring.notes import check_plan_of
from grace_store.scoring.provenance import check_signals_of, open_made_from, open_store_of
from grace_store.scoring.score import ScoreRequest, score
from tests.scored_stores import known_store


def test_a_result_of_the_store_as_it_is_passes(tmp_path):
    store = known_store(tmp_path).store
    table = score(store)
    check_plan_of(table.note, store)
    check_signals_of(table.note.signals, store)
    assert open_store_of(table).location == store.location


def test_another_plan_is_refused_with_what_belongs_where(tmp_path):
    (tmp_path / "other").mkdir()
    table, other = score(known_store(tmp_path).store), known_store(tmp_path / "other", num_steps=[2, 3]).store
    with pytest.raises(ResumeMismatch, match=rf"The table of scores .*another plan.*{other.location}.* belongs to"):
        check_plan_of(table.note, other)
    with pytest.raises(ResumeMismatch, match="The thing was made from another plan"):
        check_plan_of(table.note, other, "thing")
    with pytest.raises(ResumeMismatch, match="another plan"):
        open_store_of(table, other.location)


def test_another_signal_of_the_same_name_is_refused(tmp_path):
    store = known_store(tmp_path).store
    note = score(store).note
    other = note.signals["base"].model_copy(update={"sha256": "0" * 64})
    with pytest.raises(ResumeMismatch, match=r"Signal 'base' .* is not the signal that the scores were made from"):
        check_signals_of({"base": other}, store)


def test_a_signal_that_went_on_is_refused_with_both_numbers(tmp_path):
    store = known_store(tmp_path, units={"base": [0, 1]}).store
    note = score(store, ScoreRequest(partial=True)).note
    fewer = note.signals["base"].model_copy(update={"num_units": 1})
    with pytest.raises(ResumeMismatch, match=r"had 1 .*has 2 now"):
        check_signals_of({"base": fewer}, store)


def test_a_store_that_moved_is_asked_for(tmp_path):
    store = known_store(tmp_path).store
    note = score(store).note
    moved = shutil.move(store.location, tmp_path / "moved.zarr")
    with pytest.raises(NotAStore, match=r"The thing was made from .*known\.zarr, .*new path with --store"):
        open_made_from(note, None, "thing", "--store")
    assert open_made_from(note, moved, "thing", "--store").plan.digest() == note.plan_sha256
