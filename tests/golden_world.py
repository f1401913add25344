"""The stores and files that the commands of the golden files run on; every place is made when it is first asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from grace_store.base.settings import DataSpec, ExtractSpec, RunOptions
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from tests.benchmark_files import paper_table
from tests.fake_model import make_fake_model
from tests.influence_stores import influence_stores

TRACES = (4, 6, 5, 1, 4, 7, 3, 5, 4, 2, 6, 4, 5, 3, 6, 4)
"""The number of traces of each question."""
SOURCES = ("book", "forum", "web")
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace")
THINGS = ("red apples", "old coins", "glass beads", "wooden chairs", "paper boats")
COPIES = ((2, 0), (7, 1), (7, 3), (10, 2))
"""Question and number of the traces that stand in the data a second time, under another id."""
SAMPLES_PER_UNIT = 16
MAX_LENGTH = 300
TOO_LONG = (8, 1)


def prompt(question: int) -> str:
    """Return the text of a question."""
    owner, things = NAMES[question % len(NAMES)], THINGS[question % len(THINGS)]
    bought = question + 9
    return f"{owner} keeps {question + 2} {things} at home and buys {bought} more of them. How many are there now?"


def trace(question: int, number: int) -> dict[str, Any]:
    """Return one trace of a question, with labels of the trace and of its steps; some have flaws that are flagged."""
    result = 7 * question + 3 + number % 3
    num_steps = 2 + (question + 2 * number) % 4
    # Half of the steps are shared with another trace of the question, so that traces are alike to different degrees.
    steps = [
        f"Step {j + 1}: from {question} and {number // 2 if j % 2 else number} we make {question * 5 + j}."
        for j in range(num_steps)
    ]
    steps[-1] = f"So way {number} comes to {result}."
    if question % 5 == 1 and number == 1:
        steps[1:1] = [steps[0]] * 2
    if question % 5 == 2 and number == 2:
        steps[-1] = f"So way {number} of question {question} takes us along the"
    if (question, number) == TOO_LONG:
        steps[0] += " We look at all of it once more." * 20
    first_wrong = -1 if (question + number) % 2 else (question * number) % len(steps)
    return {
        "id": f"q{question}-{number}",
        "prompt": prompt(question),
        "steps": steps,
        "answer": f"{result}" if question % 4 == 3 else f"By way {number} of {question} there are {result}.",
        "is_correct": first_wrong < 0,
        "first_wrong": first_wrong,
        "kind": "" if first_wrong < 0 else ("slip", "leap")[question % 2],
        "source": SOURCES[question % 3],
        "level": 1 + question % 4,
        "meta": {"problem": f"p{question}"},
    }


def records() -> list[dict[str, Any]]:
    """Return one trace of every question, then another of every question, and so on, and then the copies."""
    found = [trace(q, n) for n in range(max(TRACES)) for q in range(len(TRACES)) if n < TRACES[q]]
    return found + [trace(q, n) | {"id": f"copy-{q}-{n}"} for q, n in COPIES]


def write_lines(path: Path, lines: list[dict[str, Any] | str]) -> Path:
    """Write records, or lines as they stand, as JSON lines."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


# ---------------------------------------------------------------- places, by the function that makes them


def make_data(folder: Path) -> Path:
    """Write the traces, and three records that planning sets aside."""
    lines: list[dict[str, Any] | str] = [*records()]
    lines[9:9] = [trace(20, 0) | {"steps": ["Only one."]}, trace(0, 0), "{not json"]
    return write_lines(folder / "traces.jsonl", lines)


def fake_job(folder: Path, data: Path, **changes: Any) -> ExtractJob:
    """Return a job on the fake model, whose weights are the same for every store."""
    settings: dict[str, Any] = {
        "store": str(folder / "store.zarr"),
        "model": make_fake_model(folder / "model"),
        "data": (str(data),),
        "data_request": DataSpec(format="explicit", min_steps=2),
        "request": ExtractSpec(storage="float32", max_length=MAX_LENGTH),
        "samples_per_unit": SAMPLES_PER_UNIT,
        "door": "tests.fake_model",
    }
    return ExtractJob(**settings | changes)


def make_store(folder: Path) -> Path:
    """Extract two signals of the traces, base and late."""
    job = fake_job(folder, make_data(folder))
    extract(job)
    request = ExtractSpec(storage="int8", max_length=MAX_LENGTH)
    extract(replace(job, signal="late", adapter=str(folder / "adapter"), request=request))
    return Path(job.store)


def make_unfinished(folder: Path) -> Path:
    """Extract every other unit of the traces."""
    job = fake_job(folder, make_data(folder), shard=(0, 2))
    extract(job)
    return Path(job.store)


def make_damaged(folder: Path) -> Path:
    """Spoil one byte of the store."""
    return spoil(make_store(folder))


def spoil(store: Path) -> Path:
    """Change a byte in the vectors of one unit of a store."""
    path = sorted(path for path in (store / "signals/base/segment_vector/c").rglob("*") if path.is_file())[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(bytes(content))
    return store


def make_items(folder: Path) -> Path:
    """Write a benchmark: a question of the traces, a part of one, one with other numbers, and one of its own."""
    questions = [
        prompt(2),
        prompt(5).removesuffix(" How many are there now?"),
        prompt(7).replace("9", "90").replace("16", "160"),
        "Which of the seven colours of the rainbow is seen on its outer side?",
    ]
    items = [{"id": f"item-{i}", "question": each, "answer": str(i)} for i, each in enumerate(questions)]
    return write_lines(folder / "items.jsonl", [*items])


def make_benchmark(folder: Path) -> Path:
    """Extract a store of a benchmark with the model of the other stores; the first of its items is a copy."""
    items = [trace(4, 1), trace(30, 0), trace(31, 1)]
    job = fake_job(folder, write_lines(folder / "benchmark.jsonl", [*items]))
    extract(job)
    return Path(job.store)


def make_labels(folder: Path) -> Path:
    """Write verdicts in words: none for every seventh trace, and one of a trace that is not in the store."""
    verdicts = [f"{each['id']},{('bad', 'good')[each['is_correct']]}" for each in records()]
    (folder / "labels.csv").write_text(
        "\n".join(["id,verdict", "q99-0,good", *(each for place, each in enumerate(verdicts) if place % 7)]) + "\n"
    )
    return folder / "labels.csv"


def make_influence(folder: Path) -> Path:
    """Write a pool and its targets with a gradient a sample at three checkpoints."""
    return influence_stores(folder) / "float32"


def make_model(folder: Path) -> Path:
    """Save a model of one layer with random weights."""
    from tests.tiny_models import tiny_text_model

    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    return tiny_text_model("llama", folder / "model", max_position_embeddings=4096, **small)


def make_short(folder: Path) -> Path:
    """Write two dozen short traces, for commands that run a model."""
    from tests.warmups import write_traces

    return write_traces(folder / "short.jsonl", 24)


def make_broken(folder: Path) -> Path:
    """Extract the short traces with the model, and spoil the store."""
    options = RunOptions(device="cpu", threads=1)
    short = DataSpec(min_steps=2)
    places = {"store": str(folder / "store.zarr"), "model": str(make_model(folder)), "data": (str(make_short(folder)),)}
    extract(ExtractJob(**places, data_request=short, samples_per_unit=4, options=options))
    return spoil(folder / "store.zarr")


MAKERS: dict[str, Callable[[Path], Path]] = {
    "data": make_data,
    "store": make_store,
    "unfinished": make_unfinished,
    "damaged": make_damaged,
    "items": make_items,
    "benchmark": make_benchmark,
    "influence": make_influence,
    "labels": make_labels,
    "model": make_model,
    "short": make_short,
    "broken": make_broken,
    "paper": paper_table,
}
