"""Is a store still what a file was made from? Holds notes against plans, signals and units."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from grace_store.artifacts.notes import NamedSignal, ScoresNote, SignalNote, StoreNote
from grace_store.artifacts.score_table import ScoreTable
from grace_store.base.errors import NotAStore, ResumeMismatch
from grace_store.store.opened import Store


class MadeFrom(Protocol):
    """What is known of the store that something was made from."""

    @property
    def store(self) -> str: ...

    @property
    def plan_sha256(self) -> str: ...


def check_plan_of(note: MadeFrom, store: Store, what: str | None = None) -> None:
    """Raise ResumeMismatch unless a file was made from the store's present plan; what says its kind and name."""
    if note.plan_sha256 != store.plan.digest():
        what = what or (note.words.partition(" ")[2] if isinstance(note, StoreNote) else "file")
        belongs = (
            "Make it again" if note.store == store.location else f"It belongs to {note.store}: give one of this store"
        )
        raise ResumeMismatch(f"The {what} was made from another plan than the one now in {store.location}. {belongs}.")


def open_made_from(note: MadeFrom, moved: Store | str | Path | None, what: str, option: str) -> Store:
    """Open the store that a file was made from, or where it is now; option is how a user says that."""
    if moved is not None:
        return moved if isinstance(moved, Store) else Store.open(moved)
    try:
        return Store.open(note.store)
    except NotAStore:
        raise NotAStore(
            f"The {what} was made from {note.store}, where no store is any more. If it moved, give its new place "
            f"with {option}."
        ) from None


def check_made_from(note: ScoresNote, store: Store, what: str | None = None) -> None:
    """Raise ResumeMismatch unless the store still is what a table was made from: plan, signals, units."""
    check_plan_of(note, store, what)
    check_signals_of(note.signals, store)


def check_signals_of(signals: Mapping[str, SignalNote], store: Store) -> None:
    """Raise ResumeMismatch unless signals of the store are the same and as far as they were."""
    for key, then in signals.items():
        name = then.name if isinstance(then, NamedSignal) else key
        view = store.signal(name)
        if view.signal.identity() != then.sha256:
            raise ResumeMismatch(
                f"Signal {name!r} of {store.location} is another one than the scores were made from. Score it again."
            )
        num_units = len(view.committed_units())
        if num_units != then.num_units:
            raise ResumeMismatch(
                f"Signal {name!r} of {store.location} had {then.num_units} units when it was scored and has "
                f"{num_units} now, so the same table cannot be made. Score it anew."
            )


def open_store_of(scores: ScoreTable, location: str | None = None) -> Store:
    """Open the store that a table was made from, or a copy elsewhere, and make sure that it has the same plan."""
    store = open_made_from(scores.note, location or None, scores.what, "--store")
    check_plan_of(scores.note, store, scores.what)
    return store
