"""The settings of a sweep: grids resolved against a store's signals, values for one block of samples, and the
conclusion about how settings change the chosen samples.
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
from grace_store.pool.walk import SampleBlock
from grace_store.scoring.notes import StoreNote
from grace_store.store.opened import Store
from grace_store.values.agreement import jaccard_by_chance
from grace_store.values.alignment import Target
from grace_store.values.grid import SweepSpec
from grace_store.values.intervals import FEWEST_QUESTIONS
from grace_store.values.measures import trace_values
from grace_store.values.methods.grace import alignment_means, combine_signals, placed
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.ranking import budget

MAX_SETTINGS = 2000


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a sweep: how samples are scored, and by which signals."""

    spec: ScoreSpec
    weights: SignalWeights

    @property
    def words(self) -> dict[str, str]:
        """The setting part by part, for labels."""
        spec = self.spec
        words = {"measure": spec.title, "alpha": f"{spec.alpha:g}", "history": spec.history}
        words |= {"target": "none" if spec.without_answer else spec.target, "aggregation": spec.aggregation}
        left_out = {"alpha"} if spec.without_answer else set()
        used = (spec.used | {"measure"}) - left_out
        return {name: text for name, text in words.items() if name in used} | {"signals": str(self.weights)}

    @property
    def name(self) -> str:
        """The setting in full, on one line."""
        shown = [each for each in self.words.items() if each not in (("aggregation", "mean"), ("measure", "grace"))]
        return " ".join(f"{key}={text}" for key, text in shown)

    def command(self, note: StoreNote) -> str:
        """Return the command that makes this setting's table of scores, with the note of the sweep."""
        spec, words = self.spec, ["grace-store", "score", note.store]
        for name, weight in self.weights.weights.items():
            words += ["--signal", name if len(self.weights.weights) == 1 else f"{name}={weight:g}"]
        shown = {name: text for name, text in self.words.items() if name != "signals" and text not in ("mean", "grace")}
        if spec.without_answer:
            words.append("--without-answer")
            del shown["target"]
        words += [word for name, text in shown.items() for word in (f"--{name}", text)]
        words += [] if note.where is None else ["--where", note.where.sql]
        words += [] if note.where is None or note.labels is None else ["--labels", note.labels.path]
        return shlex.join([*words, "--out", "scores.parquet"])

    @property
    def is_affine(self) -> bool:
        """Whether its values follow from mean alignments, which other settings share."""
        return self.spec.is_grace and self.spec.aggregation == "mean" and not self.spec.without_answer


def short_labels(settings: Sequence[Setting]) -> list[str]:
    """Return labels that show only the parts in which the settings differ; the full name of a single setting."""
    words = [setting.words for setting in settings]
    differ = [key for key in AXES if len({each.get(key) for each in words}) > 1]
    shown = [" ".join(f"{key}={each[key]}" for key in differ if key in each) for each in words]
    return [label or setting.name for label, setting in zip(shown, settings, strict=True)]


def load_grid(path: Path) -> SweepSpec:
    """Read a sweep from a TOML file: about, ratio and any number of [[grid]] tables."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = "does not exist; --grid takes a TOML file such as jobs/sweeps/balance.toml."
        raise SettingError(f"{path} {what}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SettingError(f"{path} cannot be read as TOML: {error}") from None
    try:
        return SweepSpec.parse(**settings)
    except (SettingError, TypeError) as error:
        raise SettingError(f"{path}: {error}") from None


def sweep_of(
    axes: Mapping[str, str], signals: Sequence[str] = (), ratios: Sequence[str] = (), grid: Path | None = None
) -> SweepSpec:
    """Return a sweep over the given axes, or the sweep in a grid file; signals and ratios may be added to either."""
    if grid is None:
        spec = SweepSpec.parse(grid=[{**axes, **({"signal": signals} if signals else {})}])
    elif axes:
        given = ", ".join(f"--{name}" for name in axes)
        raise SettingError(f"--grid and {given} cannot be combined: leave {given} out, or write the values in {grid}")
    else:
        spec = load_grid(grid)
        if signals and any(each.signal for each in spec.grid):
            raise SettingError(f"{grid} already names signals: leave --signal out, or change the signals in the file")
        if signals:
            grids = [each.model_dump() | {"signal": signals} for each in spec.grid]
            spec = SweepSpec.parse(**spec.model_dump() | {"grid": grids})
    return SweepSpec.parse(**spec.model_dump() | {"ratio": ratios}) if ratios else spec


def resolve_settings(
    store: Store, sweep: SweepSpec, listener: Listener = ignore, *, signals: Signals = None
) -> list[Setting]:
    """Return every setting of a sweep once, in the order of its grids; report the signals that each and all skip."""
    found: dict[str, Setting] = {}
    for grid in sweep.grid:
        for weights in _signal_choices(store, grid.signal, listener, signals):
            for spec in grid.specs():
                setting = Setting(spec, weights)
                found.setdefault(setting.name, setting)
    if len(found) > MAX_SETTINGS:
        raise SettingError(f"the sweep has {len(found)} settings, at most {MAX_SETTINGS} are allowed: use fewer grids")
    return list(found.values())


def _signal_choices(store: Store, choices: Sequence[str], listener: Listener, signals: Signals) -> list[SignalWeights]:
    if not choices:
        return [resolve_signals(store, signals)]
    found: list[SignalWeights] = []
    for choice in choices:
        if choice in ("each", "all") and choice not in store.signal_names:
            if not store.signal_names:
                store.signal(None)  # raises the error for a store without signals
            names = _with_steps(store, choice, listener)
            groups = [[name] for name in names] if choice == "each" else [names]
            found += [SignalWeights(dict.fromkeys(group, 1.0)) for group in groups]
        else:
            found.append(resolve_signals(store, choice.split(",")))
    return found


def _with_steps(store: Store, choice: str, listener: Listener) -> list[str]:
    """Return the signals with vectors of steps; a sweep scores no other signals."""
    skipped = [name for name in store.signal_names if store.signal(name).per_sample]
    names = [name for name in store.signal_names if name not in skipped]
    if not names:
        raise SettingError(
            f"every signal of {store.location} has one vector per sample, so there are no steps to score"
        )
    if skipped:
        listener(Note(f"--signal {choice} leaves out {', '.join(skipped)}: one vector per sample, no steps to score."))
    return names


class SettingValues:
    """Computes the values of many settings for blocks of samples, each mean alignment once. Threads may share it."""

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
        """Return the values, (settings, n); NaN where a sample has no value."""
        means = {}
        for (name, target), histories in self._histories.items():
            found = block.signals[self._place[name]]
            arrays = found.num_steps, found.gram, found.num_tokens
            means[name, target] = alignment_means(*arrays, histories, target)
        out = np.empty((len(self._settings), len(block)))
        for index, setting in enumerate(self._settings):
            parts = []
            for name in setting.weights.names:
                place = self._place[name]
                if setting.is_affine:
                    key = (name, setting.spec.target)
                    value = means[key].value(self._histories[key].index(setting.spec.history), setting.spec.alpha)
                else:
                    value = trace_values(setting.spec.measures[0], block.responses(place, setting.spec))
                parts.append(placed(value, block.places[place], len(block)))
            weights = list(setting.weights.weights.values())
            out[index] = parts[0] if len(parts) == 1 else combine_signals(np.stack(parts), weights)
        return out


AXES = ("measure", "alpha", "history", "target", "aggregation", "signals")
WITH_DEFAULT = "overlap_with_default"
VAGUE = 0.2
"""Half-width above which an overlap is too uncertain for a conclusion."""
CLEAR = 0.1
"""Half-width at which an overlap is certain enough."""
HARDLY = 0.9
"""Overlap from which on a setting hardly matters."""

Changed = tuple[str, tuple[str, ...], Estimate]
"""A setting other than the default: its label, the parts that differ from the default, and the overlap with it."""


def conclude_sweep(summary: Sequence[Mapping[str, Any]], labels: Sequence[str], ratio: str) -> str:
    """Return which settings change the best samples most and least, and which parts of settings matter."""
    spec = ScoreSpec()
    default: dict[str, Any] = {"measure": "grace", "alpha": spec.alpha, "history": spec.history, "target": spec.target}
    default |= {"aggregation": spec.aggregation, "signals": summary[0]["signals"]}
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
    few = f"The best {ratio} are {budget(ratio, num_samples)} of {num_samples} samples, too few to say how settings "
    if not math.isfinite(half_width):
        return f"{few}change them: at least {FEWEST_QUESTIONS} questions are wanted."
    if half_width > VAGUE:
        return (
            f"{few}change them: overlaps with the default ({parts}) are known to {half_width:.2f} to either side. "
            f"About {about(num_samples * (half_width / CLEAR) ** 2)} samples would narrow that to {CLEAR:.2f}."
        )
    beside = "" if is_there else ", which is not part of the sweep"
    told = f"Against the default ({parts}{beside}), {_extremes(known, ratio, num_samples)}."
    return " ".join([told, *_by_axis(known)])


def _differing(row: Mapping[str, Any], default: Mapping[str, Any]) -> tuple[str, ...]:
    # A measure may use none of the other settings, so it counts as differing in the measure alone.
    if row["measure"] != default["measure"]:
        return ("measure",)
    return tuple(name for name in AXES if row[name] != default[name])


def _changed(row: Mapping[str, Any], label: str, default: Mapping[str, Any], ratio: str) -> Changed:
    ends = {"value": WITH_DEFAULT, "low": "overlap_low", "high": "overlap_high"}
    known = {end: math.nan if row[name] is None else float(row[name]) for end, name in ends.items()}
    return label, _differing(row, default), Estimate(**known, num=budget(ratio, row["num_with_value"]))


def _extremes(known: Sequence[Changed], ratio: str, num_samples: int) -> str:
    chance = jaccard_by_chance(num_samples, budget(ratio, num_samples))
    scale = f"1 is the same samples, {chance:.2f} is chance"
    (label, _, lowest), (other, _, highest) = known[0], known[-1]
    if all(each.low <= chance <= each.high for *_, each in known):
        scale += ". The overlaps are not shown to be more than chance"
    if len(known) == 1:
        return f"{label} has an overlap of {lowest.text(2)} in the best {ratio}, where {scale}"
    if lowest.high >= highest.low:
        between = f"with overlaps from {lowest.text(2)} to {highest.text(2)}"
        return f"the other {len(known)} settings change the best {ratio} about as much, {between}; {scale}"
    return (
        f"{label} changes the best {ratio} most, with an overlap of {lowest.text(2)}, and {other} least, with "
        f"{highest.text(2)}; {scale}"
    )


def _by_axis(known: Sequence[Changed]) -> list[str]:
    """Return the effect of each part of a setting, from settings that differ from the default in this part alone."""
    lowest: dict[str, Estimate] = {}
    for _, axes, overlap in known:  # the lowest overlap comes first
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
