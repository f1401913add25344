"""One fine-tuning and its examination, and all of them over worker processes of one thread each."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from grace_store.base.errors import ResumeMismatch
from jobs.study.answering import ask
from jobs.study.folders import Folders
from jobs.study.learner import Training, encode, heldout_loss, read_model, train
from jobs.study.methods import BASE
from jobs.study.problems import KINDS
from jobs.study.runs import Run, RunKey, append_run, read_runs, subset_digest
from jobs.study.settings import Settings
from jobs.study.traces import Record


@dataclass(frozen=True, slots=True)
class Task:
    """A training to do: of which method, and on which traces of the pool."""

    method: str
    ratio: str
    seed: int
    ids: tuple[str, ...]

    @property
    def key(self) -> RunKey:
        return self.method, self.ratio, self.seed


def read_records(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def tune(settings: Settings, out: Path, task: Task) -> Run:
    """Train the base model on a subset for the budget that all have, ask it, and return what it got right."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    folders = Folders(out)
    model, tokenizer = read_model(folders.base)
    wanted = set(task.ids)
    chosen = [record for record in read_records(folders.pool) if record["id"] in wanted]
    assert len(chosen) == len(wanted)
    done = Training(0, 0, 0, float("nan"))
    if task.method != BASE:
        done = train(model, encode(tokenizer, chosen), settings.tune, task.seed)
    heldout = {kind: read_records(folders.work / "data" / "heldout" / f"{kind}.jsonl") for kind in KINDS}
    everything = [record for kind in KINDS for record in heldout[kind]]
    right = iter(ask(model, tokenizer, everything, settings.evaluation))
    return Run(
        settings_sha256=settings.digest(),
        method=task.method,
        ratio=task.ratio,
        seed=task.seed,
        subset_sha256=subset_digest(task.ids),
        num_traces=len(chosen),
        num_updates=done.num_updates,
        num_traces_seen=done.num_traces_seen,
        num_tokens_learnt=done.num_tokens_learnt,
        last_loss=None if task.method == BASE else done.last_loss,
        heldout_loss=heldout_loss(model, encode(tokenizer, everything), settings.evaluation.batch_size),
        right={kind: "".join("01"[next(right)] for _ in heldout[kind]) for kind in KINDS},
        seconds=round(time.perf_counter() - began, 2),
    )


def tune_all(
    settings: Settings, folders: Folders, tasks: Sequence[Task], num_workers: int, tell: Callable[[str], None]
) -> dict[RunKey, Run]:
    """Do what is missing of the tasks and return the runs of all. Lines are in the order of the tasks."""
    runs = read_runs(folders.runs, settings.digest())
    for task in tasks:
        if task.key in runs and runs[task.key].subset_sha256 != subset_digest(task.ids):
            raise ResumeMismatch(
                f"{folders.runs} has a result for {task.key} from another subset than is chosen now: the work folder "
                "is another one. Move the old results away."
            )
    missing = [task for task in tasks if task.key not in runs]
    if runs:
        tell(f"{len(tasks) - len(missing)} of {len(tasks)} trainings were done before and are skipped.")
    for number, run in enumerate(_map(settings, folders.out, missing, num_workers), start=1):
        append_run(folders.runs, run)
        runs[run.key] = run
        share = sum(text.count("1") for text in run.right.values()) / sum(map(len, run.right.values()))
        tell(f"{number}/{len(missing)} {run.method} {run.ratio} seed {run.seed}: {share:.3f} right, {run.seconds} s")
    return {task.key: runs[task.key] for task in tasks}


def _map(settings: Settings, out: Path, tasks: Sequence[Task], num_workers: int) -> Iterator[Run]:
    if num_workers == 1 or len(tasks) < 2:
        before = torch.get_num_threads()
        try:
            yield from (tune(settings, out, task) for task in tasks)
        finally:
            torch.set_num_threads(before)
        return
    with multiprocessing.get_context("spawn").Pool(num_workers) as pool:
        yield from pool.imap(_Tuner(settings, out), tasks)


@dataclass(frozen=True, slots=True)
class _Tuner:
    """A task's function as processes can be sent it."""

    settings: Settings
    out: Path

    def __call__(self, task: Task) -> Run:
        return tune(self.settings, self.out, task)
