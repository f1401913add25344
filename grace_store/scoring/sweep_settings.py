"""The settings of a sweep: grids resolved against a store's signals, their values for one block of samples, and how the
settings change which samples are chosen, against the default setting.
"""

import math
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.base.arrays import FloatArray
from grace_store.base.errors import SettingError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.finding import Estimate
from grace_store.base.text import about
from grace_store.pool.pool import Signals, SignalWeights, resolve_signals
from grace_store.pool.walk import SampleBlock, SignalSamples
from grace_store.store.opened import Store
from grace_store.values.agreement import jaccard_by_chance
from grace_store.values.alignment import Target
from grace_store.values.grid import SweepSpec
from grace_store.values.length_bias import share_interval
from grace_store.values.methods.grace import AlignmentMeans, alignment_means, combine_signals, placed, score_ragged
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.ranking import budget

MAX_SETTINGS = 2000


@dataclass(frozen=True, slots=True)
class Setting:
    """One way of scoring: by which signals, with what settings."""

    spec: ScoreSpec
    weights: SignalWeights

    @property
    def words(self) -> dict[str, str]:
        """The setting part by part, for labels."""
        spec = self.spec
        parts = {} if spec.without_answer else {"alpha": f"{spec.alpha:g}"}
        parts["history"] = spec.history
        parts["target"] = "none" if spec.without_answer else spec.target
        parts["aggregation"] = spec.aggregation
        parts["signals"] = str(self.weights)
        return parts

    @property
    def name(self) -> str:
        """The setting in full, on one line."""
        shown = [each for each in self.words.items() if each != ("aggregation", "mean")]
        return " ".join(f"{key}={text}" for key, text in shown)

    def command(self, store: str, where: str | None = None) -> str:
        """Return the command that makes this setting's table of scores."""
        spec, words = self.spec, ["grace-store", "score", store]
        for name, weight in self.weights.weights.items():
            words += ["--signal", name if len(self.weights.weights) == 1 else f"{name}={weight:g}"]
        if spec.without_answer:
            words.append("--without-answer")
        else:
            words += ["--alpha", f"{spec.alpha:g}", "--target", spec.target]
        words += ["--history", spec.history]
        if spec.aggregation != "mean":
            words += ["--aggregation", spec.aggregation]
        if where is not None:
            words += ["--where", where]
        return shlex.join([*words, "--out", "scores.parquet"])

    @property
    def is_affine(self) -> bool:
        """Whether its values follow from the means of alignments that other settings share."""
        return self.spec.aggregation == "mean" and not self.spec.without_answer


def short_labels(settings: Sequence[Setting]) -> list[str]:
    """Return labels with only the parts that differ between the settings."""
    words = [setting.words for setting in settings]
    differ = [key for key in AXES if len({each.get(key) for each in words}) > 1]
    return [" ".join(f"{key}={each[key]}" for key in differ if key in each) or "the only one" for each in words]


def load_grid(path: Path) -> SweepSpec:
    """Read a sweep from a TOML file: about, ratio and any number of [[grid]] tables."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingError(
            f"{path} does not exist; --grid takes a TOML file such as jobs/sweeps/balance.toml."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise SettingError(f"{path} cannot be read as TOML: {error}") from None
    try:
        return SweepSpec.parse(**settings)
    except (SettingError, TypeError) as error:
        raise SettingError(f"{path}: {error}") from None


def sweep_of(
    axes: Mapping[str, str], signals: Sequence[str] = (), ratios: Sequence[str] = (), grid: Path | None = None
) -> SweepSpec:
    """Return a sweep over the axes given, or the one in a grid file, for which signals and ratios may be given too."""
    if grid is None:
        spec = SweepSpec.parse(grid=[{**axes, **({"signal": signals} if signals else {})}])
    elif axes:
        given = ", ".join(f"--{name}" for name in axes)
        raise SettingError(f"--grid says it all: leave out {given}, or write it in {grid}")
    else:
        spec = _with_signals(load_grid(grid), signals, grid)
    return SweepSpec.parse(**spec.model_dump() | {"ratio": ratios}) if ratios else spec


def _with_signals(spec: SweepSpec, signals: Sequence[str], grid: Path) -> SweepSpec:
    if not signals:
        return spec
    if any(each.signal for each in spec.grid):
        raise SettingError(f"{grid} names signals itself: leave out --signal, or write it there")
    grids = [each.model_dump() | {"signal": signals} for each in spec.grid]
    return SweepSpec.parse(**spec.model_dump() | {"grid": grids})


def resolve_settings(
    store: Store, sweep: SweepSpec, listener: Listener = ignore, *, signals: Signals = None
) -> list[Setting]:
    """Return every setting of a sweep once, in the order of its grids; say which signals each and all leave out."""
    found: dict[str, Setting] = {}
    for grid in sweep.grid:
        for weights in _signal_choices(store, grid.signal, listener, signals):
            for spec in grid.specs():
                setting = Setting(spec, weights)
                found.setdefault(setting.name, setting)
    if len(found) > MAX_SETTINGS:
        raise SettingError(f"the sweep has {len(found)} settings, at most {MAX_SETTINGS} are compared: use fewer grids")
    return list(found.values())


def _signal_choices(store: Store, choices: Sequence[str], listener: Listener, signals: Signals) -> list[SignalWeights]:
    if not choices:
        return [resolve_signals(store, signals)]
    found: list[SignalWeights] = []
    for choice in choices:
        if choice in ("each", "all") and choice not in store.signal_names:
            if not store.signal_names:
                store.signal(None)  # says that there is none yet
            names = _with_steps(store, choice, listener)
            found += [SignalWeights({name: 1.0}) for name in names] if choice == "each" else []
            found += [SignalWeights(dict.fromkeys(names, 1.0))] if choice == "all" else []
        else:
            found.append(resolve_signals(store, choice.split(",")))
    return found


def _with_steps(store: Store, choice: str, listener: Listener) -> list[str]:
    """Return the signals that have vectors of steps, which alone can be scored by settings."""
    skipped = [name for name in store.signal_names if store.signal(name).per_sample]
    names = [name for name in store.signal_names if name not in skipped]
    if not names:
        raise SettingError(f"every signal of {store.location} has one vector a sample, and no steps to score")
    if skipped:
        listener(Note(f"--signal {choice} leaves out {', '.join(skipped)}: one vector a sample, no steps to score."))
    return names


class SettingValues:
    """Computes the values of many settings for blocks of samples, sharing what they share. Threads may share it."""

    def __init__(self, settings: Sequence[Setting], names: Sequence[str]) -> None:
        self._settings = settings
        self._place = {name: index for index, name in enumerate(names)}
        self._histories: dict[tuple[str, Target], list[str]] = {}
        for setting in settings:
            for name in setting.weights.names if setting.is_affine else ():
                histories = self._histories.setdefault((name, setting.spec.target), [])
                if setting.spec.history not in histories:
                    histories.append(setting.spec.history)

    def __call__(self, block: SampleBlock) -> FloatArray:
        """Return the values, (settings, n); NaN where there is none."""
        means = {key: self._means(block.signals[self._place[key[0]]], key) for key in self._histories}
        out = np.empty((len(self._settings), len(block)))
        for index, setting in enumerate(self._settings):
            parts = []
            for name in setting.weights.names:
                place = self._place[name]
                found = block.signals[place]
                if setting.is_affine:
                    key = (name, setting.spec.target)
                    history = self._histories[key].index(setting.spec.history)
                    value = means[key].value(history, setting.spec.alpha)
                else:
                    value = score_ragged(found.num_steps, found.gram, found.num_tokens, setting.spec).value
                parts.append(placed(value, block.places[place], len(block)))
            weights = list(setting.weights.weights.values())
            out[index] = parts[0] if len(parts) == 1 else combine_signals(np.stack(parts), weights)
        return out

    def _means(self, found: SignalSamples, key: tuple[str, Target]) -> AlignmentMeans:
        return alignment_means(found.num_steps, found.gram, found.num_tokens, self._histories[key], key[1])


# ---------------------------------------------------------------- the conclusion of a sweep


AXES = ("alpha", "history", "target", "aggregation", "signals")
WITH_DEFAULT = "overlap_with_default"
VAGUE = 0.2
"""An overlap that is known less well, to either side, tells nothing of a setting."""
CLEAR = 0.1
HARDLY = 0.9
"""From this overlap on a setting hardly matters."""


Changed = tuple[str, tuple[str, ...], Estimate]
"""One setting that is not the default: its label, what differs from the default, and its overlap with that."""


def _default_parts(signals: str) -> dict[str, Any]:
    spec = ScoreSpec()
    parts = {"alpha": spec.alpha, "history": spec.history, "target": spec.target, "aggregation": spec.aggregation}
    return parts | {"signals": signals}


def conclude_sweep(summary: Sequence[Mapping[str, Any]], labels: Sequence[str], ratio: str) -> str:
    """Return which settings change the best samples most and least, and which of their parts matters."""
    default = _default_parts(summary[0]["signals"])
    is_there = not all(_differing(row, default) for row in summary)
    changed = [
        _changed(row, label, default, ratio)
        for row, label in zip(summary, labels, strict=True)
        if _differing(row, default)
    ]
    if not changed:
        return "The only setting is the default one, so there is nothing to compare it with."
    known = sorted((each for each in changed if math.isfinite(each[2].value)), key=lambda each: each[2].value)
    if not known:
        return "How settings compare with the default one is not known: no sample has a value."
    num_samples = max(row["num_with_value"] for row in summary)
    half_width = max(overlap.half_width for *_, overlap in known)
    moved = {name for _, axes, _ in known for name in axes}
    parts = " ".join(f"{name}={default[name]}" for name in AXES if name in moved)
    if half_width > VAGUE:
        return _too_few(num_samples, ratio, half_width, parts)
    beside = "" if is_there else ", scored for this though the sweep lacks it"
    told = f"Against the default ({parts}{beside}), {_extremes(known, ratio, num_samples)}."
    return " ".join([told, *_by_axis(known)])


def _differing(row: Mapping[str, Any], default: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in AXES if row[name] != default[name])


def _changed(row: Mapping[str, Any], label: str, default: Mapping[str, Any], ratio: str) -> Changed:
    overlap = math.nan if row[WITH_DEFAULT] is None else float(row[WITH_DEFAULT])
    num_chosen = budget(ratio, row["num_with_value"])
    # Of two subsets of one size, s of each in the other, the overlap (Jaccard) is s / (2 - s).
    both = 2 * overlap / (1 + overlap)
    low, high = (0.0, 1.0) if math.isnan(both) else share_interval(both * num_chosen, num_chosen)
    found = Estimate(value=overlap, low=low / (2 - low), high=high / (2 - high), num=num_chosen)
    return label, _differing(row, default), found


def _too_few(num_samples: int, ratio: str, half_width: float, default: str) -> str:
    wanted = about(num_samples * (half_width / CLEAR) ** 2)
    return (
        f"The best {ratio} are {budget(ratio, num_samples)} of {num_samples} samples, too few to say how settings "
        f"change them: overlaps with the default ({default}) are known to {half_width:.2f} to either side. "
        f"About {wanted} samples would narrow that to {CLEAR:.2f}."
    )


def _extremes(known: Sequence[Changed], ratio: str, num_samples: int) -> str:
    chance = jaccard_by_chance(num_samples, budget(ratio, num_samples))
    scale = f"1 is the same samples, {chance:.2f} is chance"
    (label, _, lowest), (other, _, highest) = known[0], known[-1]
    if len(known) == 1:
        return f"{label} has an overlap of {lowest.text(2)} in the best {ratio}, where {scale}"
    return (
        f"{label} changes the best {ratio} most, with an overlap of {lowest.text(2)}, and {other} least, with "
        f"{highest.text(2)}; {scale}"
    )


def _by_axis(known: Sequence[Changed]) -> list[str]:
    """Return what each part of a setting does where it alone differs from the default."""
    lowest: dict[str, Estimate] = {}
    for _, axes, overlap in known:  # those that change most come first
        if len(axes) == 1:
            lowest.setdefault(axes[0], overlap)
    if not lowest:
        return []
    names = list(lowest)
    hardly = [name for name in names if lowest[name].value >= HARDLY]
    if len(names) == 1:
        return [f"Changed alone, {names[0]} hardly matters."] if hardly else []
    told = ", ".join(f"{name} to {lowest[name].value:.2f}" for name in names)
    if len(hardly) == len(names):
        verdict = "hardly a change"
    elif lowest[names[0]].high < lowest[names[1]].low:
        verdict = f"{names[0]} matters most"
    else:
        verdict = f"too close to say whether {names[0]} matters more"
    return [f"Each changed alone brings the overlap down ({told}): {verdict}."]
