"""Verify names what is broken, repair redoes exactly that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from grace_store.config import ExtractRequest, RunOptions
from grace_store.errors import ResumeMismatch, StoreBusy, StoreError
from grace_store.job.extract import ExtractJob, extract
from grace_store.job.verify import repair, verify, verify_against_model
from grace_store.store import Store, hold
from tests.fake_model import CALLS_FILE, make_fake_model
from tests.jobs import content, make_job

UNIT = 3


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))


DAMAGE: dict[str, tuple[str, Callable[[Path], object], bool]] = {
    "flipped vector": (f"signals/base/segment_vector/c/{UNIT}/0", flip, True),
    "flipped Gram": (f"signals/base/sample_gram/c/{UNIT}", flip, True),
    "flipped state": (f"signals/base/sample_state/c/{UNIT}", flip, True),
    "truncated chunk": (f"signals/base/segment_loss/c/{UNIT}", lambda p: p.write_bytes(p.read_bytes()[:-1]), False),
    "deleted chunk": (f"signals/base/segment_vector/c/{UNIT}/0", Path.unlink, False),
    "missing commit": (f"ledger/commits/base/{UNIT:08d}.json", Path.unlink, False),
    "damaged commit": (f"ledger/commits/base/{UNIT:08d}.json", flip, False),
}
"""name: (file, what happens to it, whether only a deep check sees it)."""


@pytest.fixture
def job(tmp_path: Path) -> ExtractJob:
    job = make_job(tmp_path)
    extract(job)
    return job


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_named_and_mended(
    tmp_path: Path, job: ExtractJob, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file, damage, only_deep = DAMAGE[name]
    before = content(job.location)
    damage(Path(job.location) / file)
    store = Store.open(job.location)
    assert ({problem.unit for problem in verify(store)} == {UNIT}) is not only_deep
    assert {problem.unit for problem in verify(store, deep=True)} == {UNIT}

    monkeypatch.setenv(CALLS_FILE, str(tmp_path / "calls"))
    mended = repair(store, ExtractJob(job.location, door="tests.fake_model"))
    assert {problem.unit for problem in mended} == {UNIT}
    assert content(job.location) == before
    assert list(verify(Store.open(job.location), deep=True)) == []
    assert len((tmp_path / "calls").read_text().split()) == 2  # one trial for the estimate, one unit


@pytest.mark.parametrize("file", ["signals/base/segment_loss/zarr.json", "ledger/complete/base.json"])
def test_damaged_documents_are_mended_without_the_model(
    tmp_path: Path, job: ExtractJob, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    before = content(job.location)
    (Path(job.location) / file).write_text("{}")
    assert [problem.where for problem in verify(Store.open(job.location))] == [file]
    monkeypatch.setenv(CALLS_FILE, str(tmp_path / "calls"))
    repair(Store.open(job.location), ExtractJob(job.location, door="tests.fake_model"))
    assert content(job.location) == before
    assert not (tmp_path / "calls").exists()


def test_a_stray_file_is_reported_and_removed(job: ExtractJob) -> None:
    stray = Path(job.location) / "ledger/tmp/base.0-of-1/half-written"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"half")
    assert [problem.where for problem in verify(Store.open(job.location))] == ["ledger/tmp/base.0-of-1/half-written"]
    repair(Store.open(job.location), ExtractJob(job.location, door="tests.fake_model"))
    assert list(verify(Store.open(job.location))) == []


def test_a_damaged_plan_cannot_be_repaired_and_says_so(job: ExtractJob) -> None:
    flip(Path(job.location) / "samples/sample_num_steps/c/0")
    with pytest.raises(StoreError, match=r"plan of .* itself is damaged"):
        repair(Store.open(job.location), job)


def test_a_damaged_signal_document_is_reported(job: ExtractJob) -> None:
    path = Path(job.location) / "signals/base/zarr.json"
    path.write_text(path.read_text().replace('"int8"', '"int4"'))
    problems = list(verify(Store.open(job.location)))
    assert "does not match its own digest" in problems[0].text
    with pytest.raises(StoreError, match="extract it anew"):
        repair(Store.open(job.location), job)


def test_a_store_that_is_being_written_is_not_repaired(job: ExtractJob) -> None:
    store = Store.open(job.location)
    with hold(store.backend, "create-second"), pytest.raises(StoreBusy, match="create-second"):
        repair(store, job)


def test_a_signal_that_came_while_checking_is_no_stray(job: ExtractJob) -> None:
    store = Store.open(job.location)
    assert store.signal_names == ["base"]  # remembered, as a check of many hours would
    extract(replace(job, signal="second"))
    repair(store, job)
    assert list(verify(Store.open(job.location), deep=True)) == []
    assert Store.open(job.location).signal("second").completion() is not None


def test_nothing_to_mend_in_a_sound_store(job: ExtractJob) -> None:
    assert repair(Store.open(job.location), job) == []


# ---------------------------------------------------------------- against the model


def test_units_extracted_again_agree(job: ExtractJob) -> None:
    view = Store.open(job.location).signal("base")
    assert list(verify_against_model(view, job.model or "", 3, RunOptions(), door="tests.fake_model")) == []


def test_a_store_of_other_numbers_is_noticed(tmp_path: Path, job: ExtractJob) -> None:
    """A unit whose bytes are all as committed, but not what the model gives."""
    other = Path(job.data[0]).read_text().replace("We look", "We gaze")
    Path(tmp_path / "other.jsonl").write_text(other)
    swapped = replace(job, location=str(tmp_path / "swapped.zarr"), data=(str(tmp_path / "other.jsonl"),))
    view = extract(swapped)
    source = Store.open(job.location).signal("base")
    view._group = source._group
    problems = list(verify_against_model(view, job.model or "", 99, RunOptions(), door="tests.fake_model"))
    assert [problem.unit for problem in problems] == list(range(view.store.plan.num_units))
    assert all("Grams differ" in problem.text for problem in problems)


def test_another_model_is_refused(tmp_path: Path, job: ExtractJob) -> None:
    view = Store.open(job.location).signal("base")
    other = make_fake_model(tmp_path / "other", "other")
    with pytest.raises(ResumeMismatch, match="model weights"):
        list(verify_against_model(view, other, 1, RunOptions(), door="tests.fake_model"))


@pytest.mark.parametrize("storage", ["float32", "float16", "int8", "int4"])
def test_every_storage_is_sound(tmp_path: Path, storage: str) -> None:
    view = extract(make_job(tmp_path, request=ExtractRequest(storage=storage)))  # type: ignore[arg-type]
    assert list(verify(view.store, deep=True)) == []
