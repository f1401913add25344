"""Wrong, missing and foreign files under commands that read: each answers as for the sound store, or refuses.

What `verify --deep` finds does not protect who never asks it. So here a finished store gets a wrong byte, loses a
chunk, or gets chunks, commits and whole units of other units, signals and stores, all of them sound where they come
from; then the commands themselves are asked. `repair` must bring the same bytes back.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from grace_store.store.backend import COMMITS, SAMPLES_GROUP, SIGNALS_GROUP, completion_key
from tests.fake_model import make_fake_model
from tests.jobs import content, record
from tests.torture.runs import NUM_UNITS, Outcome, SmallJob, differences, end_child, left_behind, start_child
from tests.torture.tally import Tally, main

STORE = "store.zarr"
OTHER_SIGNAL = "other"
SCORED = ("sample_gram", "segment_num_tokens")
"""What values are made of."""
SHORT_RESPONSES = "100"
"""Of characters, so that the other signal has some samples set aside: other states, other Grams, the same sizes."""

Harm = Callable[[random.Random], str]
"""Does harm to the store, and says what was done."""


class Victim:
    """A finished store, and a twin of it: the same ids, steps and model, other words in every step."""

    def __init__(self, folder: Path) -> None:
        self.job, self.twin = SmallJob(folder), SmallJob(_twin_folder(folder))
        self.said = folder / "said"
        short = ("--signal", OTHER_SIGNAL, "--max-length", SHORT_RESPONSES)
        for words in (self.job.extract(STORE), self.job.extract(STORE, *short), self.twin.extract(STORE)):
            self.must(words)
        self.root, self.foreign = self.job.store(STORE), self.twin.store(STORE)
        self.sound = folder / "sound.zarr"
        shutil.copytree(self.root, self.sound)
        self.whole = content(self.root)
        self.questions = self._questions()
        self.answers = {name: self.ask(name) for name in self.questions}
        assert all(not code for code, _ in self.answers.values()), self.answers

    def _questions(self) -> dict[str, list[str]]:
        score = ["score", str(self.root), "--signal", "base", "--out", str(self.job.table(STORE))]
        return {"score": score, "inspect": ["inspect", str(self.root), "case-11", "--signal", "base", "--json"]}

    def run(self, words: list[str]) -> Outcome:
        return end_child(start_child(words, self.said), self.said)

    def must(self, words: list[str]) -> None:
        outcome = self.run(words)
        assert outcome.code == 0, outcome.text

    def ask(self, name: str) -> tuple[int, bytes]:
        """Return how a question ended, and the table or text that it gave."""
        table = self.job.table(STORE)
        table.unlink(missing_ok=True)
        outcome = self.run(self.questions[name])
        if name == "score":
            return outcome.code, table.read_bytes() if table.exists() else b""
        return outcome.code, outcome.text.encode()

    def restore(self) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(self.sound, self.root)

    # ------------------------------------------------------------ what is done to it

    def foreign_unit(self, rng: random.Random) -> str:
        """All chunks of a unit and their commit come from elsewhere: every digest fits. A run adds up the totals."""
        unit, (signals, commits), where = rng.randrange(NUM_UNITS), *self._elsewhere(rng)
        for chunk in _chunks(signals):
            if f"/c/{unit}/" in f"{chunk}/":
                _put(signals / chunk, self.root / SIGNALS_GROUP / "base" / chunk)
        _put(commits / f"{unit:08}.json", self.root / COMMITS / "base" / f"{unit:08}.json")
        (self.root / completion_key("base")).unlink()
        self.run(self.job.extract(STORE))
        return f"unit {unit} of {where} in its place"

    def foreign_chunk(self, rng: random.Random) -> str:
        """A chunk of the same unit comes from elsewhere."""
        (signals, _), where = self._elsewhere(rng)
        chunk = rng.choice(self._different(signals))
        _put(signals / chunk, self.root / SIGNALS_GROUP / "base" / chunk)
        return f"{chunk} of {where} in its place"

    def foreign_commit(self, rng: random.Random) -> str:
        """The commit of the same unit comes from elsewhere."""
        (_, commits), where = self._elsewhere(rng)
        name = f"{rng.randrange(NUM_UNITS):08}.json"
        _put(commits / name, self.root / COMMITS / "base" / name)
        return f"commit {name} of {where} in its place"

    def moved_chunk(self, rng: random.Random) -> str:
        """A chunk of the same array is copied from another unit."""
        folder = self.root / SIGNALS_GROUP / "base/sample_gram/c"
        one, other = rng.sample(range(NUM_UNITS), 2)
        _put(folder / str(other), folder / str(one))
        return f"the Grams of unit {other} in the place of those of unit {one}"

    def lost_chunk(self, rng: random.Random) -> str:
        """A chunk that scores are made of is gone."""
        chunk = rng.choice([f"{name}/c/{unit}" for name in SCORED for unit in range(NUM_UNITS)])
        (self.root / SIGNALS_GROUP / "base" / chunk).unlink()
        return f"loss of {chunk}"

    def lost_plan_chunk(self, rng: random.Random) -> str:
        """A chunk of the plan's own arrays is gone."""
        path = self.root / SAMPLES_GROUP / rng.choice(("sample_num_steps", "sample_row", "sample_id")) / "c" / "0"
        path.unlink()
        return f"loss of {path.relative_to(self.root)}"

    def flipped_byte(self, rng: random.Random) -> str:
        """A byte of any chunk is another."""
        signal = self.root / SIGNALS_GROUP / "base"
        path = signal / rng.choice(_chunks(signal))
        raw = bytearray(path.read_bytes())
        byte = rng.randrange(len(raw))
        raw[byte] ^= rng.randrange(1, 256)
        path.write_bytes(raw)
        return f"byte {byte} of {path.relative_to(self.root)}"

    def _elsewhere(self, rng: random.Random) -> tuple[tuple[Path, Path], str]:
        """Return the folders of chunks and commits of a signal that is not this one, and what to call it."""
        root, signal, name = rng.choice(((self.foreign, "base", "a twin"), (self.root, OTHER_SIGNAL, "another signal")))
        return (root / SIGNALS_GROUP / signal, root / COMMITS / signal), name

    def _different(self, signals: Path) -> list[str]:
        """Return the chunks that scores are made of and that are not the same elsewhere."""
        mine = self.root / SIGNALS_GROUP / "base"
        keys = [f"{array}/c/{unit}" for array in SCORED for unit in range(NUM_UNITS)]
        return [key for key in keys if (mine / key).read_bytes() != (signals / key).read_bytes()]

    # ------------------------------------------------------------ what must come of it

    def wrong_answers(self) -> list[str]:
        wrong = []
        for name, sound in self.answers.items():
            code, answer = self.ask(name)
            said = self.said.read_text(errors="replace")
            if code == 0 and answer != sound[1]:
                wrong.append(f"{name} gave another answer")
            elif code and (name == "score" and answer):
                wrong.append(f"{name} failed and left a table")
            elif code and ("Traceback" in said or not said.strip()):
                wrong.append(f"{name} ended without a sentence: {said[-500:]}")
        return wrong

    def not_mended(self, *, is_plain: bool) -> list[str]:
        """Return what a check does not find, without --deep if it is plain to see, and what a repair does not mend."""
        depth = [] if is_plain else ["--deep"]
        if self.run(["verify", *depth, str(self.root)]).code == 0:
            return [f"{' '.join(['verify', *depth])} calls it sound"]
        repaired = self.run(["verify", str(self.root), "--repair", "--device", "cpu"])
        wrong = [f"repair failed: {repaired.text[-500:]}"] if repaired.code else []
        return wrong + differences(content(self.root), self.whole) + [f"{p} is left" for p in left_behind(self.root)]


def _twin_folder(folder: Path) -> Path:
    """Return a folder with a dataset of the same shape, in which every step says something else."""
    twin = folder / "twin"
    twin.mkdir()
    records = [json.loads(json.dumps(record(i)).replace("We look at", "Now consider")) for i in range(NUM_UNITS * 8)]
    (twin / "traces.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    make_fake_model(twin / "model")
    return twin


def _chunks(signal: Path) -> list[str]:
    """Return all chunks of a signal's arrays, relative to its folder."""
    return sorted(path.relative_to(signal).as_posix() for path in signal.rglob("c/**/*") if path.is_file())


def _put(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def torture(seed: int, count: int, folder: Path) -> Tally:
    """Do harm so many times, in every way in turn."""
    tally = Tally("answers of damaged stores")
    victim = Victim(folder)
    harms: list[Harm] = [
        victim.foreign_unit, victim.moved_chunk, victim.lost_chunk, victim.lost_plan_chunk, victim.foreign_chunk,
        victim.foreign_commit, victim.flipped_byte,
    ]  # fmt: skip
    # No byte of a chunk has to be read to see these.
    plain = (victim.foreign_unit, victim.foreign_commit, victim.lost_chunk, victim.lost_plan_chunk)
    for i in range(count):
        harm = harms[(seed + i) % len(harms)]
        what = harm(random.Random(f"{seed}-{i}"))
        wrong = victim.wrong_answers() + victim.not_mended(is_plain=harm in plain)
        tally.tried += 1
        tally.became[harm.__name__.replace("_", " ")] += 1
        if wrong:
            tally.failures.append(f"{what}: {'; '.join(wrong)}")
        victim.restore()
    return tally


if __name__ == "__main__":
    main(torture, count=400)
