"""Torn writes: a process dies when half of the bytes of a write are on the disk. No name may stand for such a half.

Every write of an extraction is such a moment, of all kinds of files alike: commits, documents, chunks, locks, logs; so
is every write of the commands that leave a file outside of the store, over one that was there before.
"""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from grace_store.store.backend import COMMITS, COMPLETIONS, LOCKS, RUNS
from tests.jobs import content
from tests.torture.preload import LINK, RENAME, TORN, WRITE, Preloaded, calls_in, ensure_preloaded
from tests.torture.runs import Outcome, SmallJob, computed, end_child, start_child, wrong_after
from tests.torture.tally import Tally, main

STORE = "store.zarr"
KILLED = -signal.SIGKILL


@dataclass(frozen=True)
class Outputs:
    """How many writes each command makes outside of the store, and what all of them leave."""

    num_writes: dict[str, int]
    content: dict[str, str]


class Tearer:
    """Lets commands die in the middle of a write, and looks what is left."""

    def __init__(self, folder: Path) -> None:
        self.job = SmallJob(folder)
        self.said = folder / "said"
        self.listed = folder / "listed"
        self.faults = Preloaded()
        self.places = self._places(self.job.store(STORE), self.job.extract(STORE))
        self.whole = content(self.job.store(STORE))
        self.out = folder / "out"
        table = self.out / "scores.parquet"
        self.scoring = ["score", str(self.job.store(STORE)), "--out", str(table), "--alpha"]
        subset = ["select", str(table), "--ratio", "0.5", "--out", str(self.out / "subset.jsonl")]
        self.writing = {"score": [*self.scoring, "0.7"], "select": subset}

    def run(self, words: list[str]) -> Outcome:
        return end_child(start_child(words, self.said), self.said)

    def must(self, words: list[str]) -> None:
        outcome = self.run(words)
        assert outcome.code == 0, outcome.text

    def _places(self, root: Path, words: list[str]) -> dict[str, list[int]]:
        """Return {kind of file: the numbers of the writes whose bytes end up in such a file}."""
        self.faults.arm(root, kinds=WRITE | RENAME | LINK, listed=self.listed)
        self.must(words)
        self.faults.disarm()
        calls = calls_in(self.listed)
        names = {source: path for _, path, source in calls if source}
        places: dict[str, list[int]] = {}
        written = [path for kind, path, _ in calls if kind == WRITE]
        for number, path in enumerate(written, start=1):
            places.setdefault(_kind(Path(names.get(path, path)).relative_to(root).as_posix()), []).append(number)
        return places

    @cached_property
    def outputs(self) -> Outputs:
        """What undisturbed commands leave; each extraction leaves the store that they need."""
        self.out.mkdir()
        num_writes = {}
        for name, words in self.writing.items():
            self.faults.arm(self.out, kinds=WRITE)
            self.must(words)
            self.faults.disarm()
            num_writes[name] = self.faults.num_calls
        return Outputs(num_writes, content(self.out))

    def extraction(self, rng: random.Random, number: int) -> tuple[str, list[str]]:
        """Tear a write of an extraction, of each kind of file in turn, and run it again."""
        kind = list(self.places)[number % len(self.places)]
        at = rng.choice(self.places[kind])
        self.job.remove(STORE)
        self.faults.arm(self.job.store(STORE), at, TORN, signal.SIGKILL, kinds=WRITE)
        outcome = self.run(self.job.extract(STORE))
        self.faults.disarm()
        before, again = self.job.committed(STORE), []  # type: list[int], list[int]
        with computed(self.job, again):
            rerun = self.run(self.job.extract(STORE))
        wrong = [] if outcome.code == KILLED else [f"ended with {outcome.code}"]
        wrong += [f"the rerun failed: {rerun.text[-600:]}"] if rerun.code else []
        return f"write {at}, of a {kind}", wrong + wrong_after(self.job, STORE, self.whole, before, again)

    def output(self, rng: random.Random, number: int) -> tuple[str, list[str]]:
        """Tear a write of a file that people open, over another one, and run the command again."""
        name = list(self.writing)[number % len(self.writing)]
        at, sound = rng.randint(1, self.outputs.num_writes[name]), self.outputs.content
        self.must([*self.scoring, "0.3" if name == "score" else "0.7"])
        before = content(self.out)
        self.faults.arm(self.out, at, TORN, signal.SIGKILL, kinds=WRITE)
        outcome = self.run(self.writing[name])
        self.faults.disarm()
        wrong = [] if outcome.code == KILLED else [f"ended with {outcome.code}"]
        for key, digest in content(self.out).items():
            if not Path(key).name.startswith(".") and digest not in (before.get(key), sound.get(key)):
                wrong.append(f"{key} is neither what it was nor what it should become")
        for part in self.out.glob(".*"):
            part.unlink()  # of a killed process, under a name that nobody takes for a result
        self.must(self.writing[name])
        wrong += [f"{key} differs" for key, digest in content(self.out).items() if digest != sound[key]]
        return f"write {at} of {name}", wrong


def _kind(key: str) -> str:
    for folder, kind in ((COMMITS, "commit"), (COMPLETIONS, "document of totals"), (LOCKS, "lock"), (RUNS, "log")):
        if key.startswith(f"{folder}/"):
            return kind
    depth = {"zarr.json": "plan's document", "signals/base/zarr.json": "signal's document"}
    return depth.get(key) or ("metadata document" if key.endswith(".json") else "chunk")


def torture(seed: int, count: int, folder: Path) -> Tally:
    """Tear so many writes: of the store and of outputs in turn."""
    tally = Tally("torn writes")
    tearer = Tearer(folder)
    tally.figures["writes of an extraction"] = sum(map(len, tearer.places.values()))
    for turn in range(seed, seed + count):
        tear = tearer.output if turn % 4 == 3 else tearer.extraction
        what, wrong = tear(random.Random(turn), turn // 4 if turn % 4 == 3 else turn - turn // 4)
        tally.tried += 1
        tally.became[f"{tear.__name__} torn"] += 1
        if wrong:
            tally.failures.append(f"{what}: {'; '.join(wrong)}")
    return tally


if __name__ == "__main__":
    ensure_preloaded("tests.torture.torn")
    main(torture, count=200)
