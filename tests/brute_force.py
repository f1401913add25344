"""Scores of one sample by a brute force over its vectors, written from the design with plain loops."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import assume

from grace_store.values.methods.method import ScoreSpec

HISTORIES = ["uniform", "window:1", "window:3", "window:100", "ema:0", "ema:0.5", "ema:0.99"]
TARGETS = ["answer", "trace", "suffix"]
AGGREGATIONS = ["mean", "min", "last", "length_weighted", "quantile:0", "quantile:0.3", "quantile:0.5", "quantile:1"]

TINY = 2.0**-126
RESOLUTION = 2.0**-22
ROUGH = 2.0**-10


@dataclass
class Expected:
    step_score: list[float]
    answer_alignment: list[float]
    history_alignment: list[float]
    value: float
    zero_vector: bool
    cancelling: bool


def dot(u, v) -> float:
    return math.fsum(float(a) * float(b) for a, b in zip(u, v, strict=True))


def cosine_with_sum(g, parts: list[tuple[float, np.ndarray]]) -> tuple[float, bool, bool]:
    """Return cos(g, sum of w v over (w, v)), whether one of the two counts as the zero vector, or the sum nearly."""
    total = math.fsum(w for w, _ in parts)
    parts = [(w / total, v) for w, v in parts] if total > 0 else []
    reference = [math.fsum(w * float(v[i]) for w, v in parts) for i in range(len(g))]
    square, longest = dot(reference, reference), math.fsum(w * math.sqrt(dot(v, v)) for w, v in parts) ** 2
    # Which side of the line a reference exactly on it falls is rounding's choice.
    if any(0.9999 < square / max(line * longest, TINY) < 1.0001 for line in (RESOLUTION, ROUGH)):
        assume(False)
    if dot(g, g) < TINY or square < TINY or square <= RESOLUTION * longest:
        return 0.0, True, False
    return dot(g, reference) / math.sqrt(dot(g, g)) / math.sqrt(square), False, square <= ROUGH * longest


def design_weight(history: str, k: int, j: int) -> float:
    """Return w_kj, k and j from 1 as in the design."""
    kind, _, parameter = history.partition(":")
    if kind == "uniform":
        return 1 / (k - 1)
    if kind == "window":
        used = min(int(parameter), k - 1)
        return 1 / used if j >= k - used else 0.0
    beta = float(parameter)
    return beta ** (k - 1 - j) / math.fsum(beta ** (k - 1 - i) for i in range(1, k))


def brute_force(vectors: np.ndarray, num_tokens: np.ndarray, spec: ScoreSpec, weight=design_weight) -> Expected:
    num_steps = len(vectors) - 1
    g = [None, *vectors]  # from 1; the answer is g[num_steps + 1]
    c = [None, *(float(count) for count in num_tokens)]
    a, h, zero, rough = [], [], False, False
    for k in range(1, num_steps + 1):
        first = {"answer": num_steps + 1, "trace": 1, "suffix": k + 1}[spec.target]
        parts = [(1.0 if spec.target == "answer" else c[s], g[s]) for s in range(first, num_steps + 2)]
        cosine, met_zero, met_rough = cosine_with_sum(g[k], parts)
        a.append(cosine)
        zero, rough = zero or met_zero, rough or met_rough
        if k == 1:
            h.append(math.nan)
            continue
        past = [(weight(spec.history, k, j), g[j]) for j in range(1, k)]
        cosine, met_zero, met_rough = cosine_with_sum(g[k], past)
        h.append(cosine)
        zero, rough = zero or met_zero, rough or met_rough
    if spec.without_answer:
        scores = [math.nan, *h[1:]]
        used = range(1, num_steps)
    else:
        scores = [a[0], *(spec.alpha * x + (1 - spec.alpha) * y for x, y in zip(a[1:], h[1:], strict=True))]
        used = range(num_steps)
    return Expected(scores, a, h, aggregated([scores[k] for k in used], [c[k + 1] for k in used], spec), zero, rough)


def aggregated(scores: list[float], counts: list[float], spec: ScoreSpec) -> float:
    if not scores:
        return math.nan
    kind, _, quantile = spec.aggregation.partition(":")
    if kind == "mean":
        return math.fsum(scores) / len(scores)
    if kind == "min":
        return min(scores)
    if kind == "last":
        return scores[-1]
    if kind == "quantile":
        return float(np.quantile(scores, float(quantile)))
    if sum(counts) == 0:
        return math.nan
    return math.fsum(s * c for s, c in zip(scores, counts, strict=True)) / math.fsum(counts)
