"""What a store was made from: its plan, and the document of each signal."""

from pathlib import Path

from grace_store.base.errors import Corrupt
from grace_store.base.metadata import Plan, Sharing, Signal
from grace_store.base.settings import Frozen
from grace_store.store.opened import Store


class StoreInfo(Frozen):
    """The documents of a store."""

    plan: Plan
    signals: dict[str, Signal]
    sharing: dict[str, Sharing]
    """Of the signals that keep it: whether samples share prompts and images, and what a trial found of that."""
    damaged_sharing: dict[str, str]
    """Of the signals where that cannot be read: why, and what to do."""


def info(store: Store | str | Path) -> StoreInfo:
    """Return the plan of a store and the documents of its signals: files, settings, models, digests."""
    opened = store if isinstance(store, Store) else Store.open(store)
    views = {name: opened.signal(name) for name in opened.signal_names}
    sharing: dict[str, Sharing] = {}
    damaged: dict[str, str] = {}
    for name, view in views.items():
        try:
            kept = view.sharing()
        except Corrupt as error:
            damaged[name] = str(error)
            continue
        if kept is not None:
            sharing[name] = kept
    signals = {name: view.signal for name, view in views.items()}
    return StoreInfo(plan=opened.plan, signals=signals, sharing=sharing, damaged_sharing=damaged)
