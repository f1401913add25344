"""Pairs of signals of a pool and a target set, with their weights, and the check that they can be compared.

The product of two projected gradients has a meaning only if the same model, adapter, parameters and random projection
made both. An error lists all differences at once.
"""

from collections.abc import Mapping, Sequence

from grace_store.base.errors import SettingError, TargetMismatch, UnknownName
from grace_store.base.settings import ExtractSpec, ModelIdentity, short
from grace_store.pool.pool import Signals, SignalWeights, name_and_weight, resolve_signals
from grace_store.scoring.notes import WeightsFrom
from grace_store.store.opened import SignalView, Store
from grace_store.values.methods.method import InfluenceMethod

PROJECTION = ("projection", "dimension", "seed", "parameters")
"""Settings that two projected gradients must share."""
TREATMENT = (*PROJECTION, "preconditioner", "bias_correction")
"""Settings that the checkpoints of one pool must share."""
READING = ("rendering", "system", "include_eos", "text_only", "images_as", "min_pixels", "max_pixels")
CONDITIONS = (*READING, "dtype", "attention")
"""Settings that may differ between pool and targets; a difference is noted."""


def pair_signals(
    pool: Store, targets: Store, method: InfluenceMethod, signals: Signals = None, target_signals: Sequence[str] = ()
) -> tuple[SignalWeights, WeightsFrom, tuple[str, ...], list[str]]:
    """Return the pool's signals with their weights, the weights' origin, the target signals, and notes for the user.

    Raise TargetMismatch, with all reasons, if the signals cannot be compared. Each pair of signals is a checkpoint.
    Without names, the pool must have exactly one signal with one gradient per sample. Unless it is named, the target
    signal has the same name, or else is the only signal that fits. Weights are the given ones, else the learning rates
    that the signals recorded, else equal.
    """
    names, given = _named(pool, signals)
    resolve_signals(pool, names)
    if method.max_checkpoints is not None and len(names) > method.max_checkpoints:
        raise SettingError(
            f"{method.name.upper()} uses one checkpoint, but {len(names)} signals are given: give one --signal"
        )
    _check_suitable([pool.signal(name) for name in names], method)
    if target_signals and len(target_signals) != len(names):
        raise SettingError(
            f"{len(target_signals)} --target-signal for {len(names)} --signal: give one --target-signal for each "
            "--signal, in the same order, or no --target-signal"
        )
    wanted = tuple(target_signals or (_counterpart(pool.signal(name), targets, method) for name in names))
    if missing := [name for name in wanted if name not in targets.signal_names]:
        known = ", ".join(targets.signal_names) or "none yet: run `grace-store extract`"
        raise UnknownName(
            f"The target store {targets.location} has no signal {', '.join(map(repr, missing))} (there are: {known})."
        )
    pairs = [(pool.signal(name), targets.signal(other)) for name, other in zip(names, wanted, strict=True)]
    _check_comparable(pairs, method)
    weights, weights_from = _weights(pool, [ours.signal.spec for ours, _ in pairs], names, given)
    notes = _notes(pairs, method)
    if weights_from == "equal" and len(pairs) > 1:
        silent = ", ".join(ours.name for ours, _ in pairs if _learning_rate(ours.signal.spec) is None)
        notes.append(f"signal {silent}: no learning rate is recorded, so all checkpoints count alike")
    return weights, weights_from, wanted, notes


def _named(pool: Store, signals: Signals) -> tuple[list[str], list[float | None]]:
    if isinstance(signals, SignalWeights):
        signals = signals.weights
    if not signals:
        found = [name for name in pool.signal_names if pool.signal(name).signal.spec.is_per_sample]
        if len(found) == 1:
            return found, [None]
        what, named, remedy = "several signals", ", ".join(found), "Name one with --signal."
        if not found:
            what, remedy = "no signal", "`grace-store extract --kind gradient` writes one."
            named = f"there are: {', '.join(pool.signal_names) or 'none yet'}"
        raise UnknownName(f"{pool.location} has {what} with one gradient per sample ({named}). {remedy}")
    if isinstance(signals, Mapping):
        return list(signals), list(signals.values())
    both = [name_and_weight(pool, text) for text in ([signals] if isinstance(signals, str) else signals)]
    return [name for name, _ in both], [weight for _, weight in both]


def _counterpart(ours: SignalView, targets: Store, method: InfluenceMethod) -> str:
    """Return the target signal for a signal of the pool: the signal of the same name, or the only one that fits."""
    if ours.name in targets.signal_names:
        return ours.name
    others = [targets.signal(name) for name in targets.signal_names]
    if not others:
        raise UnknownName(f"The target store {targets.location} has no signal yet. Run `grace-store extract`.")
    fitting = [theirs.name for theirs in others if not _obstacles(ours, theirs, method)]
    if len(fitting) > 1:
        raise UnknownName(
            f"Several signals of {targets.location} fit {ours.name} ({', '.join(fitting)}). Give one "
            "--target-signal for each --signal."
        )
    if not fitting:
        # Name only the nearest signals: the faults of an unrelated checkpoint help nobody.
        fewest = min(len(_obstacles(ours, theirs, method)) for theirs in others)
        nearest = [theirs for theirs in others if len(_obstacles(ours, theirs, method)) == fewest]
        _check_comparable([(ours, theirs) for theirs in nearest], method)
    return fitting[0]


def _weights(
    pool: Store, specs: Sequence[ExtractSpec], names: Sequence[str], given: Sequence[float | None]
) -> tuple[SignalWeights, WeightsFrom]:
    said = {name: weight for name, weight in zip(names, given, strict=True) if weight is not None}
    if said and len(said) < len(names):
        silent = ", ".join(repr(name) for name in names if name not in said)
        raise SettingError(
            f"signal {silent} has no weight, but other signals have one: give every --signal its learning rate as "
            "weight"
        )
    if said:
        return resolve_signals(pool, said), "given"
    rates = [_learning_rate(spec) for spec in specs]
    recorded = {name: rate for name, rate in zip(names, rates, strict=True) if rate is not None}
    if len(recorded) < len(names) or len(names) == 1:
        return SignalWeights(dict.fromkeys(names, 1.0)), "equal"
    if unmoved := [name for name, rate in recorded.items() if not rate > 0]:
        raise SettingError(
            f"signal {', '.join(map(repr, unmoved))} recorded a learning rate of 0, so this signal would have no "
            "influence: leave the signal out, or give every --signal a weight"
        )
    return SignalWeights(recorded), "learning_rate"


def _learning_rate(spec: ExtractSpec) -> float | None:
    return None if spec.gradient is None else spec.gradient.learning_rate


def _check_suitable(signals: Sequence[SignalView], method: InfluenceMethod) -> None:
    """Raise TargetMismatch if signals of the pool are unsuitable for any target."""
    lines = [f"{each.name}: {line}" for each in signals for line in _unsuitable(each, method, is_target=False)]
    if not lines:
        return
    pool = signals[0].store
    others = [name for name in pool.signal_names if not _unsuitable(pool.signal(name), method, is_target=False)]
    known = f"suitable: {', '.join(others)}" if others else "no signal is suitable yet"
    listed = "\n  ".join(lines)
    raise TargetMismatch(
        f"{method.name.upper()} cannot score {pool.location} by these signals:\n  {listed}\nName suitable signals with "
        f"--signal ({known}), or extract a suitable signal of the pool."
    )


def _check_comparable(pairs: Sequence[tuple[SignalView, SignalView]], method: InfluenceMethod) -> None:
    lines: list[str] = []
    for ours, theirs in pairs:
        label = ours.name if ours.name == theirs.name else f"{ours.name} and {theirs.name}"
        lines += [f"{label}: {line}" for line in _obstacles(ours, theirs, method)]
    first = pairs[0][0]
    for other, _ in pairs[1:]:
        one, two = first.signal.spec.gradient, other.signal.spec.gradient
        for name in TREATMENT if one is not None and two is not None else ():
            if (a := getattr(one, name)) != (b := getattr(two, name)):
                lines.append(f"{first.name} and {other.name} of the pool: {name} is {short(a)} and {short(b)}")
    if lines:
        raise TargetMismatch(
            f"{method.name.upper()} cannot compare {first.store.location} with the targets in "
            f"{pairs[0][1].store.location}:\n  " + "\n  ".join(lines) + "\nExtract the targets again with the model, "
            "adapter and projection of the pool (`grace-store status` shows them), or choose other signals."
        )


def _obstacles(ours: SignalView, theirs: SignalView, method: InfluenceMethod) -> list[str]:
    """Return all reasons why a signal of the pool cannot be compared with a signal of the targets."""
    found = [*_unsuitable(ours, method, is_target=False), *_unsuitable(theirs, method, is_target=True)]
    if ours.signal.spec.is_per_sample and theirs.signal.spec.is_per_sample:
        found += differences(ours.signal.spec, theirs.signal.spec)
    return found


def _unsuitable(view: SignalView, method: InfluenceMethod, *, is_target: bool) -> list[str]:
    """Return the reasons why a signal is unsuitable, whatever the other signal is."""
    spec, whose = view.signal.spec, "the target signal" if is_target else "the pool's signal"
    if spec.gradient is None:
        return [f"{whose} has proxy vectors, not gradients (`extract --kind gradient`)"]
    if spec.gradient.per != "sample":
        return [f"{whose} has a gradient for each {spec.gradient.per}, not one for each sample (`--per sample`)"]
    if spec.gradient.preconditioner != "none" and (is_target or not method.takes_preconditioned):
        is_plain = f"{method.name.upper()} takes plain gradients on both sides"
        who = "targets are plain gradients" if method.takes_preconditioned else is_plain
        return [f"{whose} is preconditioned with {spec.gradient.preconditioner}; {who} (`--preconditioner none`)"]
    return []


def differences(ours: ExtractSpec, theirs: ExtractSpec, whose: str = "targets") -> list[str]:
    """Return the differences that keep two signals from being compared; whose names the owner of theirs."""
    fields = ModelIdentity.model_fields
    pairs = [(f"model {name}", getattr(ours.model, name), getattr(theirs.model, name)) for name in fields]
    if ours.gradient is not None and theirs.gradient is not None:
        pairs += [(name, getattr(ours.gradient, name), getattr(theirs.gradient, name)) for name in ("per", *PROJECTION)]
    else:
        pairs.append(("kind", ours.kind, theirs.kind))
    return [f"{name}: pool {short(a)}, {whose} {short(b)}" for name, a, b in pairs if a != b]


def _notes(pairs: Sequence[tuple[SignalView, SignalView]], method: InfluenceMethod) -> list[str]:
    notes = []
    for ours, theirs in pairs:
        pool, targets = ours.signal.spec, theirs.signal.spec
        both = [(name, getattr(pool, name), getattr(targets, name)) for name in CONDITIONS]
        if differing := [f"{name} (pool {a}, targets {b})" for name, a, b in both if a != b]:
            notes.append(f"signal {ours.name}: pool and targets differ in {', '.join(differing)}")
        if method.name == "less" and pool.gradient is not None and pool.gradient.preconditioner == "none":
            notes.append(f"signal {ours.name}: plain gradients; LESS itself has the pool's preconditioned with Adam")
    return notes
