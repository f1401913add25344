"""Which signals of a store a user means, and how much each counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grace_store.base.errors import SettingError, UnknownName
from grace_store.store.opened import Store


@dataclass(frozen=True, slots=True)
class SignalWeights:
    """Signals that are scored together, each with its weight; names in the order given."""

    weights: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.weights)

    def __str__(self) -> str:
        equal = len(set(self.weights.values())) == 1
        return ",".join(name if equal else f"{name}={weight:g}" for name, weight in self.weights.items())


Signals = str | Sequence[str] | Mapping[str, float] | SignalWeights | None
"""Signals as a user names them: one, several (each "name" or "name=weight"), with weights, or the only one (None)."""


def resolve_signals(store: Store, signals: Signals = None) -> SignalWeights:
    """Return the signals meant, all of them in the store. Weights are finite and above 0, 1 if not given."""
    if isinstance(signals, SignalWeights):
        signals = signals.weights
    if signals is None or not signals:
        return SignalWeights({store.signal(None).name: 1.0})
    if isinstance(signals, Mapping):
        pairs = [(name, float(weight)) for name, weight in signals.items()]
    else:
        given = [name_and_weight(store, text) for text in ([signals] if isinstance(signals, str) else signals)]
        pairs = [(name, 1.0 if weight is None else weight) for name, weight in given]
    _check_pairs(store, pairs)
    return SignalWeights(dict(pairs))


def _check_pairs(store: Store, pairs: Sequence[tuple[str, float]]) -> None:
    names = [name for name, _ in pairs]
    if unknown := [name for name in names if name not in store.signal_names]:
        known = ", ".join(store.signal_names) or "none yet: run `grace-store extract`"
        raise UnknownName(f"{store.location} has no signal {', '.join(map(repr, unknown))} (there are: {known}).")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SettingError(f"Signal {', '.join(map(repr, repeated))} is given twice: give each once, with its weight")
    for name, weight in pairs:
        if not (np.isfinite(weight) and weight > 0):
            raise SettingError(f"Signal {name!r} has weight {weight:g}: a weight is a number above 0")


def name_and_weight(store: Store, text: str) -> tuple[str, float | None]:
    """Return the signal that "name" or "name=weight" means, and the weight if one is given."""
    # A signal's name may itself hold "=", so a name that is there counts as one.
    name, equals, weight = text.rpartition("=")
    if not equals or text in store.signal_names:
        return text, None
    try:
        return name, float(weight)
    except ValueError:
        return text, None


def stepwise_signals(store: Store) -> tuple[str, ...]:
    """Return the signals that have vectors for steps, and so Grams."""
    return tuple(name for name in store.signal_names if not store.signal(name).signal.spec.is_per_sample)
