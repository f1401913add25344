"""Extraction, end to end, against a bare forward pass with cross-entropy over the same response tokens."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from jobs.bench.extraction import Extraction
from jobs.bench.findings import Findings, Goal, Ratio, sides
from jobs.bench.measuring import in_turns
from jobs.bench.workload import RandomModel, Traces, real_model

GOAL = Goal("<=", 1.02)


def measure(*, quick: bool, threads: int) -> dict[str, Any]:
    """Measure on a random model and, if it is installed, on SmolLM2."""
    torch.set_num_threads(threads)
    random = RandomModel(64, 2, 2_000) if quick else RandomModel(768, 12, 32_000)
    repeats = 1 if quick else 3
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        traces = Traces(num_samples=4 if quick else 8)
        found = [_compare(place / "random", random.write(place / "model"), random.describe(), traces, threads, repeats)]
        real = None if quick else real_model()
        if real is not None:
            # Its tokenizer makes two or three tokens of a made-up word.
            traces = Traces(num_samples=4, words_per_segment=8, prompt_words=24)
            found.append(_compare(place / "real", real, "SmolLM2-135M-Instruct", traces, threads, repeats))
    return Findings(found).to_json()


def _compare(folder: Path, model: Path, name: str, traces: Traces, threads: int, repeats: int) -> Ratio:
    with Extraction(folder, model, traces, threads=threads) as bench:
        bench.make_room(repeats)
        costs = in_turns({"extract": bench.extract, "bare forward": bench.bare_forward}, repeats)
        note = (
            f"{name}; {bench.num_samples} samples, {bench.num_tokens} tokens, {bench.num_response_tokens} of "
            f"responses; {costs['extract'].cpu_seconds / bench.num_tokens * 1e3:.2f} ms CPU a token"
        )
    value = costs["extract"].cpu_seconds / costs["bare forward"].cpu_seconds
    return Ratio("extract, store written", "bare forward, CPU time", value, GOAL, sides(costs), note)
