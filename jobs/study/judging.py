"""Do SmolLM2's signals agree with people's labels? ProcessBench and PRMBench, with and without a warm-up.

    python -m jobs.study.judging DATA --out jobs/study/results/judge

DATA holds processbench/gsm8k.json, prmbench/*.jsonl and gsm8k/train.jsonl, which the warm-up trains on. Solutions of
ProcessBench's part gsm8k are by models; of PRMBench, some questions are taken with all their kinds of error and with
the original. Run again, it does what is missing. The stores are ordinary ones: `grace-store judge` judges them, too.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from grace_store.base.documents import write_document
from grace_store.base.errors import DataError
from grace_store.base.events import Event, Note, Warned
from grace_store.base.files import whole_file
from grace_store.base.finding import Finding
from grace_store.base.settings import DataSpec, RunOptions
from grace_store.base.training_settings import WarmupOptions, WarmupSpec
from grace_store.example import demo_model
from grace_store.pool.pool import Pool
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.study.judge import JudgeSettings, judge
from grace_store.train.warmup import WarmupJob, warmup
from jobs.study.ending import end
from jobs.study.tables import Table
from jobs.study.traces import write_records

log = logging.getLogger("judging")

ORIGINAL = "original"
"""The kind of PRMBench's traces as they were before they were spoilt."""
BENCHMARKS = ("ProcessBench", "PRMBench")
BARE, WARM = "base", "warm"
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for."""

    data: Path
    out: Path
    model: Path
    num_traces: int
    num_questions: int
    warmup_ratio: str
    seed: int
    threads: int | None

    @property
    def work(self) -> Path:
        """Folder of what can be made again."""
        return self.out / "work"


def processbench_records(path: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Return some of the solutions, drawn by the seed, in their order."""
    records = json.loads(path.read_text(encoding="utf-8"))
    chosen = sorted(Random(seed).sample(range(len(records)), min(count, len(records))))
    return [records[number] for number in chosen]


def prmbench_records(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Return all versions of some questions, the original first; only questions with every kind of error count."""
    kinds = {path.stem: _by_question(path) for path in sorted(folder.glob("*.jsonl"))}
    if not kinds:
        raise DataError(f"{folder} has no .jsonl file of PRMBench")
    whole = sorted(set.intersection(*(set(found) for found in kinds.values())))
    chosen = Random(seed).sample(whole, min(count, len(whole)))
    return [record for name in chosen for record in _versions([found[name] for found in kinds.values()])]


def _by_question(path: Path) -> dict[str, dict[str, Any]]:
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {record["idx"]: record for record in records}


def _versions(spoilt: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    first = spoilt[0]
    was = {"modified_question": first["original_question"], "modified_process": first["original_process"]}
    yield {**first, **was, "modified_steps": [], "error_steps": [], "reason": "", "classification": ORIGINAL}
    yield from spoilt


def warm_up(plan: Plan) -> Path:
    """Train the adapter if it is not there, and return its folder."""
    job = WarmupJob(
        out=plan.work / "warmup",
        model=str(plan.model),
        data=(str(plan.data / "gsm8k" / "train.jsonl"),),
        data_request=DataSpec(format="gsm8k", min_steps=2),
        request=WarmupSpec(
            ratio=plan.warmup_ratio,
            seed=plan.seed,
            checkpoints=("1",),
            batch_size=4,
            learning_rate=LEARNING_RATE,
            max_length=512,
        ),
        options=WarmupOptions(threads=plan.threads, batch_tokens=1024, gradient_checkpointing=False),
    )
    return job.out / warmup(job, _tell).checkpoints[-1]


def judged(plan: Plan, name: str, adapter: Path) -> Finding:
    """Extract what is missing of both signals, and judge them."""
    store, data = plan.work / f"{name}.zarr", (str(plan.work / f"{name}.jsonl"),)
    for signal in (BARE, WARM):
        job = ExtractJob(
            store=str(store),
            model=str(plan.model),
            data=data,
            signal=signal,
            adapter=str(adapter) if signal == WARM else None,
            data_request=DataSpec(format=name, min_steps=1),
            options=RunOptions(threads=plan.threads),
            samples_per_unit=16,
        )
        extract(job, _tell)
    found = judge(Pool.of(store, data=data), JudgeSettings(seed=plan.seed), listener=_tell)
    assert found.pool is not None
    # Without the folder, so that results are the same wherever they are made.
    found = found.model_copy(update={"pool": found.pool.model_copy(update={"store": store.name})})
    write_document(plan.out / f"{name}.json", found)
    return found


def _tell(event: Event) -> None:
    if isinstance(event, Note | Warned):
        log.info(event.text)


def tables_of(name: str, found: Finding) -> Iterator[Table]:
    """Yield the tables of one benchmark, the first with the conclusion."""
    note = f"{found.conclusion}\n\n"
    for key, table in found.tables.items():
        headings, *rows = table.texts()
        title = f"{name}: {key.replace('_', ' ')}"
        yield Table(title, tuple(headings), tuple(map(tuple, rows)), f"{note}{table.title}. {table.about}".strip())
        note = ""


def page(found: Mapping[str, Finding]) -> str:
    """Return the tables of all benchmarks, by their names, as Markdown."""
    tables = [table.markdown() for name, each in found.items() for table in tables_of(name, each)]
    return "\n".join(["# What SmolLM2's signals know of wrong steps\n", *tables])


def run(plan: Plan) -> str:
    """Make all of it, and return the tables as Markdown."""
    plan.work.mkdir(parents=True, exist_ok=True)
    solutions = processbench_records(plan.data / "processbench" / "gsm8k.json", plan.num_traces, plan.seed)
    write_records(plan.work / "processbench.jsonl", solutions)
    write_records(plan.work / "prmbench.jsonl", prmbench_records(plan.data / "prmbench", plan.num_questions, plan.seed))
    adapter = warm_up(plan)
    text = page({name: judged(plan, name.lower(), adapter) for name in BENCHMARKS})
    with whole_file(plan.out / "judging.md") as partial:
        partial.write_text(text, encoding="utf-8")
    return text


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m jobs.study.judging", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with processbench/, prmbench/ and gsm8k/")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables, and of work/ beside them")
    parser.add_argument("--traces", type=int, default=400, help="of ProcessBench (default: 400, all of its gsm8k)")
    parser.add_argument("--questions", type=int, default=40, help="of PRMBench, six traces each (default: 40)")
    parser.add_argument("--warmup-ratio", default="0.02", help="share of GSM8K that is trained on (default: 0.02)")
    parser.add_argument("--model", type=Path, help="another model (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--seed", type=int, default=0, help="of every draw (default: 0)")
    parser.add_argument("--threads", type=int, help="of the CPU (default: all, up to 8)")
    chosen = parser.parse_args(arguments)
    plan = Plan(
        data=chosen.data,
        out=chosen.out,
        model=chosen.model or demo_model(),
        num_traces=chosen.traces,
        num_questions=chosen.questions,
        warmup_ratio=chosen.warmup_ratio,
        seed=chosen.seed,
        threads=chosen.threads,
    )
    return end(log, lambda: run(plan))


if __name__ == "__main__":
    sys.exit(main())
