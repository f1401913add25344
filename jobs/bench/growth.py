"""How extraction grows: with samples, steps, hidden size, response length and vocabulary, each by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from jobs.bench.extraction import Extraction
from jobs.bench.findings import Curve, Findings
from jobs.bench.measuring import Cost, in_turns
from jobs.bench.workload import RandomModel, Traces

MODEL = RandomModel(256, 4, 8_000)
QUICK_MODEL = RandomModel(64, 1, 4_000)
TRACES = Traces(num_samples=4)
RESPONSE_WORDS = 240
BATCH_TOKENS = 4096

Workload = tuple[RandomModel, Traces]


def measure(*, quick: bool, threads: int) -> dict[str, Any]:
    """Measure every curve; all points of one are run in turns."""
    torch.set_num_threads(threads)
    curves = [
        _curve(name, sizes[:2] if quick else sizes, workloads, threads, quick=quick)
        for name, sizes, workloads in _questions(QUICK_MODEL if quick else MODEL)
    ]
    return Findings(curves=curves).to_json()


def _questions(model: RandomModel) -> list[tuple[str, Sequence[int], dict[int, Workload]]]:
    samples, steps, hidden, words, vocabulary = (
        (4, 8, 16, 32),
        (4, 8, 16, 32),
        (128, 256, 512, 1024),
        (10, 20, 40, 80),
        (4_000, 8_000, 16_000, 32_000),
    )
    return [
        ("samples", samples, {n: (model, replace(TRACES, num_samples=n)) for n in samples}),
        (
            "steps that equally many tokens are cut into",
            steps,
            {k: (model, replace(TRACES, num_steps=k, words_per_segment=RESPONSE_WORDS // (k + 1))) for k in steps},
        ),
        ("hidden size", hidden, {d: (replace(model, hidden_size=d), TRACES) for d in hidden}),
        ("words of a segment", words, {w: (model, replace(TRACES, words_per_segment=w)) for w in words}),
        ("vocabulary", vocabulary, {v: (replace(model, vocab_size=v), TRACES) for v in vocabulary}),
    ]


def _curve(name: str, sizes: Sequence[int], workloads: dict[int, Workload], threads: int, *, quick: bool) -> Curve:
    with tempfile.TemporaryDirectory() as folder:
        costs = _costs(Path(folder), {size: workloads[size] for size in sizes}, threads, repeats=1 if quick else 2)
    return Curve("Extraction", name, "CPU seconds", sizes, {"CPU": [costs[str(size)].cpu_seconds for size in sizes]})


def _costs(folder: Path, workloads: dict[int, Workload], threads: int, repeats: int) -> dict[str, Cost]:
    calls = {}
    with ExitStack() as opened:
        for size, (model, traces) in workloads.items():
            place = folder / str(size)
            made = Extraction(place, model.write(place / "model"), traces, threads=threads, batch_tokens=BATCH_TOKENS)
            bench = opened.enter_context(made)
            bench.make_room(repeats)
            calls[str(size)] = bench.extract
        return in_turns(calls, repeats)
