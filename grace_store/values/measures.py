"""Measures: the numbers that a store has of each segment, which way is better, and how a trace gets its value.

A new measure is one more entry of MEASURES. Knows arrays and settings, no files. numpy only.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from grace_store.base.arrays import BoolArray, FloatArray, IntArray, Numbers, aranges, offsets_of, sum_by_sample
from grace_store.base.errors import SettingError
from grace_store.base.states import MAX_RANK, Flag
from grace_store.values.alignment import History
from grace_store.values.gram import is_step
from grace_store.values.methods.grace import RaggedScores, aggregate, combine_signals, ratio, score_ragged
from grace_store.values.methods.method import Aggregation, NamedMeasure, ScoreSpec, Way, parse_aggregation
from grace_store.values.random_values import random_values
from grace_store.values.within_groups import LEAST_SPREAD


@dataclass(frozen=True, kw_only=True, eq=False)
class Responses:
    """n samples of one signal. Parts are flat: K + 1 segments per sample, or the whole response of each sample.

    Arrays that no measure of a score reads may be empty.
    """

    spec: ScoreSpec
    row: Numbers
    """Row of each sample's record in the dataset."""
    num_steps: IntArray
    num_tokens: Numbers
    """Tokens of each part."""
    gram: Numbers = field(default_factory=lambda: np.zeros(0, np.float32))
    """Packed Grams."""
    statistic: Mapping[Any, Numbers] = field(default_factory=dict)
    """Loss, entropy and other statistics of each part, by name."""
    num_characters: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Characters of each response."""
    top_entropy: Numbers = field(default_factory=lambda: np.zeros(0, np.float32))
    """Summed entropies of the most uncertain tokens of each response."""
    history: History | None = None
    """Replaces the history of the spec."""
    target_cosine: FloatArray | None = None
    """Cosines of steps with a target outside the sample."""

    @property
    def is_whole(self) -> bool:
        """Whether the parts are whole responses; of no samples, they are segments."""
        return 0 < len(self.num_tokens) == len(self.num_steps)

    @property
    def num_parts(self) -> IntArray:
        return np.ones_like(self.num_steps) if self.is_whole else self.num_steps + 1

    @cached_property
    def is_step(self) -> BoolArray:
        """Whether each segment is a step."""
        return is_step(self.num_steps)

    @cached_property
    def step_tokens(self) -> FloatArray:
        return self.num_tokens[self.is_step].astype(np.float64)

    def by_token(self, name: str) -> FloatArray:
        """Return the mean of a statistic over the tokens of each response; NaN without tokens."""
        return ratio(*(sum_by_sample(self.num_parts, each) for each in (_totals(self, name), self.num_tokens)))

    def of_steps(self, name: str) -> FloatArray:
        """Return a statistic of each step, flat."""
        return np.asarray(self.statistic[name][self.is_step], dtype=np.float64)

    @cached_property
    def scores(self) -> RaggedScores:
        """GRACE's scores."""
        arrays, cosine = (self.num_steps, self.gram, self.num_tokens), self.target_cosine
        return score_ragged(*arrays, self.spec, custom_history=self.history, target_cosine=cosine)


Function = Callable[[Responses], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A measure of segments or of traces."""

    about: str
    """What the measure is, in a line for --help."""
    better: Way
    """Which numbers are better, unless a score says otherwise."""
    reads: tuple[str, ...] = ()
    """Arrays of a signal besides token counts: gram, statistics of segments, top_entropy; plan: of the plan alone."""
    settings: tuple[str, ...] = ()
    """Settings of ScoreSpec that the measure uses."""
    steps: Function | None = None
    """Function to a number for each step, flat; None for a measure of whole traces."""
    value: Function | None = None
    """Function to a number for each trace; None for the mean over the steps."""
    is_learned_from: bool = True
    """Whether a learned value uses the measure."""

    @property
    def is_mean_of_steps(self) -> bool:
        """Whether the value of a trace is by default the mean of its steps' numbers."""
        return self.value is None or "aggregation" in self.settings


ALIGNMENT = ("alpha", "history", "target", "without_answer", "aggregation")


def _statistic(name: str, about: str, better: Way) -> Measure:
    """Return the measure of a stored statistic; the value of a trace is the mean over all its tokens."""
    return Measure(
        about=about,
        better=better,
        reads=(name,),
        steps=lambda samples: samples.of_steps(name),
        value=lambda samples: samples.by_token(name),
    )


def _alignment(name: str, about: str, setting: str) -> Measure:
    return Measure(
        about=about,
        better="highest",
        reads=("gram",),
        settings=(setting,),
        steps=lambda samples: getattr(samples.scores, name),
    )


def _norms(samples: Responses) -> FloatArray:
    """Return the length of each step's vector, from the diagonals of Grams."""
    segments = samples.num_steps + 1
    first = offsets_of(segments * (segments + 1) // 2)[:-1]
    number = aranges(segments)
    square = samples.gram[np.repeat(first, segments) + number * (number + 3) // 2]
    return np.asarray(np.sqrt(square[samples.is_step].astype(np.float64)))


def _later_steps(samples: Responses) -> FloatArray:
    tokens = samples.step_tokens
    return ratio(tokens * samples.of_steps("loss") - samples.of_steps("first_loss"), tokens - 1)


def _later_value(samples: Responses) -> FloatArray:
    parts = samples.num_parts
    tokens, loss = (sum_by_sample(parts, each) for each in (samples.num_tokens, _totals(samples, "loss")))
    return ratio(loss - sum_by_sample(parts, samples.statistic["first_loss"]), tokens - parts)


def _totals(samples: Responses, name: str) -> FloatArray:
    """Return the sum of a statistic over the tokens of each part."""
    return np.asarray(samples.num_tokens * samples.statistic[name].astype(np.float64))


MEASURES = {
    "grace": Measure(
        about="GRACE: steps that push the model the way the answer and the earlier steps do",
        better="highest",
        reads=("gram",),
        settings=ALIGNMENT,
        steps=lambda samples: samples.scores.step_score,
        value=lambda samples: samples.scores.value,
    ),
    "answer_alignment": _alignment("answer_alignment", "cosine of a step's vector with the target", "target"),
    "history_alignment": _alignment("history_alignment", "cosine of a step's vector with the earlier steps", "history"),
    "loss": _statistic("loss", "mean loss of the tokens (naturalness is its negative)", "lowest"),
    "later_loss": Measure(
        about="the same without the first token of each segment (ASLEC-drop)",
        better="lowest",
        reads=("loss", "first_loss"),
        steps=_later_steps,
        value=_later_value,
    ),
    "first_loss": Measure(
        about="loss of the first token of each step",
        better="lowest",
        reads=("first_loss",),
        steps=lambda samples: samples.of_steps("first_loss"),
    ),
    "entropy": _statistic("entropy", "mean entropy of the model's predictions", "lowest"),
    "hit_rate": _statistic("hit_rate", "share of tokens that are the model's first choice", "highest"),
    "rank": _statistic("rank", f"mean rank of the tokens, at most {MAX_RANK} each", "lowest"),
    "error": _statistic("error", "mean length of p - y, the error at the logits", "lowest"),
    "rsr": Measure(
        about="rank-surprisal ratio: summed ranks over summed losses",
        better="lowest",
        reads=("rank", "loss"),
        steps=lambda samples: ratio(samples.of_steps("rank"), samples.of_steps("loss")),
        value=lambda samples: ratio(
            *(sum_by_sample(samples.num_parts, _totals(samples, name)) for name in ("rank", "loss"))
        ),
    ),
    "hes": Measure(
        about="high-entropy sum: entropies of the trace's most uncertain 0.5 % of tokens",
        better="highest",
        reads=("top_entropy",),
        value=lambda samples: samples.top_entropy.astype(np.float64),
    ),
    "norm": Measure(about="length of a step's vector", better="lowest", reads=("gram",), steps=_norms),
    "tokens": Measure(
        about="number of tokens (the baseline Longest)",
        better="highest",
        steps=lambda samples: samples.step_tokens,
        value=lambda samples: sum_by_sample(samples.num_parts, samples.num_tokens),
    ),
    "steps": Measure(
        about="number of steps (the baseline Stepmax)",
        better="highest",
        reads=("plan",),
        value=lambda samples: samples.num_steps.astype(np.float64),
    ),
    "characters": Measure(
        about="number of characters of the response",
        better="highest",
        reads=("plan",),
        value=lambda samples: samples.num_characters.astype(np.float64),
    ),
    "random": Measure(
        about="seeded random numbers",
        better="highest",
        reads=("plan",),
        settings=("seed",),
        value=lambda samples: random_values(samples.spec.seed, samples.row),
        is_learned_from=False,
    ),
}
"""All measures by name, in the order that help shows them."""


def step_numbers(measure: NamedMeasure, samples: Responses) -> FloatArray | None:
    """Return the number of each step, larger ones better; None for a measure of whole traces."""
    steps = MEASURES[measure.name].steps
    return None if steps is None or samples.is_whole else measure.sign * steps(samples)


def trace_values(measure: NamedMeasure, samples: Responses) -> FloatArray:
    """Return the value of each trace, larger ones better; NaN for a trace without a value."""
    kind = MEASURES[measure.name]
    how = measure.aggregation
    if how is None and "aggregation" in kind.settings and measure.way != kind.better:
        how = parse_aggregation(samples.spec.aggregation)  # of signed numbers: the worst step is another one
    if how is None and kind.value is not None:
        return measure.sign * kind.value(samples)
    steps = step_numbers(measure, samples)
    if steps is None:
        raise SettingError(f"measure {measure.bare} needs a signal with steps, and this one has one vector per sample")
    return aggregate(steps, samples.num_steps, samples.step_tokens, how or Aggregation("mean"))


def scores_by(measure: NamedMeasure, samples: Responses) -> RaggedScores:
    """Return the scores of one signal by a measure; alignments are NaN unless the measure reads Grams."""
    if measure == GRACE:
        return samples.scores
    scores = RaggedScores.empty(samples.num_steps)
    for name in ("step_score", "answer_alignment", "history_alignment"):
        getattr(scores, name)[:] = np.nan
    if "gram" in MEASURES[measure.name].reads:
        known = samples.scores
        scores = replace(known, step_score=scores.step_score, value=scores.value, flags=known.flags & ~NO_VALUE)
    else:
        scores.flags[:] = 0
    if (steps := step_numbers(measure, samples)) is not None:
        scores.step_score[:] = steps
    scores.value[:] = trace_values(measure, samples)
    scores.flags[:] |= np.isnan(scores.value) * NO_VALUE
    return scores


GRACE = NamedMeasure("grace", "highest")
NO_VALUE = np.uint8(Flag.NO_VALUE)


# ---------------------------------------------------------------- several measures together


Scales = tuple[tuple[float, float], ...]
"""Mean and standard deviation of the finite values by each measure; 0 if there are none."""


def combine_measures(values: Iterable[FloatArray], spec: ScoreSpec) -> tuple[FloatArray, Scales]:
    """Return the weighted mean of standardised values, and their scales; without a value by one measure it is NaN.

    A measure that does not vary over the pool counts as 0.

    >>> spec = ScoreSpec(measure=("tokens=3", "steps"))
    >>> combine_measures([np.array([5.0, 7.0]), np.array([2.0, 2.0])], spec)
    (array([-0.75,  0.75]), ((6.0, 1.0), (2.0, 0.0)))
    """
    parts, scales = [], []
    for value in values:
        known = value[np.isfinite(value)]
        mean, deviation = (float(known.mean()), float(known.std())) if len(known) else (0.0, 0.0)
        scales.append((mean, deviation))
        is_flat = deviation <= LEAST_SPREAD * abs(mean)
        parts.append((value - mean) * 0.0 if is_flat else (value - mean) / deviation)
    return combine_signals(np.stack(parts), [each.weight for each in spec.measures]), tuple(scales)
