"""Choosing within questions: planning, scoring and selecting a million samples that are traces of 100,000 questions.

The dataset is a real one of short records, ten traces of each question far apart; vectors are tiny. Each call runs in a
process of its own, which tells its peak memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from shutil import rmtree
from typing import Any

from grace_store.base.settings import DataSpec
from grace_store.choose.select import select
from grace_store.choose.selection import Selection
from grace_store.pool.pool import Pool
from grace_store.pool.records import SampleRecords
from grace_store.run.plan import plan
from grace_store.scoring.score import ScoreRequest, score
from grace_store.store.opened import Store
from grace_store.study.judge import JudgeSettings, judge
from grace_store.values.methods.method import ScoreSpec
from jobs.bench.findings import Curve, Findings, Goal, Ratio
from jobs.bench.measuring import measured_apart
from jobs.bench.synthetic_store import fill_signal

NUM_STEPS = 3
TRACES = 10
"""Of each question."""
GOAL = Goal("<=", 2.0)
JUDGING = Goal("<=", 3.0)
GATHERING = Goal("<=", 1.5)
BYTES_A_SAMPLE = Goal("<=", 200.0)
MORE_MEMORY = Goal("<=", 1.2)


def make_traces(folder: str, num_samples: int) -> None:
    """Write a dataset, plan it and fill its signal, if that was not done before."""
    place, num_questions = Path(folder), num_samples // TRACES
    if (place / "made").exists():
        return
    place.mkdir(parents=True, exist_ok=True)
    with (place / "traces.jsonl").open("w", encoding="utf-8") as stream:
        for row in range(num_samples):
            steps = [f"Step {step} of trace {row}." for step in range(NUM_STEPS)]
            trace = {"prompt": f"What is question {row % num_questions}?", "steps": steps, "answer": f"{row}"}
            stream.write(json.dumps({"id": f"trace-{row}", **trace, "is_right": row % 3 > 0}) + "\n")
    fill_signal(_plan(place, "store"), "base", copied=True)
    fill_signal(_plan(place, "gathered", gather=True), "base", copied=True)
    (place / "made").touch()


def _plan(folder: Path, name: str, *, gather: bool = False) -> Store:
    rmtree(folder / f"{name}.zarr", ignore_errors=True)
    request = DataSpec(format="explicit", min_steps=1, gather=gather)
    return plan([folder / "traces.jsonl"], folder / f"{name}.zarr", request)


def plan_plain(folder: str) -> None:
    """Plan the samples as they come."""
    _plan(Path(folder), "planned")


def plan_gathered(folder: str) -> None:
    """Plan them so that those of a question stand together."""
    _plan(Path(folder), "planned-gathered", gather=True)


def find_questions(folder: str) -> None:
    """Find the question of each sample, by the digests in the plan."""
    SampleRecords(Store.open(Path(folder) / "store.zarr")).questions()


def score_plain(folder: str) -> None:
    score(Path(folder) / "store.zarr", out=Path(folder) / "plain.parquet", threads=1)


def score_within(folder: str) -> None:
    request = ScoreRequest(within="standardised")
    score(Path(folder) / "store.zarr", request, out=Path(folder) / "within.parquet", threads=1)


def score_gathered(folder: str) -> None:
    """Score within questions a store in which they stand together."""
    request = ScoreRequest(within="standardised")
    score(Path(folder) / "gathered.zarr", request, out=Path(folder) / "gathered.parquet", threads=1)


def score_by_others(folder: str) -> None:
    """Score by the answers of the other traces, from the vectors."""
    request = ScoreRequest(spec=ScoreSpec(target="group"))
    score(Path(folder) / "store.zarr", request, out=Path(folder) / "others.parquet", threads=1)


def select_plain(folder: str) -> None:
    """Choose the best, which holds the table in memory."""
    select(Path(folder) / "within.parquet")


def best_of_each(folder: str) -> None:
    """Choose the best trace of each question, as the table knows them."""
    select(Path(folder) / "within.parquet", Selection(per_group=1))


def judge_traces(folder: str) -> None:
    """Hold signals against labels of traces, as many of them as are drawn by default."""
    judge(Pool.of(Path(folder) / "store.zarr", threads=1), JudgeSettings(right="is_right"))


TASKS = {
    "plan": plan_plain,
    "plan --gather": plan_gathered,
    "find questions": find_questions,
    "score": score_plain,
    "score --within group": score_within,
    "score --within group, gathered": score_gathered,
    "score --target group": score_by_others,
    "select": select_plain,
    "select --per-group 1": best_of_each,
    "judge": judge_traces,
}


def measure(*, quick: bool, threads: int, work: str) -> dict[str, Any]:
    """Measure every task at several sizes."""
    sizes = (500, 1_000) if quick else (10_000, 100_000, 1_000_000)
    taken = {size: _measure(Path(work) / f"questions-{size}", size) for size in sizes}
    most = taken[sizes[-1]]
    curves = [
        Curve(
            f"{sizes[-1] // TRACES:,} questions",
            "samples",
            unit,
            sizes,
            {task: [taken[n][task][key] for n in sizes] for task in TASKS},
        )
        for unit, key in (("CPU seconds", "cpu_seconds"), ("bytes at most", "peak_bytes"))
    ]
    grown = {
        task: (most[task]["peak_bytes"] - taken[sizes[0]][task]["peak_bytes"]) / (sizes[-1] - sizes[0])
        for task in TASKS
    }
    within, plain = most["score --within group"], most["score"]
    finding = most["find questions"]["cpu_seconds"]
    return Findings(
        [
            Ratio(
                f"score --within group, {sizes[-1]:,} samples",
                "score, CPU time",
                within["cpu_seconds"] / plain["cpu_seconds"],
                GOAL,
                {"within": within, "plain": plain},
                f"{within['cpu_seconds']:.1f} s CPU, {finding:.1f} s to find questions alone",
            ),
            Ratio(
                f"plan --gather, {sizes[-1]:,} samples",
                "plan, CPU time",
                most["plan --gather"]["cpu_seconds"] / most["plan"]["cpu_seconds"],
                GATHERING,
                {"gathered": most["plan --gather"], "plain": most["plan"]},
                f"{most['plan --gather']['cpu_seconds']:.1f} s CPU, {most['plan']['cpu_seconds']:.1f} s without",
            ),
            Ratio(
                f"judge, {sizes[-1]:,} samples, of which 10,000 are drawn",
                "score, CPU time",
                most["judge"]["cpu_seconds"] / plain["cpu_seconds"],
                JUDGING,
                {"judge": most["judge"], "score": plain},
                f"{most['judge']['cpu_seconds']:.1f} s CPU, {plain['cpu_seconds']:.1f} s for score",
            ),
            *(
                Ratio(
                    f"peak memory of {task}",
                    "bytes for each sample more",
                    value,
                    BYTES_A_SAMPLE,
                    note=f"{most[task]['peak_bytes'] / 1e6:.0f} MB",
                )
                for task, value in grown.items()
                if not task.startswith("select")
            ),
            Ratio(
                "peak memory of select --per-group 1",
                "select, which reads the same table",
                most["select --per-group 1"]["peak_bytes"] / most["select"]["peak_bytes"],
                MORE_MEMORY,
            ),
        ],
        curves,
    ).to_json()


def _measure(folder: Path, num_samples: int) -> dict[str, dict[str, Any]]:
    make_traces(str(folder), num_samples)
    costs = {name: measured_apart(task, folder=str(folder)) for name, task in TASKS.items()}
    for cost in costs.values():
        del cost["result"]
    return costs
