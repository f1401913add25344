"""Which worker gets which unit, and what follows a death: the rules that all engines share."""

from __future__ import annotations

import threading

import pytest

from grace_store.base.errors import StorageError, StoreBusy, WorkerDied
from grace_store.base.events import Event, Rated, UnitCommitted, Warned
from grace_store.run.engines.dispatch import LOSSES_PER_UNIT, Dispatch, Worker


class Floor:
    """A dispatch, its workers and what happened to them."""

    def __init__(self, units: range, num_workers: int) -> None:
        self.events: list[Event] = []
        self.is_fenced_off = False
        self.committed: dict[int, UnitCommitted] = {}
        self.ended: list[Worker] = []
        self.stop = threading.Event()
        self.dispatch = Dispatch(2, self.committed.get, self.confirm, self.events.append, self.stop)
        self.dispatch.waiting.extend(units)
        self.workers = [self.worker(number) for number in range(num_workers)]

    def confirm(self) -> None:
        if self.is_fenced_off:
            raise StoreBusy("its lock was taken over")

    def worker(self, number: int, *, is_ready: bool = True) -> Worker:
        return Worker(f"Worker {number}", str(number), rate=Rated(0.0, 0.0) if is_ready else None)

    def feed(self) -> None:
        self.dispatch.feed(self.workers, lambda worker, unit: None, self.ended.append)

    def commit(self, worker: Worker, unit: int, *, is_heard: bool = True) -> None:
        self.committed[unit] = UnitCommitted(unit, num_samples=1, num_set_aside=0, num_tokens=1, num_bytes=1)
        if is_heard:
            self.dispatch.heard(worker, self.committed[unit].to_json(), self.workers)

    def told(self) -> list[int]:
        """Return the units that the listener heard of."""
        return [event.unit for event in self.events if isinstance(event, UnitCommitted)]

    def bury(self, worker: Worker, *, with_machine: bool = False) -> None:
        """Have a worker die, and a new one come in its place."""
        place = self.workers.index(worker)
        if with_machine:
            self.dispatch.lost_with_machine(worker)
        else:
            self.dispatch.lost(worker, words="It died.", in_order=False, num_workers=len(self.workers))
        self.workers[place] = self.worker(int(worker.place))


def test_a_worker_has_one_unit_on_the_device_and_a_few_ahead() -> None:
    floor = Floor(range(10), 2)
    floor.feed()
    assert [worker.in_flight for worker in floor.workers] == [{0, 1, 2}, {3, 4, 5}]
    floor.commit(floor.workers[0], 0)
    floor.feed()
    assert floor.workers[0].in_flight == {1, 2, 6}
    assert not floor.ended


def test_units_lost_in_a_death_are_done_alone_and_given_up_if_they_kill_again() -> None:
    floor = Floor(range(2), 1)
    floor.feed()
    floor.bury(floor.workers[0])
    done_alone = []
    for _ in range(3):
        floor.feed()
        (unit,) = floor.workers[0].in_flight
        done_alone.append(unit)
        if unit == 1:
            floor.commit(floor.workers[0], 1)
        else:
            floor.bury(floor.workers[0])
    assert done_alone == [0, 1, 0]
    with pytest.raises(WorkerDied, match=r"every time they ran units \[0\]; all other units are committed\. It died\."):
        floor.dispatch.conclude()


def test_units_lost_with_a_machine_come_next_and_are_not_suspected() -> None:
    floor = Floor(range(8), 1)
    floor.feed()
    floor.bury(floor.workers[0], with_machine=True)
    floor.feed()
    assert floor.workers[0].in_flight == {0, 1, 2}
    assert [event.text for event in floor.events if isinstance(event, Warned)] == [
        "Worker 0 was lost with its machine; units [0, 1, 2] will be redone."
    ]


@pytest.mark.parametrize("with_machine", [True, False])
def test_a_unit_whose_worker_died_before_it_could_report_it_is_told_and_not_redone(with_machine: bool) -> None:
    floor = Floor(range(3), 1)
    floor.feed()
    floor.commit(floor.workers[0], 0)
    floor.commit(floor.workers[0], 1, is_heard=False)
    floor.bury(floor.workers[0], with_machine=with_machine)
    assert floor.told() == [0, 1]
    assert list(floor.dispatch.waiting) == [2]


def test_a_unit_that_takes_many_machines_with_it_is_suspected_in_the_end() -> None:
    floor = Floor(range(1), 1)
    for _ in range(LOSSES_PER_UNIT + 1):
        floor.feed()
        assert floor.workers[0].in_flight == {0}
        floor.bury(floor.workers[0], with_machine=True)
    floor.feed()
    assert floor.workers[0].in_flight == set()
    with pytest.raises(WorkerDied, match=r"units \[0\]"):
        floor.dispatch.conclude()


def test_a_place_where_workers_do_not_start_is_left_out() -> None:
    floor = Floor(range(4), 1)
    wanted = []
    for _ in range(2):
        unready = floor.worker(7, is_ready=False)
        wanted.append(floor.dispatch.lost(unready, words="It died.", in_order=False, num_workers=1))
    assert wanted == [True, False]
    assert floor.dispatch.left_out == {"7"}
    with pytest.raises(WorkerDied, match=r"No worker is left, and 4 units must still be done\. It died\."):
        floor.dispatch.conclude()


LOST = {"event": "Failed", "text": "The device is lost.", "has_lost_device": True}


@pytest.mark.parametrize(("num_workers", "left_out"), [(3, {"1"}), (1, set())])
def test_a_device_that_is_lost_twice_is_left_out_if_there_are_others(num_workers: int, left_out: set[str]) -> None:
    floor = Floor(range(20), num_workers)
    floor.dispatch.is_place_a_device = True
    for _ in range(2):
        floor.feed()
        worker = floor.workers[-1 if num_workers == 1 else 1]
        floor.dispatch.heard(worker, LOST, floor.workers)
        floor.bury(worker)
    assert floor.dispatch.left_out == left_out
    last = [event.text for event in floor.events if isinstance(event, Warned)][-1]
    assert ("died and is not started again; units" in last) == bool(left_out), last
    assert not floor.dispatch._given_up, "the device was at fault, not the units"


def test_an_idle_worker_waits_for_what_others_may_lose() -> None:
    floor = Floor(range(3), 2)
    floor.feed()
    assert floor.workers[1].in_flight == set()
    assert not floor.ended
    for unit in range(3):
        floor.commit(floor.workers[0], unit)
    floor.feed()
    assert floor.ended == floor.workers
    floor.dispatch.conclude()


def test_a_full_disk_ends_the_run_at_the_first_worker_that_finds_it() -> None:
    floor = Floor(range(10), 8)
    floor.feed()
    worker = floor.workers[0]
    failed = {"event": "Failed", "text": "No space left on device (a.zarr)", "is_disk_full": True}
    floor.dispatch.heard(worker, failed, floor.workers)
    with pytest.raises(StorageError, match=r"No space left on device \(a.zarr\)\. Everything committed .* make room"):
        floor.bury(worker)
    assert not [event for event in floor.events if isinstance(event, Warned)]


def test_nothing_is_done_again_once_the_run_may_no_longer_write() -> None:
    floor = Floor(range(4), 2)
    floor.feed()
    floor.is_fenced_off = True
    with pytest.raises(StoreBusy, match="taken over"):
        floor.bury(floor.workers[0])
