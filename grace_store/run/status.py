"""How far a store is, in counts that add up, and what it was made from: from the plan and the commits alone."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from grace_store.base.errors import Corrupt, UnknownName
from grace_store.base.metadata import Plan, Sharing, Signal
from grace_store.base.settings import Frozen
from grace_store.data.folders import name_files
from grace_store.store.opened import SignalView, Store
from grace_store.store.unit_writer import Totals


class SignalStatus(Frozen):
    """The state of every sample in one signal."""

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
    """The state of every record: planned, done, or set aside, in the least finished signal; and the documents."""

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
    """How many samples have each flag of the text."""
    signal: str | None
    signals: dict[str, SignalStatus]
    is_complete: bool
    plan: Plan
    """What the store was planned from: files, settings, digests."""
    documents: dict[str, Signal]
    """What each signal was made with: kind, model, settings, digests."""
    sharing: dict[str, Sharing]
    """Of the signals that keep it: whether samples share prompts and images, and what a probe found of that."""
    damaged_sharing: dict[str, str]
    """Of the signals where that cannot be read: why, and what to do."""


def status(store: Store | str | Path, signal: str | None = None) -> Status:
    """Return what a store was made from, and its counts: those of the named signal, or else of the least finished."""
    store = store if isinstance(store, Store) else Store.open(store)
    plan = store.plan
    views = {name: store.signal(name) for name in store.signal_names}
    signals = {name: signal_status(view) for name, view in views.items()}
    sharing, damaged = _sharing(views)
    if signal is not None:
        store.signal(signal)  # raises if there is none of that name
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
    )


def _sharing(views: Mapping[str, SignalView]) -> tuple[dict[str, Sharing], dict[str, str]]:
    """Return what signals keep about sharing, and why that of others cannot be read."""
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
    return sharing, damaged


def set_aside_rows(store: Store, signal: str | None) -> Iterator[dict[str, Any]]:
    """Yield every record that was set aside, when planning or in a signal: row, place, the reason, the detail."""
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
    """Return the file and the record's number in it, from 0, of a row of the dataset."""
    names = name_files([Path(file.path) for file in store.plan.files])
    starts = list(accumulate((file.num_records for file in store.plan.files), initial=0))
    file = bisect_right(starts, row, hi=len(names)) - 1
    return f"{names[file]}:{row - starts[file]}"


def check_planned(store: Store, sample: str) -> None:
    """Raise UnknownName, saying why, for a "#row" whose record was set aside when the store was planned."""
    if not (sample.startswith("#") and sample[1:].isdigit()):
        return
    for row, reason, detail in store.records_set_aside():
        if row == int(sample[1:]):
            why = f"{reason}: {detail}" if detail else reason
            place = record_place(store, row)
            raise UnknownName(f"Row {row} ({place}) was set aside when the store was planned: {why}.")


def why_set_aside(view: SignalView, sample: int) -> str:
    """Return the detail with which a signal set a sample aside; empty if it did not."""
    unit = view.store.plan.unit_of(sample)
    if unit not in view.committed_units():
        return ""
    return next((why.detail for why in view.commit(unit).set_aside if why.sample == sample), "")


def signal_status(view: SignalView) -> SignalStatus:
    """Return the counts of one signal: one small file if it is complete, else its commits added up."""
    plan = view.store.plan
    units = view.committed_units()
    completion = view.completion() if len(units) == plan.num_units else None
    found = completion or Totals(view.commits(units))
    sums = {name: getattr(found, name) for name in ("num_done", "set_aside", "num_tokens", "num_bytes")}
    num_planned = plan.num_samples - found.num_done - sum(found.set_aside.values())
    return SignalStatus(num_units=plan.num_units, num_units_done=len(units), num_planned=num_planned, **sums)
