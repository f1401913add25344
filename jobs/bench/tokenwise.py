"""The head by segments, as grace-store has it, against the head token by token: u_t for each t, then the mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace_store.model.closed_form import ClosedFormHead, ResponseTokens, averaging_matrix
from jobs.bench.findings import Curve, Findings, Goal, Ratio, sides
from jobs.bench.measuring import Cost, in_turns

GOAL = Goal(">=", 1.3)
FLAT = Goal("<=", 1.1)
BLOCK_TOKENS = 256
NUM_SEGMENTS = 10
SMALLEST = {"cpu_seconds": 1e-6, "grown_bytes": 4096}
"""What a cost that does not show is taken as: nothing is below a microsecond and a page."""


def measure(*, quick: bool, threads: int) -> dict[str, Any]:
    """Measure time at one response length, and time and memory at several."""
    torch.set_num_threads(threads)
    hidden_size, vocab_size = (64, 2_000) if quick else (768, 32_000)
    lengths = (64, 128, 256) if quick else (256, 512, 1024, 2048)
    weight = torch.randn((vocab_size, hidden_size), generator=_seeded()) * 0.02
    costs = [_costs(weight, length, repeats=1 if quick else 2) for length in lengths]
    middle = costs[len(costs) // 2]
    name = min(("token by token", "token by token, in blocks"), key=lambda name: middle[name].cpu_seconds)
    speed = Ratio(
        "head by segments",
        "token by token, CPU time",
        middle[name].cpu_seconds / middle["by segments"].cpu_seconds,
        GOAL,
        sides(middle),
        f"hidden size {hidden_size}, {vocab_size} tokens; against the faster: {name}",
    )
    grown = [max(SMALLEST["grown_bytes"], cost["by segments"].grown_bytes) for cost in costs]
    whole = [cost["token by token"].grown_bytes for cost in costs]
    flat = Ratio(
        f"peak memory of the head, {lengths[-1]} response tokens",
        f"{lengths[0]} response tokens",
        grown[-1] / grown[0],
        FLAT,
        note=f"{grown[-1] / 1e6:.0f} MB; token by token {whole[0] / 1e6:.0f} to {whole[-1] / 1e6:.0f} MB",
    )
    curves = [
        Curve("The head", "response tokens", "CPU seconds", lengths, _line(costs, "cpu_seconds", 1.0)),
        Curve("Peak memory of the head", "response tokens", "MB", lengths, _line(costs, "grown_bytes", 1e-6)),
    ]
    return Findings([speed, flat], curves).to_json()


def _costs(weight: Tensor, length: int, repeats: int) -> dict[str, Cost]:
    generator = _seeded()
    hidden = torch.randn((length, weight.shape[1]), generator=generator)
    target = torch.randint(len(weight), (length,), generator=generator)
    segment = np.arange(length) * NUM_SEGMENTS // length
    share = (1.0 / np.bincount(segment)[segment]).astype(np.float32)
    tokens = ResponseTokens(target, torch.from_numpy(segment), torch.from_numpy(share), segment)

    def by_segments() -> Tensor:
        # A head of its own each time: what it keeps between calls counts as its memory.
        return ClosedFormHead(weight).segment_means(hidden, tokens, BLOCK_TOKENS).vector

    def token_by_token(block_tokens: int) -> Tensor:
        return segment_means_by_tokens(weight, hidden, tokens, block_tokens)

    with torch.inference_mode():
        return in_turns(
            {
                "by segments": by_segments,
                "token by token": lambda: token_by_token(length),
                "token by token, in blocks": lambda: token_by_token(BLOCK_TOKENS),
            },
            repeats,
        )


def segment_means_by_tokens(weight: Tensor, hidden: Tensor, tokens: ResponseTokens, block_tokens: int) -> Tensor:
    """Return what the head returns, from the gradient of every token."""
    made: list[Tensor] = []
    for states, target in zip(hidden.split(block_tokens), tokens.target.split(block_tokens), strict=True):
        residual = torch.softmax(states @ weight.t(), dim=1)
        residual[torch.arange(len(target)), target] -= 1.0
        made.append(residual @ weight)
    return averaging_matrix(tokens.segment, tokens.weight, 0, tokens.num_segments) @ torch.cat(made)


def _line(costs: list[dict[str, Cost]], name: str, factor: float) -> dict[str, list[float]]:
    return {form: [max(SMALLEST[name], getattr(cost[form], name)) * factor for cost in costs] for form in costs[0]}


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
