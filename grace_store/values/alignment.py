"""Cosines of steps with their targets and histories, from Grams alone. Knows no settings but their names.

A reference (target or history) is a weighted sum r of vectors, so g.r and r.r are sums over the Gram. Where the
vectors of a sum cancel, r.r is only rounding of float32: below RESOLUTION times the squared sum of their lengths, the
reference counts as the zero vector. A cosine with a zero vector is 0, and the sample has a flag. Where the vectors
nearly cancel, below ROUGH times that square, most digits of r.r are lost, and the sample has another flag.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray
from grace_store.base.errors import SettingError
from grace_store.values.gram import RESOLUTION, TINY, GramColumns
from grace_store.values.methods.method import NamedHistory, parse_history

History = str | FloatArray | Callable[[int], FloatArray]
"""A name ("uniform", "window:W", "ema:B"), weights (K, K) or larger, or a function from K to weights (K, K)."""
Target = Literal["answer", "trace", "suffix", "group"]

ROUGH = 2.0**-10
"""Below this share of the squared sum, cosines have errors above 3e-5; at RESOLUTION the error is a tenth."""
SAME = 0.75
"""Cosine of consecutive steps above which, in most steps of a trace, the steps count as repeated.

With SmolLM2-135M the median of a trace's cosines was -0.09 to 0.63 in 40 solutions of GSM8K, and 0.80 to 0.99 in 20
traces that repeat one of their steps again and again."""
FEWEST_SAME = 3
"""Least number of steps of such a trace: two steps may well be alike."""


class Cosines(NamedTuple):
    """Cosines of steps, (steps, n), 0 for steps that a sample does not have; and samples (n,) to flag."""

    value: FloatArray
    met_zero: BoolArray
    met_rough: BoolArray | Literal[False] = False


@dataclass(slots=True)
class _Reference:
    """The references r of some steps, one row for each step."""

    dot: FloatArray
    """Products of the steps with their references."""
    square: FloatArray
    """r.r"""
    length: FloatArray
    """Weighted sum of the lengths of the vectors in r: the length of r if no vectors cancel."""
    weight: FloatArray
    """Sum of the weights, shape (steps, 1) or (steps, n)."""


def _cosines(gram: GramColumns, first: int, reference: _Reference) -> Cosines:
    """Return the cosines of the steps from number first on with their references."""
    square, most = reference.square, reference.length**2
    zero = gram.step_length.zero[first:] | (square <= RESOLUTION * most)
    zero |= square < TINY * reference.weight**2
    rough = (square <= ROUGH * most) & ~zero & gram.present[first:]
    cosines = _divide(gram, reference.dot, gram.step_length.norm[first:] * np.sqrt(np.maximum(square, TINY)), zero)
    return cosines._replace(met_rough=np.logical_or.reduce(rough, axis=0)) if rough.any() else cosines


def _divide(gram: GramColumns, dot: FloatArray, length: FloatArray, zero: BoolArray) -> Cosines:
    """Return the cosines of the last steps; length is overwritten."""
    value = np.divide(dot, length, out=length)
    np.clip(value, -1.0, 1.0, out=value)
    if not zero.any():
        return Cosines(value, np.zeros(value.shape[1], dtype=np.bool_))
    value[zero] = 0.0
    first = len(gram.active) - len(zero)
    return Cosines(value, np.logical_or.reduce(zero & gram.present[first:], axis=0))


def target_cosines(gram: GramColumns, target: Target) -> Cosines:
    """Return a_k for every step, (K, n)."""
    if target == "group":
        raise SettingError(
            "--target group needs the vectors of other traces of the question: only `score` reads these vectors"
        )
    if target == "answer":
        step, answer = gram.step_length, gram.answer_length
        return _divide(gram, gram.answer, step.norm * answer.norm, step.zero | answer.zero)
    return _cosines(gram, 0, _token_references(gram, whole=target == "trace"))


def _token_references(gram: GramColumns, *, whole: bool) -> _Reference:
    """Return the token-weighted sums over the segments after each step, or over all segments (whole)."""
    tokens, length = gram.step_tokens, gram.step_length
    num_steps, num_samples = tokens.shape
    dot = np.zeros((num_steps, num_samples))
    for later in range(1, num_steps):
        num = gram.active[later]
        dot[:later, :num] += gram.before(later) * tokens[later, :num]
    dot += gram.answer * gram.answer_tokens
    # Row k of these sums is over segments k.., so the references after step k are in row k + 1.
    square, total, weight = (np.empty((num_steps + 1, num_samples)) for _ in range(3))
    square[:] = gram.answer_tokens**2 * gram.answer_length.square
    total[:] = gram.answer_tokens * gram.answer_length.norm
    weight[:] = gram.answer_tokens
    for step in reversed(range(num_steps)):
        here = slice(0, gram.active[step])
        count = tokens[step, here]
        square[step, here] = square[step + 1, here] + count * (count * length.square[step, here] + 2 * dot[step, here])
        total[step, here] = total[step + 1, here] + count * length.norm[step, here]
        weight[step, here] = weight[step + 1, here] + count
    if not whole:
        return _Reference(dot, square[1:], total[1:], weight[1:])
    dot += tokens * length.square
    for step in range(1, num_steps):
        num = gram.active[step]
        dot[step, :num] += np.add.reduce(gram.before(step) * tokens[:step, :num], axis=0)
    return _Reference(dot, square[:1], total[:1], weight[:1])


def history_cosines(gram: GramColumns, history: History) -> Cosines:
    """Return h_k for every step but the first, (K - 1, n)."""
    decay = parse_history(history).decay if isinstance(history, str) else None
    reference = _weighted_references(gram, history) if decay is None else _decaying_references(gram, decay)
    return _cosines(gram, 1, reference)


def history_weights(history: History, num_steps: int) -> FloatArray:
    """Return the weights (K, K); row k has the weights of the steps before step k. Row 0 is 0, other rows sum to 1.

    Weights from Python need not sum to 1, but must be at least 0; of a larger matrix the leading part is used.

    >>> history_weights("ema:0.5", 3)
    array([[0.        , 0.        , 0.        ],
           [1.        , 0.        , 0.        ],
           [0.33333333, 0.66666667, 0.        ]])
    """
    if isinstance(history, str):
        weights = _named_weights(parse_history(history), num_steps)
    else:
        weights = _given_weights(history(num_steps) if callable(history) else history, num_steps)
    weights[1:] /= weights[1:].sum(axis=1, keepdims=True)
    return weights


def _named_weights(history: NamedHistory, num_steps: int) -> FloatArray:
    step = np.arange(num_steps)
    age = step[:, None] - 1 - step[None, :]
    if history.kind == "window":
        return ((age >= 0) & (age < history.parameter)).astype(np.float64)
    # 0.0 ** 0 is 1, so ema:0 is the previous step alone. The powers of later steps are not used.
    powers: FloatArray = np.power(1.0 if history.kind == "uniform" else history.parameter, np.maximum(age, 0))
    return np.where(age >= 0, powers, 0.0)


def _given_weights(given: FloatArray, num_steps: int) -> FloatArray:
    weights = np.array(given, dtype=np.float64)
    if weights.ndim != 2 or min(weights.shape) < num_steps:
        raise SettingError(f"history weights of shape {weights.shape} are too small for {num_steps} steps")
    weights = weights[:num_steps, :num_steps].copy()
    if np.triu(weights).any():
        raise SettingError(
            "history weights must be 0 for the step itself and for later steps: fill row k only before column k"
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise SettingError("history weights must be finite and at least 0")
    if not (weights[1:] > 0).any(axis=1).all():
        step = 1 + int(np.flatnonzero(~(weights[1:] > 0).any(axis=1))[0])
        raise SettingError(f"history weights leave step {step + 1} without a history: its row is all 0")
    return weights


def point_one_way(gram: GramColumns) -> BoolArray:
    """Return which samples (n,) repeat: most of their steps point nearly the same way as the step before."""
    step = np.arange(1, len(gram.active))
    product, norm = gram.entry[step * (step + 1) // 2 + step - 1], gram.step_length.norm
    num_alike = np.add.reduce(product >= SAME * norm[1:] * norm[:-1], axis=0, dtype=np.int64)
    return np.asarray((gram.num_steps >= FEWEST_SAME) & (2 * num_alike > gram.num_steps - 1))


def _decaying_references(gram: GramColumns, decay: float) -> _Reference:
    """Return r_k = decay r_(k-1) + g_(k-1); each entry of the Gram is read at most once."""
    square, length = gram.step_length.square[:-1].copy(), gram.step_length.norm[:-1].copy()
    dot = np.zeros_like(square)
    for step in range(1, len(gram.active)):
        now, before, here = step - 1, step - 2, slice(0, gram.active[step])
        if before >= 0:
            square[now, here] += decay * (decay * square[before, here] + 2 * dot[before, here])
            length[now, here] += decay * length[before, here]
        products = gram.before(step)
        if decay != 1.0:
            products = products * _powers(decay, step)
        np.add.reduce(products, axis=0, out=dot[now, here])
    return _Reference(dot, square, length, _decayed_weights(decay, len(square)))


@lru_cache(maxsize=1024)
def _decayed_weights(decay: float, num: int) -> FloatArray:
    """Return the sum of the weights of each step's history, (num, 1)."""
    weights = accumulate(range(1, num), lambda weight, _: 1.0 + decay * weight, initial=1.0)
    return np.fromiter(weights, np.float64)[:num, None]


@lru_cache(maxsize=1024)
def _powers(decay: float, num: int) -> FloatArray:
    return np.asarray(np.power(decay, np.arange(num)[::-1])[:, None])


def _weighted_references(gram: GramColumns, history: History) -> _Reference:
    """Return r_k = sum of w_kj g_j for any weights; weights of 0 are skipped."""
    num_steps, num_samples = gram.answer.shape
    dot, square, length = (np.zeros((num_steps - 1, num_samples)) for _ in range(3))
    weights = None if isinstance(history, str) else history_weights(history, len(gram.active))
    for step in range(1, len(gram.active)):
        terms = _named_terms(str(history), step) if weights is None else _terms(weights[step, :step])
        now, here = step - 1, slice(0, gram.active[step])
        np.add.reduce(gram.before(step)[terms.step] * terms.weight, axis=0, out=dot[now, here])
        np.add.reduce(gram.entry[terms.entry, here] * terms.product, axis=0, out=square[now, here])
        np.add.reduce(gram.step_length.norm[terms.step, here] * terms.weight, axis=0, out=length[now, here])
    return _Reference(dot, square, length, np.ones((num_steps - 1, 1)))


class _Terms(NamedTuple):
    """The history of one step: its earlier steps, and the entries of the Gram that make its square."""

    step: IntArray
    weight: FloatArray
    entry: IntArray
    product: FloatArray


def _terms(weights: FloatArray) -> _Terms:
    step = np.flatnonzero(weights)
    weight = weights[step]
    row, column = np.tril_indices(len(step))
    product = weight[row] * weight[column] * np.where(row == column, 1.0, 2.0)
    return _Terms(step, weight[:, None], step[row] * (step[row] + 1) // 2 + step[column], product[:, None])


@lru_cache(maxsize=1024)
def _named_terms(history: str, step: int) -> _Terms:
    # A step's weights do not depend on how many steps follow it.
    return _terms(history_weights(history, step + 1)[step, :step])
