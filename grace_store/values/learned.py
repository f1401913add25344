"""A learned value: ridge regression of labels on measures, cross-fitted by question. Knows no files. numpy only.

Questions are split into folds. An item whose question has labels gets its value from a model that was fitted without
the question's fold; all other items get theirs from the model of all labels. The strength of the penalty is chosen by
the squared error on the folds that a model may see. Sums over items (moments) are enough for all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grace_store.base.arrays import Array, BoolArray, FloatArray, IntArray

NUM_FOLDS = 5
PENALTIES = (0.01, 0.1, 1.0, 10.0)
"""Penalties to choose from, as shares of the number of items."""
ITEMS_AT_ONCE = 1 << 16


def moments_by_fold(x: Array, is_right: BoolArray, fold: IntArray) -> FloatArray:
    """Return the second moments of labelled items, (folds, F + 2, F + 2).

    They are sums of z z^T, where z has 1, the measures x (with mean 0 and deviation 1 over the pool), and the label.
    """
    found = np.zeros((NUM_FOLDS, x.shape[1] + 2, x.shape[1] + 2))
    for number in range(NUM_FOLDS):
        mine = np.flatnonzero(fold == number)
        for start in range(0, len(mine), ITEMS_AT_ONCE):
            part = mine[start : start + ITEMS_AT_ONCE]
            z = np.column_stack([np.ones(len(part)), x[part], is_right[part]]).astype(np.float64)
            found[number] += z.T @ z
    return found


def _centred(moments: FloatArray) -> FloatArray:
    """Return the second moments of measures and label about their means over the same items."""
    return np.asarray(moments[1:, 1:] - np.outer(moments[0, 1:], moments[0, 1:]) / max(moments[0, 0], 1))


def fit(moments: FloatArray, penalty: float) -> FloatArray:
    """Return r such that r @ z is the error of the ridge regression of the label on the measures."""
    num, centred = max(moments[0, 0], 1), _centred(moments)
    weights = np.linalg.solve(centred[:-1, :-1] + penalty * num * np.eye(len(centred) - 1), centred[:-1, -1])
    level = (moments[0, -1] - weights @ moments[0, 1:-1]) / num
    return np.concatenate([[-level], -weights, [1.0]])


def _best_fit(folds: FloatArray) -> FloatArray:
    """Return the weights from all of these folds, with the penalty that predicts each of them best from the others.

    Means are taken over the items that a model sees, so no label has a part in a model that must not see it.
    """
    penalty = PENALTIES[-2]
    if len(folds) > 1:
        others = [np.delete(folds, number, axis=0).sum(axis=0) for number in range(len(folds))]
        errors = [
            sum(r @ fold @ r for fold, r in zip(folds, (fit(each, tried) for each in others), strict=True))
            for tried in PENALTIES
        ]
        penalty = PENALTIES[int(np.argmin(errors))]
    return -fit(folds.sum(axis=0), penalty)[1:-1]


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """Weights of measures, with all labels and without each fold."""

    weights: FloatArray
    """(F,), from all labels."""
    fold_weights: FloatArray
    """(folds, F), each without the labels of one fold."""

    def values(self, x: Array, fold: IntArray) -> FloatArray:
        """Return the value of each item, from measures (n, F) and the fold of its question; -1 for no fold."""
        out = np.empty(len(x))
        weights = np.concatenate([self.fold_weights, self.weights[None]])
        for start in range(0, len(x), ITEMS_AT_ONCE):
            part = slice(start, start + ITEMS_AT_ONCE)
            by_fold = x[part].astype(np.float64) @ weights.T  # -1 is the last column, of all labels
            out[part] = np.take_along_axis(by_fold, fold[part, None] % len(weights), axis=1)[:, 0]
        return out


def fold_of_questions(question: IntArray, is_labelled: BoolArray, seed: int) -> IntArray:
    """Return the fold of each item: labelled questions are dealt to folds at random, others have -1."""
    fold = np.full(int(question.max(initial=-1)) + 1, -1)
    labelled = np.unique(question[is_labelled])
    fold[labelled] = np.random.Generator(np.random.Philox(seed)).permutation(len(labelled)) % NUM_FOLDS
    return fold[question]


def learn(folds: FloatArray) -> LearnedModel:
    """Fit the labelled items of all folds, given by their moments."""
    without = [_best_fit(np.delete(folds, number, axis=0)) for number in range(len(folds))]
    return LearnedModel(_best_fit(folds), np.stack(without))


def judge_forward(x: Array, fold: IntArray, folds: FloatArray) -> FloatArray:
    """Return values for judging a learned model: each fold by a model of the folds before it; NaN in the first.

    Models that saw all other folds would share labels with the folds that they are judged on both ways round, and
    intervals for them would be too narrow by a factor of up to 1.4.
    """
    learned = np.full(len(x), np.nan)
    for number in range(1, NUM_FOLDS):
        mine = fold == number
        learned[mine] = x[mine] @ _best_fit(folds[:number])
    return learned


def single_forward(x: Array, is_right: BoolArray, fold: IntArray) -> FloatArray:
    """Return values for judging the best single column of x: the one most correlated with labels in the folds before.

    Columns need no scale. Items of the first fold have no value (NaN).
    """
    folds, single = moments_by_fold(x, is_right, fold), np.full(len(x), np.nan)
    for number in range(1, NUM_FOLDS):
        centred, mine = _centred(folds[:number].sum(axis=0)), fold == number
        deviation = np.sqrt(np.maximum(np.diag(centred)[:-1], 0))
        product = np.divide(centred[:-1, -1], deviation, out=np.zeros_like(deviation), where=deviation > 0)
        best = int(np.argmax(np.abs(product)))
        single[mine] = np.sign(product[best]) * x[mine, best]
    return single


# ---------------------------------------------------------------- measures of a pool as columns


def _zeros(num_rows: int, num_columns: int) -> Array:
    return np.zeros((num_rows, num_columns), dtype=np.float32)


def standardise(x: Array, question: IntArray, empty: Callable[[int, int], Array] = _zeros) -> Array:
    """Return measures (n, F) with mean 0 and deviation 1, float32, in an array from empty; missing ones become 0.

    If a question has several items, each measure becomes two columns: its difference from the question's mean, and
    that mean. So what differs between questions cannot hide what differs within them.
    """
    count = np.bincount(question)
    has_groups = bool((count > 1).any())
    out = empty(len(x), x.shape[1] * (2 if has_groups else 1))
    for column in range(x.shape[1]):
        filled = without_gaps(x[:, column]).astype(np.float64)
        if not has_groups:
            out[:, column] = _standard(filled)
            continue
        mean = (np.bincount(question, filled) / np.maximum(count, 1))[question]
        out[:, column], out[:, column + x.shape[1]] = _standard(filled - mean), _standard(mean)
    return out


def without_gaps(value: Array) -> Array:
    """Return the values of a measure with their mean in place of missing ones.

    >>> without_gaps(np.array([1.0, np.nan, 3.0]))
    array([1., 2., 3.])
    """
    known = np.isfinite(value)
    return np.where(known, value, value[known].mean(dtype=np.float64) if known.any() else 0.0)


def _standard(value: FloatArray) -> FloatArray:
    mean, deviation = value.mean(), value.std()
    # Differences that are only rounding must not become a measure.
    return (value - mean) / deviation if deviation > 1e-7 * max(abs(mean), 1e-30) else np.zeros_like(value)
