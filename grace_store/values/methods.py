"""Every scoring method by name, and the settings that each one takes. Knows no store."""

from __future__ import annotations

from typing import Any

from grace_store.base.errors import SettingError
from grace_store.values.heuristics import HEURISTICS, HeuristicSpec
from grace_store.values.influence.influence_spec import INFLUENCE_METHODS, InfluenceSpec
from grace_store.values.score_spec import ScoreSpec

Spec = ScoreSpec | HeuristicSpec | InfluenceSpec

METHODS: tuple[str, ...] = ("grace", *HEURISTICS, *INFLUENCE_METHODS)


def spec_by_name(method: str, **settings: Any) -> Spec:
    """Return the settings of a method, refusing those that it would ignore."""
    kind = _spec_class(method)
    if foreign := [name for name in settings if name not in kind.model_fields]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in foreign)
        random = "; --seed is for --method random or cadc" if "seed" in foreign else ""
        raise SettingError(f"--method {method} has no use for {options}{random}")
    return kind.parse(method=method, **settings)


def _spec_class(method: str) -> type[Spec]:
    if method in INFLUENCE_METHODS:
        return InfluenceSpec
    return ScoreSpec if method == "grace" else HeuristicSpec
