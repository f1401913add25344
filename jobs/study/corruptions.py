"""Real traces spoilt in known ways: GSM8K solutions with one thing wrong each. Needs no model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

from jobs.demo_traces.flaws import FILLERS, slip
from jobs.study.traces import Record

NOTE = re.compile(r"<<[^<>]*=(\d+(?:\.\d+)?)>>\1(?!\d|\.\d)")
"""A calculator note and the result that follows it."""
FEWEST_STEPS = 3


def split(answer: str) -> tuple[list[str], str]:
    """Return the steps of a GSM8K solution and its final number."""
    *steps, last = answer.strip().split("\n")
    return [step for step in steps if step.strip()], last.removeprefix("####").strip()


def joined(steps: list[str], final: str) -> str:
    return "\n".join([*steps, f"#### {final}"])


def wrong_step(steps: list[str], final: str, rng: Random) -> str:
    """Get the result of one step before the last wrong; what follows goes on from the right one."""
    at = rng.choice([i for i, step in enumerate(steps[:-1]) if NOTE.search(step)])

    def spoil(found: re.Match[str]) -> str:
        wrong = slip(found[1], rng)
        return found[0].replace(f"={found[1]}>>{found[1]}", f"={wrong}>>{wrong}")

    return joined([*steps[:at], NOTE.sub(spoil, steps[at], count=1), *steps[at + 1 :]], final)


def wrong_answer(steps: list[str], final: str, rng: Random) -> str:
    """Solve rightly, then state another number."""
    return joined(steps, slip(final, rng))


def filler(steps: list[str], final: str, rng: Random) -> str:
    """Put two sentences between the steps that have nothing to do with the question."""
    made = list(steps)
    for text in rng.sample(FILLERS, 2):
        made.insert(rng.randrange(1, len(made)), text)
    return joined(made, final)


def duplicated_step(steps: list[str], final: str, rng: Random) -> str:
    """Say one step twice in a row."""
    at = rng.randrange(len(steps))
    return joined([*steps[: at + 1], *steps[at:]], final)


CORRUPTIONS: dict[str, Callable[[list[str], str, Random], str]] = {
    "wrong_step": wrong_step,
    "wrong_answer": wrong_answer,
    "filler": filler,
    "duplicated_step": duplicated_step,
}
CLEAN = "clean"


def usable(record: Record) -> bool:
    """Tell whether every corruption can be made of a record."""
    steps, final = split(record["answer"])
    return len(steps) >= FEWEST_STEPS and final.isdigit() and any(NOTE.search(step) for step in steps[:-1])


def make_traces(path: Path, num_problems: int, seed: int) -> list[Record]:
    """Return problems of a GSM8K file, drawn by the seed, each as it stands and with every corruption."""
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [(row, json.loads(line)) for row, line in enumerate(lines)]
    rng = Random(seed)
    chosen = sorted(rng.sample([each for each in records if usable(each[1])], num_problems), key=lambda each: each[0])
    return [version for row, record in chosen for version in versions_of(row, record, rng)]


def versions_of(row: int, record: Record, rng: Random) -> list[Record]:
    """Return a problem as it stands and with every corruption."""
    steps, final = split(record["answer"])
    versions = {CLEAN: joined(steps, final)}
    versions |= {label: spoil(steps, final, rng) for label, spoil in CORRUPTIONS.items()}
    return [
        {"id": f"{row}-{label}", "question": record["question"], "answer": answer, "label": label}
        for label, answer in versions.items()
    ]
