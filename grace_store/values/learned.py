"""A learned value: ridge regression of labels on measures, cross-fitted by question. Knows no files. numpy only.

Questions are split into folds. An item whose question has labels gets its value from a model that was fitted without
the question's fold; all other items get theirs from the model of all labels. The strength of the penalty is chosen by
the squared error on the folds that a model may see. Sums over items (moments) are enough for all of it.
"""

import math
from collections.abc import Callable

import numpy as np

from grace_store.base.arrays import Array, BoolArray, FloatArray, IntArray

NUM_FOLDS = 5
PENALTIES = (0.01, 0.1, 1.0, 10.0)
"""Penalties to choose from, as shares of the number of items."""
ITEMS_AT_ONCE = 1 << 14


def moments_by_fold(x: Array, place: IntArray, is_right: BoolArray, fold: IntArray) -> FloatArray:
    """Return the second moments of the labelled items, (folds, F + 2, F + 2); labels and folds are those of x[place].

    They are sums of z z^T, where z has 1, the measures x (with mean 0 and deviation 1 over the pool), and the label.
    """
    found = np.zeros((NUM_FOLDS, x.shape[1] + 2, x.shape[1] + 2))
    for start in range(0, len(place), ITEMS_AT_ONCE):
        part = slice(start, start + ITEMS_AT_ONCE)
        z = np.vstack([np.ones(len(fold[part])), x.T[:, place[part]], is_right[part]])
        for number in range(NUM_FOLDS):
            mine = z[:, fold[part] == number]
            found[number] += mine @ mine.T
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


def fold_of_questions(question: IntArray, is_labelled: BoolArray, seed: int) -> IntArray:
    """Return the fold of each item: labelled questions are dealt to folds at random, others have -1."""
    fold = np.full(int(question.max(initial=-1)) + 1, -1)
    labelled = np.unique(question[is_labelled])
    fold[labelled] = np.random.Generator(np.random.Philox(seed)).permutation(len(labelled)) % NUM_FOLDS
    return fold[question]


def learn(folds: FloatArray) -> FloatArray:
    """Return weights of measures, (folds + 1, F): each without the labels of one fold, the last from all labels.

    Models with different penalties give values of different sizes, so all are scaled to values of mean square 1.
    """
    without = [_best_fit(np.delete(folds, number, axis=0)) for number in range(len(folds))]
    weights, moments = np.stack([*without, _best_fit(folds)]), folds.sum(axis=0)
    squares = ((weights @ moments[1:-1, 1:-1]) * weights).sum(axis=1, keepdims=True) / max(moments[0, 0], 1)
    return np.asarray(weights / np.sqrt(np.maximum(squares, np.finfo(float).tiny)))


def learn_forward(folds: FloatArray) -> FloatArray:
    """Return weights for judging, (folds, F): those of each fold come from the folds before it; NaN for the first.

    Models that saw all other folds would share labels with the folds that they are judged on both ways round, and
    intervals for them would be too narrow by a factor of up to 1.4.
    """
    return _forward(folds, _best_fit)


def single_forward(folds: FloatArray, singles: FloatArray) -> FloatArray:
    """Return weights for judging the best single measure: the row of singles that follows earlier labels best."""

    def best_single(seen: FloatArray) -> FloatArray:
        centred = _centred(seen.sum(axis=0))
        deviation = np.sqrt(np.maximum(((singles @ centred[:-1, :-1]) * singles).sum(axis=1), 0))
        product = singles @ centred[:-1, -1]
        product = np.divide(product, deviation, out=np.zeros_like(product), where=deviation > 0)
        best = int(np.argmax(np.abs(product)))
        return np.asarray(np.sign(product[best]) * singles[best])

    return _forward(folds, best_single)


def _forward(folds: FloatArray, fit_to: Callable[[FloatArray], FloatArray]) -> FloatArray:
    unknown = np.full(folds.shape[-1] - 2, np.nan)
    return np.stack([unknown, *(fit_to(folds[:number]) for number in range(1, len(folds)))])


def values_by_fold(x: Array, fold: IntArray, weights: FloatArray, place: IntArray | None = None) -> FloatArray:
    """Return the values of the items in x, or of x[place], each with the weights of its fold; -1 for the last ones."""
    out = np.empty(len(fold))
    for start in range(0, len(out), ITEMS_AT_ONCE):
        part = slice(start, start + ITEMS_AT_ONCE)
        of_all = weights @ x.T[:, part if place is None else place[part]].astype(np.float64)
        out[part] = of_all[fold[part], np.arange(of_all.shape[1])]
    return out


# ---------------------------------------------------------------- measures of a pool as columns


def _zeros(num_rows: int, num_columns: int) -> Array:
    return np.zeros((num_rows, num_columns), dtype=np.float32)


def standardise(x: Array, question: IntArray, zeros: Callable[[int, int], Array] = _zeros) -> tuple[Array, FloatArray]:
    """Return measures (n, F) with mean 0 and deviation 1, float32, in an array from zeros; gaps get a mean.

    If a question has several items, each measure becomes two columns: its difference from the question's mean, and
    that mean. So what differs between questions cannot hide what differs within them. The second result has weights of
    the columns that give each single measure, as it is and within questions.
    """
    count = np.bincount(question)
    num, has_groups = x.shape[1], bool((count > 1).any())
    out = zeros(len(x), num * (2 if has_groups else 1))
    deviation = np.zeros(out.shape[1])
    for column in range(num):
        if len(x) and x[:, column].min() == x[:, column].max():
            continue  # most flags, in most pools
        value = x[:, column].astype(np.float64)
        known = np.isfinite(value)
        mean = (value if known.all() else value[known]).mean() if known.any() else 0.0
        parts = [value if known.all() else np.where(known, value, mean)]
        if has_groups:  # a gap gets the mean of its question, so that it moves no other item of the question
            asked, num_known = question[known], np.bincount(question[known], minlength=len(count))
            means = np.bincount(asked, value[known], len(count)) / np.maximum(num_known, 1)
            means = np.where(num_known > 0, means, mean)[question]
            parts = [np.where(known, value - means, 0.0), means]
        for place, part in enumerate(parts):
            out[:, column + place * num], deviation[column + place * num] = _standard(part)
    within = np.eye(num, out.shape[1])
    plain = (within + np.eye(num, out.shape[1], k=num)) * deviation
    plain /= np.maximum(np.linalg.norm(plain, axis=1, keepdims=True), np.finfo(float).tiny)
    return out, np.concatenate([plain, within])


def _standard(value: FloatArray) -> tuple[FloatArray, float]:
    mean = value.mean()
    centred = value - mean
    deviation = math.sqrt(centred @ centred / len(value)) if len(value) else 0.0
    # Differences that are only rounding must not become a measure.
    if deviation <= 1e-7 * max(abs(mean), 1e-30):
        return np.zeros_like(value), 0.0
    centred /= deviation
    return centred, deviation
