"""Power cuts: what was not synced is gone, torn or there, as the seed wants, also the names of files and folders.

A run's calls on the disk are written down once. A cut after the first n of them leaves the least that a disk must keep:
bytes of a file up to its last fsync, names in a folder up to the folder's last fsync; of everything after that, some.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from grace_store.base.events import Event, UnitCommitted
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.plan import plan
from grace_store.store.check import check_signal
from grace_store.store.opened import Store
from tests.jobs import content, make_job
from tests.torture.disk import watched
from tests.torture.runs import differences, left_behind, own_process
from tests.torture.tally import Tally, main

ACKNOWLEDGED = "acknowledged"
NUM_KILLED = 5
"""How many of the runs are killed before the power goes."""


@dataclass(eq=False)
class Node:
    """A file or folder: what a reader sees, and what is known to be on the disk."""

    is_folder: bool
    data: bytes = b""
    is_synced: bool = False
    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[tuple[str, Node | None]] = field(default_factory=list)
    """Changes of entries since the last sync, in order; None: removed."""

    def change(self, name: str, node: Node | None) -> None:
        self.pending.append((name, node))
        if node is None:
            self.entries.pop(name, None)
        else:
            self.entries[name] = node


@dataclass(frozen=True)
class Call:
    """One call on the disk, with the bytes that the file had then."""

    operation: str
    path: str
    other: str | None = None
    data: bytes | None = None


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it and go on writing."""


class Recorder:
    """Writes down the calls on everything below a folder, relative to it; kills the run after so many of them."""

    def __init__(self, root: Path, kill_after: int | None = None) -> None:
        self.root = root
        self.kill_after = kill_after
        self.calls: list[Call] = []

    def __call__(self, operation: str, path: str, other: str | None) -> None:
        if self.kill_after is not None and len(self.calls) >= self.kill_after:
            raise Killed
        if operation in ("open", "read", "list", "stat"):
            return
        data = None
        if operation == "fsync" and not os.path.isdir(path):  # noqa: PTH112
            with open(path, "rb") as stream:
                data = stream.read()
        relative = [None if each is None else os.path.relpath(each, self.root) for each in (path, other)]
        self.calls.append(Call(operation, relative[0] or "", relative[1], data))

    def acknowledge(self, event: Event) -> None:
        if isinstance(event, UnitCommitted):
            self.calls.append(Call(ACKNOWLEDGED, str(event.unit)))


class Disk:
    """A folder as the calls have made it."""

    def __init__(self) -> None:
        self.root = Node(is_folder=True)

    def find(self, path: str) -> Node | None:
        node: Node | None = self.root
        for name in [part for part in path.split("/") if part != "."]:
            node = node.entries.get(name) if node else None
        return node

    def parent(self, path: str) -> tuple[Node | None, str]:
        folder, _, name = path.rpartition("/")
        return self.find(folder or "."), name

    def apply(self, call: Call, later: bytes) -> None:
        """Do what a call did; one that must have failed does nothing. later: what the file will hold once written."""
        folder, name = self.parent(call.path)
        if call.operation == ACKNOWLEDGED or folder is None:
            return
        there = folder.entries.get(name) if call.path != "." else self.root
        if call.operation in ("create", "mkdir") and there is None:
            folder.change(name, Node(is_folder=call.operation == "mkdir"))
        elif call.operation == "write" and there is not None:
            there.data, there.is_synced = later, False
        elif call.operation == "fsync" and there is not None:
            there.is_synced = True
            there.durable, there.pending = dict(there.entries), []
        elif call.operation in ("unlink", "rmdir") and there is not None and not there.entries:
            folder.change(name, None)
        elif call.operation in ("rename", "link") and call.other is not None:
            source_folder, source = self.parent(call.other)
            node = source_folder.entries.get(source) if source_folder else None
            if node is not None and source_folder is not None and (call.operation == "rename" or there is None):
                folder.change(name, node)
                if call.operation == "rename":
                    source_folder.change(source, None)


def write_after_cut(node: Node, path: Path, rng: random.Random) -> None:
    """Put what a power cut may leave of a folder onto the real disk."""
    path.mkdir()
    entries = dict(node.durable)
    # Nothing that was not synced, all of it, the oldest of it, any of it.
    oldest = rng.randint(0, len(node.pending))
    keep: Callable[[int], bool] = rng.choice(
        [
            lambda _: False,
            lambda _: True,
            lambda number: number < oldest,
            lambda _: rng.random() < 0.5,
        ]
    )
    for number, (name, child) in enumerate(node.pending):
        if keep(number):
            if child is None:
                entries.pop(name, None)
            else:
                entries[name] = child
    for name, child in entries.items():
        if child.is_folder:
            write_after_cut(child, path / name, rng)
        else:
            (path / name).write_bytes(child.data if child.is_synced else _torn(child.data, rng))


def _torn(data: bytes, rng: random.Random) -> bytes:
    return rng.choice([b"", data, bytes(len(data)), data[: rng.randint(0, len(data))]])


def record(job: ExtractJob, folder: Path, kill_after: int | None = None) -> list[Call]:
    """Plan and extract, if asked once killed and then again, and return every call that was made on the disk."""
    recorder = Recorder(folder, kill_after)
    with watched(folder, recorder):
        if kill_after is not None:
            with contextlib.suppress(Killed):
                _run(job, recorder)
            recorder.kill_after = None
        _run(job, recorder)
    return recorder.calls


def _run(job: ExtractJob, recorder: Recorder) -> None:
    with own_process():
        plan(job.data, job.store, job.data_request, samples_per_unit=job.samples_per_unit)
        recorder.calls.append(Call(ACKNOWLEDGED, "plan"))
        extract(job, recorder.acknowledge)


def histories(job: ExtractJob, folder: Path, seed: int) -> Iterator[list[Call]]:
    """Yield what was done to the disk by an undisturbed run, and by runs that were killed once and repeated."""
    undisturbed = record(job, folder)
    yield undisturbed
    rng = random.Random(seed)
    for number in range(NUM_KILLED):
        location = str(folder / f"killed-{number}" / "store.zarr")
        (folder / f"killed-{number}").mkdir()
        yield record(replace(job, store=location), folder / f"killed-{number}", rng.randrange(len(undisturbed)))


def torture(seed: int, count: int, folder: Path) -> Tally:
    """Cut the power so many times, spread over all calls of all histories."""
    tally = Tally("power cuts")
    disk = folder / "disk"
    disk.mkdir()
    job = make_job(folder, "disk/store.zarr", samples_per_unit=8)
    points = []
    for calls in histories(job, disk, seed):
        written = {call.path: call.data for call in calls if call.data is not None}
        points += [(calls, written, at) for at in range(1, len(calls) + 1)]
    whole = content(job.store)
    tally.figures["calls"] = len(points)
    for i in range(count):
        calls, written, at = points[(i if count >= len(points) else i * len(points) // count) % len(points)]
        model = Disk()
        for call in calls[:at]:
            model.apply(call, written.get(call.path, b"log\n"))
        place = folder / "cut"
        write_after_cut(model.root, place, random.Random(f"{seed}-{i}"))
        acknowledged = [call.path for call in calls[:at] if call.operation == ACKNOWLEDGED]
        wrong = _wrong_after_cut(tally, replace(job, store=str(place / "store.zarr")), acknowledged, whole)
        shutil.rmtree(place)
        tally.tried += 1
        if wrong:
            last = calls[at - 1]
            tally.failures.append(f"cut after call {at} ({last.operation} of {last.path}): {'; '.join(wrong)}")
    return tally


def _wrong_after_cut(tally: Tally, job: ExtractJob, acknowledged: list[str], whole: dict[str, str]) -> list[str]:
    store = Path(job.store)
    wrong = []
    units: list[int] = []
    if (store / "signals/base/zarr.json").exists():
        view = Store.open(store).signal("base")
        units = view.committed_units()
        wrong += [f"a committed unit is not whole: {p}" for p in check_signal(view, deep=True) if p.unit in units]
    if "plan" in acknowledged and not (store / "zarr.json").exists():
        wrong.append("the plan was acknowledged and is gone")
    lost = [unit for unit in acknowledged if unit != "plan" and int(unit) not in units]
    if lost:
        wrong.append(f"units {lost} were acknowledged and are gone")
    try:
        with own_process():
            extract(job)
    except Exception as error:  # noqa: BLE001 - whatever it is, the rerun should have gone through
        return [*wrong, f"the rerun failed: {type(error).__name__}: {error}"]
    wrong += differences(content(store), whole)
    wrong += [f"{path} is left" for path in left_behind(store)]
    tally.became["store was there" if units else "nothing was committed yet"] += 1
    return wrong


if __name__ == "__main__":
    main(torture, count=1500)
