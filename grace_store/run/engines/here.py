"""The engine that runs units in this process."""

from pathlib import Path

from grace_store.base.events import Note
from grace_store.run.engines.engine import Engine, Work
from grace_store.run.engines.worker import ListFeed, run_units


class _Here(Engine):
    def run(self, work: Work) -> None:
        model, adapter = work.job.model or "", work.job.adapter
        work.listener(Note(f"Loading {Path(model).name}{f' with {Path(adapter).name}' if adapter else ''}."))
        run_units(work.job, work.view, work.dataset, ListFeed(work.units, work.stop), work.listener)


ENGINE = _Here()
