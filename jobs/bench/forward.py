"""Extraction, end to end, against a bare forward pass with cross-entropy over the same response tokens.

Also against extraction without the token table, and the size of the table.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from grace_store.base.settings import ExtractSpec
from grace_store.store.opened import SignalView
from jobs.bench.extraction import Extraction
from jobs.bench.findings import Findings, Goal, Ratio, sides
from jobs.bench.measuring import in_turns
from jobs.bench.workload import RandomModel, Traces, real_model

GOAL = Goal("<=", 1.02)
TABLE_GOAL, TABLE_BYTES = Goal("<=", 1.03), Goal("<=", 6_000.0)
TABLE_TOKENS = 500


def measure(*, quick: bool, threads: int) -> dict[str, Any]:
    """Measure on a random model and, if it is installed, on SmolLM2."""
    torch.set_num_threads(threads)
    random = [RandomModel(64, 2, 2_000)] if quick else [RandomModel(768, 12, 32_000), RandomModel(128, 2, 152_000)]
    repeats = 1 if quick else 3
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        traces = Traces(num_samples=4 if quick else 8)
        found = []
        for number, model in enumerate(random):
            folder, written = place / f"random-{number}", model.write(place / f"model-{number}")
            found += _compare(folder, written, model.describe(), traces, threads, repeats)
        real = None if quick else real_model()
        if real is not None:
            # Its tokenizer makes two or three tokens of a made-up word.
            traces = Traces(num_samples=4, words_per_segment=8, prompt_words=24)
            found += _compare(place / "real", real, "SmolLM2-135M-Instruct", traces, threads, repeats)
    return Findings(found).to_json()


def _compare(folder: Path, model: Path, name: str, traces: Traces, threads: int, repeats: int) -> list[Ratio]:
    plain = ExtractSpec(token_table=False)
    with (
        Extraction(folder, model, traces, threads=threads) as bench,
        Extraction(folder / "plain", model, traces, threads=threads, request=plain) as without,
    ):
        bench.make_room(repeats)
        without.make_room(repeats)
        views: list[SignalView] = []
        calls = {
            "extract": lambda: views.append(bench.extract()),
            "bare forward": bench.bare_forward,
            "without the token table": without.extract,
        }
        costs = in_turns(calls, repeats)
        note = (
            f"{name}; {bench.num_samples} samples, {bench.num_tokens} tokens, {bench.num_response_tokens} of "
            f"responses; {costs['extract'].cpu_seconds / bench.num_tokens * 1e3:.2f} ms CPU a token"
        )
        for_tokens = _table_bytes(views[0]) / bench.num_response_tokens * TABLE_TOKENS
    bare, table = (
        costs["extract"].cpu_seconds / costs[other].cpu_seconds for other in ("bare forward", "without the token table")
    )
    return [
        Ratio("extract, store written", "bare forward, CPU time", bare, GOAL, sides(costs), note),
        Ratio("extract with the token table", "extract without, CPU time", table, TABLE_GOAL, sides(costs), note),
        Ratio("token table", f"bytes for {TABLE_TOKENS} tokens", for_tokens, TABLE_BYTES, note=name),
    ]


def _table_bytes(view: SignalView) -> int:
    chunks = (chunk for commit in view.commits(view.committed_units()) for chunk in commit.chunks.items())
    return sum(digest.num_bytes for key, digest in chunks if key.startswith(("token_", "sample_num_token_rows")))
