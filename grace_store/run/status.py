"""Report the progress and the origin of a store, from its plan and commits alone."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from grace_store.base.errors import Corrupt, UnknownName
from grace_store.base.metadata import Plan, Sharing, Signal
from grace_store.base.settings import Frozen
from grace_store.data.folders import name_files
from grace_store.store.lock import live_runs
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import Totals


class SignalStatus(Frozen):
    """Counts of a signal's samples by state."""

    num_units: int
    num_units_done: int
    num_planned: int
    num_done: int
    set_aside: dict[str, int]
    num_tokens: int
    num_bytes: int

    @property
    def is_complete(self) -> bool:
        return self.num_units == self.num_units_done


class Status(Frozen):
    """Counts of a store's records by state (planned, done, set aside) in one signal, and the store's documents."""

    store: str
    num_records: int
    num_planned: int
    num_done: int
    num_set_aside: int
    set_aside: dict[str, int]
    num_units: int
    num_units_done: int
    num_bytes: int
    flagged: dict[str, int]
    """Number of samples with each text flag."""
    signal: str | None
    """The signal that the counts are about; None if the store has no signal."""
    signals: dict[str, SignalStatus]
    is_complete: bool
    plan: Plan
    """The files, settings and digests that the store was planned with."""
    documents: dict[str, Signal]
    """The kind, model, settings and digests of each signal."""
    sharing: dict[str, Sharing]
    """Whether the samples of a signal share prompts and images, for the signals that record this."""
    damaged_sharing: dict[str, str]
    """The error, for each signal with an unreadable record of sharing."""
    running: dict[str, str]
    """The runs that write the store now, by signal (or signal and shard): process, machine and start."""


def status(store: Store | str | Path, signal: str | None = None) -> Status:
    """Return a store's documents, and its counts in the named signal, or else in the least finished signal."""
    store = store if isinstance(store, Store) else Store.open(store)
    plan = store.plan
    views = {name: store.signal(name) for name in store.signal_names}
    signals = {name: signal_status(view) for name, view in views.items()}
    sharing: dict[str, Sharing] = {}
    damaged: dict[str, str] = {}
    for name, view in views.items():
        try:
            if (kept := view.sharing()) is not None:
                sharing[name] = kept
        except Corrupt as error:
            damaged[name] = str(error)
    if signal is not None:
        store.signal(signal)  # raises UnknownName if the store has no such signal
    chosen = signal or min(signals, key=lambda name: (signals[name].num_units_done, name), default=None)
    at = signals[chosen] if chosen else None
    aside = Counter(plan.set_aside) + Counter(at.set_aside if at else {})
    return Status(
        store=store.location,
        num_records=plan.num_records,
        num_planned=at.num_planned if at else plan.num_samples,
        num_done=at.num_done if at else 0,
        num_set_aside=sum(aside.values()),
        set_aside=dict(sorted(aside.items())),
        num_units=plan.num_units,
        num_units_done=at.num_units_done if at else 0,
        num_bytes=sum(each.num_bytes for each in signals.values()),
        flagged=plan.flagged,
        signal=chosen,
        signals=signals,
        is_complete=bool(signals) and all(each.is_complete for each in signals.values()),
        plan=plan,
        documents={name: view.signal for name, view in views.items()},
        sharing=sharing,
        damaged_sharing=damaged,
        running=live_runs(store.backend),
    )


def set_aside_rows(store: Store, signal: str | None) -> Iterator[dict[str, Any]]:
    """Yield row, place, id, reason and detail of every record that the plan or a signal set aside."""
    for row, reason, detail in store.records_set_aside():
        yield {"row": row, "place": record_place(store, row), "sample_id": None, "reason": reason, "detail": detail}
    if signal is None:
        return
    view = store.signal(signal)
    for commit in view.commits(view.committed_units()):
        for why in commit.set_aside:
            rows = store.samples(why.sample, why.sample + 1)
            row, verdict = int(rows.row[0]), {"reason": why.reason.value, "detail": why.detail}
            yield {"row": row, "place": record_place(store, row), "sample_id": rows.sample_id[0], **verdict}


def record_place(store: Store, row: int) -> str:
    """Return the place of a dataset row as FILE:NUMBER, with numbers from 0."""
    names = name_files([Path(file.path) for file in store.plan.files])
    starts = list(accumulate((file.num_records for file in store.plan.files), initial=0))
    file = bisect_right(starts, row, hi=len(names)) - 1
    return f"{names[file]}:{row - starts[file]}"


def check_planned(store: Store, sample: str) -> None:
    """Raise UnknownName with the reason if a sample is given as "#row" and the plan set that record aside."""
    if not (sample.startswith("#") and sample[1:].isdigit()):
        return
    for row, reason, detail in store.records_set_aside():
        if row == int(sample[1:]):
            why = f"{reason}: {detail}" if detail else reason
            place = record_place(store, row)
            raise UnknownName(f"Row {row} ({place}) was set aside when the store was planned: {why}.")


def why_set_aside(view: SignalView, sample: int) -> str:
    """Return why a signal set a sample aside; empty if it did not."""
    if (unit := view.store.plan.unit_of(sample)) not in view.committed_units():
        return ""
    return next((why.detail for why in view.commit(unit).set_aside if why.sample == sample), "")


def signal_status(view: SignalView) -> SignalStatus:
    """Return the counts of one signal, from its totals if it is complete, else from its commits."""
    plan = view.store.plan
    units = view.committed_units()
    completion = view.completion() if len(units) == plan.num_units else None
    found = completion or Totals(view.commits(units))
    sums = {name: getattr(found, name) for name in ("num_done", "set_aside", "num_tokens", "num_bytes")}
    num_planned = plan.num_samples - found.num_done - sum(found.set_aside.values())
    return SignalStatus(num_units=plan.num_units, num_units_done=len(units), num_planned=num_planned, **sums)
