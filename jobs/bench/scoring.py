"""Scoring: 27 settings over a store, against a loop over vectors; any measure and a learned value against one score.

The loop is timed on a few hundred samples and extrapolated. Each reading of a store runs in a process of its own, which
tells its peak memory.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.base.finding import LabelsNote
from grace_store.pool.pool import Pool
from grace_store.pool.walk import SignalReader
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.sweep import sweep
from grace_store.scoring.sweep_settings import SettingValues, resolve_settings
from grace_store.scoring.weigh_steps import weights
from grace_store.store.opened import Store
from grace_store.values.alignment import history_weights
from grace_store.values.grid import Grid, SweepSpec
from grace_store.values.methods.method import ScoreSpec
from jobs.bench.findings import Curve, Findings, Goal, Ratio
from jobs.bench.measuring import measured_apart
from jobs.bench.stores import NUM_STEPS, kept_labels, kept_store, million

HISTORIES = ("uniform", "window:3", "ema:0.8")
ALPHAS = tuple(i / 10 for i in range(1, 10))
PAPER = SweepSpec(grid=(Grid(alpha=ALPHAS, history=HISTORIES),))
HIDDEN_SIZE = 2048
GOAL = Goal(">=", 500.0)
FLAT = Goal("<=", 1.5)
LOOP = "loop, extrapolated"
TURNS = 3
WEIGHTS_GOAL = Goal("<=", 3.0)
MEASURE_GOAL = Goal("<=", 1.2)
LEARNED_GOAL = Goal("<=", 3.0)
MEASURED = (["loss:lowest"], ["rsr:lowest"], ["answer_alignment:min"], ["grace=0.5", "loss:lowest=0.5"])
NUM_LABELS = (20_000, 1_000_000)
"""Samples with a label; all samples get a learned value."""


def loop_over_vectors(num_samples: int) -> float:
    """Return the seconds a sample takes for all settings when its vectors are at hand, one sample at a time."""
    rng = np.random.default_rng(0)
    stored = rng.standard_normal((num_samples, NUM_STEPS + 1, HIDDEN_SIZE)).astype(np.float16)
    weights = {history: history_weights(history, NUM_STEPS).astype(np.float32) for history in HISTORIES}
    began = time.process_time()
    for sample in stored:
        vectors = sample.astype(np.float32)
        steps, answer = vectors[:-1], vectors[-1]
        for history in HISTORIES:
            for alpha in ALPHAS:
                norm = np.linalg.norm(steps, axis=1)
                a = steps @ answer / (norm * np.linalg.norm(answer))
                past = weights[history] @ steps
                h = (steps * past).sum(axis=1)[1:] / (norm[1:] * np.linalg.norm(past, axis=1)[1:])
                np.concatenate([a[:1], alpha * a[1:] + (1 - alpha) * h]).mean()
    return (time.process_time() - began) / num_samples


def values(location: str, threads: int) -> None:
    """Read the store and compute every value, keeping none."""
    store = Store.open(location)
    settings = resolve_settings(store, PAPER)
    names = settings[0].weights.names
    for _ in SignalReader(store, names).map(SettingValues(settings, names), threads):
        pass


def whole_sweep(location: str, threads: int) -> None:
    """Do all that `grace-store sweep` does."""
    with tempfile.TemporaryDirectory() as folder:
        sweep(Pool.of(location, threads=threads), PAPER, out=Path(folder) / "sweep")


def table(location: str, threads: int) -> None:
    """Do all that `grace-store score` does, one setting."""
    with tempfile.TemporaryDirectory() as folder:
        score(Store.open(location), out=Path(folder) / "scores.parquet", threads=threads)


def by_measures(location: str, threads: int, measures: list[str]) -> None:
    """Do all that `grace-store score --measure` does."""
    with tempfile.TemporaryDirectory() as folder:
        request = ScoreRequest(spec=ScoreSpec(measure=tuple(measures)))
        score(Store.open(location), request, out=Path(folder) / "scores.parquet", threads=threads)


def learned(location: str, threads: int, labels: str) -> None:
    """Do all that `grace-store score --learn` does."""
    with tempfile.TemporaryDirectory() as folder:
        asked = LabelsNote(field="verdict = 'good'", says="traces")
        request = ScoreRequest(spec=ScoreSpec(learn=True), labels=labels, learn_from=asked)
        score(Store.open(location), request, out=Path(folder) / "scores.parquet", threads=threads)


def step_weights(location: str, threads: int) -> None:
    """Do all that `grace-store weights` does."""
    with tempfile.TemporaryDirectory() as folder:
        weights(Pool.of(location, threads=threads), out=Path(folder) / "weights.parquet")


def measure(*, quick: bool, threads: int, work: str) -> dict[str, Any]:
    """Measure the whole sweep against the loop, and how reading and scoring grow."""
    location, num_samples = million(Path(work), quick=quick)
    costs = _in_turns(location, num_samples, quick=quick, threads=threads)
    ratios = [
        _against_loop("values of 27 settings, read from the store", "values", costs, num_samples),
        _against_loop("sweep of 27 settings, with files and comparisons", "sweep", costs, num_samples),
    ]
    curves, flat = _growth(Path(work), costs, num_samples, quick=quick, threads=threads)
    small = measured_apart(step_weights, location=kept_store(Path(work), num_samples // 64), threads=threads)
    ratios += [flat, *_of_weights(costs, small, num_samples), *_of_measures(costs, num_samples)]
    return Findings(ratios, curves).to_json()


def _in_turns(location: str, num_samples: int, *, quick: bool, threads: int) -> dict[str, dict[str, Any]]:
    """Return what each task and the loop took when it took least, all of them in turns."""
    tasks: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
        "values": (values, {}),
        "sweep": (whole_sweep, {}),
        "table": (table, {}),
        "weights": (step_weights, {}),
        **{", ".join(each): (by_measures, {"measures": each}) for each in MEASURED},
        **{f"{num:,} labels": (learned, {"labels": kept_labels(location, num)}) for num in NUM_LABELS},
    }
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in (*tasks, LOOP)}
    for _ in range(1 if quick else TURNS):
        seconds = loop_over_vectors(20 if quick else 300) * num_samples
        taken[LOOP].append({"cpu_seconds": seconds, "wall_seconds": seconds})
        for name, (task, more) in tasks.items():
            taken[name].append(measured_apart(task, location=location, threads=threads, **more))
            del taken[name][-1]["result"]
    return {name: min(costs, key=lambda cost: cost["cpu_seconds"]) for name, costs in taken.items()}


def _of_weights(costs: dict[str, Any], small: dict[str, Any], num_samples: int) -> list[Ratio]:
    """Return what weights cost against scores, and how their memory grows."""
    both = {name: costs[name] for name in ("weights", "table")}
    seconds = {name: cost["cpu_seconds"] for name, cost in both.items()}
    note = (
        f"{num_samples:,} samples, K = {NUM_STEPS}: {seconds['weights']:.1f} s CPU, {seconds['table']:.1f} s for score"
    )
    grown = both["weights"]["peak_bytes"] / small["peak_bytes"]
    return [
        Ratio(
            "weights of all steps", "score, CPU time", seconds["weights"] / seconds["table"], WEIGHTS_GOAL, both, note
        ),
        Ratio(
            f"peak memory of weights, {num_samples:,} samples",
            f"{num_samples // 64:,} samples",
            grown,
            FLAT,
            note=f"{small['peak_bytes'] / 1e6:.0f} to {both['weights']['peak_bytes'] / 1e6:.0f} MB",
        ),
    ]


def _of_measures(costs: dict[str, Any], num_samples: int) -> list[Ratio]:
    """Return what scores by measures and learned values cost against the scores of GRACE."""
    rows = [(f"score --measure {', '.join(each)}", ", ".join(each), MEASURE_GOAL) for each in MEASURED]
    rows += [(f"score --learn, {num:,} labels", f"{num:,} labels", LEARNED_GOAL) for num in NUM_LABELS]
    plain = costs["table"]
    return [
        Ratio(
            what,
            "score by GRACE, CPU time",
            costs[task]["cpu_seconds"] / plain["cpu_seconds"],
            goal,
            {task: costs[task], "table": plain},
            f"{num_samples:,} samples: {costs[task]['cpu_seconds']:.1f} s CPU, {plain['cpu_seconds']:.1f} s by GRACE; "
            f"{costs[task]['peak_bytes'] / 1e6:.0f} MB, {plain['peak_bytes'] / 1e6:.0f} MB",
        )
        for what, task, goal in rows
    ]


def _against_loop(what: str, task: str, costs: dict[str, Any], num_samples: int) -> Ratio:
    both = {name: costs[name] for name in (task, LOOP)}
    note = (
        f"{num_samples:,} samples, K = {NUM_STEPS}: {costs[task]['cpu_seconds']:.1f} s CPU, "
        f"{costs[task]['wall_seconds']:.1f} s, {costs[task]['peak_bytes'] / 1e6:.0f} MB; "
        f"the loop {costs[LOOP]['cpu_seconds']:.0f} s"
    )
    value = costs[LOOP]["cpu_seconds"] / costs[task]["cpu_seconds"]
    return Ratio(what, "a loop over the vectors, CPU time", value, GOAL, both, note)


def _growth(
    work: Path, costs: dict[str, Any], num_samples: int, *, quick: bool, threads: int
) -> tuple[list[Curve], Ratio]:
    sizes = [num_samples // 64, num_samples // 8]
    taken = [_values_of(work, size, NUM_STEPS, threads) for size in sizes] + [costs["values"]]
    steps = (3, 9, 27)
    by_steps = [_values_of(work, sizes[0] if quick else 20_000, num_steps, threads) for num_steps in steps]
    curves = [
        Curve("Values of 27 settings", "samples", "CPU seconds", [*sizes, num_samples], {"CPU": _cpu(taken)}),
        Curve("Values of 27 settings", "steps a sample", "CPU seconds", steps, {"CPU": _cpu(by_steps)}),
    ]
    peaks = [each["peak_bytes"] for each in taken]
    flat = Ratio(
        f"peak memory of scoring, {num_samples:,} samples",
        f"{sizes[0]:,} samples",
        peaks[-1] / peaks[0],
        FLAT,
        note=f"{peaks[0] / 1e6:.0f} to {peaks[-1] / 1e6:.0f} MB, Python and its libraries included",
    )
    return curves, flat


def _values_of(work: Path, num_samples: int, num_steps: int, threads: int) -> dict[str, Any]:
    location = kept_store(work, num_samples, num_steps)
    return measured_apart(values, location=location, threads=threads)


def _cpu(costs: list[dict[str, Any]]) -> list[float]:
    return [cost["cpu_seconds"] for cost in costs]
