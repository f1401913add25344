"""How often does a learned value find labels that are there, and labels that are not? Simulated pools.

    python -m jobs.learned_rates

Each pool has questions with one or eight traces, twenty measures of each trace, and labels that one of the measures
follows (planted) or that nothing follows (random). In half of the settings questions differ much in level: all
measures of a question are shifted together, five times as far as traces of one question differ.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import numpy as np

from grace_store.values.learned import fold_of_questions, learn_forward, moments_by_fold, standardise, values_by_fold
from grace_store.values.roc import LabelledItems, area_across, area_within

NUM_POOLS = 200
NUM_MEASURES = 20


def simulate_pool(num_questions: int, num_traces: int, *, level: float, effect: float, seed: int) -> tuple[Any, ...]:
    """Return measures, labels and questions; one measure is larger by effect for right traces."""
    rng = np.random.default_rng(seed)
    question = np.repeat(np.arange(num_questions), num_traces)
    right = rng.random(len(question)) < 0.5
    measures = (
        rng.normal(size=(len(question), NUM_MEASURES))
        + level * rng.normal(size=(num_questions, NUM_MEASURES))[question]
    )
    measures[:, 3] += effect * right
    return measures, right, question


def rate(num_questions: int, num_traces: int, *, level: float, effect: float) -> tuple[float, float]:
    """Return the shares of pools whose interval lies above chance: over all pairs, and over pairs of one question."""
    found = np.zeros(2)
    for seed in range(NUM_POOLS):
        raw, right, question = simulate_pool(num_questions, num_traces, level=level, effect=effect, seed=seed)
        measures, _ = standardise(raw, question)
        fold = fold_of_questions(question, np.ones(len(question), dtype=bool), seed=0)
        folds = moments_by_fold(measures, np.arange(len(question)), right, fold)
        value = values_by_fold(measures, fold, learn_forward(folds))
        items = LabelledItems(right, question, fold)
        areas = area_across(value, items, fixed=True), area_within(value, items)
        found += [each.low > 0.5 for each in areas]
    return float(found[0] / NUM_POOLS), float(found[1] / NUM_POOLS)


def main() -> int:
    """Print a table."""
    out = sys.stdout
    out.write(
        f"{NUM_POOLS} pools of each kind: share whose interval lies above chance, of all pairs (one question)\n\n"
    )
    out.write("| questions | traces | level | planted | random |\n|---|---|---|---|---|\n")
    for (questions, traces), level in product(((60, 1), (60, 8), (400, 1), (400, 8)), (0.0, 5.0)):
        cells = []
        for effect in (1.0, 0.0):
            every, same = rate(questions, traces, level=level, effect=effect)
            cells.append(f"{every:.3f}" + (f" ({same:.3f})" if traces > 1 else ""))
        out.write(f"| {questions} | {traces} | {level:g} | {cells[0]} | {cells[1]} |\n")
        out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
