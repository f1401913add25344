"""Compute the units of a store that were split once more, by what their commits say, and compare every byte.

Run as ``python -m tests.rehearsals.split_again STORE`` in a process that has the device, and enough memory.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from grace_store.base.settings import RunOptions
from grace_store.model.open_model import open_extractor
from grace_store.pool.records import UnitLoader, image_folder, open_dataset
from grace_store.store.lock import hold
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import UnitWriter, withdraw_units
from tests.jobs import content


def regrouped(extractor: Any, prepared: Any, sizes: tuple[int, ...]) -> None:
    """Cut a prepared unit into passes of these numbers of samples, in the order in which they were formed."""
    waiting, batches = list(sizes), []
    for batch in prepared.batches:
        groups = None if batch.shared is None else batch.shared.groups
        members = list(batch.members) if groups is None else [member for group in groups for member in group]
        while members:
            size = waiting.pop(0)
            part, members = members[:size], members[size:]
            if groups is None:
                batches.append(extractor._collate(part, prepared.tokens))
            else:
                kept = [[member for member in group if member in part] for group in groups]
                batches.append(extractor._collate_groups([group for group in kept if group], prepared.tokens))
    prepared.batches = batches


def units_again(view: SignalView, units: list[int], loader: UnitLoader, extractor: Any, writer: UnitWriter) -> None:
    for unit in units:
        samples, spans = loader.load(unit)
        split = view.commit(unit).split
        assert split is not None
        prepared = extractor.prepare(samples)
        regrouped(extractor, prepared, split)
        signals = extractor.compute(prepared).result()
        assert signals.split is None, "there is enough memory now"
        signals.split = split
        withdraw_units(view, [unit])
        writer.write(unit, signals, spans)


def main(path: Path) -> None:
    store = Store.open(path)
    view = store.signal(store.signal_names[0])
    before = content(path)
    completion = {key for key in before if "complet" in key}
    units = [unit for unit in view.committed_units() if view.commit(unit).split]
    origin = view.signal.origin
    with open_dataset(store) as dataset, hold(store.backend, view.name) as lease:
        places = {"adapter": origin.get("adapter"), "images": image_folder(None, view, dataset)}
        extractor = open_extractor(origin["model"], view.signal.spec, RunOptions(), **places)
        loader = UnitLoader(store, dataset)
        units_again(view, units, loader, extractor, UnitWriter(view, lease))
    after = content(path)
    different = sorted(key for key in before if key not in completion and before[key] != after.get(key))
    sys.stdout.write(f"{len(units)} units computed again by their splits; {len(different)} files differ\n")
    sys.exit(bool(different) or not units)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
