"""What a store was made from: its plan, and the document of each signal."""

from pathlib import Path

from grace_store.base.metadata import Plan, Signal
from grace_store.base.settings import Frozen
from grace_store.store.opened import Store


class StoreInfo(Frozen):
    """The documents of a store."""

    plan: Plan
    signals: dict[str, Signal]


def info(store: Store | str | Path) -> StoreInfo:
    """Return the plan of a store and the documents of its signals: files, settings, models, digests."""
    opened = store if isinstance(store, Store) else Store.open(store)
    return StoreInfo(plan=opened.plan, signals={name: opened.signal(name).signal for name in opened.signal_names})
