"""What must hold after a rehearsal. Each check yields what is wrong, in a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.base.metadata import SharedImages
from grace_store.store.opened import SignalView, Store
from tests.jobs import content
from tests.rehearsals.stage import TRACEBACK, Played, Stage


@dataclass(frozen=True)
class Scene:
    """A rehearsal that was played."""

    stage: Stage
    out: Path
    played: list[Played]

    @property
    def last(self) -> Played:
        return self.played[-1]


Check = Callable[[Scene], Iterator[str]]


# ---------------------------------------------------------------- of every rehearsal


def ends_as_it_should(scene: Scene) -> Iterator[str]:
    """The exit code is the expected one, and no message is a traceback."""
    for played in scene.played:
        what = " ".join(played.play.words[:1])
        if not played.play.until and played.code != played.play.code:
            yield f"{what} ended with {played.code} instead of {played.play.code}: {played.err[-1500:]}"
        if played.play.until and played.play.until not in played.err:
            yield f"{what} did not say {played.play.until!r}: {played.err[-1500:]}"
        # torchrun shows where itself it noticed that a rank failed.
        is_ours = not played.play.ranks or "/grace_store/" in played.err.partition(TRACEBACK)[2]
        if TRACEBACK in played.err + played.out and is_ours and not played.play.until:
            yield f"{what} ended in a traceback: {played.err[-3000:]}"


def own_device_only(scene: Scene) -> Iterator[str]:
    """No process has a context on a device that it does not compute on, nor on two."""
    for played in scene.played:
        for process in played.processes:
            opened = _opened(process)
            used = [each for each, counted in process["devices"].items() if _is_used(counted)]
            # Of one device that it sees, a process may fail to allocate the first byte.
            if len(opened) > 1 or (len(process["devices"]) > 1 and set(opened) - set(used)):
                contexts = {device: process["devices"][device]["contexts"] for device in opened}
                yield f"{process['command'][:3]} computes on {used} and has contexts {contexts}"


EVERY: tuple[Check, ...] = (ends_as_it_should, own_device_only)


# ---------------------------------------------------------------- of some


def parent_opens_nothing(scene: Scene) -> Iterator[str]:
    """The process that hands out units opens no device; Ray kills its workers, so that they leave no counters."""
    parents = [each for each in scene.played[0].processes if each["command"][0].endswith("__main__.py")]
    if opened := [device for parent in parents for device in _opened(parent)] or not parents:
        yield f"the process that hands out units has contexts on {opened}"


def parent_hands_out(scene: Scene) -> Iterator[str]:
    """The process that hands out units opens no device, and every other one has its own."""
    yield from parent_opens_nothing(scene)
    workers = [each for each in scene.played[0].processes if not each["command"][0].endswith("__main__.py")]
    opened = sorted(device for worker in workers for device in _opened(worker))
    if opened != [str(device) for device in range(scene.played[0].play.devices)]:
        yield f"the workers have contexts on {opened}"


def _is_used(counted: dict[str, Any]) -> bool:
    return bool(counted["launches"] or counted["memory"]["allocations"])


def _opened(process: dict[str, Any]) -> list[str]:
    return [device for device, counted in process["devices"].items() if counted["contexts"]]


def ranks_have_their_own(scene: Scene) -> Iterator[str]:
    """Every rank has the device of its number."""
    opened = sorted(device for process in scene.played[0].processes for device in _opened(process))
    if opened != [str(device) for device in range(scene.played[0].play.ranks)]:
        yield f"the ranks have contexts on {opened}"


def says(*patterns: str, among: int = 0) -> Check:
    """Return a check that a command says all of these, as regular expressions."""

    def check(scene: Scene) -> Iterator[str]:
        text = scene.played[among].err + scene.played[among].out
        for pattern in patterns:
            if not re.search(pattern, text):
                yield f"{pattern!r} is not in {text[-2500:]!r}"

    return check


def says_nothing_of(*words: str) -> Check:
    """Return a check that no command says any of these."""

    def check(scene: Scene) -> Iterator[str]:
        for played in scene.played:
            yield from (f"{word!r} is said: {played.err[-800:]}" for word in words if word in played.err + played.out)

    return check


def same_bytes(reference: Callable[[Stage], Path]) -> Check:
    """Return a check that the store is another one to the byte."""

    def check(scene: Scene) -> Iterator[str]:
        ours, theirs = content(scene.out), content(reference(scene.stage))
        different = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        if different:
            yield f"{len(different)} files differ from {reference(scene.stage).name}: {different[:4]}"

    return check


def near(reference: Callable[[Stage], Path], tolerance: float) -> Check:
    """Return a check that the store's numbers are another one's, up to rounding."""

    def check(scene: Scene) -> Iterator[str]:
        ours, theirs = _only_signal(scene.out), _only_signal(reference(scene.stage))
        if ours.committed_units() != theirs.committed_units() or not ours.committed_units():
            yield f"units {ours.committed_units()} against {theirs.committed_units()}"
            return
        names = ("sample_vector", "sample_loss") if ours.per_sample else ("sample_gram", "segment_loss")
        for name in names:
            if worst := _largest_difference(ours, theirs, name, tolerance):
                yield worst

    return check


def shares(images: SharedImages | None) -> Check:
    """Return a check that prompts were shared, and images in this way, as the probe on the device found."""

    def check(scene: Scene) -> Iterator[str]:
        kept = _only_signal(scene.out).sharing()
        if kept is None or not kept.prompts or kept.images != images:
            yield f"prompts and {images or 'no'} images were to be shared, the store says {kept}"

    return check


def _only_signal(path: Path) -> SignalView:
    store = Store.open(path)
    return store.signal(store.signal_names[0])


def _largest_difference(ours: SignalView, theirs: SignalView, name: str, tolerance: float) -> str:
    for unit in ours.committed_units():
        pair = (
            [each.unit_vectors(unit) for each in (ours, theirs)]
            if name == "sample_vector"
            else [each.unit_array(name, unit) for each in (ours, theirs)]
        )
        mine, other = (np.asarray(each, dtype=np.float64) for each in pair)
        scale = max(float(np.abs(other).max(initial=0.0)), 1e-30)
        if not np.isfinite(mine).all() or float(np.abs(mine - other).max(initial=0.0)) > tolerance * scale:
            return f"{name} of unit {unit} differs by {np.abs(mine - other).max() / scale:.1e} (at most {tolerance:g})"
    return ""


def is_whole(num_units: int) -> Check:
    """Return a check that every unit is committed."""

    def check(scene: Scene) -> Iterator[str]:
        if (done := len(_only_signal(scene.out).committed_units())) != num_units:
            yield f"{done} of {num_units} units are committed"

    return check


def is_split(scene: Scene) -> Iterator[str]:
    """Some unit's batches did not fit, and its commit says which were made instead."""
    view = _only_signal(scene.out)
    splits = [view.commit(unit).split for unit in view.committed_units()]
    if not any(splits):
        yield f"no unit was split: {scene.played[0].err[-500:]}"


def json_near(tolerance: float, *path: str, among: tuple[int, int] = (0, 1)) -> Check:
    """Return a check that two commands print the same numbers as JSON, below a path, up to rounding."""

    def check(scene: Scene) -> Iterator[str]:
        first, second = (_at(json.loads(scene.played[each].out), path) for each in among)
        mine, other = _numbers(first), _numbers(second)
        if len(mine) != len(other) or not np.allclose(mine, other, atol=tolerance, equal_nan=True):
            yield f"{'.'.join(path)}: {mine} against {other}"

    return check


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for each in path:
        value = value[each]
    return value


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in _numbers(value[key])]
    if isinstance(value, list):
        return [number for each in value for number in _numbers(each)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []
