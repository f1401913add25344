"""The finding of a trial: each subset compared with its random subsets, and subsets with each other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.base.finding import Cell, Column, Estimate, Finding, PoolNote, Table, make_columns
from grace_store.base.text import counted
from grace_store.study.trial_documents import TrialItem, TrialPlan, TrialRun, TrialSamples
from grace_store.values.subset_trial import (
    FEWEST_ITEMS,
    Compared,
    compare_subsets,
    compare_with_draws,
    difference_text,
    error_of_look,
    is_clear,
    seed_excess,
    shown,
)

FEW_QUESTIONS = 0.9
"""A subset has few questions if it has less than this share of the fewest questions of a random subset."""
ABOUT_SUBSETS = (
    "Loss per token of held-out responses, mean over seeds; below 0 the subset trains better models. Intervals hold "
    "95 % for all subsets and looks together, over held-out items, seeds and random draws, the subset itself counting "
    "as one draw of its way of choosing. Trainings on the subset may vary more between seeds than those on random "
    "subsets, as far as seeds show it; with a single seed they are taken to vary as much."
)
ABOUT_PAIRS = (
    "Below 0 the first trains better models. These comparisons are not part of the error rate that the looks above "
    "keep; their own intervals hold 95 % for all pairs together, over the seeds that both have, each subset counting "
    "as one draw of its way of choosing."
)

Results = Mapping[tuple[int, str], TrialRun]
"""Finished trainings, by round and the arm's key."""
Row = dict[str, Cell]


def standing(
    plan: TrialPlan, samples: TrialSamples, results: Results, subset: int, num_rounds: int
) -> tuple[FloatArray, Compared]:
    """Return the held-out losses of a subset, numbered from 0, and of its random subsets, and their comparison.

    The losses are means over rounds for each item: first of the subset, then of its random subsets.
    """
    by_round, share = _losses(samples, results, subset, num_rounds)
    values, error = by_round.mean(axis=0), error_of_look(num_rounds, plan.spec.num_seeds, len(plan.subsets))
    return values, compare_with_draws(values[0], values[1:], share, error, by_round.mean(axis=2))


def _losses(samples: TrialSamples, results: Results, subset: int, num_rounds: int) -> tuple[FloatArray, FloatArray]:
    """Return the held-out losses (rounds, arms, items), of a subset and then its random ones, and the items' shares."""
    losses, weight = _of_items(samples, results, subset, num_rounds, lambda item: item.loss * item.num_tokens)
    # Sums of losses divided by the mean number of tokens: their mean over items is the mean over all tokens.
    return losses / weight.mean(), weight / weight.mean()


def _of_items(
    samples: TrialSamples, results: Results, subset: int, num_rounds: int, value: Callable[[TrialItem], float]
) -> tuple[FloatArray, FloatArray]:
    """Return a value of each item (rounds, arms, items), for a subset and its random subsets; and the tokens."""
    arms = samples.arms_of(subset)
    runs = [[results[round, arm.key] for arm in arms] for round in range(1, num_rounds + 1)]
    found = np.array([[[value(item) for item in run.items] for run in each] for each in runs], dtype=np.float64)
    return found, np.array([item.num_tokens for item in runs[0][0].items], dtype=np.float64)


def conclude_trial(plan: TrialPlan, samples: TrialSamples, results: Results, num_most_runs: int) -> Finding:
    """Return the finding of a trial from all its trainings."""
    store, spec = samples.store, plan.spec
    rows, arms, right = [], [], []
    for subset in range(len(plan.subsets)):
        row, mine = _tried(plan, samples, results, subset)
        rows.append(row)
        arms += mine
        right += [_answers(plan, samples, results, subset, row, mine)] if spec.generate else []
    pairs = list(_pairs(plan, samples, results))
    told = [row["conclusion"] for some in zip(rows, right or rows, strict=True) for row in some]
    told += [conclude_questions(rows, arms), *(pair["conclusion"] for pair in pairs)]
    numbers: Row = {
        "num_pool": plan.num_pool,
        "num_held_out_samples": plan.num_held_out_samples,
        "num_items": len(next(iter(results.values())).items),
        "num_runs": len(results),
        "num_most_runs": num_most_runs,
    }
    tables = {"subsets": _subsets_table(plan, rows, numbers), "arms": _arms_table(arms)}
    if pairs:
        columns = make_columns(first="subset", second="against", num_rounds="seeds of both", difference=DIFFERENCE)
        title = "The subsets against each other"
        tables["pairs"] = Table(title=title, columns=columns, rows=tuple(pairs), about=ABOUT_PAIRS)
    if answered := tuple(row for row in right if "share_right" in row):
        columns = make_columns(subset="subset", share_right="right", random_shares="random subsets")
        columns["difference"] = DIFFERENCE
        tables["answers"] = Table(title="Right answers", columns=columns, rows=answered)
    return Finding(
        study="trial",
        pool=PoolNote(store=store.location, plan_sha256=store.plan.digest(), num_units=store.plan.num_units),
        settings=spec.model_dump(mode="json"),
        conclusion=" ".join(dict.fromkeys(str(sentence) for sentence in told if sentence)),
        numbers=numbers,
        tables=tables,
    )


def _tried(plan: TrialPlan, samples: TrialSamples, results: Results, subset: int) -> tuple[Row, list[Row]]:
    """Return the rows of a subset and of its arms, after the last round or the round with a clear difference."""
    for num_rounds in range(1, num_rounds_of(results, subset) + 1):
        values, (difference, detectable) = standing(plan, samples, results, subset, num_rounds)
        if is_clear(difference):
            break
    planned, keys = plan.subsets[subset], [arm.key for arm in samples.arms_of(subset)]
    losses = values.mean(axis=1).tolist()
    arms: list[Row] = [
        {"subset": planned.name, "arm": key, "heldout_loss": loss, "num_questions": samples.num_questions[key]}
        for key, loss in zip(keys, losses, strict=True)
    ]
    row: Row = {
        "subset": planned.name,
        "num_samples": planned.num_samples,
        "num_trained": planned.num_trained,
        "num_questions": arms[0]["num_questions"],
        "num_rounds": num_rounds,
        "heldout_loss": losses[0],
        "random_losses": f"{min(losses[1:]):.4f} to {max(losses[1:]):.4f}",
        "difference": difference,
        "detectable": detectable,
        "conclusion": conclude_subset(planned.name, num_rounds, plan.spec.num_seeds, (difference, detectable)),
    }
    return row, arms


def _answers(
    plan: TrialPlan, samples: TrialSamples, results: Results, subset: int, tried: Row, arms: Sequence[Row]
) -> Row:
    """Return the row with the share of right answers, if enough items have a clear result; add shares to arms."""
    name, num_rounds = plan.subsets[subset].name, int(str(tried["num_rounds"]))
    by_round, _ = _of_items(samples, results, subset, num_rounds, lambda item: float(bool(item.is_right)))
    first = next(iter(results.values()))
    by_round = by_round[:, :, [item.is_right is not None for item in first.items]]
    right = by_round.mean(axis=0)
    if right.shape[1] < FEWEST_ITEMS:
        few = f"{right.shape[1]} of {len(first.items)} held-out traces end with a clear result"
        example = f"such as `The answer is 7.`, and at least {FEWEST_ITEMS} are wanted"
        return {"subset": name, "conclusion": f"Right answers are too few to compare: {few}, {example}."}
    error = error_of_look(num_rounds, plan.spec.num_seeds, len(plan.subsets))
    share, by_seed = np.ones(right.shape[1]), by_round.mean(axis=2)
    difference, detectable = compare_with_draws(right[0], right[1:], share, error, by_seed)
    shares = right.mean(axis=1).tolist()
    for arm, share in zip(arms, shares, strict=True):
        arm["share_right"] = share
    return {
        "subset": name,
        "share_right": shares[0],
        "random_shares": f"{min(shares[1:]):.3f} to {max(shares[1:]):.3f}",
        "difference": difference,
        "detectable": detectable,
        "conclusion": conclude_answers(name, right, (difference, detectable)),
    }


def _pairs(plan: TrialPlan, samples: TrialSamples, results: Results) -> Iterator[Row]:
    """Yield a row for each pair of subsets, over the seeds that both have."""
    pairs = list(combinations(range(len(plan.subsets)), 2))
    for first, second in pairs:
        num_rounds = min(num_rounds_of(results, each) for each in (first, second))
        both = [_losses(samples, results, each, num_rounds) for each in (first, second)]
        (ours, share), theirs = (both[0][0].mean(axis=0), both[0][1]), both[1][0].mean(axis=0)
        seeds = sum(seed_excess(each.mean(axis=2)) for each, _ in both)
        one, other = plan.subsets[first], plan.subsets[second]
        draws = [ours[1:]] if one.random == other.random else [ours[1:], theirs[1:]]
        error = error_of_look(num_rounds, plan.spec.num_seeds, len(pairs))
        difference, detectable = compare_subsets(ours[0], theirs[0], draws, share, error, seeds)
        yield {
            "first": one.name,
            "second": other.name,
            "num_rounds": num_rounds,
            "difference": difference,
            "detectable": detectable,
            "conclusion": conclude_pair(one.name, other.name, difference),
        }


def num_rounds_of(results: Results, subset: int) -> int:
    """Return the number of seeds that a subset, numbered from 0, was trained with."""
    return max(round for round, key in results if key == f"subset-{subset + 1}")


DIFFERENCE = Column(heading="difference, 95 %", digits=4, chance=0.0)


def _subsets_table(plan: TrialPlan, rows: Sequence[Row], numbers: Row) -> Table:
    runs, most = int(str(numbers["num_runs"])), int(str(numbers["num_most_runs"]))
    early = f", {most - runs} not needed" if runs < most else ""
    amount = f"{counted(runs, 'training')} of {plan.spec.num_updates} updates{early}"
    columns = make_columns(
        subset="subset",
        num_trained="trained on",
        num_questions="questions",
        num_rounds="seeds",
        heldout_loss=Column(heading="loss", digits=4),
        random_losses="random subsets",
        difference=DIFFERENCE,
        detectable=Column(heading="found in 4 of 5 trials", digits=4),
    )
    title = f"Against random subsets: {amount}; {counted(int(str(numbers['num_items'])), 'held-out item')}"
    about = f"{ABOUT_SUBSETS} {say_held_out(plan)}"
    return Table(title=title, columns=columns, rows=tuple(rows), about=about, is_drawn=True)


def _arms_table(arms: Sequence[Row]) -> Table:
    """Return the loss of every subset and random subset, for plots and programs."""
    columns = make_columns(subset="subset", arm="trained on")
    columns |= make_columns(heldout_loss=Column(heading="loss", digits=4), num_questions="questions")
    if any("share_right" in arm for arm in arms):
        columns["share_right"] = Column(heading="right answers")
    return Table(title="Every subset and its random ones", columns=columns, rows=tuple(arms), is_shown=False)


def say_held_out(plan: TrialPlan) -> str:
    """Return a sentence about the samples of the pool that no model is trained on because of held-out questions."""
    taken = plan.num_held_out_samples
    items, pool = counted(len(plan.held_out), "held-out question"), counted(plan.num_pool, "sample")
    if not taken:
        return f"None of the {pool} of the pool asks one of the {items}, so nothing is taken out of it."
    return (
        f"{taken} of the {pool} of the pool ask held-out questions ({len(plan.held_out)}); no model is trained on them."
    )


def conclude_subset(name: str, num_rounds: int, num_seeds: int, found: Compared) -> str:
    """Return whether a subset trains better models than random subsets, or the detectable difference."""
    difference, _ = found
    loss = f"held-out loss {difference_text(difference)}"
    after = f", clear after {num_rounds} of {num_seeds} seeds" if num_rounds < num_seeds else ""
    if is_clear(difference) and difference.value > 0:
        return f"Random subsets train better models than {name}: {loss}{after}."
    if is_clear(difference):
        return f"{name} trains better models than random subsets: {loss}{after}."
    return f"No difference was found between {name} and random subsets: {loss}.{_would_be_found(found)}"


def conclude_questions(tried: Sequence[Row], arms: Sequence[Row]) -> str | None:
    """Return a sentence about subsets with few questions that train no better models; None if there are none.

    tried has a row for each subset; arms has rows for each subset and then for its random subsets.
    """
    alike: dict[tuple[int, ...], list[str]] = {}
    for row in tried:
        of, *random = (int(str(arm["num_questions"])) for arm in arms if arm["subset"] == row["subset"])
        difference = row["difference"]
        if isinstance(difference, Estimate) and difference.value >= 0 and of < FEW_QUESTIONS * min(random):
            alike.setdefault(tuple(random), []).append(f"{row['subset']} of {of}")
    if not alike:
        return None
    told = []
    for counts, names in alike.items():
        low, high = min(counts), max(counts)
        span = f"{low} to {high}" if low < high else str(low)
        told.append(f"random subsets have traces of {span} questions, {', '.join(names)}")
    sentence = "; ".join(told)
    return f"{sentence[0].upper()}{sentence[1:]}: to choose within questions, select with --per-group."


def conclude_pair(first: str, second: str, difference: Estimate) -> str | None:
    """Return which of two subsets trains better models; None if the difference is not clear."""
    if not is_clear(difference):
        return None
    better, worse = (first, second) if difference.value < 0 else (second, first)
    ends = sorted(abs(each) for each in (difference.low, difference.high))
    amount, low, high = (shown(difference, each) for each in (abs(difference.value), *ends))
    return f"{better} trains better models than {worse}: held-out loss lower by {amount}, {low} to {high}."


def conclude_answers(name: str, right: FloatArray, found: Compared) -> str:
    """Return whether the models of a subset give more right answers.

    right has the share of right answers to each item: first of the subset, then of its random subsets.
    """
    difference, _ = found
    ours, random = f"{right[0].mean():.3f}", f"{right[1:].mean():.3f}"
    shares = f"{ours} of them, of random subsets {random} (difference {difference_text(difference)})"
    if is_clear(difference):
        more = "more" if difference.value > 0 else "fewer"
        return f"Models trained on {name} answer {more} questions right: {shares}."
    if not right.any():
        return f"No model answered a question right, so answers say nothing of {name}."
    none = f"No difference was found in how many questions models trained on {name} answer right"
    return f"{none}: {shares}.{_would_be_found(found)}"


def _would_be_found(found: Compared) -> str:
    """Return a sentence about the detectable difference; empty if it rounds to 0, since all models are equal then."""
    amount = shown(*found)
    return f" A difference of {amount} or more would have been found in 4 of 5 such trials." if float(amount) else ""
