"""Extract every signal that was asked for, on whatever is to do the work."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grace_store.base.events import Listener, ignore
from grace_store.run.engines.choice import EngineChoice, choose_engine
from grace_store.run.engines.engine import EngineOptions
from grace_store.run.extract import ExtractJob, extract, is_finished
from grace_store.run.open_signal import choose_signals
from grace_store.store.lock import Shard
from grace_store.store.opened import SignalView


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """Wishes about who does the work. What is not said follows from the machine and its environment."""

    workers: int | None = None
    shard: Shard | None = None
    elsewhere: EngineOptions | None = None
    """An engine beyond this machine."""


def extract_signals(
    job: ExtractJob,
    signals: Sequence[str] = (),
    adapters: Sequence[str] = (),
    engine: EngineRequest | None = None,
    listener: Listener = ignore,
    stop: threading.Event | None = None,
) -> list[SignalView]:
    """Do what is missing of every signal and return them; the job's own signal, adapter and engine are left aside.

    A training's folder among the adapters stands for all its checkpoints. With neither signals nor adapters nor a
    model, these are the store's signals that are not finished.
    """
    chosen = choose_signals(job.store, signals, adapters, job.model, job.request)
    jobs = [replace(job, signal=name, adapter=adapter) for name, adapter in chosen]
    how = _engine(jobs, engine or EngineRequest())
    spread = [replace(each, options=how.options, shard=how.shard, engine=how.engine) for each in jobs]
    return [extract(each, listener, stop) for each in spread]


def _engine(jobs: Sequence[ExtractJob], wished: EngineRequest) -> EngineChoice:
    options = jobs[0].options
    if all(map(is_finished, jobs)):  # nobody should wait for torch to count GPUs that will have nothing to do
        return EngineChoice(options, wished.shard or (0, 1))
    return choose_engine(options, wished.workers, wished.shard, elsewhere=wished.elsewhere)
