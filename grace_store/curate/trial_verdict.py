"""What the trainings of a trial come to: each subset against its random ones, after each round, and in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from grace_store.artifacts.trial_documents import SubsetPair, TrialItem, TrialPlan, TrialRun, TriedSubset
from grace_store.base.arrays import FloatArray
from grace_store.base.text import counted
from grace_store.curate.trial_samples import TrialSamples
from grace_store.values.subset_trial import (
    FEWEST_ITEMS,
    SubsetDifference,
    compare_subsets,
    compare_with_draws,
    error_of_look,
)

FEW_QUESTIONS = 0.9
"""Below this share of the fewest questions that a random subset has, a subset is said to have few."""

Results = Mapping[tuple[int, str], TrialRun]
"""What is over, by round and the arm's key."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One subset after some rounds."""

    num_rounds: int
    subset: FloatArray
    """For each item, the mean over rounds."""
    draws: FloatArray
    """The same of each random subset, shape (D, I)."""
    difference: SubsetDifference


def standing(plan: TrialPlan, samples: TrialSamples, results: Results, subset: int, num_rounds: int) -> Standing:
    """Return how a subset, numbered from 0, stands after some rounds, by its held-out losses."""
    values, share = _losses(samples, results, subset, num_rounds)
    error = error_of_look(num_rounds, plan.spec.num_seeds, len(plan.subsets))
    return Standing(num_rounds, values[0], values[1:], compare_with_draws(values[0], values[1:], share, error))


def _losses(samples: TrialSamples, results: Results, subset: int, num_rounds: int) -> tuple[FloatArray, FloatArray]:
    """Return the held-out losses of a subset and then its random ones, for each item, and the items' shares."""
    losses, weight = _means(samples, results, subset, num_rounds, lambda item: item.loss * item.num_tokens)
    # Sums of losses over the mean number of tokens: their mean over items is the mean over all tokens.
    return losses / weight.mean(), weight / weight.mean()


def last_standing(plan: TrialPlan, samples: TrialSamples, results: Results, subset: int, num_rounds: int) -> Standing:
    """Return how a subset stood when its answer was clear, or after all of these rounds."""
    for round in range(1, num_rounds + 1):
        found = standing(plan, samples, results, subset, round)
        if found.difference.is_clear:
            break
    return found


def _means(
    samples: TrialSamples, results: Results, subset: int, num_rounds: int, value: Callable[[TrialItem], float]
) -> tuple[FloatArray, FloatArray]:
    """Return the mean over rounds of a value of each item, for the subset and then its random ones; and the tokens."""
    arms = samples.arms_of(subset)
    runs = [[results[round, arm.key] for arm in arms] for round in range(1, num_rounds + 1)]
    found = np.array([[[value(item) for item in run.items] for run in each] for each in runs], dtype=np.float64)
    tokens = np.array([item.num_tokens for item in runs[0][0].items], dtype=np.float64)
    return found.mean(axis=0), tokens


def tried_subset(plan: TrialPlan, samples: TrialSamples, results: Results, subset: int, found: Standing) -> TriedSubset:
    """Return what a subset came to, as its document has it."""
    planned = plan.subsets[subset]
    num_questions, *random = (samples.num_questions[arm.key] for arm in samples.arms_of(subset))
    answers = _answers(plan, samples, results, subset, found) if plan.spec.generate else {}
    return TriedSubset(
        name=planned.name,
        num_samples=planned.num_samples,
        num_trained=planned.num_trained,
        num_questions=num_questions,
        random_num_questions=tuple(random),
        num_rounds=found.num_rounds,
        heldout_loss=float(found.subset.mean()),
        random_losses=tuple(found.draws.mean(axis=1).tolist()),
        difference=found.difference,
        conclusion=conclude_subset(planned.name, found, plan.spec.num_seeds),
        **answers,
    )


def _answers(
    plan: TrialPlan, samples: TrialSamples, results: Results, subset: int, found: Standing
) -> dict[str, float | tuple[float, ...] | SubsetDifference | str]:
    right, _ = _means(samples, results, subset, found.num_rounds, lambda item: float(bool(item.is_right)))
    first = next(iter(results.values()))
    right = right[:, [item.is_right is not None for item in first.items]]
    if right.shape[1] < FEWEST_ITEMS:
        return {"right_conclusion": _too_few_clear(right.shape[1], len(first.items))}
    error = error_of_look(found.num_rounds, plan.spec.num_seeds, len(plan.subsets))
    difference = compare_with_draws(right[0], right[1:], np.ones(right.shape[1]), error)
    return {
        "share_right": float(right[0].mean()),
        "random_shares_right": tuple(right[1:].mean(axis=1).tolist()),
        "right_difference": difference,
        "right_conclusion": conclude_answers(plan.subsets[subset].name, right, difference),
    }


def compare_pairs(plan: TrialPlan, samples: TrialSamples, results: Results) -> tuple[SubsetPair, ...] | None:
    """Return each two of the subsets against each other; None for a single subset."""
    pairs = list(combinations(range(len(plan.subsets)), 2))
    return tuple(_pair(plan, samples, results, *pair, num_pairs=len(pairs)) for pair in pairs) or None


def _pair(
    plan: TrialPlan, samples: TrialSamples, results: Results, first: int, second: int, *, num_pairs: int
) -> SubsetPair:
    """Compare two subsets, numbered from 0, over the seeds that both have."""
    num_rounds = min(num_rounds_of(results, each) for each in (first, second))
    (ours, share), (theirs, _) = (_losses(samples, results, each, num_rounds) for each in (first, second))
    one, other = plan.subsets[first], plan.subsets[second]
    draws = [ours[1:]] if one.random == other.random else [ours[1:], theirs[1:]]
    error = error_of_look(num_rounds, plan.spec.num_seeds, num_pairs)
    difference = compare_subsets(ours[0], theirs[0], draws, share, error)
    told = conclude_pair(one.name, other.name, difference)
    return SubsetPair(first=one.name, second=other.name, num_rounds=num_rounds, difference=difference, conclusion=told)


def num_rounds_of(results: Results, subset: int) -> int:
    """Return how many seeds a subset, numbered from 0, was trained with."""
    return max(round for round, key in results if key == f"subset-{subset + 1}")


# ---------------------------------------------------------------- in words


def say_held_out(plan: TrialPlan) -> str:
    """Return how many samples of the pool no model is trained on, since their question is held out."""
    taken = plan.num_held_out_samples
    items, pool = counted(len(plan.held_out), "held-out question"), counted(plan.num_pool, "sample")
    if not taken:
        return f"None of the {pool} of the pool asks one of the {items}, so nothing is taken out of it."
    return (
        f"{taken} of the {pool} of the pool ask held-out questions ({len(plan.held_out)}); no model is trained on them."
    )


def conclude_subset(name: str, found: Standing, num_seeds: int) -> str:
    """Return whether a subset trains better models than random ones, or what would have been found."""
    each = found.difference
    shown = f"held-out loss {each}"
    after = f", clear after {found.num_rounds} of {num_seeds} seeds" if found.num_rounds < num_seeds else ""
    if each.is_clear and each.difference > 0:
        return f"Random subsets train better models than {name}: {shown}{after}."
    if each.is_clear:
        return f"{name} trains better models than random subsets: {shown}{after}."
    return f"No difference was found between {name} and random subsets: {shown}.{_would_be_found(each)}"


def conclude_questions(tried: Sequence[TriedSubset]) -> str | None:
    """Return which subsets have few questions, where that may be why they train no better models."""
    few = [each for each in tried if each.difference.difference >= 0 and _has_few_questions(each)]
    if not few:
        return None
    alike: dict[tuple[int, ...], list[str]] = {}
    for each in few:
        alike.setdefault(each.random_num_questions or (), []).append(f"{each.name} of {each.num_questions}")
    told = [f"random subsets have traces of {_span(random)} questions, {', '.join(of)}" for random, of in alike.items()]
    sentence = "; ".join(told)
    return f"{sentence[0].upper()}{sentence[1:]}: to choose within questions, select with --per-group."


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low} to {high}" if low < high else str(low)


def _has_few_questions(each: TriedSubset) -> bool:
    random = each.random_num_questions
    return bool(random and each.num_questions is not None and each.num_questions < FEW_QUESTIONS * min(random))


def conclude_pair(first: str, second: str, difference: SubsetDifference) -> str | None:
    """Return which of two subsets trains better models; nothing if that is not clear."""
    if not difference.is_clear:
        return None
    better, worse = (first, second) if difference.difference < 0 else (second, first)
    ends = sorted(abs(each) for each in (difference.low, difference.high))
    amount, low, high = (difference.shown(each) for each in (abs(difference.difference), *ends))
    return f"{better} trains better models than {worse}: held-out loss lower by {amount}, {low} to {high}."


def conclude_answers(name: str, right: FloatArray, difference: SubsetDifference) -> str:
    """Return whether a subset's models answer more questions right; right has its share of each item, then draws'."""
    ours, random = f"{right[0].mean():.3f}", f"{right[1:].mean():.3f}"
    shown = f"{ours} of them, of random subsets {random} (difference {difference})"
    if difference.is_clear:
        more = "more" if difference.difference > 0 else "fewer"
        return f"Models trained on {name} answer {more} questions right: {shown}."
    if not right.any():
        return f"No model answered a question right, so answers say nothing of {name}."
    none = f"No difference was found in how many questions models trained on {name} answer right"
    return f"{none}: {shown}.{_would_be_found(difference)}"


def _would_be_found(difference: SubsetDifference) -> str:
    """Say which difference a trial finds; nothing where it rounds to 0, as all models do the same then."""
    amount = difference.shown(difference.detectable)
    return f" A difference of {amount} or more would have been found in 4 of 5 such trials." if float(amount) else ""


def _too_few_clear(num_clear: int, num_items: int) -> str:
    return (
        f"Right answers are too few to compare: {num_clear} of {num_items} held-out traces end with a clear result, "
        f"such as `The answer is 7.`, and at least {FEWEST_ITEMS} are wanted."
    )
