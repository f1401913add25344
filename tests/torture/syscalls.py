"""I/O faults below Python, on the command line in a process of its own: the n-th system call on the store fails."""

from __future__ import annotations

import errno
import random
import re
from pathlib import Path

from tests.jobs import content
from tests.torture.preload import (
    CREATE,
    EVERY_KIND,
    FAIL,
    LINK,
    MKDIR,
    OPEN,
    READ,
    RENAME,
    SHORT,
    SYNC,
    UNLINK,
    WRITE,
    Preloaded,
    ensure_preloaded,
)
from tests.torture.runs import Outcome, SmallJob, computed, end_child, start_child, wrong_after
from tests.torture.tally import Tally, main

STORE = "store.zarr"
KINDS = {
    "open": (OPEN, (errno.EIO, errno.EACCES)),
    "create": (CREATE, (errno.ENOSPC, errno.EACCES)),
    "read": (READ, (errno.EIO,)),
    "write": (WRITE, (errno.ENOSPC, errno.EIO, SHORT)),
    "fsync": (SYNC, (errno.EIO,)),
    "rename": (RENAME, (errno.ENOSPC, errno.EIO)),
    "link": (LINK, (errno.ENOSPC, errno.EPERM)),
    "mkdir": (MKDIR, (errno.ENOSPC,)),
    "unlink": (UNLINK, (errno.EIO,)),
}


class Victim:
    """Runs the commands in a forked process under faults, one after the other until one fails."""

    def __init__(self, folder: Path) -> None:
        self.job = SmallJob(folder)
        self.said = folder / "said"
        self.faults = Preloaded()
        self.num_calls: dict[str, int] = {}
        for name, (kind, _) in KINDS.items():
            self.job.remove(STORE)
            self.faults.arm(self.job.store(STORE), kinds=kind)
            assert self.run().code == 0, self.said.read_text()
            self.num_calls[name] = self.faults.num_calls
        self.whole = content(self.job.store(STORE))
        self.table = self.job.table(STORE).read_bytes()

    def run(self) -> Outcome:
        store = str(self.job.store(STORE))
        outcome = Outcome(0, "")
        for words in (self.job.extract(STORE), ["verify", "--deep", store], self.job.score(STORE)):
            outcome = end_child(start_child(words, self.said), self.said)
            if outcome.code:
                break
        return outcome


def torture(seed: int, count: int, folder: Path) -> Tally:
    """Fail so many calls, of every kind in turn."""
    tally = Tally("I/O faults of system calls")
    victim = Victim(folder)
    job = victim.job
    tally.figures["calls"] = sum(victim.num_calls.values())
    for i in range(count):
        rng = random.Random(f"{seed}-{i}")
        name = list(KINDS)[i % len(KINDS)]
        kind, errors = KINDS[name]
        code = rng.choice(errors)
        at = rng.randint(1, victim.num_calls[name])
        full = code == errno.ENOSPC and rng.random() < 0.5
        job.remove(STORE)
        # A full disk stays full.
        kinds = (CREATE | WRITE | MKDIR) if full else kind
        action = (SHORT, errno.ENOSPC) if code == SHORT else (FAIL, code)
        victim.faults.arm(job.store(STORE), at, *action, kinds=kinds & EVERY_KIND, sticky=full)
        outcome = victim.run()
        wrong = [] if victim.faults.has_fired else ["no call failed"]
        victim.faults.disarm()
        tally.tried += 1
        tally.became["refused with a sentence" if outcome.code else "survived at once"] += 1
        # What cannot be read is an error of most commands, and what `verify` is there to find.
        has_words = re.search(r"Error: |[0-9] problems? \(", outcome.text)
        if outcome.has_traceback or (outcome.code and not has_words):
            wrong.append(f"ended without a sentence: {outcome.text[-800:]}")
        before, again = job.committed(STORE), []  # type: list[int], list[int]
        with computed(job, again):
            rerun = victim.run()
        wrong += [f"the rerun failed: {rerun.text[-600:]}"] if rerun.code else []
        wrong += wrong_after(job, STORE, victim.whole, before, again)
        if job.table(STORE).exists() and job.table(STORE).read_bytes() != victim.table:
            wrong.append("the table differs")
        if wrong:
            fault = "short write" if code == SHORT else errno.errorcode[code]
            tally.failures.append(f"{fault} at {name} {at}{' and after' if full else ''}: {'; '.join(wrong)}")
    return tally


if __name__ == "__main__":
    ensure_preloaded("tests.torture.syscalls")
    main(torture, count=300)
