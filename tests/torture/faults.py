"""I/O faults in process: the n-th call on the store's files fails, for every n, from plan to score."""

from __future__ import annotations

import errno
import os
import random
import threading
from dataclasses import dataclass
from pathlib import Path

from tests.jobs import content
from tests.torture.disk import ShortWrite, watched
from tests.torture.runs import Outcome, SmallJob, computed, run_here, wrong_after
from tests.torture.tally import Tally, main

SHORT = -1
ERRORS: dict[str, tuple[int, ...]] = {
    "create": (errno.ENOSPC, errno.EACCES, errno.EMFILE, errno.EIO),
    "open": (errno.EACCES, errno.EIO, errno.EMFILE),
    "write": (errno.ENOSPC, errno.EIO, SHORT),
    "read": (errno.EIO,),
    "fsync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.ENOSPC, errno.EIO, errno.EACCES),
    "link": (errno.ENOSPC, errno.EIO, errno.EACCES),
    "mkdir": (errno.ENOSPC, errno.EIO, errno.EACCES),
    "unlink": (errno.EIO, errno.EACCES),
    "rmdir": (errno.EIO, errno.EACCES),
    "list": (errno.EIO, errno.EACCES),
    "stat": (errno.EIO, errno.EACCES),
}
NO_ROOM = (errno.ENOSPC, SHORT)


class Saboteur:
    """Counts calls, and lets the one that it is told to fail; a disk without room stays so until the command ends."""

    def __init__(self, at: int = -1, rng: random.Random | None = None) -> None:
        self.at, self.num_calls, self.done = at, 0, ""
        self.full = False
        self._rng = rng or random.Random(0)
        self._lock = threading.Lock()

    def __call__(self, operation: str, path: str, other: str | None) -> None:
        with self._lock:
            self.num_calls += 1
            mine = self.num_calls == self.at
            if self.full and operation in ("create", "write", "mkdir"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if mine:
            code = self._rng.choice(ERRORS[operation])
            self.full = code in NO_ROOM and self._rng.random() < 0.5
            name = "short write" if code == SHORT else errno.errorcode[code]
            self.done = f"{name} at {operation} of {path.rpartition('.zarr')[2]}"
            raise ShortWrite if code == SHORT else OSError(code, os.strerror(code), path)


STORE = "store.zarr"


def sabotaged(job: SmallJob, commands: list[list[str]], saboteur: Saboteur) -> Outcome:
    """Run the commands until one fails, with the saboteur at the disk; return how it ended and all that was said."""
    said = ""
    with watched(job.store(STORE), saboteur):
        for words in commands:
            outcome = run_here(words)
            said += outcome.text
            if outcome.code:
                break
    return Outcome(outcome.code, said)


def torture(seed: int, count: int, folder: Path) -> Tally:
    """Fail so many calls, in turn over all that the commands make: first those that write, then those that read."""
    tally = Tally("I/O faults in process")
    job = SmallJob(folder)
    num_writing, num_reading, whole = _undisturbed(job)
    tally.figures |= {"calls when writing": num_writing.num_calls, "calls when reading": num_reading.num_calls}
    for i in range(count):
        # Every call in turn if there are enough rounds, and the errors differ from round to round.
        total = num_writing.num_calls + num_reading.num_calls
        at = 1 + (i if count >= total else i * total // count) % total
        rng = random.Random(f"{seed}-{i}")
        if at <= num_writing.num_calls:
            saboteur = Saboteur(at, rng)
            wrong = _while_writing(tally, job, saboteur, whole)
        else:
            saboteur = Saboteur(at - num_writing.num_calls, rng)
            wrong = _while_reading(tally, job, saboteur, whole)
        tally.tried += 1
        if wrong:
            tally.failures.append(f"call {saboteur.at} ({saboteur.done}): {'; '.join(wrong)}")
    return tally


@dataclass(frozen=True)
class Whole:
    """What undisturbed commands leave and say."""

    content: dict[str, str]
    table: bytes
    said: str


def _undisturbed(job: SmallJob) -> tuple[Saboteur, Saboteur, Whole]:
    writing, reading = Saboteur(), Saboteur()
    written = sabotaged(job, job.writing(STORE), writing)
    read = sabotaged(job, job.reading(STORE), reading)
    assert not written.code, written.text
    assert not read.code, read.text
    return writing, reading, Whole(content(job.store(STORE)), job.table(STORE).read_bytes(), read.text)


def _while_writing(tally: Tally, job: SmallJob, saboteur: Saboteur, whole: Whole) -> list[str]:
    job.remove(STORE)
    outcome = sabotaged(job, job.writing(STORE), saboteur)
    tally.became["refused with a sentence" if outcome.code else "survived at once"] += 1
    wrong = _unspoken(outcome)
    before: list[int] = job.committed(STORE)
    again: list[int] = []
    with computed(job, again):
        rerun = [run_here(words) for words in job.writing(STORE)]
    wrong += [f"the rerun failed: {each.text[-600:]}" for each in rerun if each.code]
    return wrong + wrong_after(job, STORE, whole.content, before, again)


def _while_reading(tally: Tally, job: SmallJob, saboteur: Saboteur, whole: Whole) -> list[str]:
    """Reading either fails or gives what it would have given, and changes nothing."""
    job.table(STORE).unlink(missing_ok=True)
    outcome = sabotaged(job, job.reading(STORE), saboteur)
    tally.became["refused with a sentence" if outcome.code else "survived at once"] += 1
    wrong = _unspoken(outcome)
    if not outcome.code and outcome.text != whole.said:
        wrong.append(f"said something else: {outcome.text[-300:]}")
    if not outcome.code and job.table(STORE).read_bytes() != whole.table:
        wrong.append("the table differs")
    if outcome.code and job.table(STORE).exists():
        wrong.append("a table was left by a command that failed")
    return wrong + wrong_after(job, STORE, whole.content, [], [])


def _unspoken(outcome: Outcome) -> list[str]:
    if outcome.has_traceback:
        return [f"ended with a traceback: {outcome.text[-800:]}"]
    return ["said nothing"] if outcome.code and not outcome.text.strip() else []


if __name__ == "__main__":
    main(torture, count=2500)
