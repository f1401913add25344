"""How good the flags of texts are: found among planted flaws, and how often real traces have them.

    python -m jobs.hygiene GSM8K.jsonl [PROCESSBENCH.json ...]

Every GSM8K solution of at least three steps gets each flaw once. Recall is the share of them that is flagged so;
precision is that share against the same number of untouched ones; other flags are those that the flaw does not explain.
ProcessBench counts with the traces that have no wrong step. hygiene_records.jsonl has short problems in the style of
AQuA, written by hand; some of them state an answer that their steps do not reach. Prints the tables of docs/data.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from grace_store.base.settings import DataSpec
from grace_store.base.states import TEXT_FLAGS, TEXT_SHIFT, Unusable, flag_names
from grace_store.data.dataset import Dataset
from grace_store.data.hygiene import text_flags
from grace_store.data.parse_records import cover
from grace_store.data.sample import Sample, Turn
from grace_store.run.scan import Understanding

FEWEST_STEPS = 3
GSM8K = DataSpec(format="gsm8k", min_steps=FEWEST_STEPS)
PROCESSBENCH = DataSpec(format="processbench", min_steps=1)
RECORDS = Path(__file__).parent / "hygiene_records.jsonl"
PARTS = {"prompt": "question", "options": "options", "response": "rationale", "answer": "correct"}
WRITTEN = DataSpec(format="mapped", min_steps=1, map=PARTS)
MORE_TEXT = (
    "\n\nQuestion: A train travels 60 miles in 2 hours. How fast is it?\nIt goes 60/2 = 30 miles an hour.",
    "\nLet me check this once more, to be sure that nothing was left out.",
    "\nHuman: Thank you! Can you explain the second step?",
)


class Parts(NamedTuple):
    """A trace that can be spoilt."""

    question: str
    steps: list[str]
    answer: str

    def sample(self) -> Sample:
        response = "\n".join([*self.steps, self.answer])
        starts = [0]
        for step in self.steps:
            starts.append(starts[-1] + len(step) + 1)
        return Sample("planted", (Turn("user", (self.question,)),), response, cover(response, starts[:-1], starts[-1]))


Flaw = Callable[[Parts, Random], Parts]


def repeat_one(parts: Parts, rng: Random) -> Parts:
    """Say one step twice, at once or later."""
    at = rng.randrange(len(parts.steps))
    steps = list(parts.steps)
    steps.insert(rng.randrange(at + 1, len(steps) + 1), steps[at])
    return parts._replace(steps=steps)


def repeat_all(parts: Parts, rng: Random) -> Parts:
    """Say nothing but one step, twelve times, numbered or not."""
    step = rng.choice(parts.steps)
    numbered = rng.random() < 0.5
    return parts._replace(steps=[f"Step {i}: {step}" if numbered else step for i in range(1, 13)])


def cut_last_step(parts: Parts, rng: Random) -> Parts:
    """End the last step after some of its words, the answer still below it."""
    *steps, last = parts.steps
    words = last.split(" ")
    return parts._replace(steps=[*steps, " ".join(words[: rng.randrange(1, max(2, len(words)))])])


def cut_response(parts: Parts, rng: Random) -> Parts:
    """End the response in the middle of a sentence, which counts as its answer."""
    *steps, last = parts.steps
    words = last.split(" ")
    return parts._replace(steps=steps, answer=" ".join(words[: rng.randrange(1, max(2, len(words)))]))


def change_answer(parts: Parts, rng: Random) -> Parts:
    """State another number than the one that the steps come to."""
    number = parts.answer.removeprefix("####").strip().replace(",", "")
    other = str(round(float(number) * rng.choice((2, 3, 10)) + rng.randrange(1, 9)))
    return parts._replace(answer=f"#### {other}")


def add_text(parts: Parts, rng: Random) -> Parts:
    """Go on after the answer."""
    return parts._replace(answer=parts.answer + rng.choice(MORE_TEXT))


def spoil_think(parts: Parts, rng: Random) -> Parts:
    """Put think tags where they mean nothing: empty, never closed, or twice."""
    first, *rest = parts.steps
    ways = (
        [f"<think>\n</think>\n{first}", *rest],
        [f"<think>{first}", *rest],
        [f"<think>{first}</think>", f"<think>{rest[0]}</think>", *rest[1:]],
    )
    return parts._replace(steps=rng.choice(ways))


def restate_question(parts: Parts, rng: Random) -> Parts:
    """Begin with the question, or with one of its sentences of nine words or more."""
    sentences = [each for each in parts.question.split(". ") if len(each.split()) >= 9] or [parts.question]
    return parts._replace(steps=[rng.choice([parts.question, *sentences]), *parts.steps])


FLAWS: dict[str, tuple[str, Flaw]] = {
    "one step is said twice": ("repeated_steps", repeat_one),
    "one step, twelve times": ("repeated_steps", repeat_all),
    "the last step is cut off": ("cut_off", cut_last_step),
    "the response is cut off": ("cut_off", cut_response),
    "another number as the answer": ("unsupported_answer", change_answer),
    "text after the answer": ("text_after_answer", add_text),
    "think tags empty, open or twice": ("think_blocks", spoil_think),
    "the question as a step": ("restates_question", restate_question),
}


class Found(NamedTuple):
    """What the flags say of one flaw."""

    flag: str
    num_planted: int
    num_flagged: int
    num_untouched_flagged: int

    @property
    def recall(self) -> float:
        return self.num_flagged / self.num_planted

    @property
    def precision(self) -> float:
        return self.num_flagged / max(self.num_flagged + self.num_untouched_flagged, 1)


def read_samples(path: Path, spec: DataSpec, *, share: float = 1.0, seed: int = 0) -> Iterator[Sample]:
    """Yield the samples of a file, or a share of them; of ProcessBench, those without a wrong step."""
    rng = Random(seed)
    with Dataset.open([path]) as dataset:
        understanding = Understanding(tuple(file.name for file in dataset.files), spec)
        for record in dataset.scan():
            if rng.random() >= share or record.parse().get("label", -1) != -1:
                continue
            try:
                yield understanding.sample(record)
            except Unusable:
                continue


def written_samples() -> list[tuple[dict[str, Any], Sample]]:
    """Return the records that were written by hand, with their samples."""
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    return list(zip(records, read_samples(RECORDS, WRITTEN), strict=True))


def counts_of(samples: Iterable[Sample]) -> Counter[str]:
    """Return how many samples have each flag."""
    return Counter(name for sample in samples for name in flag_names(text_flags(sample) << TEXT_SHIFT))


def try_flaws(samples: Sequence[Sample], seed: int = 0) -> dict[str, Found]:
    """Return what is found of each flaw, planted once into every trace."""
    untouched = counts_of(samples)
    found = {}
    for name, (flag, plant) in FLAWS.items():
        rng = Random(f"{seed} {name}")
        planted = [plant(_parts(sample), rng).sample() for sample in samples]
        found[name] = Found(flag, len(planted), counts_of(planted)[flag], untouched[flag])
    return found


def _parts(sample: Sample) -> Parts:
    *steps, answer = (segment.strip() for segment in sample.segments)
    return Parts(sample.turns[-1].text, steps, answer)


def tables(gsm8k: Path, others: Sequence[Path], share: float = 1.0) -> Iterator[str]:
    """Yield the lines of both tables."""
    samples = list(read_samples(gsm8k, GSM8K, share=share))
    yield "| flaw | flag | planted | recall | precision |"
    yield "|---|---|---|---|---|"
    for name, found in try_flaws(samples).items():
        yield f"| {name} | `{found.flag}` | {found.num_planted:,} | {found.recall:.3f} | {found.precision:.3f} |"
    sets = {f"GSM8K, {gsm8k.stem}": list(read_samples(gsm8k, GSM8K.model_copy(update={"min_steps": 1}), share=share))}
    sets |= {f"ProcessBench, {path.stem}": list(read_samples(path, PROCESSBENCH, share=share)) for path in others}
    yield ""
    yield f"| untouched traces | {' | '.join(f'{name} ({len(some):,})' for name, some in sets.items())} |"
    yield f"|---|{'---|' * len(sets)}"
    counts = [counts_of(some) for some in sets.values()]
    for flag in TEXT_FLAGS:
        shares = (100 * each[flag] / len(some) for each, some in zip(counts, sets.values(), strict=True))
        yield f"| `{flag}` | {' | '.join(f'{share:.2f} %' for share in shares)} |"


def written_table() -> Iterator[str]:
    """Yield the lines of the table of records that were written by hand."""
    yield ""
    yield "| written by hand | records | flagged `unsupported_answer` |"
    yield "|---|---|---|"
    written = written_samples()
    for title, is_flawed in (("the steps reach the answer", False), ("the steps reach another answer", True)):
        some = [sample for record, sample in written if record["is_flawed"] == is_flawed]
        yield f"| {title} | {len(some)} | {counts_of(some)['unsupported_answer']} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("gsm8k", type=Path, help="solutions of GSM8K, as JSON lines")
    parser.add_argument("processbench", type=Path, nargs="*", help="files of ProcessBench")
    parser.add_argument("--share", type=float, default=1.0, help="share of the traces to look at")
    given = parser.parse_args(arguments)
    for line in chain(tables(given.gsm8k, given.processbench, given.share), written_table()):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
