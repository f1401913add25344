"""Extraction of many traces of one prompt that run it once, against the same where each trace runs it by itself."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3VLConfig

from grace_store.base.settings import ExtractSpec
from grace_store.store.opened import SignalView
from jobs.bench.extraction import Extraction
from jobs.bench.findings import Findings, Goal, Ratio, sides
from jobs.bench.measuring import in_turns
from jobs.bench.workload import RandomModel, Traces
from tests.tiny_vision_models import VISION_FAMILIES, picture, tiny_vision_model

TEXT_GOAL, IMAGE_GOAL = Goal("<=", 0.6), Goal("<=", 0.5)
TRACES = 8
"""Of each prompt."""
TOLERANCE = 1e-5
"""Of an inner product, relative to the largest."""
IMAGE_SIZE = (160, 120)
"""300 tokens of 8 x 8 pixels."""


def measure(*, quick: bool, threads: int) -> dict[str, Any]:
    """Measure on a random Llama and on a small random Qwen3-VL, whose prompts have an image."""
    torch.set_num_threads(threads)
    repeats = 1 if quick else 3
    random = RandomModel(64, 2, 2_000) if quick else RandomModel(512, 8, 32_000)
    # Ten segments of a response; a prompt has twice their words, and lengths vary.
    texts = Traces(TRACES, words_per_segment=5 if quick else 20, prompt_words=100 if quick else 400, traces=TRACES)
    pictured = Traces(TRACES, words_per_segment=1 if quick else 3, prompt_words=20 if quick else 60, traces=TRACES)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        image = place / "image.png"
        picture(*IMAGE_SIZE).save(image)
        vision = _small_qwen(place / "vision", 64 if quick else 512, 2 if quick else 8)
        found = [
            _compare(place / "text", random.write(place / "model"), random.describe(), texts, threads, repeats),
            _compare(
                place / "images",
                vision,
                "random Qwen3-VL, 300 image tokens",
                replace(pictured, image=image.name),
                threads,
                repeats,
                IMAGE_GOAL,
            ),
        ]
    return Findings(found).to_json()


def _small_qwen(folder: Path, hidden_size: int, num_layers: int) -> Path:
    """Write a small Qwen3-VL of random weights: the tests' own, but wider and deeper."""
    family = VISION_FAMILIES["qwen3_vl"]

    def config(tokenizer: Any) -> Qwen3VLConfig:
        made = family.config(tokenizer).to_dict()
        wide = {"hidden_size": hidden_size, "intermediate_size": 3 * hidden_size, "num_hidden_layers": num_layers}
        made["text_config"] |= {**wide, "num_attention_heads": hidden_size // 64 or 1, "num_key_value_heads": 1}
        half = {"hidden_size": hidden_size // 2, "intermediate_size": 2 * hidden_size, "depth": num_layers // 2}
        made["vision_config"] |= {**half, "num_heads": hidden_size // 64 or 1, "out_hidden_size": hidden_size}
        return Qwen3VLConfig(**made)

    return tiny_vision_model(replace(family, config=config), folder)


def _compare(
    folder: Path, model: Path, name: str, traces: Traces, threads: int, repeats: int, goal: Goal = TEXT_GOAL
) -> Ratio:
    with ExitStack() as stack:
        benches = {
            side: stack.enter_context(_extraction(folder / side, model, traces, threads, shares=side == "shared"))
            for side in ("shared", "unshared")
        }
        for bench in benches.values():
            bench.make_room(repeats)
        views: dict[str, SignalView] = {}

        def run(side: str) -> None:
            views[side] = benches[side].extract()

        costs = in_turns({side: partial(run, side) for side in benches}, repeats)
        apart = _difference(views["shared"], views["unshared"])
        num_tokens, num_response_tokens = benches["unshared"].num_tokens, benches["unshared"].num_response_tokens
    if not apart <= TOLERANCE:
        raise RuntimeError(f"shared prompts change Grams by {apart:.0e}")
    note = (
        f"{name}; {TRACES} traces, {num_tokens} tokens, {num_response_tokens} of responses; Grams at most "
        f"{apart:.0e} apart; {costs['shared'].cpu_seconds:.1f} s of CPU against {costs['unshared'].cpu_seconds:.1f}"
    )
    what = "extract, one prompt run once" + (", with its image" if traces.image else "")
    value = costs["shared"].cpu_seconds / costs["unshared"].cpu_seconds
    return Ratio(what, "the same for each trace, CPU time", value, goal, sides(costs), note)


def _extraction(folder: Path, model: Path, traces: Traces, threads: int, *, shares: bool) -> Extraction:
    pixels = None if traces.image is None else IMAGE_SIZE[0] * IMAGE_SIZE[1]
    request = ExtractSpec(share_prompts=shares, min_pixels=pixels, max_pixels=pixels)
    return Extraction(folder, model, traces, threads=threads, request=request, images=folder.parent.parent)


def _difference(shared: SignalView, unshared: SignalView) -> float:
    """Return how far Grams are apart, against the largest entry."""
    found, expected = (
        np.concatenate([view.unit_array("sample_gram", unit) for unit in view.committed_units()])
        for view in (shared, unshared)
    )
    return float(np.abs(found - expected).max() / np.abs(expected).max())
