"""From the pool to subsets, by grace-store's own jobs: plan, warm up, extract, score, select. Each resumes itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grace_store.base.events import Listener
from grace_store.base.settings import DataSpec, ExtractSpec, GradientSpec, RunOptions
from grace_store.base.training_settings import WarmupOptions, WarmupSpec
from grace_store.choose.select import select
from grace_store.choose.selection import Selection
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.plan import plan
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.targets import Targets
from grace_store.store.opened import Store
from grace_store.train.warmup import WarmupJob, warmup
from grace_store.values.methods.method import InfluenceSpec, ScoreSpec
from jobs.study.folders import Folders
from jobs.study.methods import METHODS
from jobs.study.problems import KINDS
from jobs.study.runs import append_line, whole_lines
from jobs.study.settings import Settings

BARE = "bare"
"""The signal of the base model without a warm-up."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One extraction: what is read, by which checkpoint, into which signal."""

    name: str
    adapter: Path | None
    request: ExtractSpec
    of_targets: bool = False


class Curation:
    """The pipeline over one work folder. Calling it again does what is missing."""

    def __init__(self, settings: Settings, folders: Folders, listener: Listener) -> None:
        self._settings = settings
        self._folders = folders
        self._listener = listener
        self._checkpoints: list[str] = []

    def run(self) -> None:
        """Write the stores: the pool's and the targets', with every signal that some method needs."""
        request = DataSpec(format="explicit", min_steps=self._settings.data.fewest_steps)
        unit = self._settings.score.unit_samples
        targets = [self._folders.targets / f"{kind}.jsonl" for kind in KINDS]
        plan([self._folders.pool], self._folders.pool_store, request, samples_per_unit=unit, listener=self._listener)
        plan(targets, self._folders.target_store, request, samples_per_unit=unit, listener=self._listener)
        first, *others = self._settings.warmup.seeds
        self._checkpoints = self._warm_up(first)
        for signal in [*self._signals(), *(self._of_seed(seed) for seed in others)]:
            self._extract(signal)

    def _warm_up(self, seed: int) -> list[str]:
        """Train the scoring model's adapter and return its checkpoints' names, the last one last."""
        chosen = self._settings.warmup
        job = WarmupJob(
            out=self._folders.warmup(seed),
            model=str(self._folders.base),
            store=str(self._folders.pool_store),
            request=WarmupSpec(
                ratio=chosen.ratio,
                seed=seed,
                checkpoints=chosen.checkpoints,
                rank=chosen.rank,
                alpha=chosen.alpha,
                learning_rate=chosen.learning_rate,
                batch_size=chosen.batch_size,
                num_epochs=chosen.num_epochs,
                max_length=self._settings.model.max_length,
            ),
            options=WarmupOptions(threads=self._settings.threads, device="cpu", gradient_checkpointing=False),
        )
        began = time.perf_counter()
        is_new = not (job.out / "done.json").is_file()
        done = warmup(job, self._listener)
        if is_new:
            self._note_cost(f"warm-up {seed}", began)
        return list(done.checkpoints)

    def _signals(self) -> list[Signal]:
        folder = self._folders.warmup(self._settings.warmup.seeds[0])
        proxy = ExtractSpec(max_length=self._settings.model.max_length, storage="float32")
        last = self._checkpoints[-1]
        signals = [Signal(BARE, None, proxy)]
        signals += [Signal(name, folder / name, proxy) for name in self._checkpoints]
        signals.append(Signal(f"segments-{last}", folder / last, self._gradient(proxy, per="segment")))
        for name in self._checkpoints:
            signals.append(Signal(f"adam-{name}", folder / name, self._gradient(proxy, preconditioner="adam")))
            signals.append(Signal(f"plain-{name}", folder / name, self._gradient(proxy), of_targets=True))
        signals.append(Signal(f"plain-{last}", folder / last, self._gradient(proxy)))
        return signals

    def _gradient(self, request: ExtractSpec, **wishes: str) -> ExtractSpec:
        dimension = self._settings.score.projection_dimension
        gradient = GradientSpec.model_validate({"dimension": dimension, **wishes})
        return request.model_copy(update={"kind": "gradient", "gradient": gradient})

    def _of_seed(self, seed: int) -> Signal:
        """Return the last checkpoint of another warm-up, for the stability audit."""
        last = self._warm_up(seed)[-1]
        request = ExtractSpec(max_length=self._settings.model.max_length, storage="float32")
        return Signal(f"seed-{seed}", self._folders.warmup(seed) / last, request)

    def _extract(self, signal: Signal) -> None:
        store = self._folders.target_store if signal.of_targets else self._folders.pool_store
        job = ExtractJob(
            store=str(store),
            model=str(self._folders.base),
            signal=signal.name,
            adapter=None if signal.adapter is None else str(signal.adapter),
            request=signal.request,
            options=RunOptions(threads=self._settings.threads, device="cpu"),
        )
        opened = Store.open(store)
        is_new = signal.name not in opened.signal_names or opened.signal(signal.name).completion() is None
        began = time.perf_counter()
        view = extract(job, self._listener)
        if is_new:
            num_bytes = sum(
                file.stat().st_size for file in (store / "signals" / signal.name).rglob("*") if file.is_file()
            )
            self._note_cost(
                f"{'targets' if signal.of_targets else 'pool'} {view.name}",
                began,
                num_bytes,
                view.store.plan.num_samples,
            )

    def _note_cost(self, what: str, began: float, num_bytes: int = 0, num_samples: int = 0) -> None:
        """Write down what was done just now and how long it took; a resumed piece has several lines."""
        # What a killed run left of a line must not join the next one.
        whole_lines(self._folders.costs)
        seconds = round(time.perf_counter() - began, 3)
        append_line(
            self._folders.costs,
            {"what": what, "seconds": seconds, "num_bytes": num_bytes, "num_samples": num_samples},
        )

    @property
    def scored_signal(self) -> str:
        """The signal that GRACE and the heuristics look at: the last checkpoint's proxies."""
        return self._checkpoints[-1]

    @property
    def proxy_signals(self) -> list[str]:
        """Every signal of proxies: without a warm-up, of each checkpoint, and of other warm-up seeds."""
        return [BARE, *self._checkpoints, *(f"seed-{seed}" for seed in self._settings.warmup.seeds[1:])]

    def score(self, method: str, seed: int) -> Path:
        """Write the scores of a method, if they are not there, and return where; only Random looks at the seed."""
        chosen = METHODS[method]
        spec = chosen.spec or ScoreSpec(measure=("random",), seed=seed)
        out = self._folders.scores / (f"{method}-{seed}.parquet" if chosen.spec is None else f"{method}.parquet")
        if out.is_file():
            return out
        out.parent.mkdir(parents=True, exist_ok=True)
        last, every = self._checkpoints[-1], self._checkpoints
        names: dict[str, Sequence[str]] = {
            "proxy": [last],
            "projected": [f"segments-{last}"],
            "adam": [f"adam-{name}" for name in every],
            "plain": [f"plain-{last}"],
        }
        targets = None
        if isinstance(spec, InfluenceSpec):
            plain = every if chosen.signals == "adam" else [last]
            targets = Targets(str(self._folders.target_store), tuple(f"plain-{name}" for name in plain))
        request = ScoreRequest(spec=spec, signals=names[chosen.signals], targets=targets)
        score(self._folders.pool_store, request, out=out, threads=1, listener=self._listener)
        return out

    def choose(self, method: str, ratio: str, seed: int) -> list[str]:
        """Return the ids of a method's subset, in the order of the records."""
        request = Selection(by=self._settings.score.by)
        return select(self.score(method, seed), request, ratio=ratio).sample_id
