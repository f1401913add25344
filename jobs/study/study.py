"""The whole study: data, base model, curation, trainings, findings. Run again, it does what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from grace_store.base.events import Event, Note, Warned
from grace_store.base.finding import Finding
from grace_store.pool.pool import Pool
from grace_store.scoring.score_table import read_scores
from grace_store.study.fidelity import FidelitySettings, fidelity
from grace_store.study.stability import StabilitySettings, stability
from jobs.study.curation import Curation
from jobs.study.environment import claim
from jobs.study.folders import Folders
from jobs.study.learner import make_base
from jobs.study.methods import BASE, FULL
from jobs.study.runs import NONE, WHOLE, Run, RunKey
from jobs.study.settings import Settings
from jobs.study.traces import Record, StudyData, make_data, write_data
from jobs.study.tuning import Task, tune_all

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Study:
    """All that the findings are made from."""

    settings: Settings
    folders: Folders
    pool: list[Record]
    runs: dict[RunKey, Run]
    subsets: dict[RunKey, list[str]]
    values: dict[str, dict[str, float]]
    """By method, of the study's first seed, by sample."""
    stability: Finding
    fidelity: Finding


def run_study(settings: Settings, out: Path, *, num_workers: int = 2, tell: Tell = lambda text: None) -> Study:
    """Do what is missing of a study and return what it came to."""
    folders = Folders(out)
    claim(settings, folders.settings)
    data = make_data(settings.data)
    write_data(data, folders.work / "data")
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        _teach(settings, data, folders, tell)
        curation = Curation(settings, folders, _listener(tell))
        curation.run()
        subsets = _choose(settings, data, curation)
        stability, fidelity = _audit(settings, folders, curation, tell)
    finally:
        torch.set_num_threads(threads)
    tasks = [Task(*key, tuple(ids)) for key, ids in subsets.items()]
    runs = tune_all(settings, folders, tasks, num_workers, tell)
    values = {
        name: _values(curation, name, settings.seeds[0])
        for name in (*settings.score.methods, *settings.score.ablations)
    }
    return Study(settings, folders, data.pool, runs, subsets, values, stability, fidelity)


def _teach(settings: Settings, data: StudyData, folders: Folders, tell: Tell) -> None:
    """Teach the base model, unless it is there; its folder appears whole."""
    if folders.base.is_dir():
        return
    tell(f"Teaching the base model {settings.base.num_updates} updates of single-step problems.")
    partial = folders.base.with_name("base.part")
    shutil.rmtree(partial, ignore_errors=True)
    make_base(settings.model, settings.base, data.lessons, settings.data.seed, partial)
    partial.rename(folders.base)


def _listener(tell: Tell) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        if isinstance(event, Note | Warned):
            tell(event.text)

    return listen


def _choose(settings: Settings, data: StudyData, curation: Curation) -> dict[RunKey, list[str]]:
    """Return what every training is of: references first, then methods at all ratios, then ablations."""
    everything = [record["id"] for record in data.pool]
    subsets: dict[RunKey, list[str]] = {(BASE, NONE, settings.seeds[0]): []}
    subsets |= {(FULL, WHOLE, seed): everything for seed in settings.seeds}
    wanted = [(method, ratio) for method in settings.score.methods for ratio in settings.score.ratios]
    wanted += [(method, settings.score.main_ratio) for method in settings.score.ablations]
    for method, ratio in wanted:
        for seed in settings.seeds:
            subsets[method, ratio, seed] = curation.choose(method, ratio, seed)
    return subsets


def _audit(settings: Settings, folders: Folders, curation: Curation, tell: Tell) -> tuple[Finding, Finding]:
    """Ask what of GRACE's choice survives, and how the proxy follows whole gradients, on the study's own store."""
    tell("Auditing stability and fidelity.")
    store, signal = str(folders.pool_store), curation.scored_signal
    others = [name for name in curation.proxy_signals if name != signal]
    ratio = settings.score.main_ratio
    pool = Pool.of(store, signals=signal)
    survived = stability(Pool.of(pool, threads=1), StabilitySettings(against=tuple(others), ratio=ratio))
    followed = FidelitySettings(samples=settings.evaluation.fidelity_samples, ratio=ratio, device="cpu")
    return survived, fidelity(Pool.of(pool, threads=settings.threads), followed)


def _values(curation: Curation, method: str, seed: int) -> dict[str, float]:
    table = read_scores(curation.score(method, seed), steps=False)
    return dict(zip(table.sample_id, table.value.tolist(), strict=True))
