"""Two runs at once on one store: safe or refused, never mixed; and what is read meanwhile is committed and right."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from grace_store.store.backend import LOCKS
from tests.jobs import content
from tests.torture.preload import SIGNAL_BEFORE, Preloaded, ensure_preloaded
from tests.torture.runs import Outcome, SmallJob, differences, end_child, left_behind, start_child
from tests.torture.tally import Tally, main

STORE = "store.zarr"
BUSY = "is being written by process"


class Arena:
    """A store, and commands that are let loose on it side by side."""

    def __init__(self, folder: Path) -> None:
        self.job = SmallJob(folder)
        self.faults = Preloaded()
        self.faults.disarm()
        self.whole = self._whole([self.job.extract(STORE)])
        self.both = self._whole([self.job.extract(STORE), self.job.extract(STORE, "--signal", "other")])

    def _whole(self, commands: list[list[str]]) -> dict[str, str]:
        self.job.remove(STORE)
        outcomes = self.together(commands, in_turn=True)
        assert all(outcome.code == 0 for outcome in outcomes), outcomes
        return content(self.job.store(STORE))

    def together(
        self, runs: list[list[str]], rng: random.Random | None = None, *, in_turn: bool = False
    ) -> list[Outcome]:
        """Start the runs at almost the same time, and return how each ended."""
        pids = []
        for number, words in enumerate(runs):
            said = self.job.folder / f"said-{number}"
            pids.append((start_child(words, said), said))
            if in_turn:
                os.waitid(os.P_PID, pids[-1][0], os.WEXITED | os.WNOWAIT)
            elif rng is not None:
                time.sleep(rng.random() ** 3 * 0.1)
        return [end_child(pid, said) for pid, said in pids]

    # ------------------------------------------------------------ who meets whom

    def same_signal(self, rng: random.Random) -> list[str]:
        outcomes = self.together([self.job.extract(STORE)] * 3, rng)
        return _refused_or_done(outcomes) + self.unlike(self.whole, self.job.extract(STORE))

    def other_signal(self, rng: random.Random) -> list[str]:
        outcomes = self.together([self.job.extract(STORE), self.job.extract(STORE, "--signal", "other")], rng)
        wrong = _refused_or_done(outcomes)
        rerun = [self.job.extract(STORE), self.job.extract(STORE, "--signal", "other")]
        return wrong + self.unlike(self.both, *rerun)

    def other_shard(self, rng: random.Random) -> list[str]:
        num_shards = rng.choice((2, 3))
        shards = [self.job.extract(STORE, "--shard", f"{i}/{num_shards}") for i in range(num_shards)]
        outcomes = self.together(shards, rng)
        wrong = [f"a shard ended with {each.code}: {each.text[-500:]}" for each in outcomes if each.code]
        return wrong + self.unlike(self.whole)

    def overlapping_shards(self, rng: random.Random) -> list[str]:
        shards = [self.job.extract(STORE, "--shard", shard) for shard in ("0/2", "0/3", "1/2")]
        outcomes = self.together(shards, rng)
        return _refused_or_done(outcomes) + self.unlike(self.whole, self.job.extract(STORE))

    def planning(self, rng: random.Random) -> list[str]:
        outcomes = self.together([self.job.plan(STORE), self.job.extract(STORE), self.job.plan(STORE)], rng)
        wrong = [f"ended with {each.code}: {each.text[-500:]}" for each in outcomes if each.code]
        return wrong + self.unlike(self.whole)

    def repairing(self, rng: random.Random) -> list[str]:
        self.together([self.job.extract(STORE)])
        for path in sorted((self.job.store(STORE) / "ledger/commits/base").glob("*.json"))[: rng.randint(1, 3)]:
            path.unlink()
        chunk = rng.choice(sorted((self.job.store(STORE) / "signals/base/sample_gram/c").iterdir()))
        chunk.write_bytes(chunk.read_bytes()[:-1])
        repair = ["verify", str(self.job.store(STORE)), "--repair", "--device", "cpu"]
        outcomes = self.together([repair, self.job.extract(STORE), repair], rng)
        return _refused_or_done(outcomes) + self.unlike(self.whole, repair)

    def reading(self, rng: random.Random) -> list[str]:
        """Read over and over while a run writes: each answer is an error in words, or true of some committed units."""
        said = self.job.folder / "said-writer"
        writer = start_child(self.job.extract(STORE), said)
        wrong = []
        store = str(self.job.store(STORE))
        while os.waitid(os.P_PID, writer, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            words = rng.choice((["status", store, "--json"], ["verify", "--deep", store, "--json"],
                                [*self.job.score(STORE), "--partial"]))  # fmt: skip
            outcome = end_child(start_child(words, self.job.folder / "said-reader"), self.job.folder / "said-reader")
            if outcome.has_traceback:
                wrong.append(f"{words[0]} ended with a traceback: {outcome.text[-600:]}")
            elif words[0] == "status" and not outcome.code:
                counts = json.loads(outcome.text)
                if counts["num_records"] != sum(counts[f"num_{what}"] for what in ("planned", "done", "set_aside")):
                    wrong.append(f"counts do not add up: {counts}")
            elif words[0] == "verify" and outcome.text.startswith("{"):
                damage = [each for each in json.loads(outcome.text)["problems"] if each["remedy"] == "repair"]
                wrong += [f"a unit that is being written is called damaged: {each}" for each in damage]
        ended = end_child(writer, said)
        if ended.code:
            wrong.append(f"the run that was read failed: {ended.text[-500:]}")
        return wrong + self.unlike(self.whole)

    def after_a_kill(self, rng: random.Random) -> list[str]:
        """Several runs find the lock of a dead one at the same time."""
        self.faults.arm(self.job.store(STORE), rng.randint(300, 700), SIGNAL_BEFORE, signal.SIGKILL)
        self.together([self.job.extract(STORE)])
        self.faults.disarm()
        outcomes = self.together([self.job.extract(STORE)] * 4, rng)
        return _refused_or_done(outcomes) + self.unlike(self.whole, self.job.extract(STORE))

    def foreign_lock(self, rng: random.Random) -> list[str]:
        """A lock of another machine is respected, said, and broken if asked; the clock of that machine may be wrong."""
        self.together([self.job.plan(STORE)])
        since = rng.choice(("1970-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"))
        owner = {"host": rng.choice(("elsewhere", socket.gethostname() + "x")), "pid": os.getpid(), "since": since}
        lock = self.job.store(STORE) / LOCKS / "base.0-of-1.json"
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.write_text(json.dumps(owner))
        refused = self.together([self.job.extract(STORE)])[0]
        wrong = []
        if refused.code == 0 or BUSY not in refused.text or owner["host"] not in refused.text:  # type: ignore[operator]
            wrong.append(f"a foreign lock was not respected: {refused.text[-300:]}")
        return wrong + self.unlike(self.whole, self.job.extract(STORE, "--break-lock"))

    def broken_alive(self, rng: random.Random) -> list[str]:
        """Somebody breaks the lock of a run that lives: work may be done twice, nothing may be mixed."""
        runs = [self.job.extract(STORE), self.job.extract(STORE, "--break-lock")]
        outcomes = self.together(runs, rng)
        wrong = [f"ended with a traceback: {each.text[-600:]}" for each in outcomes if each.has_traceback]
        return wrong + self.unlike(self.whole, self.job.extract(STORE))

    def unlike(self, whole: dict[str, str], *rerun: list[str]) -> list[str]:
        """Run what is given, which must go well, and return what is not as an undisturbed run leaves it."""
        outcomes = self.together(list(rerun), in_turn=True)
        wrong = [f"the rerun failed: {outcome.text[-600:]}" for outcome in outcomes if outcome.code]
        store = self.job.store(STORE)
        return wrong + differences(content(store), whole) + [f"{path} is left" for path in left_behind(store)]


def _refused_or_done(outcomes: list[Outcome]) -> list[str]:
    wrong = [f"ended with {each.code}: {each.text[-700:]}" for each in outcomes if each.code and BUSY not in each.text]
    return wrong if any(not each.code for each in outcomes) else [*wrong, "all were refused"]


def torture(seed: int, count: int, folder: Path) -> Tally:
    """Let runs meet so many times, in every way in turn."""
    tally = Tally("runs that met")
    arena = Arena(folder)
    meetings: list[Callable[[random.Random], list[str]]] = [
        arena.same_signal, arena.other_signal, arena.other_shard, arena.overlapping_shards, arena.planning,
        arena.repairing, arena.reading, arena.after_a_kill, arena.foreign_lock, arena.broken_alive,
    ]  # fmt: skip
    for i in range(count):
        meeting = meetings[i % len(meetings)]
        arena.job.remove(STORE)
        with suppress(FileNotFoundError):
            (folder / "said-reader").unlink()
        wrong = meeting(random.Random(f"{seed}-{i}"))
        tally.tried += 1
        tally.became[meeting.__name__.replace("_", " ")] += 1
        if wrong:
            tally.failures.append(f"{meeting.__name__}, number {i}: {'; '.join(wrong)}")
    return tally


if __name__ == "__main__":
    ensure_preloaded("tests.torture.rivals")
    main(torture, count=120)
