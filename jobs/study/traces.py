"""The study's data: an easy course, a pool of traces that are flawed in known ways, targets, and held-out problems.

No problem is in two of them. A record's `kind`, `quality`, `flawed_step` and `copy_of` say what is known of it; the
explicit format reads none of these, so no score can.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from grace_store.base.files import whole_file
from jobs.study.problems import KINDS, WORDS, Problem
from jobs.study.settings import DataSettings

Record = dict[str, Any]

FILLERS = (
    "the sky is blue today",
    "we walk in the park today",
    "tea is good in the morning",
    "the old cat is in the garden",
    "birds sing in the green garden",
    "it is a good day for a walk",
    "the park is green in the morning",
    "a cat is good for the day",
)
AGAIN = "again"
ANSWER = "answer"
TRACE_WORDS = (*WORDS, ANSWER, AGAIN, *sorted({word for text in FILLERS for word in text.split()} - set(WORDS)))
"""Every word of the study's texts."""

ANSWER_FLAWED = -1
"""What `flawed_step` is where the answer is wrong and every step right."""


def answer_text(answer: int) -> str:
    return f"{ANSWER} {answer}"


def clean(problem: Problem, rng: Random) -> Record:
    """Solve the problem, and nothing else."""
    return {"steps": [step.text() for step in problem.steps], "answer": answer_text(problem.answer)}


def wrong_step(problem: Problem, rng: Random) -> Record:
    """Get one step before the last wrong; what follows goes on from the right number, and the answer is right."""
    at = rng.randrange(len(problem.steps) - 1)
    steps = [step.text() for step in problem.steps]
    steps[at] = problem.steps[at].text(rng.choice(problem.steps[at].slips))
    return {"steps": steps, "answer": answer_text(problem.answer), "flawed_step": at}


def wrong_answer(problem: Problem, rng: Random) -> Record:
    """Take every step rightly, then state another answer."""
    record = clean(problem, rng)
    return record | {"answer": answer_text(rng.choice(problem.steps[-1].slips)), "flawed_step": ANSWER_FLAWED}


def filler(problem: Problem, rng: Random) -> Record:
    """Put two or three sentences between the steps that have nothing to do with the problem."""
    record = clean(problem, rng)
    for text in rng.sample(FILLERS, rng.randint(2, 3)):
        record["steps"].insert(rng.randrange(len(record["steps"])), text)
    return record


def long(problem: Problem, rng: Random) -> Record:
    """Say every step twice."""
    record = clean(problem, rng)
    return record | {"steps": [text for step in record["steps"] for text in (step, f"{AGAIN} {step}")]}


QUALITIES: dict[str, Callable[[Problem, Random], Record]] = {
    "clean": clean,
    "wrong_step": wrong_step,
    "wrong_answer": wrong_answer,
    "filler": filler,
    "long": long,
}
"""Every quality but `duplicated`, which is a clean record of the pool once more."""
DUPLICATED = "duplicated"


@dataclass(frozen=True, slots=True)
class StudyData:
    """Every record of the study."""

    lessons: list[Record]
    """The easy course: problems of few steps."""
    pool: list[Record]
    targets: dict[str, list[Record]]
    """By kind: what methods that need a target set are shown."""
    heldout: dict[str, list[Record]]
    """By kind: what models are judged by."""


class _Source:
    """Draws problems that were not drawn before."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._drawn: set[str] = set()

    def draw(self, kind: str, fewest: int, most: int) -> Problem:
        while True:
            problem = KINDS[kind](self._rng, self._rng.randint(fewest, most))
            if problem.prompt not in self._drawn:
                self._drawn.add(problem.prompt)
                return problem


def make_data(settings: DataSettings) -> StudyData:
    """Return all data of the study, a function of its settings alone."""
    rng = Random(settings.seed)
    source = _Source(rng)
    fewest, most = settings.fewest_steps, settings.most_steps

    def some(name: str, kind: str, count: int) -> list[Record]:
        problems = [source.draw(kind, fewest, most) for _ in range(count)]
        return [_record(f"{name}-{kind}-{i}", each, "clean", rng) for i, each in enumerate(problems)]

    # What models are judged by is drawn first, so that no other setting changes it.
    heldout = {kind: some("heldout", kind, settings.num_heldout) for kind in KINDS}
    targets = {kind: some("target", kind, settings.num_targets) for kind in KINDS}
    return StudyData(_lessons(settings, rng), _pool(settings, source, rng), targets, heldout)


def _record(name: str, problem: Problem, quality: str, rng: Random) -> Record:
    known = {"kind": problem.kind, "quality": quality, "flawed_step": None, "copy_of": None}
    return {"id": name, "prompt": problem.prompt, **known, **QUALITIES[quality](problem, rng)}


def _lessons(settings: DataSettings, rng: Random) -> list[Record]:
    """Return easy problems, kinds in turn. There are few of some kinds, so they come again."""
    kinds = list(KINDS)

    def problem(number: int) -> Problem:
        return KINDS[kinds[number % len(kinds)]](rng, rng.randint(1, settings.most_lesson_steps))

    return [_record(f"lesson-{i}", problem(i), "clean", rng) for i in range(settings.num_lessons)]


def _pool(settings: DataSettings, source: _Source, rng: Random) -> list[Record]:
    """Return the pool, shuffled; every kind has every quality in its share."""
    made: list[Record] = []
    per_kind = settings.num_pool // len(KINDS)
    for kind in KINDS:
        counts = settings.counts(per_kind)
        fresh = [
            _record("", source.draw(kind, settings.fewest_steps, settings.most_steps), quality, rng)
            for quality in QUALITIES
            for _ in range(counts[quality])
        ]
        originals = [record for record in fresh if record["quality"] == "clean"]
        copied = rng.sample(originals, -(-counts[DUPLICATED] // settings.copies))
        copies = [
            {**copied[i // settings.copies], "quality": DUPLICATED, "copy_of": copied[i // settings.copies]}
            for i in range(counts[DUPLICATED])
        ]
        made += fresh + copies
    rng.shuffle(made)
    for number, record in enumerate(made):
        record["id"] = f"pool-{number}"
    for record in made:
        if record["copy_of"] is not None:
            record["copy_of"] = record["copy_of"]["id"]
    return made


def write_records(path: Path, records: Sequence[Record]) -> None:
    with whole_file(path) as partial:
        partial.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def write_data(data: StudyData, folder: Path) -> None:
    """Write the pool, the target set (a file a kind, which makes each kind a subtask) and the held-out problems."""
    write_records(folder / "pool.jsonl", data.pool)
    for kind in KINDS:
        write_records(folder / "targets" / f"{kind}.jsonl", data.targets[kind])
        write_records(folder / "heldout" / f"{kind}.jsonl", data.heldout[kind])


def all_prompts(data: StudyData) -> Iterator[tuple[str, str]]:
    """Yield (part, prompt) of every record."""
    parts = {"lessons": data.lessons, "pool": data.pool}
    parts |= {"targets": [each for some in data.targets.values() for each in some]}
    parts |= {"heldout": [each for some in data.heldout.values() for each in some]}
    yield from ((part, record["prompt"]) for part, records in parts.items() for record in records)
