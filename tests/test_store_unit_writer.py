"""Units are written and committed only while the run holds its lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from grace_store.base.errors import StoreBusy
from grace_store.store.backend import LocalBackend
from grace_store.store.lock import Lease, hold
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import UnitWriter
from tests.jobs import content
from tests.stores import add_signal, random_signals, spans_for, write_plan


@pytest.fixture
def view(tmp_path: Path) -> SignalView:
    write_plan(tmp_path / "store.zarr", [2, 3, 2, 4], 2)
    return add_signal(Store.open(tmp_path / "store.zarr"), "float32", 8)


def take_over(lease: Lease) -> None:
    lease.backend.write(lease.key, b'{"host": "another-machine", "pid": 7, "since": "today"}')


def write(view: SignalView, lease: Lease, unit: int) -> None:
    UnitWriter(view, lease).write(unit, random_signals(view, unit), spans_for(view, unit))


def test_no_chunk_is_written_after_another_run_took_over(view: SignalView) -> None:
    with hold(view.store.backend, view.name) as lease:
        write(view, lease, 0)
        take_over(lease)
        before = content(view.store.location)
        with pytest.raises(StoreBusy, match="was taken over by process 7 on another-machine"):
            write(view, lease, 1)
        assert content(view.store.location) == before


def test_a_unit_is_not_committed_if_another_run_took_over_while_its_chunks_were_written(
    view: SignalView, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hold(view.store.backend, view.name) as lease:
        write_all = LocalBackend.write_all

        def write_and_lose(backend: LocalBackend, values: dict[str, bytes]) -> None:
            write_all(backend, values)
            take_over(lease)

        monkeypatch.setattr(LocalBackend, "write_all", write_and_lose)
        with pytest.raises(StoreBusy, match="was taken over by process 7 on another-machine"):
            write(view, lease, 0)
        assert view.committed_units() == []
