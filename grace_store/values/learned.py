"""A learned value: ridge regression of labels on measures, cross-fitted by question. Knows no files. numpy only.

Questions are split into folds. An item whose question has labels gets its value from a model that was fitted without
the question's fold; all other items get theirs from the model of all labels. The strength of the penalty is chosen by
the squared error on the folds that a model may see. Sums over items (``Sums``) are enough for all of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from grace_store.base.arrays import Array, BoolArray, FloatArray, IntArray

NUM_FOLDS = 5
PENALTIES = (0.01, 0.1, 1.0, 10.0)
"""Penalties to choose from, as shares of the number of items."""
ITEMS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over labelled items: of x x^T, x y and y y, where x is an item's measures and y its centred label."""

    square: FloatArray
    product: FloatArray
    label: float
    num: int

    @classmethod
    def of(cls, x: Array, y: FloatArray) -> "Sums":
        square, product = np.zeros((x.shape[1], x.shape[1])), np.zeros(x.shape[1])
        for start in range(0, len(x), ITEMS_AT_ONCE):
            part = x[start : start + ITEMS_AT_ONCE].astype(np.float64)
            square += part.T @ part
            product += part.T @ y[start : start + ITEMS_AT_ONCE]
        return cls(square, product, float(y @ y), len(y))

    def __add__(self, other: "Sums") -> "Sums":
        added = self.square + other.square, self.product + other.product
        return Sums(*added, self.label + other.label, self.num + other.num)

    def fit(self, penalty: float) -> FloatArray:
        """Return the weights that minimise the squared error plus the penalty."""
        ridge = penalty * max(self.num, 1) * np.eye(len(self.product))
        return np.asarray(np.linalg.solve(self.square + ridge, self.product), dtype=np.float64)

    def error(self, weights: FloatArray) -> float:
        """Return the squared error of weights."""
        return float(self.label - 2 * weights @ self.product + weights @ self.square @ weights)


def _best_fit(folds: Sequence[Sums]) -> FloatArray:
    """Return the weights from all of these folds, with the penalty that predicts each of them best from the others."""
    total = _total(folds)
    if len(folds) == 1:
        return total.fit(PENALTIES[-2])
    errors = []
    for penalty in PENALTIES:
        others = (_total([each for each in folds if each is not fold]) for fold in folds)
        errors.append(sum(fold.error(other.fit(penalty)) for fold, other in zip(folds, others, strict=True)))
    return total.fit(PENALTIES[int(np.argmin(errors))])


def _total(folds: Sequence[Sums]) -> Sums:
    total = folds[0]
    for each in folds[1:]:
        total = total + each
    return total


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
    drawn = np.random.Generator(np.random.Philox(seed)).permutation(len(labelled))
    fold[labelled] = drawn % NUM_FOLDS
    return fold[question]


def sums_by_fold(x: Array, is_right: BoolArray, fold: IntArray) -> list[Sums]:
    """Return the sums of each fold: of measures (n, F) with mean 0 and deviation 1 over the pool, and of labels."""
    centred = is_right.astype(np.float64) - is_right.mean()
    mine = (np.flatnonzero(fold == number) for number in range(NUM_FOLDS))
    return [Sums.of(x[each], centred[each]) for each in mine]


def learn(folds: Sequence[Sums]) -> LearnedModel:
    """Fit the labelled items of all folds."""
    without = [_best_fit([each for each in folds if each is not fold]) for fold in folds]
    return LearnedModel(_best_fit(folds), np.stack(without))


def judge_forward(x: Array, fold: IntArray, folds: Sequence[Sums]) -> tuple[FloatArray, FloatArray]:
    """Return values for judging a learned model and the best single measure: each fold by the folds before it.

    Items of the first fold have none (NaN). Models that saw all other folds would share labels with the folds that
    they are judged on both ways round, and intervals for them would be too narrow by a factor of up to 1.4.
    """
    learned, single = np.full(len(x), np.nan), np.full(len(x), np.nan)
    for number in range(1, NUM_FOLDS):
        mine = fold == number
        learned[mine] = x[mine] @ _best_fit(folds[:number])
        product = _total(folds[:number]).product
        best = int(np.argmax(np.abs(product)))
        single[mine] = np.sign(product[best]) * x[mine, best]
    return learned, single


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
        each = x[:, column].astype(np.float64)
        known = np.isfinite(each)
        filled = np.where(known, each, each[known].mean() if known.any() else 0.0)
        if not has_groups:
            out[:, column] = _standard(filled)
            continue
        mean = (np.bincount(question, filled) / np.maximum(count, 1))[question]
        out[:, column], out[:, column + x.shape[1]] = _standard(filled - mean), _standard(mean)
    return out


def _standard(value: FloatArray) -> FloatArray:
    mean, deviation = value.mean(), value.std()
    # Differences that are only rounding must not become a measure.
    return (value - mean) / deviation if deviation > 1e-7 * max(abs(mean), 1e-30) else np.zeros_like(value)
