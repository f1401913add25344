"""Kills: SIGKILL and SIGTERM at every unit boundary, at the n-th call on the disk, at random instants; of a run alone,
of a parent with workers, of its workers."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.jobs import content
from tests.torture.preload import RENAME, SIGNAL_AFTER, SIGNAL_BEFORE, Preloaded, ensure_preloaded
from tests.torture.runs import CRASHED, NUM_UNITS, Outcome, SmallJob, computed, end_child, start_child, wrong_after
from tests.torture.tally import Tally, main

STORE = "store.zarr"
RUN = "TORTURE_RUN"
ORPHAN_SECONDS = 20.0
STOPPED = 130


class Killer:
    """Runs the job with something that kills it, then again without."""

    def __init__(self, folder: Path) -> None:
        self.job = SmallJob(folder)
        self.said = folder / "said"
        self.faults = Preloaded()
        self.faults.arm(self.job.store(STORE))
        began = time.monotonic()
        self.run(self.job.extract(STORE))
        self.seconds = time.monotonic() - began
        self.num_calls = self.faults.num_calls
        self.whole = content(self.job.store(STORE))
        began = time.monotonic()
        self.job.remove(STORE)
        self.run(self.job.extract(STORE, "--workers", "2"))
        self.worker_seconds = time.monotonic() - began

    def run(self, words: list[str]) -> Outcome:
        return end_child(start_child(words, self.said), self.said)

    def wrong_afterwards(self) -> list[str]:
        """Run again without faults and return what is not as it should be."""
        self.faults.disarm()
        before, again = self.job.committed(STORE), []  # type: list[int], list[int]
        with computed(self.job, again):
            rerun = self.run(self.job.extract(STORE))
        wrong = [f"the rerun failed: {rerun.text[-600:]}"] if rerun.code else []
        return wrong + wrong_after(self.job, STORE, self.whole, before, again)

    def at_call(self, rng: random.Random, number: int) -> tuple[str, Outcome]:
        """Kill a run at a call on the disk, before or after it is done."""
        at = rng.randint(1, self.num_calls)
        how, killer = rng.choice((SIGNAL_BEFORE, SIGNAL_AFTER)), rng.choice((signal.SIGKILL, signal.SIGTERM))
        self.faults.arm(self.job.store(STORE), at, how, killer)
        return f"{killer.name} at call {at}", self.run(self.job.extract(STORE))

    def at_unit_boundary(self, rng: random.Random, number: int) -> tuple[str, Outcome]:
        """Kill a run just before or just after the commit of a unit gets its name."""
        unit, how = number % NUM_UNITS, (SIGNAL_BEFORE, SIGNAL_AFTER)[number // NUM_UNITS % 2]
        killer = (signal.SIGKILL, signal.SIGTERM)[number // NUM_UNITS // 2 % 2]
        self.faults.arm(self.job.store(STORE), unit + 1, how, killer, kinds=RENAME, only="ledger/commits/base")
        return f"{killer.name} at the commit of unit {unit}", self.run(self.job.extract(STORE))

    def at_any_instant(self, rng: random.Random, number: int) -> tuple[str, Outcome]:
        """Kill a run at a random time."""
        killer = rng.choice((signal.SIGKILL, signal.SIGTERM))
        pid = start_child(self.job.extract(STORE), self.said)
        time.sleep(rng.random() * self.seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, killer)
        return f"{killer.name} at some time", end_child(pid, self.said)

    def among_workers(self, rng: random.Random, number: int) -> tuple[str, Outcome]:
        """Kill the parent, or one of its workers; workers that lose their parent must end by themselves."""
        mark = uuid.uuid4().hex
        victim = ("worker", "parent", "writer")[number % 3]
        if victim == "writer":
            # Whoever writes the n-th chunk: the process of a writer thread.
            at = rng.randint(1, 9 * NUM_UNITS)
            self.faults.arm(self.job.store(STORE), at, SIGNAL_BEFORE, signal.SIGKILL, kinds=RENAME, only="signals/base")
        pid = start_child(self.job.extract(STORE, "--workers", "2"), self.said, {RUN: mark})
        if victim != "writer":
            time.sleep(rng.random() * self.worker_seconds)
            targets = workers_of(mark) if victim == "worker" else [pid]
            with contextlib.suppress(ProcessLookupError):
                for target in targets[:1]:
                    os.kill(target, signal.SIGKILL)
        outcome = end_child(pid, self.said)
        if not all_end(mark):
            outcome = Outcome(CRASHED, "workers outlive their parent")
        return f"SIGKILL of a {victim}", outcome


def workers_of(mark: str) -> list[int]:
    """Return the processes that were started with a mark in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{RUN}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def all_end(mark: str) -> bool:
    """Return whether all processes with a mark end within a while."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while workers_of(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def torture(seed: int, count: int, folder: Path) -> Tally:
    """Kill so many runs: unit boundaries first, then calls, instants and workers in turn."""
    tally = Tally("kills")
    killer = Killer(folder)
    tally.figures["calls"] = killer.num_calls
    ways: list[Callable[[random.Random, int], tuple[str, Outcome]]] = [
        killer.at_call, killer.at_any_instant, killer.at_call, killer.among_workers,
    ]  # fmt: skip
    num_boundaries = 4 * NUM_UNITS
    for i in range(count):
        rng = random.Random(f"{seed}-{i}")
        killer.job.remove(STORE)
        way = killer.at_unit_boundary if i < num_boundaries else ways[i % len(ways)]
        what, outcome = way(rng, i if i < num_boundaries else i // len(ways))
        tally.tried += 1
        tally.became[_fate(outcome)] += 1
        wrong = [f"ended with a traceback: {outcome.text[-800:]}"] if outcome.has_traceback else []
        if outcome.code == STOPPED and "run the same command again" not in outcome.text:
            wrong.append(f"stopped without a word: {outcome.text[-300:]}")
        if way == killer.at_unit_boundary and not killer.faults.has_fired:
            wrong.append("the commit got its name without a rename")
        wrong += killer.wrong_afterwards()
        if wrong:
            tally.failures.append(f"{what}: {'; '.join(wrong)}")
    return tally


def _fate(outcome: Outcome) -> str:
    if outcome.code < 0:
        return f"ended by {signal.Signals(-outcome.code).name}"
    return {0: "finished all the same", STOPPED: "stopped after the units under way"}.get(outcome.code, "gave up")


if __name__ == "__main__":
    ensure_preloaded("tests.torture.kills")
    main(torture, count=300)
