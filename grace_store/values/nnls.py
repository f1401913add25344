"""Non-negative least squares for many small problems at once, from inner products alone. Knows matrices, no samples.

Block principal pivoting: guess which variables are above 0, solve for these, exchange the variables that violate the
KKT conditions, and repeat. If exchanging many variables at once stops helping, only the last of them is exchanged,
which ends after finitely many rounds (Murty's rule). Problems are columns, and all operations are elementwise along
the columns, so the bits of a result do not depend on the other problems.
"""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray
from grace_store.values.gram import num_entries

RIDGE = 2.0**-18
"""Added to the diagonal, which is 1. It is larger than the error of float32 in the least eigenvalue, so there is always
exactly one optimum. Equal variables share their amount."""
TOLERANCE = 1e-9
"""How far a variable or a slope may be below 0, relative to the largest variable."""
FULL_EXCHANGES = 3
"""Rounds without progress before exchanges become single."""
SOLVED_AT_ONCE = 1 << 18
"""Matrix entries that are solved together, to fit a processor's cache. Changes the speed, never a bit."""


def nonnegative_least_squares(packed: FloatArray, dot: FloatArray, num: IntArray) -> FloatArray:
    """Return x >= 0, (K, n), that minimises x'Ax - 2 x'dot for each of n problems; NaN where A is no Gram.

    packed is (K(K+1)/2, n): lower triangles of matrices with a diagonal of 1, row by row. num (n,), never rising, is
    the number of variables of each problem; all entries beyond it are 0, here and in dot (K, n).

    >>> one = np.ones(1)
    >>> nonnegative_least_squares(np.stack([one, 0 * one, one]), np.stack([0.5 * one, -one]), np.array([2])).round(5)
    array([[0.5],
           [0. ]])
    """
    solution = np.zeros_like(dot)
    start = 0
    while start < len(num):
        most = max(1, int(num[start]))
        here = slice(start, start + max(1, SOLVED_AT_ONCE // most**2))
        solution[:most, here] = _Problems.of(packed[: num_entries(most), here], dot[:most, here]).solve()
        start = here.stop
    return solution


@dataclass(slots=True)
class _Problems:
    """Some problems of K variables each, and the state of their solution."""

    matrix: FloatArray
    """(K, K, n)"""
    dot: FloatArray
    """(K, n)"""
    is_free: BoolArray
    """Variables that are assumed to be above 0, (K, n)."""
    fewest_wrong: IntArray
    """Least number of violated conditions so far, (n,)."""
    patience: IntArray
    """Full exchanges left, (n,)."""

    @classmethod
    def of(cls, packed: FloatArray, dot: FloatArray) -> Self:
        num_variables, num = dot.shape
        matrix = np.empty((num_variables, num_variables, num))
        for row in range(num_variables):
            matrix[row, : row + 1] = matrix[: row + 1, row] = packed[num_entries(row) : num_entries(row + 1)]
            matrix[row, row] = 1 + RIDGE
        fewest = np.full(num, num_variables + 1)
        return cls(matrix, dot, dot > 0, fewest, np.full(num, FULL_EXCHANGES))

    def solve(self) -> FloatArray:
        """Return the optimum of each problem; NaN if its matrix is not positive definite."""
        problems, place = self, np.arange(self.dot.shape[1])
        solution = np.full(self.dot.shape, np.nan)
        for _ in range(100 + 10 * len(self.dot)):
            variable, is_sound = problems._solve_free()
            is_wrong = problems._on_wrong_side(variable)
            is_right = is_sound & ~is_wrong.any(axis=0)
            solution[:, place[is_right]] = np.maximum(variable[:, is_right], 0.0)
            go_on = is_sound & ~is_right
            if not go_on.any():
                break
            problems._exchange(is_wrong)
            if not go_on.all():
                arrays = (getattr(problems, each.name)[..., go_on] for each in fields(problems))
                problems, place = _Problems(*arrays), place[go_on]
        return solution

    def _solve_free(self) -> tuple[FloatArray, BoolArray]:
        """Return the optimum over the free variables, with 0 for the others, and which problems had sound pivots."""
        work, right, inverse = self.matrix.copy(), self.dot.copy(), np.empty_like(self.dot)
        is_sound = np.ones(right.shape[1], dtype=np.bool_)
        for pivot in range(len(right)):
            size = work[pivot, pivot]
            is_sound &= (size > RIDGE / 4) | ~self.is_free[pivot]
            inverse[pivot] = np.where(self.is_free[pivot], 1.0 / np.where(size > RIDGE / 4, size, 1.0), 0.0)
            share = work[pivot, pivot + 1 :] * inverse[pivot]
            work[pivot + 1 :, pivot + 1 :] -= work[pivot + 1 :, pivot, None] * share
            right[pivot + 1 :] -= share * right[pivot]
        for pivot in reversed(range(len(right))):
            right[pivot] *= inverse[pivot]
            right[:pivot] -= work[:pivot, pivot] * right[pivot]
        return right, is_sound

    def _on_wrong_side(self, variable: FloatArray) -> BoolArray:
        """Return which variables violate the KKT conditions: free and below 0, or fixed at 0 with a negative slope."""
        slope = -self.dot
        for each in range(len(variable)):
            slope += self.matrix[each] * variable[each]
        allowed = -TOLERANCE * (1.0 + np.abs(variable).max(axis=0))
        return np.asarray(np.where(self.is_free, variable, slope) < allowed)

    def _exchange(self, is_wrong: BoolArray) -> None:
        """Exchange all variables that are wrong, or only the last of them after rounds without progress."""
        num_wrong = np.count_nonzero(is_wrong, axis=0)
        is_better = num_wrong < self.fewest_wrong
        is_single = ~is_better & (self.patience == 0)
        self.patience = np.where(is_better, FULL_EXCHANGES, np.maximum(self.patience - 1, 0))
        self.fewest_wrong = np.minimum(num_wrong, self.fewest_wrong)
        last = len(is_wrong) - 1 - np.argmax(is_wrong[::-1], axis=0)
        is_last = np.arange(len(is_wrong))[:, None] == last
        self.is_free ^= is_wrong & (~is_single | is_last)
