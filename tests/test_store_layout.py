"""Where things lie: every sample in one unit, every file of one unit only."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import get_args
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.base.errors import SettingError
from grace_store.base.metadata import Plan
from grace_store.base.settings import DataSpec, Per, Storage
from grace_store.base.states import STATE_CODES, Reason
from grace_store.store import layout
from grace_store.store.backend import check_signal_name, chunk_key
from grace_store.store.opened import Store
from tests.stores import STORAGES, make_spec, write_plan

step_counts = st.lists(st.integers(1, 30), min_size=1, max_size=70)
unit_sizes = st.sampled_from([1, 2, 4, 16, 64])


def planned(num_steps: list[int], samples_per_unit: int) -> tuple[Plan, np.ndarray, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):  # nothing here has to outlive a power cut
        plan = write_plan(Path(folder) / "s", num_steps, samples_per_unit)
        store = Store.open(Path(folder) / "s")
        return plan, store.column("sample_segment_start"), store.column("sample_gram_start")


@settings(deadline=None, max_examples=30)
@given(step_counts, unit_sizes)
def test_units_cover_every_sample_once_and_share_nothing(num_steps: list[int], samples_per_unit: int) -> None:
    plan, segment_start, gram_start = planned(num_steps, samples_per_unit)
    ranges = [plan.unit_range(unit) for unit in range(plan.num_units)]
    assert [sample for start, stop in ranges for sample in range(start, stop)] == list(range(len(num_steps)))
    assert all(start < stop for start, stop in ranges)
    rows: set[int] = set()
    entries: set[int] = set()
    for sample, steps in enumerate(num_steps):
        unit = sample // samples_per_unit
        m = steps + 1
        my_rows = range(segment_start[sample], segment_start[sample] + m)
        my_entries = range(gram_start[sample], gram_start[sample] + m * (m + 1) // 2)
        assert rows.isdisjoint(my_rows)
        assert entries.isdisjoint(my_entries)
        rows.update(my_rows)
        entries.update(my_entries)
        assert {row // plan.rows_per_unit for row in my_rows} == {unit}
        assert {entry // plan.gram_per_unit for entry in my_entries} == {unit}
    assert_no_waste(plan, [num_steps[start:stop] for start, stop in ranges])


def assert_no_waste(plan: Plan, units: list[list[int]]) -> None:
    """Check that units have no more room than the largest needs, up to a whole inner chunk."""
    needed = max(sum(steps + 1 for steps in unit) for unit in units)
    assert 0 <= plan.rows_per_unit - needed < layout.ROWS_PER_INNER_CHUNK
    assert plan.rows_per_unit == needed or plan.rows_per_unit % layout.ROWS_PER_INNER_CHUNK == 0
    assert plan.gram_per_unit == max(sum((steps + 1) * (steps + 2) // 2 for steps in unit) for unit in units)


def make_plan(num_samples: int, samples_per_unit: int) -> Plan:
    return Plan(
        spec=DataSpec(format="explicit"),
        files=(),
        num_records=num_samples,
        num_samples=num_samples,
        set_aside={},
        samples_per_unit=samples_per_unit,
        num_units=-(-num_samples // samples_per_unit),
        rows_per_unit=256,
        gram_per_unit=70,
        tokens_per_unit=2 * layout.TOKENS_PER_INNER_CHUNK,
        samples_sha256="",
        flagged={},
        created_by="",
    )


PER = st.sampled_from([None, *get_args(Per)])


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 8), st.sampled_from(STORAGES), st.integers(1, 300), PER)
def test_every_chunk_of_every_array_belongs_to_exactly_one_unit(
    num_samples: int, exponent: int, storage: Storage, vector_size: int, per: Per | None
) -> None:
    plan = make_plan(num_samples, 1 << exponent)
    for array in layout.signal_arrays(plan, make_spec(storage, vector_size, per)):
        num_chunks = [-(-size // chunk) for size, chunk in zip(array.shape, array.chunks, strict=True)]
        assert num_chunks == [plan.num_units if array.is_per_unit else 1, *[1] * (len(array.dims) - 1)]
        assert array.inner is None or all(a % b == 0 for a, b in zip(array.chunks, array.inner, strict=True))
        found = list(layout.array_keys([array]))
        assert found[0] == f"{array.name}/zarr.json"
        assert found[1:] == [chunk_key(array.name, len(array.dims), u) for u in range(num_chunks[0])]
        assert len(set(found)) == len(found)


@given(st.integers(1, 10**8))
def test_the_default_unit_is_allowed_and_makes_about_a_thousand(num_samples: int) -> None:
    per_unit = layout.default_samples_per_unit(num_samples)
    assert layout.check_samples_per_unit(per_unit) == per_unit
    assert num_samples / per_unit <= 1024 or per_unit == layout.MAX_SAMPLES_PER_UNIT
    assert per_unit >= 16


@pytest.mark.parametrize("wrong", [0, -4, 3, 100, 8192])
def test_a_unit_is_a_power_of_two(wrong: int) -> None:
    with pytest.raises(SettingError, match=f"--unit-samples is {wrong}. Give a power of two up to 4096"):
        layout.check_samples_per_unit(wrong)


@pytest.mark.parametrize("name", ["base", "warmup-100", "Qwen2.5+lora=3", "7", "a" * 100])
def test_names_that_can_be_folders_are_signal_names(name: str) -> None:
    assert check_signal_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "-x", "_x", "é", "a" * 101, "a\n", "zarr.json"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match="cannot be the name of a signal"):
        check_signal_name(name)


def test_codes_of_states_are_dense_and_never_change() -> None:
    assert list(STATE_CODES.values()) == list(range(len(Reason) + 2))
    assert (STATE_CODES["planned"], STATE_CODES["done"], STATE_CODES["bad_json"]) == (0, 1, 2)
    assert (STATE_CODES["too_long"], STATE_CODES["not_finite"]) == (22, 23)
