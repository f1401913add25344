"""What is broken is found and named, and repair redoes exactly that."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grace_store.base.errors import Corrupt, DatasetChanged, NotAStore, StoreBusy, StoreError
from grace_store.base.settings import ExtractSpec
from grace_store.run import scan
from grace_store.run import verify as verifying
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.verify import repair, verify
from grace_store.store.check import Problem
from grace_store.store.lock import hold
from grace_store.store.opened import Store
from tests.fake_model import CALLS_FILE
from tests.jobs import content, make_job
from tests.stores import extract_store

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
    before = content(job.store)
    damage(Path(job.store) / file)
    store = Store.open(job.store)
    assert ({problem.unit for problem in verify(store)} == {UNIT}) is not only_deep
    assert {problem.unit for problem in verify(store, deep=True)} == {UNIT}

    monkeypatch.setenv(CALLS_FILE, str(tmp_path / "calls"))
    mended = repair(ExtractJob(job.store, door="tests.fake_model"))
    assert {problem.unit for problem in mended} == {UNIT}
    assert content(job.store) == before
    assert list(verify(Store.open(job.store), deep=True)) == []
    assert len((tmp_path / "calls").read_text().split()) == 2  # one probe for the estimate, one unit


def two_disks(monkeypatch: pytest.MonkeyPatch, other: Path) -> None:
    """Have files not be renamed onto another disk, as the system does not."""
    replace_file = os.replace

    def refuse(source: str | Path, target: str | Path) -> None:
        if len({other in Path(path).resolve().parents for path in (source, target)}) == 2:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source), None, str(target))
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", refuse)


@pytest.mark.parametrize(
    "folder", ["signals", "signals/base", "samples", "ledger", "ledger/commits", "ledger/commits/base"]
)
def test_a_part_of_the_store_may_lie_on_another_disk(
    tmp_path: Path, job: ExtractJob, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    before = content(job.store)
    elsewhere = tmp_path / "larger"
    (Path(job.store) / folder).rename(elsewhere)
    (Path(job.store) / folder).symlink_to(elsewhere)
    two_disks(monkeypatch, elsewhere)
    assert list(verify(Store.open(job.store), deep=True)) == []
    damaged = Path(job.store) / f"signals/base/segment_vector/c/{UNIT}/0"
    flip(damaged)
    (damaged.parent / "0.part").write_text("of a run that was killed")
    repair(ExtractJob(job.store, door="tests.fake_model"))
    assert list(verify(Store.open(job.store), deep=True)) == []
    for path in [path for path in elsewhere.rglob("*") if path.is_file()]:
        key = f"{folder}/{path.relative_to(elsewhere).as_posix()}"
        if not key.startswith("ledger/runs/"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == before[key]


def test_a_file_of_somebody_else_behind_a_link_is_told_and_kept(tmp_path: Path, job: ExtractJob) -> None:
    mine = tmp_path / "mine"
    (Path(job.store) / "ledger/commits/base").rename(mine)
    (Path(job.store) / "ledger/commits/base").symlink_to(mine)
    (mine / "diary.txt").write_text("Monday")
    assert [problem.where for problem in verify(Store.open(job.store))] == ["ledger/commits/base/diary.txt"]
    (problem,) = repair(ExtractJob(job.store, door="tests.fake_model"))
    assert (problem.where, problem.remedy) == ("ledger/commits/base/diary.txt", "by hand")
    assert (mine / "diary.txt").read_text() == "Monday"


@pytest.mark.parametrize("make", [os.mkfifo, Path.touch])
@pytest.mark.parametrize("deep", [False, True])
def test_a_pipe_or_nothing_in_place_of_a_column_is_found_and_mended(
    job: ExtractJob, make: Callable[[Path], None], deep: bool
) -> None:
    before = content(job.store)
    chunk = Path(job.store) / "samples/sample_row/c/0"
    chunk.unlink()
    make(chunk)
    found = [(problem.where, problem.text) for problem in verify(Store.open(job.store), deep=deep)]
    assert ("samples/sample_row/c/0", "chunk is empty or no regular file") in found
    if make is os.mkfifo:
        with pytest.raises(Corrupt, match=r"sample_row/c/0 is a pipe or a device, but must be a file\. Delete it"):
            repair(ExtractJob(job.store, door="tests.fake_model"))
        chunk.unlink()
    assert repair(ExtractJob(job.store, door="tests.fake_model"))
    assert content(job.store) == before


@pytest.mark.parametrize("file", ["signals/base/segment_loss/zarr.json", "ledger/complete/base.json"])
def test_damaged_documents_are_mended_without_the_model(
    tmp_path: Path, job: ExtractJob, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    before = content(job.store)
    (Path(job.store) / file).write_text("{}")
    assert [problem.where for problem in verify(Store.open(job.store))] == [file]
    monkeypatch.setenv(CALLS_FILE, str(tmp_path / "calls"))
    repair(ExtractJob(job.store, door="tests.fake_model"))
    assert content(job.store) == before
    assert not (tmp_path / "calls").exists()


def test_a_stray_file_is_reported_and_removed(job: ExtractJob) -> None:
    stray = Path(job.store) / "ledger/tmp/base.0-of-1/half-written"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"half")
    assert [problem.where for problem in verify(Store.open(job.store))] == ["ledger/tmp/base.0-of-1/half-written"]
    repair(ExtractJob(job.store, door="tests.fake_model"))
    assert list(verify(Store.open(job.store))) == []


PLAN_DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "flipped plan": ("zarr.json", flip),
    "lost plan": ("zarr.json", Path.unlink),
    "emptied plan": ("zarr.json", lambda path: path.write_bytes(b"")),
    "flipped copy of the plan": ("ledger/plan.json", flip),
    "lost copy of the plan": ("ledger/plan.json", Path.unlink),
    "flipped signal": ("signals/base/zarr.json", flip),
    "lost signal": ("signals/base/zarr.json", Path.unlink),
    "lost copy of the signal": ("ledger/signals/base.json", Path.unlink),
    "metadata of a column": ("samples/sample_num_steps/zarr.json", flip),
    "lost metadata of a column": ("samples/sample_id/zarr.json", Path.unlink),
    "metadata of a group": ("samples/zarr.json", lambda path: path.write_text("{}")),
    "flipped column": ("samples/sample_num_steps/c/0", flip),
    "lost column": ("samples/sample_id/c/0", Path.unlink),
    "another column": (
        "samples/sample_row/c/0",
        lambda path: path.write_bytes((path.parents[2] / "sample_offset/c/0").read_bytes()),
    ),
}


@pytest.mark.parametrize("name", PLAN_DAMAGE)
def test_a_damaged_plan_is_mended_and_no_unit_is_computed_again(
    tmp_path: Path, job: ExtractJob, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = content(job.store)
    file, damage = PLAN_DAMAGE[name]
    damage(Path(job.store) / file)
    monkeypatch.setenv(CALLS_FILE, str(tmp_path / "calls"))
    mended = repair(ExtractJob(job.store, door="tests.fake_model"))
    assert file in [problem.where for problem in mended] or "samples" in [problem.where for problem in mended]
    assert content(job.store) == before
    assert not (tmp_path / "calls").exists()
    assert repair(ExtractJob(job.store, door="tests.fake_model")) == []


def test_who_opens_a_damaged_plan_is_told_of_its_copy(job: ExtractJob) -> None:
    (Path(job.store) / "zarr.json").write_text("{")
    with pytest.raises(Corrupt, match="not valid JSON") as caught:
        Store.open(job.store)
    assert caught.value.__notes__ == ["`grace-store verify --repair` restores the plan from its copy."]
    (Path(job.store) / "ledger/plan.json").unlink()
    with pytest.raises(Corrupt, match="not valid JSON") as caught:
        Store.open(job.store)
    assert not hasattr(caught.value, "__notes__")


def test_data_that_was_moved_mends_a_damaged_plan_too(tmp_path: Path, job: ExtractJob) -> None:
    before = content(job.store)
    flip(Path(job.store) / "samples/sample_digest/c/0/0")
    moved = Path(job.data[0]).rename(tmp_path / "moved.jsonl")
    with pytest.raises(DatasetChanged, match="no longer there"):
        repair(ExtractJob(job.store, door="tests.fake_model"))
    repair(ExtractJob(job.store, data=(str(moved),), door="tests.fake_model"))
    assert content(job.store) == before


def test_a_plan_that_comes_out_differently_is_not_written_over(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(Path(job.store) / "samples/sample_num_steps/c/0")
    before = content(job.store)
    parse_record = scan.parse_record
    monkeypatch.setattr(
        scan,
        "parse_record",
        lambda *words, **how: replace(parse_record(*words, **how), sample_id=f"new-{words[0].row}"),
    )
    with pytest.raises(StoreError, match="plans the same data differently"):
        repair(job)
    assert content(job.store) == before


def test_a_plan_whose_counts_contradict_each_other_cannot_be_mended(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "check_plan", lambda *_, **__: [Problem(None, None, "zarr.json", "?", "replan")])
    with pytest.raises(StoreError, match=r"plan of .* is damaged"):
        repair(job)


def test_a_signal_whose_document_and_copy_are_damaged_is_lost(job: ExtractJob) -> None:
    path = Path(job.store) / "signals/base/zarr.json"
    path.write_text(path.read_text().replace('"int8"', '"int4"'))
    (Path(job.store) / "ledger/signals/base.json").unlink()
    problems = list(verify(Store.open(job.store)))
    assert "does not match its own digest" in problems[0].text
    with pytest.raises(StoreError, match="extract the signal again"):
        repair(job)


def test_nothing_is_written_into_what_is_no_store(tmp_path: Path, job: ExtractJob) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(NotAStore, match="is not a grace-store store"):
        repair(replace(job, store=str(tmp_path / "other")))
    assert list((tmp_path / "other").iterdir()) == []


def test_a_store_that_is_being_written_is_not_repaired(job: ExtractJob) -> None:
    store = Store.open(job.store)
    with hold(store.backend, "create-second"), pytest.raises(StoreBusy, match="create-second"):
        repair(job)


def test_a_signal_that_came_while_checking_is_no_stray(job: ExtractJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def verify_slowly(store: Store, *, deep: bool) -> Iterator[Problem]:
        yield from verify(store, deep=deep)
        view = extract(replace(job, signal="second"))
        yield Problem(None, None, f"{view.key}/segment_loss/c/0", "seen before the signal was there", "delete")

    monkeypatch.setattr(verifying, "verify", verify_slowly)
    assert len(repair(job)) == 1
    assert list(verify(job.store, deep=True)) == []
    assert Store.open(job.store).signal("second").completion() is not None


def test_nothing_to_mend_in_a_sound_store(job: ExtractJob) -> None:
    assert repair(job) == []


def test_another_signals_document_in_its_place_is_put_right_from_the_copy(tmp_path: Path) -> None:
    """Not the other way round: units must not be redone as what the foreign document says they are."""
    folder = tmp_path / "two"
    store = extract_store(folder, "int8")
    job = ExtractJob(store=store.location, model=str(folder / "model"), door="tests.fake_model", signal="exact",
                     request=ExtractSpec(storage="float32", max_length=300))  # fmt: skip
    store = extract(job).store
    before = {path: path.read_bytes() for path in Path(store.location).rglob("*") if path.is_file()}
    own, other = (Path(store.location) / f"signals/{name}/zarr.json" for name in ("base", "exact"))
    own.write_bytes(other.read_bytes())
    assert any("belongs to the signal 'exact'" in problem.text for problem in verify(store))
    repair(replace(job, signal="base", request=ExtractSpec()))
    after = {path: path.read_bytes() for path in before}
    assert [path for path in before if before[path] != after[path]] == []
