"""Relative averages of runs with intervals over seeds and problems, and how well a value tells traces apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_store.base.finding import Estimate
from grace_store.study.benchmark_results import Entry, Results
from grace_store.study.evaluate import relative_average
from jobs.study.methods import FULL, label
from jobs.study.runs import WHOLE, Run, RunKey

FloatArray = npt.NDArray[np.float64]
Group = tuple[str, str]
"""Method and ratio: the runs that differ in their seeds alone."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What the models of one subset reached."""

    method: str
    ratio: str
    accuracy: dict[str, float]
    """By kind, in percent, the mean over seeds."""
    num_items: dict[str, int]
    relative: Estimate
    """The relative average, against the full pool."""
    against_random: Estimate | None
    """The difference of relative averages to Random at the same ratio, by the same draws."""


class Comparison:
    """All runs of a study, and draws of seeds and problems that every comparison shares.

    A draw takes as many seeds of each subset as there are, with replacement, and as many problems of each kind; the
    problems are the same for all subsets, which were asked the same. Three seeds are few: the interval is a rough one.
    """

    def __init__(self, runs: Mapping[RunKey, Run], num_draws: int, seed: int = 0) -> None:
        self._groups: dict[Group, list[Run]] = {}
        for run in sorted(runs.values(), key=lambda run: run.key):
            self._groups.setdefault((run.method, run.ratio), []).append(run)
        self._num_draws = num_draws
        first = next(iter(runs.values()))
        # In an order of its own: that of a document that was read again may be another one.
        self._kinds = sorted(first.right)
        generator = np.random.Generator(np.random.Philox(seed))
        self._problems = {
            kind: generator.multinomial(num, np.full(num, 1 / num), num_draws).astype(np.float64)
            for kind, num in ((kind, len(first.right[kind])) for kind in self._kinds)
        }
        # Nothing can be relative to nothing: a kind that the full pool does not teach at all does not count.
        self.counted = [kind for kind in self._kinds if self._right((FULL, WHOLE), kind).any()]
        """The kinds that relative averages are over."""
        self._generator_seed = seed
        self._drawn: dict[Group, FloatArray] = {}

    @property
    def groups(self) -> list[Group]:
        return list(self._groups)

    def result(self, method: str, ratio: str) -> GroupResult:
        """Return what a subset's models reached, against the full pool's and Random's."""
        group, full = (method, ratio), (FULL, WHOLE)
        draws = self._relative(group)
        random = ("random", ratio)
        against = None
        if random in self._groups and group != random:
            difference = self._point(group) - self._point(random)
            against = Estimate.from_draws(difference, draws - self._relative(random), len(self._groups[group]))
        return GroupResult(
            method=method,
            ratio=ratio,
            accuracy={kind: float(100 * self._right(group, kind).mean()) for kind in self._kinds},
            num_items={kind: self._right(full, kind).shape[1] for kind in self._kinds},
            relative=Estimate.from_draws(self._point(group), draws, len(self._groups[group])),
            against_random=against,
        )

    def _right(self, group: Group, kind: str) -> FloatArray:
        """Return (seeds, problems), 1 where an answer is right."""
        return np.array([[digit == "1" for digit in run.right[kind]] for run in self._groups[group]], dtype=np.float64)

    def _point(self, group: Group) -> float:
        if not self.counted:
            return float("nan")
        ours, full = (self._results(each) for each in (group, (FULL, WHOLE)))
        return relative_average(ours, full).value

    def _results(self, group: Group) -> Results:
        entries = {}
        for kind in self.counted:
            right = self._right(group, kind)
            entries[kind] = Entry(float(100 * right.mean()), right.shape[1])
        return Results(label(group[0]), entries)

    def _relative(self, group: Group) -> FloatArray:
        if not self.counted:
            return np.full(self._num_draws, np.nan)
        ours, full = self._rates(group), self._rates((FULL, WHOLE))
        # A draw without a single right answer would divide by zero: half an answer is the usual correction.
        least = np.array([0.5 / self._problems[kind].shape[1] for kind in self.counted])
        return np.asarray(100 * (ours / np.maximum(full, least)).mean(axis=1))

    def _rates(self, group: Group) -> FloatArray:
        """Return (draws, kinds): the share of right answers over drawn seeds and problems."""
        if group not in self._drawn:
            # Seeds of different subsets are drawn independently; the order of groups must not matter.
            place = sorted(self._groups).index(group)
            generator = np.random.Generator(np.random.Philox([self._generator_seed, place]))
            num_seeds = len(self._groups[group])
            seeds = generator.integers(0, num_seeds, (self._num_draws, num_seeds))
            columns = []
            for kind in self.counted:
                right = self._right(group, kind)
                by_seed = self._problems[kind] @ right.T / right.shape[1]
                columns.append(np.take_along_axis(by_seed, seeds, axis=1).mean(axis=1))
            self._drawn[group] = np.stack(columns, axis=1)
        return self._drawn[group]


def separation(
    above: npt.ArrayLike, below: npt.ArrayLike, *, paired: bool = False, draws: int = 1000, seed: int = 0
) -> Estimate:
    """Return the chance that a value of the first kind lies above one of the second, ties half: the area under the ROC.

    The interval is a bootstrap over both. Of pairs, as many of each in the same order, it is over the pairs, and values
    are compared across pairs alone: else a draw, which has some pairs twice, would have more of them within pairs.
    """
    one, other = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    wins = (one[:, None] > other[None, :]) + 0.5 * (one[:, None] == other[None, :])
    counted = 1.0 - np.eye(len(one)) if paired else np.ones_like(wins)
    wins = wins * counted
    generator = np.random.Generator(np.random.Philox(seed))

    def drawn(num: int) -> FloatArray:
        return np.bincount(generator.integers(0, num, num), minlength=num).astype(np.float64)

    found = np.empty(draws)
    for number in range(draws):
        rows = drawn(len(one))
        columns = rows if paired else drawn(len(other))
        # All draws may be of one pair: then there is nothing to compare.
        weight = rows @ counted @ columns
        found[number] = rows @ wins @ columns / weight if weight else np.nan
    return Estimate.from_draws(float(wins.sum() / counted.sum()), found[np.isfinite(found)], len(one))


def share_above(above: npt.ArrayLike, below: npt.ArrayLike, *, draws: int = 1000, seed: int = 0) -> Estimate:
    """Return the share of pairs whose first value is the larger one, ties half, with a bootstrap over the pairs."""
    one, other = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    wins = (one > other) + 0.5 * (one == other)
    generator = np.random.Generator(np.random.Philox(seed))
    found = wins[generator.integers(0, len(wins), (draws, len(wins)))].mean(axis=1)
    return Estimate.from_draws(float(wins.mean()), found, len(one))
