"""Do intervals hold the true number in 95 % of pools, and are false claims as rare as stated? Simulated pools, counted.

    python -m jobs.coverage [--repetitions 2000] [--seed 0]

A pool has 60 or 400 questions of 1 or 8 traces. Half of the variance of all numbers lies between questions. Noise is
normal, or Student's t with 3 degrees of freedom, for questions and for traces. The truth comes from the formula, or
from one pool of 200,000 questions. Prints the tables of docs/auditing.md and docs/trial.md.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray, offsets_of
from grace_store.base.finding import Estimate
from grace_store.values.agreement import agreement, survival
from grace_store.values.intervals import compare_groups, ratio_over_questions, sums_by_question
from grace_store.values.length_bias import explained_by_lengths, kept_by_chance, kept_over_all, rank_correlation
from grace_store.values.ranking import Length, budget, top_mask
from grace_store.values.roc import LabelledItems, LabelledTraces, area_across, area_within, find_first_errors
from grace_store.values.subset_trial import compare_with_draws, error_of_look, is_clear

EXPLAINED = 0.2
"""Share of the variance of values that length explains."""
RATIO = "0.2"
NUM_TRUE = 200_000
"""Questions of the pool that truths are measured in."""


@dataclass(frozen=True)
class Pool:
    """A kind of pool."""

    num_questions: int
    num_traces: int
    noise: str

    @property
    def question(self) -> IntArray:
        return np.repeat(np.arange(self.num_questions), self.num_traces)

    def draw(self, rng: np.random.Generator, noise: str | None = None) -> FloatArray:
        """Return a number of variance 1 for each trace, half of it shared by the traces of a question."""
        noise = noise or self.noise
        parts = [_noise(rng, noise, num) for num in (self.num_questions, len(self.question))]
        mixed: FloatArray = math.sqrt(0.5) * parts[0][self.question] + math.sqrt(0.5) * parts[1]
        return mixed

    def best(self, value: FloatArray) -> BoolArray:
        return top_mask(value, budget(RATIO, len(value)))


POOLS = tuple(Pool(*each) for each in product((60, 400), (1, 8), ("normal", "t3")))


def _noise(rng: np.random.Generator, noise: str, num: int) -> FloatArray:
    return rng.standard_normal(num) if noise == "normal" else rng.standard_t(3, num) / math.sqrt(3)


# ---------------------------------------------------------------- intervals: a pool -> an estimate, and its true number


def explained(pool: Pool, rng: np.random.Generator) -> Estimate:
    """Draw lengths and values, and estimate the share that length explains."""
    log_step, log_num = (pool.draw(rng, "normal") for _ in range(2))
    value = math.sqrt(EXPLAINED) * log_step + math.sqrt(1 - EXPLAINED) * pool.draw(rng)
    step, num = np.exp(4 + 0.4 * log_step), np.exp(2 + 0.3 * log_num)
    lengths: dict[Length, FloatArray] = {"step_length": step, "response_length": step * num + 9, "num_steps": num}
    return explained_by_lengths(value, lengths, pool.question)[0]


def labelled(pool: Pool, rng: np.random.Generator, gap: float = 0.7) -> tuple[FloatArray, LabelledItems]:
    """Draw labels, which traces of a question share in part, and scores that are higher for right traces."""
    is_right = pool.draw(rng, "normal") > -0.3
    items = LabelledItems(is_right, pool.question, np.zeros(len(is_right), np.int64))
    return pool.draw(rng) + gap * is_right, items


def area(pool: Pool, rng: np.random.Generator) -> Estimate:
    """Estimate an area over all pairs."""
    return area_across(*labelled(pool, rng))


def area_in_questions(pool: Pool, rng: np.random.Generator) -> Estimate:
    """Estimate an area over pairs of one question."""
    return area_within(*labelled(pool, rng))


def two_values(pool: Pool, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Draw two values of each trace that agree in part."""
    common = pool.draw(rng)
    one, other = (math.sqrt(0.8) * common + math.sqrt(0.2) * pool.draw(rng) for _ in range(2))
    return one, other


def overlap(pool: Pool, rng: np.random.Generator) -> Estimate:
    """Estimate the overlap of the best samples by two values."""
    return survival(*two_values(pool, rng), RATIO, pool.question)


def order(pool: Pool, rng: np.random.Generator) -> Estimate:
    """Estimate a rank correlation."""
    one, other = two_values(pool, rng)
    if pool.num_questions == NUM_TRUE:
        return Estimate(value=rank_correlation(one, other))
    return agreement(one, other, np.arange(len(one) + 1), pool.question)


def mean(pool: Pool, rng: np.random.Generator) -> Estimate:
    """Estimate a mean."""
    value = pool.draw(rng)
    sums, num = sums_by_question(pool.question, [value, np.ones(len(value))])
    return ratio_over_questions(sums, num, len(value), scale="plain")


def share(pool: Pool, rng: np.random.Generator) -> Estimate:
    """Estimate the share of traces with a property."""
    has = pool.draw(rng, "normal") > 0.84
    sums, num = sums_by_question(pool.question, [has, np.ones(len(has))])
    return ratio_over_questions(sums, num, len(has))


Study = Callable[[Pool, np.random.Generator], Estimate]
INTERVALS: dict[str, Study] = {
    "share that length explains (`score`, `audit`)": explained,
    "area over all pairs (`judge`)": area,
    "area over pairs of one question (`judge`)": area_in_questions,
    "overlap of the best (`stability`, `sweep`, `fidelity`)": overlap,
    "rank correlation (`fidelity`)": order,
    "mean (`weights`)": mean,
    "share (`report`)": share,
}


@functools.cache
def truth(study: Study, num_traces: int, noise: str) -> float:
    """Return the number that a study would find in all traces of a kind."""
    known = {explained: EXPLAINED, mean: 0.0}
    if study in known:
        return known[study]
    pool = Pool(NUM_TRUE, num_traces, noise)
    return study(pool, np.random.Generator(np.random.Philox(1 << 40))).value


def coverage(study: Study, pool: Pool, repetitions: int, seed: int) -> float:
    """Return the share of pools whose interval holds the truth; NaN if there are no intervals."""
    rng = np.random.Generator(np.random.Philox(seed))
    true = truth(study, pool.num_traces, pool.noise) if study is not area_in_questions or pool.num_traces > 1 else 0.0
    found = [each for _ in range(repetitions) if (each := study(pool, rng)).is_known]
    return float(np.mean([each.low <= true <= each.high for each in found])) if found else math.nan


# ---------------------------------------------------------------- claims where nothing is true


def groups_claimed(pool: Pool, rng: np.random.Generator) -> bool:
    """Return whether a group of questions is said to rise or fall by values that know nothing of groups."""
    group = rng.integers(0, 4, pool.num_questions)[pool.question]
    found = compare_groups(group, pool.best(pool.draw(rng)), pool.question)
    return any(each.low > 0 or each.high < 0 for each in found)


def length_claimed(pool: Pool, rng: np.random.Generator) -> bool:
    """Return whether the best samples are said to be longer or shorter by values that know nothing of length."""
    kept = pool.best(pool.draw(rng))
    lengths = [np.exp(4 + 0.4 * pool.draw(rng, "normal")) for _ in range(3)]
    return any(abs(kept_over_all(each, kept) - 1) > kept_by_chance(each, kept, pool.question) for each in lengths)


def areas_claimed(pool: Pool, rng: np.random.Generator, num: int) -> bool:
    """Return whether one of some measures that know nothing is said to be better than chance."""
    _, items = labelled(pool, rng)
    areas = [area_across(pool.draw(rng), items) for _ in range(num)]
    return any(each.low > 0.5 and (each.p_value or 0.0) * num <= 0.05 for each in areas)


def first_errors_claimed(pool: Pool, rng: np.random.Generator, num: int) -> bool:
    """Return whether one of some measures that know nothing is said to find first errors."""
    num_steps = rng.integers(3, 9, len(pool.question))
    is_wrong = pool.draw(rng, "normal") > 0
    first_wrong = np.where(is_wrong, (rng.random(len(num_steps)) * num_steps).astype(np.int64), -1)
    traces = LabelledTraces(offsets_of(num_steps), first_wrong, pool.question)
    found = [find_first_errors(rng.random(int(num_steps.sum())), traces, 0) for _ in range(num)]
    return any(each.low > traces.blind_f1 and (each.p_value or 0.0) * num <= 0.05 for each in found)


Claim = Callable[[Pool, np.random.Generator], bool]
CLAIMS: dict[str, Claim] = {
    "one of 4 groups rises or falls (`audit --by`)": groups_claimed,
    "the best are longer or shorter (`select`, `audit`)": length_claimed,
    "one of 6 measures is better than chance (`judge`)": functools.partial(areas_claimed, num=6),
    "one of 24 measures is better than chance (`judge`)": functools.partial(areas_claimed, num=24),
    "one of 6 measures finds first errors (`judge`)": functools.partial(first_errors_claimed, num=6),
    "one of 24 measures finds first errors (`judge`)": functools.partial(first_errors_claimed, num=24),
}


def rate(claim: Claim, pool: Pool, repetitions: int, seed: int) -> float:
    """Return the share of pools with a claim."""
    rng = np.random.Generator(np.random.Philox(seed))
    return float(np.mean([claim(pool, rng) for _ in range(repetitions)]))


# ---------------------------------------------------------------- trials

DRAWS, SEEDS, ITEMS = 5, 3, 60
"""Size of the simulated trials: random subsets, seeds and held-out items."""


def one_trial(rng: np.random.Generator, fold: float = 1.0, difference: float = 0.0) -> tuple[bool, float]:
    """Return whether a trial says that a subset differs, and its detectable difference.

    Subsets vary by half as much as trainings do; trainings on the given subset vary fold times as much as others.
    """
    noise = rng.standard_normal((SEEDS, DRAWS + 1, 1)) * np.where(np.arange(DRAWS + 1) == 0, fold, 1.0)[:, None]
    items = rng.standard_normal(ITEMS) + 0.1 * rng.standard_normal((1, DRAWS + 1, ITEMS))
    loss = 0.5 * rng.standard_normal((1, DRAWS + 1, 1)) + rng.standard_normal((SEEDS, 1, 1)) + noise + items
    loss[:, 0] += difference
    detectable = math.nan
    for num in range(1, SEEDS + 1):
        mean_loss, error = loss[:num].mean(axis=0), error_of_look(num, SEEDS, 1)
        by_seed = loss[:num].mean(axis=2)
        found, detectable = compare_with_draws(mean_loss[0], mean_loss[1:], np.ones(ITEMS), error, by_seed)
        if is_clear(found):
            return True, detectable
    return False, detectable


def trial_rates(repetitions: int, seed: int) -> dict[str, float]:
    """Return how often a trial claims a difference that is not there, and finds the one that it calls detectable."""
    rng = np.random.Generator(np.random.Philox(seed))
    rates = {}
    for fold in (1, 2, 3):
        name = f"a difference, where there is none; the subset's trainings vary {fold} x as much"
        rates[name] = float(np.mean([one_trial(rng, fold)[0] for _ in range(repetitions)]))
    found = []
    while len(found) < repetitions:
        is_found, detectable = one_trial(rng)
        found += [] if is_found else [one_trial(rng, difference=detectable)[0]]
    rates["the difference that another trial said 4 of 5 would find"] = float(np.mean(found))
    return rates


# ---------------------------------------------------------------- tables


def _table(heading: str, rows: dict[str, list[float]]) -> Iterator[str]:
    names = [f"{each.num_questions} x {each.num_traces}, {each.noise}" for each in POOLS]
    yield f"| {heading} | {' | '.join(names)} |"
    yield "|---|" + "---|" * len(names)
    for name, numbers in rows.items():
        yield f"| {name} | {' | '.join('-' if each != each else f'{100 * each:.1f}' for each in numbers)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m jobs.coverage", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000, help="pools of each kind (default: 2000)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    amount = (chosen.repetitions, chosen.seed)
    held = {name: [coverage(study, pool, *amount) for pool in POOLS] for name, study in INTERVALS.items()}
    sys.stdout.write("\n".join(_table("95 % interval of, held in %", held)) + "\n\n")
    fewer = max(1, chosen.repetitions // 4)  # many measures each
    claimed = {name: [rate(claim, pool, fewer, chosen.seed) for pool in POOLS] for name, claim in CLAIMS.items()}
    sys.stdout.write("\n".join(_table("claimed though not true, in %", claimed)) + "\n")
    trials = trial_rates(chosen.repetitions, chosen.seed)
    rows = (f"| {name} | {100 * each:.1f} |" for name, each in trials.items())
    sys.stdout.write("\n".join(["", "| a trial claims, in % | |", "|---|---|", *rows]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
