"""Who may do which unit: runs come while another is held in the middle of one, and every unit is done once, by one.

The bytes of a store cannot show that two runs did the same work, for both write the same. So here commits are
counted in the logs of all runs, and a run that may not write must have said so and left everything as it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from grace_store.store.backend import LOCKS, RUNS
from tests.fake_model import GATE, Gate
from tests.jobs import content
from tests.torture.runs import (
    NUM_UNITS,
    SAMPLES_PER_UNIT,
    Outcome,
    SmallJob,
    differences,
    end_child,
    left_behind,
    start_child,
)
from tests.torture.tally import Tally, main

STORE = "store.zarr"
BUSY = "is being written by process"
TAKEN_OVER = "was taken over"
TRIED = NUM_UNITS // 2
"""The unit that a worker is tried on."""
RATED = "Measured on a few samples"
"""What a run says once all its workers are ready."""
HASTE_SECONDS = 0.3
"""In this time a worker that has a unit begins with it. Who is slower is not caught, and not blamed."""
PATIENCE_SECONDS = 60.0
OVERLAPPING = {"0/1": ("0/1", "0/2", "1/2", "2/3"), "0/2": ("0/1", "0/3", "2/3", "0/2"), "1/2": ("0/1", "1/3", "1/2")}
"""{the shard of a run that is held: shards that have units of it}. Two shards of other counts overlap however few."""


class NotHeld(Exception):
    """A run that should wait in the middle of a unit ended, or never came there."""


class Ground:
    """A store, a run that is held in it, and runs that come meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.job = SmallJob(folder)
        self.gate = Gate(folder / "gate")
        self.gate.folder.mkdir()
        self.run(self.job.extract(STORE))
        self.whole = content(self.job.store(STORE))

    def run(self, words: list[str], name: str = "said") -> Outcome:
        said = self.job.folder / name
        return end_child(start_child(words, said), said)

    @contextlib.contextmanager
    def held(self, *more: str, num_workers: int = 1) -> Iterator[Callable[[], Outcome]]:
        """Start a run, and yield when it waits in the middle of a unit; what is yielded lets it go until its end."""
        self.gate.clear()
        # Workers are ready when they were tried on a unit, so that one is let through.
        held = [unit for unit in range(NUM_UNITS) if num_workers == 1 or unit != TRIED]
        self.gate.hold(*(f"case-{unit * SAMPLES_PER_UNIT}" for unit in held))
        said = self.job.folder / "said-held"
        pid = start_child(self.job.extract(STORE, *more), said, {GATE: str(self.gate.folder)})
        ended: list[Outcome] = []

        def let_go() -> Outcome:
            self.gate.let_go()
            ended.append(end_child(pid, said))
            return ended[0]

        try:
            self._wait(pid, said, num_workers)
            yield let_go
        finally:
            if not ended:
                let_go()

    def _wait(self, pid: int, said: Path, num_processes: int) -> None:
        """Return when so many processes of a run have come to a unit."""
        came: set[int] = set()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(came) < num_processes:
            has_ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
            if has_ended or time.monotonic() > deadline:
                raise NotHeld(f"the run came to no unit: {said.read_text()[-500:]}")
            time.sleep(0.005)
            came |= self.gate.processes("")

    # ------------------------------------------------------------ who comes

    def same_signal(self, rng: random.Random) -> list[str]:
        """The same command, or a shard of it, comes while a run is at work."""
        mine = rng.choice(list(OVERLAPPING))
        with self.held("--shard", mine) as let_go:
            wrong = self._refused(rng.choice(OVERLAPPING[mine]))
            wrong += _bad_end(let_go())
        return wrong + [f"a rest failed: {end.text[-500:]}" for end in [self.run(self.job.extract(STORE))] if end.code]

    def _refused(self, shard: str) -> list[str]:
        """Return what is wrong with a run of a shard that is not free: it must say so and touch nothing."""
        before = content(self.job.store(STORE))
        outcome = self.run(self.job.extract(STORE, "--shard", shard))
        wrong = [] if outcome.code and BUSY in outcome.text else [f"{shard} was not refused: {outcome.text[-400:]}"]
        return wrong + [f"{shard} changed {each}" for each in differences(content(self.job.store(STORE)), before)]

    def other_shard(self, rng: random.Random) -> list[str]:
        """The other shard comes while one is at work; it does its own units and no other."""
        mine, other = rng.choice((("0/2", "1/2"), ("1/2", "0/2")))
        with self.held("--shard", mine) as let_go:
            wrong = _bad_end(self.run(self.job.extract(STORE, "--shard", other)))
            units = list(range(int(other[0]), NUM_UNITS, 2))
            if self.job.committed(STORE) != units:
                wrong.append(f"shard {other} committed {self.job.committed(STORE)}, its units are {units}")
            wrong += _bad_end(let_go())
        return wrong

    def shards_at_once(self, rng: random.Random) -> list[str]:
        """All shards run at once."""
        num_shards = rng.choice((2, 3))
        children = []
        for i in range(num_shards):
            said = self.job.folder / f"said-{i}"
            children.append((start_child(self.job.extract(STORE, "--shard", f"{i}/{num_shards}"), said), said))
        return [each for child in children for each in _bad_end(end_child(*child))]

    def taken_over(self, rng: random.Random) -> list[str]:
        """Another machine has taken the lock of a silent run, which may not commit what it comes back with."""
        self.run(self.job.plan(STORE))
        with self.held() as let_go:
            lock = self.job.store(STORE) / LOCKS / "base.0-of-1.json"
            owner = json.loads(lock.read_bytes()) | {"host": "elsewhere", "mark": f"{rng.getrandbits(64):x}"}
            lock.write_text(json.dumps(owner))
            before = content(self.job.store(STORE))
            outcome = let_go()
        wrong = [] if outcome.code and TAKEN_OVER in outcome.text else [f"went on: {outcome.text[-400:]}"]
        after = {key: digest for key, digest in content(self.job.store(STORE)).items() if "/tmp/" not in key}
        wrong += [f"after the takeover {each}" for each in differences(after, before)]
        lock.unlink()
        rest = self.run(self.job.extract(STORE))
        return wrong + ([f"the rest failed: {rest.text[-500:]}"] if rest.code else [])

    def workers(self, rng: random.Random) -> list[str]:
        """Worker processes, all of them ready when the work begins, share the units of a run."""
        with self.held("--workers", "2", num_workers=2) as let_go:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while RATED not in (self.job.folder / "said-held").read_text() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(HASTE_SECONDS)
            return _bad_end(let_go())

    def not_once(self) -> list[str]:
        """Return which units were not committed once, by one run."""
        logs = (self.job.store(STORE) / RUNS).glob("*.jsonl")
        events = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        done = Counter(event["unit"] for event in events if event["event"] == "UnitCommitted")
        return [f"unit {unit} was committed {done[unit]} times" for unit in range(NUM_UNITS) if done[unit] != 1]


def _bad_end(outcome: Outcome) -> list[str]:
    return [f"ended with {outcome.code}: {outcome.text[-500:]}"] if outcome.code else []


def torture(seed: int, count: int, folder: Path) -> Tally:
    """Have runs come so many times, in every way in turn."""
    tally = Tally("runs that came meanwhile")
    ground = Ground(folder)
    ways: list[Callable[[random.Random], list[str]]] = [
        ground.same_signal, ground.other_shard, ground.shards_at_once, ground.taken_over, ground.workers,
    ]  # fmt: skip
    for i in range(count):
        way = ways[(seed + i) % len(ways)]
        ground.job.remove(STORE)
        try:
            wrong = way(random.Random(f"{seed}-{i}")) + ground.not_once()
        except NotHeld as error:
            wrong = [str(error)]
        store = ground.job.store(STORE)
        wrong += differences(content(store), ground.whole) + [f"{path} is left" for path in left_behind(store)]
        tally.tried += 1
        tally.became[way.__name__.replace("_", " ")] += 1
        if wrong:
            tally.failures.append(f"{way.__name__}, number {i}: {'; '.join(wrong)}")
    return tally


if __name__ == "__main__":
    main(torture, count=150)
