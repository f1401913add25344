"""What a store was made from: its plan, and the document of each signal."""

from pathlib import Path

from grace_store.base.metadata import Plan, Sharing, Signal
from grace_store.base.settings import Frozen
from grace_store.store.opened import Store


class StoreInfo(Frozen):
    """The documents of a store."""

    plan: Plan
    signals: dict[str, Signal]
    sharing: dict[str, Sharing]
    """Of the signals that keep it: whether samples share prompts and images, and what a trial found of that."""


def info(store: Store | str | Path) -> StoreInfo:
    """Return the plan of a store and the documents of its signals: files, settings, models, digests."""
    opened = store if isinstance(store, Store) else Store.open(store)
    views = {name: opened.signal(name) for name in opened.signal_names}
    sharing = {name: kept for name, view in views.items() if (kept := view.sharing()) is not None}
    return StoreInfo(plan=opened.plan, signals={name: view.signal for name, view in views.items()}, sharing=sharing)
