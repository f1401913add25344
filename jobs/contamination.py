"""How well `contamination` finds items of a benchmark in a pool, and how often it finds what is not there.

    python -m jobs.contamination TRAIN.jsonl TEST.jsonl [--elsewhere OTHER.json ...] [--vectors FOLDER]

Every test question is planted once in each way of `jobs.planted_copies` that changes it, each with the solution of
another question, so that only the question can give it away. Recall is the share of them that is found as a copy of
that question; false positives are untouched training traces that are said to have a test question in them, and planted
questions whose numbers are others. --elsewhere counts what is found in other files. --vectors extracts some of it with
SmolLM2-135M-Instruct into FOLDER, and asks whether vectors find what words do not. Prints the tables of
docs/auditing.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from grace_store.base.settings import DataSpec
from grace_store.data.benchmark_items import read_items
from grace_store.data.dataset import Dataset
from grace_store.data.parse_records import cover
from grace_store.data.passages import DEFAULT_NGRAM, DEFAULT_SHARE, Threshold
from grace_store.data.sample import Sample, Turn
from grace_store.data.text_matches import Item, TextMatcher
from grace_store.values.intervals import share_interval
from jobs.hygiene import read_samples
from jobs.planted_copies import PLANTS, has_number

DEFAULT = Threshold(DEFAULT_NGRAM, DEFAULT_SHARE)
TRIED = (DEFAULT, Threshold(5, 0.2), Threshold(5, 0.5), Threshold(8, 0.3), Threshold(13, 0.3))
SAMPLES_AT_ONCE = 1024
GSM8K = DataSpec(format="gsm8k", min_steps=1)


class Found(NamedTuple):
    """How many of some samples have a copy of an item in them, and how many its words with other numbers."""

    num_samples: int
    num_copies: int
    num_templates: int

    def __str__(self) -> str:
        low, high = share_interval(self.num_copies, self.num_samples)
        return f"{self.num_copies / max(self.num_samples, 1):.3f} ({low:.3f}-{high:.3f})"


def question_sample(question: str, solution: str) -> Sample:
    """Return a trace that asks a question and answers it."""
    end = solution.rfind("####")
    return Sample("planted", (Turn("user", (question,)),), solution, cover(solution, [0], end))


def plant_all(items: Sequence[Item], pool: Sequence[Sample], seed: int = 0) -> dict[str, dict[int, Sample]]:
    """Return every question planted in every way, by its place, with solutions of the pool."""
    questions = [sample.turns[-1].text for sample in pool]
    found: dict[str, dict[int, Sample]] = {}
    for name, planted in PLANTS.items():
        found[name] = {}
        for number, item in enumerate(items):
            text = planted.plant(item.question, questions, Random(f"{seed} {name} {item.row}"))
            if text != item.question or not planted.only_changed:
                found[name][number] = question_sample(text, pool[number % len(pool)].response)
    return found


def count(matcher: TextMatcher, samples: Sequence[Sample], own: Sequence[int] | None = None) -> Found:
    """Return what is found in samples: of each one's own item alone, or of any."""
    copies, templates = set(), set()
    for start in range(0, len(samples), SAMPLES_AT_ONCE):
        for place, match in matcher.matches(samples[start : start + SAMPLES_AT_ONCE]):
            if own is None or match.item == own[start + place]:
                (templates if match.kind == "template" else copies).add(start + place)
    return Found(len(samples), len(copies), len(templates - copies))


def tables(train: Path, test: Path, elsewhere: Sequence[Path], share: float = 1.0) -> Iterator[str]:
    """Yield the lines of the tables about texts."""
    with Dataset.open([test]) as dataset:
        everything = read_items(dataset)[0]
    items = [item for item in everything if has_number(item.question)]
    items = items[: max(1, round(share * len(items)))]
    pool = list(read_samples(train, GSM8K, share=share))
    matchers = [TextMatcher(items, threshold) for threshold in TRIED]
    yield f"| planted {len(items):,} times | {' | '.join(f'{t.length} words, {t.share:g}' for t in TRIED)} |"
    yield f"|---|{'---|' * len(TRIED)}"
    copies: list[Found] = []
    for name, planted in plant_all(items, pool).items():
        found = [count(each, list(planted.values()), list(planted)) for each in matchers]
        shown = name if len(planted) == len(items) else f"{name} ({len(planted):,})"
        yield f"| {shown} | {' | '.join(map(str, found))} |"
        copies += found[:1] if PLANTS[name].is_copy else []
    found = [count(each, pool) for each in matchers]
    yield f"| untouched traces ({len(pool):,}) | {' | '.join(f'{each.num_copies}' for each in found)} |"
    yield ""
    templates, total = (sum(getattr(each, name) for each in copies) for name in ("num_templates", "num_samples"))
    yield f"Planted copies that are called another question: {templates:,} of {total:,}."
    yield from _elsewhere(everything, elsewhere)
    yield _speed(items, pool)


def _elsewhere(items: Sequence[Item], paths: Sequence[Path]) -> Iterator[str]:
    matcher = TextMatcher(items, DEFAULT)
    for path in paths:
        with Dataset.open([path]) as dataset:
            there = read_items(dataset)[0]
        samples = [question_sample(each.question, f"{each.solution}\n#### ?") for each in there]
        found = count(matcher, samples)
        yield f"{path.name}: {found.num_copies} of {found.num_samples} traces, {found.num_templates} templates."


def _speed(items: Sequence[Item], pool: Sequence[Sample]) -> str:
    began = time.process_time()
    matcher = TextMatcher(items, DEFAULT)
    built = time.process_time()
    count(matcher, pool)
    rate = len(pool) / max(time.process_time() - built, 1e-9)
    return f"{rate:,.0f} samples/s of one core; {len(items):,} items are made ready in {built - began:.2f} s."


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("train", type=Path, help="the pool: GSM8K's training traces, as JSON lines")
    parser.add_argument("test", type=Path, help="the benchmark: GSM8K's test traces")
    parser.add_argument("--elsewhere", type=Path, nargs="*", default=[], help="other files to look for test items in")
    parser.add_argument("--vectors", type=Path, help="folder for the stores of the measurement with vectors")
    parser.add_argument("--other-solutions", type=Path, help="ProcessBench's GSM8K: other solutions, for --vectors")
    parser.add_argument("--share", type=float, default=1.0, help="share of the traces to look at")
    given = parser.parse_args(arguments)
    for line in tables(given.train, given.test, given.elsewhere, given.share):
        sys.stdout.write(f"{line}\n")
    if given.vectors is not None:
        from jobs.contamination_vectors import vector_tables  # which runs a model

        solutions = json.loads(given.other_solutions.read_bytes()) if given.other_solutions else []
        for line in vector_tables(given.train, given.test, solutions, given.vectors):
            sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
