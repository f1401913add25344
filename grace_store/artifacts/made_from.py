"""What a file was made from, for its note, and whether a store still is that: its plan, signals and units."""

from collections.abc import Mapping
from typing import Any

from grace_store.artifacts.measures import FidelityDocument, StabilityDocument
from grace_store.artifacts.notes import NamedSignal, ScoredSignal, ScoresNote, SignalNote, StoreNote, TargetsNote
from grace_store.artifacts.score_table import ScoreTable
from grace_store.artifacts.trial_documents import Trial
from grace_store.base.errors import NotAStore, ResumeMismatch
from grace_store.read.blocks import CommittedSignals
from grace_store.read.signal_choice import SignalWeights
from grace_store.store.opened import Store, StoreLike
from grace_store.values.methods import METHODS
from grace_store.values.methods.method_spec import MethodSpec


def store_note(signals: CommittedSignals) -> dict[str, Any]:
    """Return the fields of a StoreNote for what is made from some signals of a store."""
    place, plan = signals.store.location, signals.store.plan
    of_plan = {"plan_sha256": plan.digest(), "num_units": plan.num_units}
    return {"store": place, "partial": signals.is_partial, **of_plan}


def signal_notes(signals: CommittedSignals) -> dict[str, dict[str, Any]]:
    """Return the fields of a SignalNote for each of some signals, by name."""
    pairs = zip(signals.views, signals.committed, strict=True)
    return {view.name: {"sha256": view.signal.identity(), "num_units": len(units)} for view, units in pairs}


def scores_note(signals: CommittedSignals, spec: MethodSpec, weights: SignalWeights, **more: Any) -> ScoresNote:
    """Return the note of a table of scores; more are fields that only some methods have."""
    has_grams = METHODS[spec.method].reads == "grams"
    hygiene = (*(signals.store.plan.flagged or ()), *(("same_direction",) if has_grams else ()))
    scored = weighted_signals(signals, weights)
    return ScoresNote(spec=spec, signals=scored, hygiene=hygiene, **store_note(signals), **more)


def weighted_signals(signals: CommittedSignals, weights: SignalWeights) -> dict[str, ScoredSignal]:
    """Return each of some signals as a note says it, with its weight."""
    notes = signal_notes(signals).items()
    return {name: ScoredSignal(weight=weights.weights[name], **note) for name, note in notes}


Planned = StoreNote | TargetsNote | StabilityDocument | FidelityDocument | Trial
"""What says which plan it was made from."""


def check_plan_of(note: Planned, store: Store, what: str | None = None) -> None:
    """Raise ResumeMismatch unless a file was made from the store's present plan; what says its kind and name."""
    if note.plan_sha256 != store.plan.digest():
        what = what or (note.words.partition(" ")[2] if isinstance(note, StoreNote) else "file")
        belongs = (
            "Make it again" if note.store == store.location else f"It belongs to {note.store}: give one of this store"
        )
        raise ResumeMismatch(f"The {what} was made from another plan than the one now in {store.location}. {belongs}.")


def open_made_from(note: StoreNote | TargetsNote, moved: StoreLike | None, what: str, option: str) -> Store:
    """Open the store that a file was made from, or where it is now; option is how a user says that."""
    if moved is not None:
        return moved if isinstance(moved, Store) else Store.open(moved)
    try:
        return Store.open(note.store)
    except NotAStore:
        raise NotAStore(
            f"The {what} was made from {note.store}, where there is no store any more. If it moved, give its new place "
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
                f"{num_units} now, so the same table cannot be made. Score it again."
            )


def open_store_of(scores: ScoreTable, location: str | None = None) -> Store:
    """Open the store that a table was made from, or a copy elsewhere, and make sure that it has the same plan."""
    store = open_made_from(scores.note, location or None, scores.what, "--store")
    check_plan_of(scores.note, store, scores.what)
    return store
