"""Writing a plan: streams, digests, leaves nothing of what did not come to be, and harms nobody's files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import NotAStore, SettingError
from grace_store.base.states import Reason
from grace_store.store import layout
from grace_store.store.backend import open_backend
from grace_store.store.check import check_plan, check_strays
from grace_store.store.layout import PlannedSample
from grace_store.store.opened import Store
from grace_store.store.plan_writer import PlanWriter
from tests.stores import NUM_SAMPLES, extract_store, finished_store, write_plan

NUM_STEPS = [1 + i * 7 % 9 for i in range(23)]
ASIDE = {0: Reason.BAD_JSON, 1: Reason.NO_ANSWER, 2: Reason.BAD_JSON, 3: Reason.TOO_FEW_STEPS, 4: Reason.BAD_JSON}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "SAMPLES_PER_CHUNK", 4)


def digest_of_elements(store: Store) -> str:
    """Compute samples_sha256 as FORMAT.md says it, element by element."""
    lines = ""
    for array in layout.plan_arrays(store.plan):
        digest = hashlib.sha256()
        for element in store.column(array.name):
            if array.dtype == "string":
                digest.update(str(element).encode("utf-8") + b"\xff")
            else:
                for number in np.atleast_1d(element).tolist():
                    size = np.dtype(array.dtype).itemsize
                    digest.update(number.to_bytes(size, "little", signed=array.dtype.startswith("int")))
        lines += digest.hexdigest() + "\n"
    return hashlib.sha256(lines.encode()).hexdigest()


@pytest.mark.parametrize("num_samples", [1, 4, 22, 23])
def test_samples_over_many_chunks_come_back_in_order(tmp_path: Path, small_chunks: None, num_samples: int) -> None:
    plan = write_plan(tmp_path / "s", NUM_STEPS[:num_samples], 2, ASIDE)
    store = Store.open(tmp_path / "s")
    assert store.plan == plan
    rows = store.samples(0, num_samples)
    assert len(rows) == num_samples
    assert rows.sample_id == [f"s{i}" for i in range(num_samples)]
    assert rows.num_steps.tolist() == NUM_STEPS[:num_samples]
    assert rows.offset.tolist() == [10 * i for i in range(num_samples)]
    assert [int.from_bytes(digest.tobytes(), "big") for digest in rows.digest] == list(range(num_samples))
    assert [(row - num_samples, reason) for row, reason, _ in store.records_set_aside()] == list(ASIDE.items())
    assert len(list((tmp_path / "s/samples/sample_id/c").iterdir())) == -(-num_samples // 4)
    assert list(check_plan(store, deep=True)) == []
    assert list(check_strays(store)) == []


def test_memory_holds_one_chunk_of_samples_at_most(tmp_path: Path, small_chunks: None) -> None:
    writer = PlanWriter(open_backend(tmp_path / "s"))
    for row in range(30):
        writer.add(PlannedSample(f"s{row}", row, 0, 0, 0, bytes(16), 3))
        writer.add_set_aside(row, Reason.NO_STEPS, "")
        assert len(writer._samples) < 4
        assert len(writer._asides) < 4
    assert writer.num_samples == 30
    assert writer.set_aside == {"no_steps": 30}


@pytest.mark.parametrize("per_unit", [1, 2, 4, 8, 16])
def test_places_are_those_of_a_loop_over_units(tmp_path: Path, small_chunks: None, per_unit: int) -> None:
    """Also where a unit lies in several chunks, or a chunk holds several units."""
    plan = write_plan(tmp_path / "s", NUM_STEPS, per_unit)
    rows: list[int] = []
    grams: list[int] = []
    for start in range(0, len(NUM_STEPS), per_unit):
        unit = start // per_unit
        row, gram = plan.rows_per_unit * unit, plan.gram_per_unit * unit
        for steps in NUM_STEPS[start : start + per_unit]:
            rows.append(row)
            grams.append(gram)
            row, gram = row + steps + 1, gram + (steps + 1) * (steps + 2) // 2
    store = Store.open(tmp_path / "s")
    assert store.column("sample_segment_start").tolist() == rows
    assert store.column("sample_gram_start").tolist() == grams
    units = [NUM_STEPS[start : start + per_unit] for start in range(0, len(NUM_STEPS), per_unit)]
    assert plan.gram_per_unit == max(sum((k + 1) * (k + 2) // 2 for k in unit) for unit in units)
    needed = max(sum(k + 1 for k in unit) for unit in units)
    assert plan.rows_per_unit == (needed if needed <= 128 else -(-needed // 128) * 128)


def test_samples_with_very_many_steps_keep_their_number(tmp_path: Path, small_chunks: None) -> None:
    num_steps = [3, 255, 4, 5, 256, 2, 70_000, 1]
    plan = write_plan(tmp_path / "s", num_steps, 1)
    assert Store.open(tmp_path / "s").column("sample_num_steps").tolist() == num_steps
    assert plan.gram_per_unit == 70_001 * 70_002 // 2


def test_the_digest_is_what_the_format_says(tmp_path: Path, small_chunks: None) -> None:
    plan = write_plan(tmp_path / "s", NUM_STEPS, 2, ASIDE)
    assert plan.samples_sha256 == digest_of_elements(Store.open(tmp_path / "s"))


def test_the_digest_does_not_depend_on_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_plan(tmp_path / "whole", NUM_STEPS, 2, ASIDE)
    monkeypatch.setattr(layout, "SAMPLES_PER_CHUNK", 4)
    assert write_plan(tmp_path / "small", NUM_STEPS, 2, ASIDE) == whole


def test_the_digest_of_a_planned_dataset_with_text_of_all_kinds(tmp_path: Path) -> None:
    store = extract_store(tmp_path)
    assert store.plan.samples_sha256 == digest_of_elements(store)
    assert store.plan.num_records == NUM_SAMPLES + 3 == store.plan.num_samples + sum(store.plan.set_aside.values())


def test_units_are_chosen_and_checked(tmp_path: Path) -> None:
    assert write_plan(tmp_path / "a", NUM_STEPS, 0).samples_per_unit == layout.default_samples_per_unit(23)
    with pytest.raises(SettingError, match="--unit-samples is 3"):
        write_plan(tmp_path / "b", NUM_STEPS, 3)


def test_a_store_does_not_exist_until_its_plan_is_written(tmp_path: Path, small_chunks: None) -> None:
    writer = PlanWriter(open_backend(tmp_path / "s"))
    for row in range(9):
        writer.add(PlannedSample(f"s{row}", row, 0, 0, 0, bytes(16), 3))
    with pytest.raises(NotAStore, match="the folder has no plan"):
        Store.open(tmp_path / "s")
    # What was left by a plan that was cut short is replaced.
    write_plan(tmp_path / "s", [2], 2)
    store = Store.open(tmp_path / "s")
    assert store.plan.num_samples == 1
    assert list(check_strays(store)) == []


def test_discarding_leaves_nothing(tmp_path: Path, small_chunks: None) -> None:
    writer = PlanWriter(open_backend(tmp_path / "s"))
    for row in range(9):
        writer.add(PlannedSample(f"s{row}", row, 0, 0, 0, bytes(16), 3))
        writer.add_set_aside(row, Reason.NO_STEPS, "")
    assert list((tmp_path / "s").rglob("c/*"))
    writer.discard()
    assert [path for path in (tmp_path / "s").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    "name", ["notes.txt", "samples/photo.jpg", "samples/sample_id/c/0.bak", "signals/base/zarr.json", "signals/a.wav"]
)
def test_a_folder_with_somebodys_files_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    theirs = tmp_path / "s" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("precious")
    with pytest.raises(NotAStore, match=f"is not empty and not a grace-store store .it holds {name}"):
        PlanWriter(open_backend(tmp_path / "s"))
    assert theirs.read_text() == "precious"


def test_a_store_is_not_planned_over(tmp_path: Path) -> None:
    store = finished_store(tmp_path)
    with pytest.raises(NotAStore, match=r"it holds zarr.json"):
        PlanWriter(store.backend)


def test_a_store_that_lost_its_plan_keeps_its_vectors(tmp_path: Path) -> None:
    """A night of GPU work is not deleted because one file is gone."""
    store = finished_store(tmp_path)
    store.backend.delete("zarr.json")
    before = list(store.backend.walk())
    with pytest.raises(NotAStore, match=r"holds units of a store whose plan \(zarr.json\) is gone"):
        PlanWriter(store.backend)
    assert list(store.backend.walk()) == before
