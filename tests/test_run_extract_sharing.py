"""Traces of one prompt in a store: the same bytes however often they are computed."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import grace_store.model.open_model as model_door
import grace_store.store.unit_writer as unit_writer
from grace_store.base.errors import Corrupt, ResumeMismatch
from grace_store.base.metadata import Sharing
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.open_signal import begin_sharing, follow_sharing
from grace_store.run.status import status
from grace_store.run.verify import repair, verify, verify_against_model
from grace_store.store.backend import sharing_key
from grace_store.store.opened import SignalView
from grace_store.store.unit_writer import keep_sharing, withdraw_units
from tests.autograd import relative
from tests.commands import run
from tests.fake_model import FakeExtractor
from tests.jobs import content, make_job, processes, record
from tests.tiny_models import tiny_text_model

OPTIONS = RunOptions(device="cpu", threads=1)
PROMPT = "Tom has 3 apples and buys 4 more. How many apples does he have after day"
OFF = ExtractSpec(share_prompts=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_text_model("qwen3", tmp_path_factory.mktemp("model") / "qwen3"))


def job(folder: Path, model: str, **changes) -> ExtractJob:
    """Return a job of three units of eight traces each: of two prompts four, but for the last unit."""
    data = folder / "traces.jsonl"
    if not data.exists():
        asked = [f"{PROMPT} {i if i >= 16 else i % 2 + i // 8}?" for i in range(24)]
        data.write_text("".join(json.dumps({**record(i), "prompt": asked[i]}) + "\n" for i in range(24)))
    made = make_job(folder, **{"samples_per_unit": 8, "options": OPTIONS, **changes})
    return replace(made, model=model, door="grace_store.model.open_model")


def grams(view: SignalView) -> np.ndarray:
    return np.concatenate([view.unit_array("sample_gram", unit) for unit in view.committed_units()])


def test_shared_units_computed_again_have_the_same_bytes_and_verify(tmp_path, model):
    view = extract(job(tmp_path, model))
    assert view.signal.spec.share_prompts is True
    before = content(view.store.location)
    withdraw_units(view, [0, 2])
    extract(job(tmp_path, model))
    assert content(view.store.location) == before
    assert list(verify(view.store, deep=True)) == []
    assert list(verify_against_model(view, ExtractJob(view.store.location, model, options=OPTIONS), 3)) == []


def test_sharing_changes_rounding_only_and_nothing_where_prompts_differ(tmp_path, model):
    shared = extract(job(tmp_path, model))
    alone = extract(job(tmp_path, model, store="alone.zarr", request=OFF))
    found, expected = grams(shared), grams(alone)
    assert not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert shared.commit(2).chunks == alone.commit(2).chunks


def test_what_was_begun_without_sharing_is_not_finished_with_it(tmp_path, model):
    view = extract(job(tmp_path, model, request=OFF))
    withdraw_units(view, [1])
    with pytest.raises(ResumeMismatch, match="share-prompts: begun with False, now True"):
        extract(job(tmp_path, model, request=ExtractSpec(share_prompts=True)))


# ---------------------------------------------------------------- what the probe found is kept, and followed


FOUND = Sharing(prompts=True, difference=9e-07, images="image", images_difference=0.0, allowed=1e-4)
FAULT = Sharing(prompts=False, fault="hidden states of responses differ", allowed=1e-4)


def find(sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every probe from now on find this, as on another machine."""
    monkeypatch.setattr(model_door, "probe_sharing", lambda *_, **__: sharing)


def test_what_the_probe_found_is_kept_and_shown(tmp_path, model):
    view = extract(job(tmp_path, model))
    kept = view.sharing()
    assert (kept.prompts, kept.fault, kept.images) == (True, None, None)
    assert 0 < kept.difference < 1e-5 < kept.allowed
    assert status(view.store).sharing == {"base": kept}
    text = run("status", view.store.location).stdout
    assert f"prompts shared (a probe differed by {kept.difference:.1e}, at most 1e-04)" in text
    assert extract(job(tmp_path, model, signal="off", request=OFF)).sharing() is None


def test_where_the_probe_now_finds_a_fault_nothing_is_mixed(tmp_path, model, monkeypatch):
    view = extract(job(tmp_path, model))
    withdraw_units(view, [1])
    before = content(view.store.location)
    find(FAULT, monkeypatch)
    with pytest.raises(
        ResumeMismatch, match=r"began with shared prompts, but a probe .*: hidden states of responses differ"
    ):
        extract(job(tmp_path, model))
    with pytest.raises(ResumeMismatch, match="began with shared prompts"):
        list(verify_against_model(view, ExtractJob(view.store.location, model, options=OPTIONS)))
    assert content(view.store.location) == before
    monkeypatch.undo()
    assert extract(job(tmp_path, model)).completion() is not None


def test_where_the_probe_found_a_fault_first_all_units_go_without(tmp_path, model, monkeypatch):
    with monkeypatch.context() as elsewhere:
        find(FAULT, elsewhere)
        view = extract(job(tmp_path, model))
    assert "prompts not shared: hidden states of responses differ" in run("status", view.store.location).stdout
    before = content(view.store.location)
    withdraw_units(view, [0])
    extract(job(tmp_path, model))
    assert content(view.store.location) == before
    alone = extract(job(tmp_path, model, store="alone.zarr", request=OFF))
    assert [view.commit(unit).chunks for unit in range(3)] == [alone.commit(unit).chunks for unit in range(3)]


class Loaded(FakeExtractor):
    """An extractor whose probe found something."""

    def __init__(self, sharing: Sharing | None) -> None:
        self.sharing = sharing

    def share_as(self, sharing: Sharing) -> None:
        self.sharing = sharing


def begun(folder: Path, signal: str = "base") -> SignalView:
    """Return a signal of the fake model that has no unit yet."""
    view = extract(make_job(folder, signal=signal, request=ExtractSpec(share_prompts=True)))
    withdraw_units(view, view.committed_units())
    return view


@pytest.mark.parametrize("images", ["image", "sample", None])
def test_images_too_are_shared_as_they_were_first(tmp_path, images):
    view = begun(tmp_path)
    first = FOUND.model_copy(update={"images": images})
    begin_sharing(view, Loaded(first))
    later = Loaded(FOUND)
    begin_sharing(view, later)
    assert view.sharing() == first
    assert later.sharing.images == images
    cannot = Loaded(FOUND.model_copy(update={"images": None, "images_fault": "it forgets them"}))
    with pytest.raises(ResumeMismatch, match="it forgets them") if images else nullcontext():
        follow_sharing(view, cannot)


def test_what_is_kept_comes_back_when_it_is_damaged_or_lost(tmp_path, model):
    view = extract(job(tmp_path, model))
    before = content(view.store.location)
    path = Path(view.store.location) / sharing_key(view.name)
    for damage in (lambda: path.write_text(path.read_text().replace("true", "false")), path.unlink):
        damage()
        (problem,) = verify(view.store)
        assert (problem.where, problem.remedy) == (sharing_key(view.name), "repair")
        repair(replace(job(tmp_path, model), samples_per_unit=None))
        assert content(view.store.location) == before


def test_once_it_is_lost_no_unit_is_added_and_repair_leaves_none_of_the_other_kind(tmp_path, model, monkeypatch):
    view = extract(job(tmp_path, model))
    (Path(view.store.location) / sharing_key(view.name)).unlink()
    withdraw_units(view, [1])
    before = content(view.store.location)
    find(FAULT, monkeypatch)
    with pytest.raises(
        Corrupt, match=r"sharing/base.json is missing.*`grace-store verify --repair` extracts these units again"
    ):
        extract(job(tmp_path, model))
    assert content(view.store.location) == before
    repair(replace(job(tmp_path, model), samples_per_unit=None))
    assert view.sharing() == FAULT
    alone = extract(job(tmp_path, model, store="alone.zarr", request=OFF))
    assert [view.commit(unit).chunks for unit in range(3)] == [alone.commit(unit).chunks for unit in range(3)]
    assert list(verify(view.store, deep=True)) == []


def test_one_that_is_damaged_is_not_followed_and_spoils_no_info(tmp_path):
    view = extract(make_job(tmp_path, request=ExtractSpec(share_prompts=True)))
    keep_sharing(view, FOUND)
    path = Path(view.store.location) / sharing_key(view.name)
    path.write_text(path.read_text().replace("true", "false"))
    with pytest.raises(
        Corrupt, match=r"does not match its own digest.*`grace-store verify --repair` computes all units again"
    ):
        begin_sharing(view, Loaded(FOUND))
    found = status(view.store)
    assert found.sharing == {}
    assert "does not match its own digest" in found.damaged_sharing["base"]
    shown = run("status", view.store.location)
    assert shown.exit_code == 0
    assert "damaged: ledger/sharing/base.json does not match" in shown.stdout
    assert "`grace-store verify --repair`" in shown.stdout


def half_written(view: SignalView) -> tuple[Path, bytes]:
    """Leave half of what another run keeps, as is seen where there are no hard links; return where, and all of it."""
    keep_sharing(view, FOUND)
    path = Path(view.store.location) / sharing_key(view.name)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path, whole


@pytest.mark.parametrize("fails", [False, True])
def test_what_another_run_is_just_writing_is_waited_for(tmp_path, monkeypatch, fails):
    view = begun(tmp_path)
    path, whole = half_written(view)
    monkeypatch.setattr(unit_writer.time, "sleep", lambda _: path.unlink() if fails else path.write_bytes(whole))
    mine = FOUND.model_copy(update={"images": None})
    extractor = Loaded(mine if fails else FOUND)
    begin_sharing(view, extractor)
    assert view.sharing() == extractor.sharing == (mine if fails else FOUND)


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_stays_half_written_is_waited_for_no_longer_than_a_few_seconds(tmp_path, monkeypatch, is_folder):
    view = begun(tmp_path)
    path, _ = half_written(view)
    if is_folder:
        path.unlink()
        path.mkdir()
    slept: list[float] = []
    monkeypatch.setattr(unit_writer.time, "sleep", slept.append)
    monkeypatch.setattr(unit_writer.time, "monotonic", lambda: sum(slept))
    told = "neither be read nor written. Delete" if is_folder else "not valid JSON.*`grace-store verify --repair`"
    with pytest.raises(Corrupt, match=told):
        begin_sharing(view, Loaded(FOUND))
    assert 1 <= sum(slept) <= 2 * unit_writer.WHOLE_SECONDS


def test_what_another_signal_kept_is_not_taken_for_its_own(tmp_path):
    view, other = begun(tmp_path), begun(tmp_path, "other")
    begin_sharing(other, Loaded(FOUND))
    root = Path(view.store.location)
    shutil.copy(root / sharing_key("other"), root / sharing_key(view.name))
    with pytest.raises(Corrupt, match="belongs to another signal"):
        view.sharing()


# ---------------------------------------------------------------- whoever computes it, and in whatever precision


def test_several_processes_write_what_one_writes(tmp_path, model):
    alone = extract(job(tmp_path, model, store="alone.zarr"))
    several = extract(job(tmp_path, model, engine=processes("cpu", "cpu")))
    assert several.sharing() == alone.sharing()
    assert [several.commit(unit) for unit in range(3)] == [alone.commit(unit) for unit in range(3)]


def test_in_half_precision_sharing_costs_no_more_than_the_precision_itself(tmp_path, model):
    def rows(name: str, **wishes) -> np.ndarray:
        made = extract(job(tmp_path, model, store=f"{name}.zarr", request=ExtractSpec(storage="float32", **wishes)))
        assert (made.sharing() is not None and made.sharing().prompts) is wishes.get("share_prompts", True)
        vectors = np.concatenate([made.unit_vectors(unit) for unit in made.committed_units()])
        return vectors[np.linalg.norm(vectors, axis=1) > 0]

    exact = rows("exact", share_prompts=False)
    alone = rows("alone", dtype="bfloat16", share_prompts=False)
    shared = rows("shared", dtype="bfloat16")
    apart = np.linalg.norm(shared - alone, axis=1)
    rounding = np.linalg.norm(alone - exact, axis=1)
    assert np.sqrt(np.mean(apart**2)) <= 0.5 * np.sqrt(np.mean(rounding**2)), "measured: a thirtieth"
    assert apart.max() <= rounding.max()
    assert relative(shared, exact) <= 1.2 * relative(alone, exact)
